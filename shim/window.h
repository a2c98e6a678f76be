/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which segments are windows of which child communicator, and which ranges the job registered with NCCL itself.
 *
 * Owns both tables. Calls NCCL only to register and deregister windows; decides nothing: registration is
 * collective, and whoever calls it has the other ranks' word (child.h).
 */
#ifndef SYMMSHIM_WINDOW_H
#define SYMMSHIM_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "shim/abi/nccl.h"
#include "shim/arena.h"

enum {
  WINDOW_MAX = 1024,    /* of one child */
  WINDOW_BUCKETS = 4096 /* of its table; a power of two */
};

/* A window's number on its child is the number of registrations up to it, so it means the same on every rank. */
struct window {
  uint64_t segment_id;
  struct segment *segment;
  ncclWindow_t handle;
};

struct window_table {
  uint32_t count;
  struct window windows[WINDOW_MAX];
  uint16_t buckets[WINDOW_BUCKETS]; /* window number by segment id; 0 is empty */
};

/* The number of the segment's window, from 1; 0 when it has none. */
uint32_t window_find(const struct window_table *table, const struct segment *segment);

/* Registers a whole segment, on every rank at once. The number is used up in any case, so ranks stay level. */
enum window_outcome {
  WINDOW_MADE,
  WINDOW_NONE,  /* all ranks took part, and NCCL says success, but gave no window */
  WINDOW_FAILED /* the other ranks may be waiting for this one */
};
enum window_outcome window_register(struct window_table *table, ncclComm_t child, struct segment *segment,
                                    int nccl_version);

/* Deregisters all, last first (local to this rank: dev_runtime.cc, 2.28.9), and lets the segments go. */
void window_drop_all(struct window_table *table, ncclComm_t child);

/*
 * A range that the job registered by ncclCommRegister or ncclCommWindowRegister, until it deregisters the handle or
 * ends the communicator. NULL stands for a handle that was not known yet; such a range stays until that end.
 */
void window_job_add(ncclComm_t comm, const void *ptr, size_t size, const void *handle);
void window_job_remove(ncclComm_t comm, const void *handle);
void window_job_forget(ncclComm_t comm);
bool window_job_overlaps(const void *ptr, size_t size);

#endif
