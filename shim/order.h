/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL keeps the calls on one communicator in the order of issue, over streams too, and between graphs and what is
 * launched beside them. With the job's communicator and its child, the two lanes, this module keeps it: a call on the
 * other lane than the last waits for that, by an event. In a capture the wait is an edge of the graph, and at the
 * graph's ends it waits for what runs beside it and is waited for (as NCCL does it itself:
 * misc/strongstream.cc, 2.28.9).
 *
 * Owns the events. Used by the one thread that holds the child. Calls the CUDA driver, and asks NCCL whether a
 * non-blocking call was launched.
 */
#ifndef SYMMSHIM_ORDER_H
#define SYMMSHIM_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "shim/abi/nccl.h"

struct comm;
struct child;

enum lane { LANE_JOB, LANE_CHILD };

struct order {
  CUevent event; /* recorded behind the last call on either lane, in graphs too */
  bool valid;
  bool missing; /* it could not be recorded: only waiting for the whole device tells that the call is done */
  enum lane last;
  bool trailing;  /* it has work of the shim's behind it, which NCCL does not know of */
  bool in_graphs; /* some graph records the event: it says nothing then of which lane was last */

  CUevent join_event;    /* between the streams of one group */
  CUevent capture_event; /* the same inside the capture under way */
  uint64_t capture;
  enum lane capture_last;
  bool capture_trailing;

  bool launching; /* the last call on the job's communicator returned ncclInProgress, on this stream */
  CUstream launch_stream;
};

/* Makes the events, in the child's context, which is current; false when out of memory. Idempotent. */
bool order_open(struct order *order);
void order_close(struct order *order);

/* Whether a stream is being captured into a graph, as far as can be told. */
bool order_is_capturing(CUstream stream);

/*
 * To be called around every launch, and the copies and kernels of the shim's before and after it, as soon as there may
 * be a child. `extra`: there are such.
 */
void order_before(struct child *child, enum lane lane, CUstream stream, bool capturing, bool extra);
void order_after(struct child *child, enum lane lane, CUstream stream, bool capturing, bool extra);

/* Each of the streams comes after what is on any of them by now. */
void order_join(struct child *child, const CUstream streams[], int count);

/* Waits until a non-blocking communicator has launched what it was given; `held`: this thread has the child. */
void order_await_launch(struct comm *comm, bool held);

/* Whether the last call's work is done, after waiting so long for it. */
enum { ORDER_NOW = 0, ORDER_SOON = 100, ORDER_FOR_EVER = INT32_MAX }; /* milliseconds */
bool order_is_done(const struct child *child, uint32_t wait_ms);

/*
 * Around a call on the job's own communicator whose child this thread holds; begin says whether end is due. `result` is
 * what the call returned. In a group the call is launched when the group ends, and noted then.
 */
bool order_plain_begin(struct comm *comm, CUstream stream, bool capturing);
void order_plain_end(struct comm *comm, CUstream stream, bool capturing, ncclResult_t result);

/* The same around a call that is none of the shim's business but for its place in the order. */
struct order_passage {
  struct comm *comm; /* NULL: nothing to keep */
  CUstream stream;
  bool capturing;
};
struct order_passage order_pass_begin(ncclComm_t handle, CUstream stream);
void order_pass_end(const struct order_passage *passage, ncclResult_t result);

/* A group that this thread had open has ended, with this result: what was noted in it is launched now. */
void order_group_left(ncclResult_t result);

/* The job heard that its non-blocking call was launched. */
void order_launched(struct comm *comm);

#endif
