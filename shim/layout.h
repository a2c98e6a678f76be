/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the buffers of a call lie, as this rank sees it, and the ballot that says so to the others.
 *
 * Owns nothing; asks the arena and the tables of windows. Calls neither CUDA nor NCCL, but for the memory that is free.
 */
#ifndef SYMMSHIM_LAYOUT_H
#define SYMMSHIM_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "shim/board.h"
#include "shim/call.h"
#include "shim/plan.h"

struct comm;
struct segment;

/* The window that a buffer lies in: a number that means the same on all ranks, or that it needs a new one. */
enum { WINDOW_NEW = 0 };

struct buffer {
  const void *ptr;
  uint64_t bytes;   /* its full length; UINT64_MAX when that does not fit */
  bool peers_touch; /* other ranks read or write it, so that its offset must be theirs */
  bool copied;      /* this rank copies it, and the others need not know */
  struct segment *segment;
  uint32_t window;
};

struct layout {
  struct buffer send, recv;
  bool capturing;
  bool apart; /* this rank can only take part through slots */
};

struct layout layout_of(const struct call *call, const struct policy_request *request);

/*
 * Looks at the buffers. Returns what keeps this rank from taking part in the plan, as only this rank can know;
 * REASON_none if nothing does.
 */
enum reason layout_look(struct comm *comm, const struct call *call, const struct plan *plan, struct layout *layout);

/*
 * The same in an audit-only run, of what does not hang on windows: there are none, so all seem new. With slots an
 * obstacle to a buffer need not be one to the call: they are in *send and *recv.
 */
enum reason layout_watch(struct comm *comm, const struct call *call, const struct plan *plan, struct layout *layout,
                         enum reason *send, enum reason *recv);

/* The segment that an address lies in, or in an audit-only run would lie in; NULL: none. */
struct segment *layout_segment_at(const void *ptr);

struct board_ballot layout_ballot(const struct comm *comm, const struct call *call, const struct plan *plan,
                                  const struct layout *layout);

/* The segments that the ballot called new, in its order; returns their number. */
int layout_new_segments(const struct layout *layout, struct segment *segments[2]);

/* The ranks could not agree on a new window for what only this rank touches: it is copied from now on. */
void layout_refused(const struct layout *layout);

#endif
