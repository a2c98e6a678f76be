/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the multi-process tests: checks that end the rank with a message, and the steps that all of them begin with.
 */
#ifndef SYMMSHIM_SIM_CHECK_H
#define SYMMSHIM_SIM_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/bootstrap.h"
#include "tests/sim/sim_abi.h"

/* A status of its own, so that a test that expects a crash or a hang is not satisfied by a failed check. */
enum { CHECK_FAILED = 3 };

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, sim_bootstrap_rank(), #condition);                   \
      _Exit(CHECK_FAILED);                                                                                             \
    }                                                                                                                  \
  } while (0)

#define CHECK_IS(value, expected)                                                                                      \
  do {                                                                                                                 \
    long long check_got = (long long)(value);                                                                          \
    long long check_wanted = (long long)(expected);                                                                    \
    if (check_got != check_wanted) {                                                                                   \
      fprintf(stderr, "%s:%d: rank %d: %s is %lld, not %lld\n", __FILE__, __LINE__, sim_bootstrap_rank(), #value,      \
              check_got, check_wanted);                                                                                \
      _Exit(CHECK_FAILED);                                                                                             \
    }                                                                                                                  \
  } while (0)

#define CHECK_OK(call) CHECK_IS(call, 0)

/* One rank of a test. */
struct job {
  int rank;
  int size;
  ncclComm_t comm;
  cudaStream_t stream;
};

/* Device, communicator, stream. */
struct job job_start(void);
void job_end(struct job *job);

/* VMM memory of this rank's device, `size` a multiple of 2 MiB, that can be exported. */
void *segment_create(size_t size);
void segment_free(void *segment, size_t size);

/* A window over a whole segment; registration must succeed. */
ncclWindow_t window_create(const struct job *job, void *segment, size_t size);

/* One scenario of a test program. */
struct scenario {
  const char *name;
  void (*run)(void);
};

/* Runs the one that argv[1] names. */
int scenario_main(int argc, char **argv, const struct scenario *scenarios, size_t count);

/* How often the trace (SIM_TRACE, which the scenario must have set before anything else) has the text. */
int trace_count(const char *text);
/* Makes SIM_TRACE point into SIM_RUN_DIR; before the first CUDA or NCCL call. */
void trace_start(void);

#endif
