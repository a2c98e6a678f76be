/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the null libraries export beyond CUDA's and NCCL's names. Each of their functions returns success at once and
 * does nothing, so that what a call costs under the shim is the shim's.
 */
#ifndef SYMMSHIM_BENCH_NULL_H
#define SYMMSHIM_BENCH_NULL_H

#include <stdint.h>

#include "shim/abi/nccl.h"

/* Called inside ncclCommInitRank, which returns only when all ranks have entered it. */
extern void (*null_meet)(void);

/* A communicator that was not made by any function that the shim sees. */
ncclComm_t null_comm(int nranks, int rank);

/* Collectives on communicators that came from ncclCommSplit. */
uint64_t null_calls_on_child(void);

#endif
