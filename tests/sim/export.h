/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of libcuda.so.1's exported functions share. */
#ifndef SYMMSHIM_SIM_EXPORT_H
#define SYMMSHIM_SIM_EXPORT_H

#include "tests/sim/gpu.h"

/* The call, unless the driver is not ready for it. */
#define READY(call) (gpu_context_check(false) != CUDA_SUCCESS ? gpu_context_check(false) : (call))
#define IN_CONTEXT(call) (gpu_context_check(true) != CUDA_SUCCESS ? gpu_context_check(true) : (call))

#define P(value) ((void *)(uintptr_t)(value))

#endif
