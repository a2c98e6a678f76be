/* SPDX-License-Identifier: Apache-2.0 */
/* How the test programs treat errors: a call that fails ends the program with status 2 and a line on stderr. */
#ifndef SYMMSHIM_PRELOAD_CHECK_H
#define SYMMSHIM_PRELOAD_CHECK_H

#include "tests/sim/sim_abi.h"

_Noreturn void job_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The rank that the launcher gave this process, and the number of processes. */
int job_rank(void);
int job_size(void);

#define CUDA_CHECK(call)                                                                                               \
  do {                                                                                                                 \
    cudaError_t check_error = (call);                                                                                  \
    if (check_error != cudaSuccess)                                                                                    \
      job_fail("%s:%d: %s gives %u (%s)", __FILE__, __LINE__, #call, check_error, cudaGetErrorString(check_error));    \
  } while (0)

/* ncclInProgress is no error: a non-blocking communicator says so. */
#define NCCL_CHECK(call)                                                                                               \
  do {                                                                                                                 \
    ncclResult_t check_result = (call);                                                                                \
    if (check_result != ncclSuccess && check_result != ncclInProgress)                                                 \
      job_fail("%s:%d: %s gives %u (%s)", __FILE__, __LINE__, #call, check_result, ncclGetErrorString(check_result));  \
  } while (0)

#endif
