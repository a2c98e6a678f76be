/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena's shadow: in an audit-only run, which of the job's own allocations the arena would have answered, and as
 * which segments. The memory is the real cudaMalloc's; nothing is allocated, mapped or kept here.
 *
 * Owns the table, which is of a fixed size. Asks the CUDA driver questions, with no lock held; knows nothing of NCCL.
 * Entries are `struct segment`, so that what looks at a call's buffers need not know of which kind a segment is.
 */
#ifndef SYMMSHIM_SHADOW_H
#define SYMMSHIM_SHADOW_H

#include <stddef.h>
#include <stdint.h>

#include "shim/arena.h"

/*
 * cudaMalloc gave this memory, on the current device, and policy would have had it from the arena, which may hold
 * `max_bytes` of a device (0: no cap).
 */
void shadow_add(const void *ptr, size_t size, uint64_t max_bytes);

/* cudaFree is about to be called. A segment that would be a window is parked, as the arena does it. NULL is fine. */
void shadow_remove(const void *ptr);

/* The segment that an address lies in; NULL where the arena would not have given the memory. */
struct segment *shadow_find(const void *ptr);

/* A call could make it a window. */
void shadow_use(struct segment *segment);

#endif
