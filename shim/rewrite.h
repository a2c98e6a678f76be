/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries out the rewrite of a reduction: NCCL sums, and either each contribution is multiplied by a factor on its way
 * into a slot, or the output afterwards, on the stream of the call. Owns the device code, loaded once per context.
 * Calls the CUDA driver only.
 */
#ifndef SYMMSHIM_REWRITE_H
#define SYMMSHIM_REWRITE_H

#include <stdbool.h>
#include <stddef.h>

#include "policy/policy.h"
#include "shim/abi/cuda.h"

/* Makes the device code ready in a context that is current; false when that cannot be done. Idempotent. */
bool rewrite_prepare(CUcontext context);

/* The context was reset, and the device code is gone with it. No thread may be using that. */
void rewrite_forget(CUcontext context);

/*
 * Enqueues to[i] = from[i] * factor on `stream`, in a prepared, current context; `to` and `from` are the same or do not
 * overlap. dtype is bf16, fp16 or fp32. False when the launch failed: then `to` holds no such thing, and the caller
 * must fail the call.
 */
bool rewrite_scale(CUcontext context, CUstream stream, void *to, const void *from, size_t count,
                   enum policy_dtype dtype, float factor);

#endif
