/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child communicator, which holds the windows: NCCL goes symmetric by itself, by address, for every call whose
 * buffers lie in windows of that communicator, so the job's own must never have any.
 *
 * Owns the child from the ranks' agreement on making it to its end, its windows, and the order between calls on it
 * and on the job's communicator. What is collective here is entered only after every rank said ready.
 */
#ifndef SYMMSHIM_CHILD_H
#define SYMMSHIM_CHILD_H

#include <stdbool.h>

#include "shim/abi/cuda.h"
#include "shim/abi/nccl.h"
#include "shim/reason.h"
#include "shim/window.h"

struct comm;

enum child_lane { LANE_JOB, LANE_CHILD };

struct child {
  ncclComm_t handle; /* NULL until made, and again once gone */
  CUcontext context; /* in which the job's communicator was made, and so of its device; NULL: there is none */
  CUevent event;     /* recorded behind the last call on either communicator */
  bool event_valid;
  bool event_missing; /* it could not be recorded: only waiting for the whole device tells that the call is done */
  enum child_lane last_lane;
  uint64_t retry_at; /* the job's call on the communicator before which it is not tried again */
  struct window_table windows;
};

/*
 * Agrees with the other ranks on making the child, and makes it. Returns REASON_none, or why not: for this call
 * (other_device, no_memory, no_kernel, a verdict), or for good (child_failed; the communicator is plain from then
 * on). `device` is where the call's buffers lie.
 */
enum reason child_make(struct comm *comm, int device);

/* What would keep this rank from registering another window: no_window_room, no_memory, or nothing. */
enum reason child_obstacle(const struct child *child);

/*
 * Registers windows over up to two segments, which every rank agreed to do at this point, and agrees on success.
 * Returns REASON_none or register_failed (for good).
 */
enum reason child_register(struct comm *comm, struct segment *const segments[], int count);

/*
 * Keeps the order that NCCL would have kept on one communicator: a call on the other one than the last waits for that.
 * To be called around every launch as soon as there may be a child; not while capturing.
 */
void child_order_before(struct child *child, enum child_lane lane, CUstream stream);
void child_order_after(struct child *child, enum child_lane lane, CUstream stream);

/* Makes the child's context current if it is not; undone by child_leave_context() with what this returned. */
bool child_enter_context(const struct child *child);
void child_leave_context(bool entered);

/*
 * Ends the child, once this rank's work on it is done: WAIT waits for that, SOON for a moment, NOW not at all. False
 * when it is not done: then nothing was touched, since before NCCL 2.29 nothing can end its kernels.
 */
enum child_patience { CHILD_NOW, CHILD_SOON, CHILD_WAIT };
bool child_end(struct comm *comm, enum child_patience patience);

/*
 * Gives up the children that no thread is using, so that parked memory returns to the device. Their communicators are
 * plain on this rank from then on, and so on all. Returns whether there was one.
 */
bool child_drop_all(void);

#endif
