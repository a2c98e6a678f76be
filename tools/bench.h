/* SPDX-License-Identifier: Apache-2.0 */
/*
 * symmshim bench: what the shim costs the host. Programs that do nothing but call libraries that do nothing
 * (tools/bench/) are run with and without it, turn by turn, so that a machine that gets slower does so for both.
 *
 * bench_cases.c has what is measured, bench_start.c starts programs, bench_print.c makes figures of the samples.
 */
#ifndef SYMMSHIM_BENCH_H
#define SYMMSHIM_BENCH_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "tools/bench/region.h"

enum { BENCH_MAX_RUNS = 1000, BENCH_LIBRARIES = 300 };

/* How a program is started. */
enum bench_shim {
  BENCH_WITHOUT,
  BENCH_OFF,    /* preloaded, SYMMSHIM=off */
  BENCH_CHANGE, /* at work, the audit log at level change */
  BENCH_CALL    /* at work, the audit log at level call */
};

struct bench {
  const char *shim;
  char programs[PATH_MAX]; /* the folder of tools/bench/ */
  char folder[PATH_MAX];   /* for files on the way; empty when there is none */
  struct bench_region *region;
  int region_fd;
  int runs;
};

/* What is measured. Its samples are one a run; of ranks that are not level, rank 0 comes late and has its own. */
struct bench_case {
  const char *name, *text; /* in JSON and for people */
  const char *base;        /* the name of the case that it is held against; NULL: none */
  enum bench_shim shim;
  int (*sample)(struct bench *bench, const struct bench_case *what, double ns[2]); /* 0 or -1 */
  struct bench_job job;
  bool goes_symmetric;
  double *samples[2]; /* [1]: of the late rank */
};

extern struct bench_case bench_cases[];
extern const int bench_case_count;

/* Folder, region and files. Returns 0, or -1 with errno set. bench_close() is due in any case. */
int bench_open(struct bench *bench);
void bench_close(struct bench *bench);

/* Starts a program of tools/bench/. Returns its pid, or -1 with errno set. */
pid_t bench_start(const struct bench *bench, enum bench_shim shim, const char *program, char *const arguments[]);

/* Whether it ended with status 0. */
bool bench_await(pid_t pid);

double bench_now_ns(void);

void bench_print_table(const struct bench *bench);
void bench_print_json(const struct bench *bench);

#endif
