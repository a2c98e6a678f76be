/* SPDX-License-Identifier: Apache-2.0 */
/* What the in-process tests share: VMM memory in one step, and a gate that holds a stream back. */
#ifndef SYMMSHIM_SIM_TEST_CUDA_H
#define SYMMSHIM_SIM_TEST_CUDA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "tests/sim/sim_abi.h"

#define MIB ((size_t)1 << 20)
#define PIECE (2 * MIB)

#define assert_ok(call) assert_int_equal(call, 0)
#define unused(state) ((void)(state))

static inline CUmemAllocationProp prop_of(int device)
{
  return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                               .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}

/* A gate in a stream: work behind it waits until it is opened. */
static atomic_bool gate_open;

static inline void gate_run(void *arg)
{
  (void)arg;
  while (!atomic_load(&gate_open))
    nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
}

static inline void gate_place(cudaStream_t stream)
{
  atomic_store(&gate_open, false);
  assert_ok(cudaLaunchHostFunc(stream, gate_run, NULL));
}

#endif
