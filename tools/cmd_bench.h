/* SPDX-License-Identifier: Apache-2.0 */
/* The part of `symmshim bench` that measures on GPUs. */
#ifndef SYMMSHIM_CMD_BENCH_H
#define SYMMSHIM_CMD_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/gpu/region.h"

struct bench_gpu_settings {
  const char *ops, *dtypes, *redops; /* words that commas part; NULL: all */
  const char *shim, *policy, *libraries, *plot;
  uint64_t min_bytes, max_bytes;
  uint64_t factor; /* from one size to the next */
  int nranks;      /* 0: one for each GPU */
  int rounds;
  int timeout; /* seconds a case */
  bool json, copy_engine, busy;
};

/* Returns an exit status of the command. */
int bench_gpu(char **argv, const struct bench_gpu_settings *settings);

/* Adds the calls that the settings name to the region; returns how many there are. */
int bench_add_cases(const struct bench_gpu_settings *settings, struct gpu_region *region);

/* Tells each result that differs from stock's by more than rounding explains; returns how many there are. */
int bench_check_results(char **argv, const struct gpu_region *region);

/* Options that `bench` and `tune` share: return 0, or CMD_USAGE after the error was told. */
int bench_set_number(char **argv, const char *option, int least, int most, int *number, const char *word);
int bench_set_bytes(char **argv, const char *option, uint64_t *bytes, const char *word);

#endif
