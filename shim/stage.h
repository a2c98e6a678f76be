/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots: windows of the shim's own on a child communicator, through which calls are copied whose buffers do not lie
 * alike on all ranks. They lie alike by construction: all ranks make them at the same call, of the same size, or none
 * does.
 *
 * Owns the slots, from the ranks' agreement on making them to the end of the child. Used by the one thread that holds
 * the child.
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
  STAGE_SLOTS = 2, /* in turn, so that what one call leaves in its slot outlasts the next call */
  STAGE_SIZES = 24 /* each at least twice the one before */
};

struct stage {
  uint64_t slot_bytes; /* of the slots in use; equal on all ranks, as are: */
  uint64_t total;      /* bytes of all that were made */
  uint64_t retry_at;   /* the call before which making larger ones is not tried again */
  uint32_t sizes;
  struct segment *segments[STAGE_SIZES]; /* the last one is in use */
  uint32_t next; /* slot of the next call that all ranks stage; equal on all, since peers find theirs by their own */
};

/* Whether there are slots for so many bytes. */
bool stage_fits(const struct stage *stage, uint64_t bytes);

/*
 * Makes slots for so many bytes if there are none yet, with the other ranks, all of which call this for the same call.
 * Returns REASON_none, no_slot, or register_failed (for good).
 */
enum reason stage_make(struct comm *comm, uint64_t bytes);

/*
 * The slot that is next. The order between calls (order.h) keeps what is in it: a call's copies come after all of the
 * call before, on whatever streams. It is another's turn after a call that all ranks stage, and only then.
 */
void *stage_slot(const struct stage *stage);
void stage_turn(struct stage *stage);

#endif
