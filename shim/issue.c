/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/issue.h"

#include "shim/real.h"

/* With its settings, which the profiler's tag is one of. */
static ncclResult_t issue_configured(const struct call *call, const void *send, void *recv, ncclRedOp_t redop,
                                     ncclComm_t comm)
{
  switch (call->op) {
  case POLICY_OP_all_gather:
    return REAL(ncclAllGatherConfig)(send, recv, call->count, call->dtype, comm, call->stream, call->config);
  case POLICY_OP_reduce_scatter:
    return REAL(ncclReduceScatterConfig)(send, recv, call->count, call->dtype, redop, comm, call->stream, call->config);
  case POLICY_OP_all_reduce:
    return REAL(ncclAllReduceConfig)(send, recv, call->count, call->dtype, redop, comm, call->stream, call->config);
  case POLICY_OP_COUNT:
    break;
  }
  return ncclInternalError;
}

ncclResult_t issue(const struct call *call, const void *send, void *recv, ncclRedOp_t redop, ncclComm_t comm)
{
  if (call->config)
    return issue_configured(call, send, recv, redop, comm);
  switch (call->op) {
  case POLICY_OP_all_gather:
    return REAL(ncclAllGather)(send, recv, call->count, call->dtype, comm, call->stream);
  case POLICY_OP_reduce_scatter:
    return REAL(ncclReduceScatter)(send, recv, call->count, call->dtype, redop, comm, call->stream);
  case POLICY_OP_all_reduce:
    return REAL(ncclAllReduce)(send, recv, call->count, call->dtype, redop, comm, call->stream);
  case POLICY_OP_COUNT:
    break;
  }
  return ncclInternalError;
}
