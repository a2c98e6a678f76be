/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots: windows of the shim's own on a child communicator, through which calls are copied whose buffers do not lie
 * alike on all ranks. They lie alike by construction: all ranks make them at the same call, of the same size, or none
 * does.
 *
 * Owns the slots, from the ranks' agreement on making them to the end of the child. Used by the one thread that holds
 * the child. A slot that is in use on one stream is waited for on the next, by an event.
 */
#ifndef SYMMSHIM_STAGE_H
#define SYMMSHIM_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "shim/abi/cuda.h"
#include "shim/reason.h"

struct comm;
struct segment;

enum {
  STAGE_SLOTS = 2, /* so that copying into one overlaps with the call that uses the other */
  STAGE_SIZES = 24 /* each at least twice the one before */
};

struct stage {
  uint64_t slot_bytes; /* of the slots in use; equal on all ranks, as are: */
  uint64_t total;      /* bytes of all that were made */
  uint64_t retry_at;   /* the call before which making larger ones is not tried again */
  uint32_t sizes;
  struct segment *segments[STAGE_SIZES]; /* the last one is in use */
  uint32_t next; /* slot of the next call that all ranks stage; equal on all, since peers find theirs by their own */
  struct {
    CUevent free; /* recorded behind its last use */
    bool used;
  } slots[STAGE_SLOTS];
};

/* Whether there are slots for so many bytes. */
bool stage_fits(const struct stage *stage, uint64_t bytes);

/*
 * Makes slots for so many bytes if there are none yet, with the other ranks, all of which call this for the same call.
 * Returns REASON_none, no_slot, or register_failed (for good).
 */
enum reason stage_make(struct comm *comm, uint64_t bytes);

/*
 * The next slot, once work on this stream may use it; to be given back with the same stream. NULL: a CUDA error.
 * `alone`: the other ranks do not stage this call, so it is still their next one.
 */
void *stage_take(struct comm *comm, CUstream stream);
bool stage_give(struct comm *comm, CUstream stream, bool alone);

/* Lets go of the slots of a child that is about to end, whose work is done. */
void stage_end(struct stage *stage);

#endif
