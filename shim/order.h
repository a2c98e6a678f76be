/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL keeps the calls on one communicator in the order of issue, over streams too. With the job's communicator and
 * its child this module keeps it: a call on the other one than the last waits for that, by an event.
 *
 * Owns the per-thread state of NCCL groups. What is captured into a graph is left alone: its order is the graph's.
 */
#ifndef SYMMSHIM_ORDER_H
#define SYMMSHIM_ORDER_H

#include <stdbool.h>

#include "shim/abi/nccl.h"

struct comm;

/* The job's ncclGroupStart succeeded, its ncclGroupEnd returned, on this thread. */
void order_group_entered(void);
void order_group_left(void);
bool order_in_group(void);

/* Whether a stream is being captured into a graph, as far as can be told; then nothing is recorded or waited for. */
bool order_is_capturing(CUstream stream);

/*
 * Around a call on the job's own communicator whose child this thread holds; begin says whether end is due. In a group
 * the call is launched when the group ends, and noted then.
 */
bool order_plain_begin(struct comm *comm, CUstream stream, bool capturing);
void order_plain_end(struct comm *comm, CUstream stream);

/* The same around a call that is none of the shim's business but for its place in the order. */
struct order_passage {
  struct comm *comm; /* NULL: nothing to keep */
  CUstream stream;
};
struct order_passage order_pass_begin(ncclComm_t handle, CUstream stream);
void order_pass_end(const struct order_passage *passage);

#endif
