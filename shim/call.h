/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of one collective call through the shim: plan (plan.h), how its buffers lie (layout.h), agreement (board.h),
 * then the child or the job's own communicator, in order (order.h), then the account of it (audit.h).
 *
 * Owns the order of these steps, and nothing that outlives a call.
 */
#ifndef SYMMSHIM_CALL_H
#define SYMMSHIM_CALL_H

#include <stdbool.h>

#include "policy/policy.h"
#include "shim/abi/nccl.h"

/* A call as the job made it. */
struct call {
  enum policy_op op;
  const void *send;
  void *recv;
  size_t count; /* as NCCL counts: all-gather's sendcount, reduce-scatter's recvcount */
  ncclDataType_t dtype;
  ncclRedOp_t redop; /* not looked at for all-gather */
  ncclComm_t comm;
  cudaStream_t stream;
  const ncclCollConfig_t *config; /* of the call alone; NULL: none. The job's, so valid only while it calls */
};

/* Makes the call, one way or the other, now or at the end of the group; returns what NCCL said. */
ncclResult_t call_make(const struct call *call);

/* Makes a call that was kept in a group which is still open, as it is. */
ncclResult_t call_make_kept(const struct call *call);

/* Makes calls that were kept in a group, which has ended, in their order. Returns the first result that is no success.
 */
ncclResult_t call_make_together(const struct call *calls, int count);

/* Whether a call would be brought before the other ranks; so it can be no error of the job's that NCCL would name. */
bool call_may_go_symmetric(const struct call *call);

#endif
