/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child communicator, which holds the windows: NCCL goes symmetric by itself, by address, for every call whose
 * buffers lie in windows of that communicator, so the job's own must never have any.
 *
 * Owns the child from the ranks' agreement on making it to its end, and its windows. What is collective here is entered
 * only after every rank said ready. Used by the one thread that holds the child, but for child_async_error().
 */
#ifndef SYMMSHIM_CHILD_H
#define SYMMSHIM_CHILD_H

#include <stdbool.h>

#include "shim/abi/cuda.h"
#include "shim/abi/nccl.h"
#include "shim/order.h"
#include "shim/reason.h"
#include "shim/stage.h"
#include "shim/verdict.h"
#include "shim/window.h"

struct comm;

struct child {
  ncclComm_t handle;  /* NULL until made, and again once gone; other threads look at it */
  uint32_t observers; /* threads that are looking */
  ncclComm_t making;  /* where NCCL writes it while it is being made */
  CUcontext context;  /* in which the job's communicator was made, and so of its device; NULL: there is none */
  CUdevice device;
  struct order order;
  uint64_t epoch;              /* of the board, under which this rank votes */
  uint64_t retry_at;           /* the job's call on the communicator before which it is not tried again */
  uint32_t drops;              /* how often it was given up for memory's sake */
  struct child_graphs *graphs; /* graphs that hold calls on it; NULL: none ever did */
  uint64_t kept_capture;
  struct window_table windows;
  struct stage stage;
};

/*
 * Agrees with the other ranks on making the child, and makes it. Returns REASON_none, or why not: for this call
 * (other_device, no_memory, no_kernel, a verdict), or for good (child_failed; the communicator is plain from then
 * on).
 */
enum reason child_make(struct comm *comm);

/* What would keep this rank from registering another window: no_window_room, no_memory, or nothing. */
enum reason child_obstacle(const struct child *child);

/*
 * Registers windows over up to two segments, which every rank agreed to do at this point, and agrees on success.
 * Returns REASON_none or register_failed (for good).
 */
enum reason child_register(struct comm *comm, struct segment *const segments[], int count);

/* Asks whether all ranks succeeded in what they did together; says so to them where this one did not. */
bool child_all_succeeded(struct comm *comm, enum verdict_question question, bool succeeded);

/*
 * Keeps the child, and so all memory of its windows, for as long as the graph that the stream is being captured into,
 * or anything made of it, can run. False when that cannot be had.
 */
bool child_keep_for_graph(struct child *child, CUstream stream);

/* Makes the child's context current if it is not; undone by child_leave_context() with what this returned. */
bool child_enter_context(const struct child *child);
void child_leave_context(bool entered);

/*
 * What came of a call on the child or its parent. NCCL_COMM_BLOCKING=0 makes the child non-blocking too, and its calls
 * are then launched later; whatever is to come after the launch has to wait for it. Peers are not waited for.
 */
ncclResult_t child_await(ncclComm_t handle, ncclResult_t result);

/* The child's asynchronous error, ncclSuccess if there is none. Any thread; never waits. */
ncclResult_t child_async_error(struct comm *comm);

/*
 * Ends the child, once this rank's work on it is done, as long as one waits for that (order.h). False when it is not
 * done, or a graph may still run: then nothing was touched, since before NCCL 2.29 nothing can end its kernels. With
 * ORDER_FOR_EVER NCCL waits for the graphs, as it does when the job's own communicator is destroyed.
 */
bool child_end(struct comm *comm, uint32_t wait_ms);

/*
 * Another rank gave up its child: this one does too, and those of its other communicators that have to go. False while
 * this one's work is not done; then it is tried again.
 */
bool child_follow(struct comm *comm);

/*
 * Gives up the children that no thread is using and no graph holds, so that parked memory returns to the device; the
 * other ranks hear of it and follow. They are made anew some calls later. Returns whether there was one.
 */
bool child_drop_all(void);

#endif
