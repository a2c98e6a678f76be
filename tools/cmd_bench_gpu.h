/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring on GPUs, for `symmshim bench` and `symmshim tune`: starts the ranks (tools/gpu/rank.c), one a GPU, under
 * the shim, and waits for their figures.
 */
#ifndef SYMMSHIM_CMD_BENCH_GPU_H
#define SYMMSHIM_CMD_BENCH_GPU_H

#include <stdbool.h>

#include "tools/gpu/region.h"

/* What to measure with, beside what stands in the region. */
struct gpu_run {
  const char *shim;
  const char *policy;      /* a file's name; NULL: the one in force */
  const char *policy_text; /* the policy itself, instead; NULL: none */
  const char *libraries;   /* in front of LD_LIBRARY_PATH; NULL: nothing */
  const char *title;       /* of the progress line */
  int timeout;             /* seconds that one case may take, and the set-up before the first */
  bool look;               /* let a second pass of the ranks find out how many SMs each call takes */
};

/* Memory for a region, zeroed; NULL after the error was told. `fd` gets its descriptor. */
struct gpu_region *gpu_region_new(char **argv, int *fd);

/* "all_reduce sum bf16", and with its size "all_reduce sum bf16 of 64 KiB". */
const char *gpu_name_kind(const struct gpu_case *what, char *text, size_t size);
const char *gpu_name_case(const struct gpu_case *what, char *text, size_t size);

/* "stock NCCL", "through the shim", "windows, 16 CTAs", "copy engine" */
const char *gpu_name_way(const struct gpu_region *region, int way, char *text, size_t size);

/*
 * Runs the ranks to their end, with a progress line on a terminal. `paths` gets how the shim made each case, from its
 * audit log: "window", "staged", "plain (reason)", or "" when it does not say. Returns 0, or -1 after the error was
 * told.
 */
int gpu_measure(char **argv, const struct gpu_run *run, struct gpu_region *region, int fd,
                char paths[GPU_MAX_CASES][40]);

/* The median of a way's rounds, and half the distance of the quartiles around it. */
double gpu_median(const struct gpu_figures *figures, int rounds);
double gpu_spread(const struct gpu_figures *figures, int rounds);

/* Bus bandwidth in GB/s, as nccl-tests defines it. */
double gpu_bus_bandwidth(const struct gpu_case *what, int nranks, double us);

/* The number of GPUs that this process may be given, without a context on any: of their device files. */
int gpu_count(void);

#endif
