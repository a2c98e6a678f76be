/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of collectives, groups, reduce ops and registrations. */
#include "shim/call.h"
#include "shim/comm.h"
#include "shim/group.h"
#include "shim/hooks.h"
#include "shim/order.h"
#include "shim/real.h"
#include "shim/window.h"

ncclResult_t hook_ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                                ncclComm_t comm, cudaStream_t stream)
{
  return call_make(
      &(struct call){POLICY_OP_all_gather, sendbuff, recvbuff, sendcount, datatype, ncclSum, comm, stream, NULL});
}

ncclResult_t hook_ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                                    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
  return call_make(
      &(struct call){POLICY_OP_reduce_scatter, sendbuff, recvbuff, recvcount, datatype, op, comm, stream, NULL});
}

ncclResult_t hook_ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
  return call_make(&(struct call){POLICY_OP_all_reduce, sendbuff, recvbuff, count, datatype, op, comm, stream, NULL});
}

/* The same with settings of their own (NCCL 2.31.2). */

ncclResult_t hook_ncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                                      ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
  return call_make(
      &(struct call){POLICY_OP_all_gather, sendbuff, recvbuff, sendcount, datatype, ncclSum, comm, stream, config});
}

ncclResult_t hook_ncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount,
                                          ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                          const ncclCollConfig_t *config)
{
  return call_make(
      &(struct call){POLICY_OP_reduce_scatter, sendbuff, recvbuff, recvcount, datatype, op, comm, stream, config});
}

ncclResult_t hook_ncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                      const ncclCollConfig_t *config)
{
  return call_make(&(struct call){POLICY_OP_all_reduce, sendbuff, recvbuff, count, datatype, op, comm, stream, config});
}

/*
 * Calls that are never moved. Only their place in the order matters, as NCCL keeps it on one communicator, and a job
 * may lean on it without knowing.
 */
#define PASS_IN_ORDER(name, params, args)                                                                              \
  ncclResult_t hook_##name params                                                                                      \
  {                                                                                                                    \
    struct order_passage passage = order_pass_begin(comm, stream);                                                     \
    ncclResult_t result = REAL(name) args;                                                                             \
                                                                                                                       \
    order_pass_end(&passage, result);                                                                                  \
    return result;                                                                                                     \
  }
PASS_IN_ORDER(ncclBroadcast,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream),
              (sendbuff, recvbuff, count, datatype, root, comm, stream))
PASS_IN_ORDER(ncclBcast,
              (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream),
              (buff, count, datatype, root, comm, stream))
PASS_IN_ORDER(ncclReduce,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
               ncclComm_t comm, cudaStream_t stream),
              (sendbuff, recvbuff, count, datatype, op, root, comm, stream))
PASS_IN_ORDER(ncclSend,
              (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
               cudaStream_t stream),
              (sendbuff, count, datatype, peer, comm, stream))
PASS_IN_ORDER(ncclRecv,
              (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream),
              (recvbuff, count, datatype, peer, comm, stream))
PASS_IN_ORDER(ncclAlltoAll,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
               cudaStream_t stream),
              (sendbuff, recvbuff, count, datatype, comm, stream))
PASS_IN_ORDER(ncclGather,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream),
              (sendbuff, recvbuff, count, datatype, root, comm, stream))
PASS_IN_ORDER(ncclScatter,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream),
              (sendbuff, recvbuff, count, datatype, root, comm, stream))
PASS_IN_ORDER(ncclBroadcastConfig,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream, const ncclCollConfig_t *config),
              (sendbuff, recvbuff, count, datatype, root, comm, stream, config))
PASS_IN_ORDER(ncclReduceConfig,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
              (sendbuff, recvbuff, count, datatype, op, root, comm, stream, config))
PASS_IN_ORDER(ncclAlltoAllConfig,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
               cudaStream_t stream, const ncclCollConfig_t *config),
              (sendbuff, recvbuff, count, datatype, comm, stream, config))
PASS_IN_ORDER(ncclGatherConfig,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream, const ncclCollConfig_t *config),
              (sendbuff, recvbuff, count, datatype, root, comm, stream, config))
PASS_IN_ORDER(ncclScatterConfig,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream, const ncclCollConfig_t *config),
              (sendbuff, recvbuff, count, datatype, root, comm, stream, config))
/* NCCL launches one-sided calls as it does the others, so they have their place in the order (enqueue.cc, 2.30.7). */
PASS_IN_ORDER(ncclPutSignal,
              (const void *localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,
               size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream),
              (localbuff, count, datatype, peer, peerWin, peerWinOffset, sigIdx, ctx, flags, comm, stream))
PASS_IN_ORDER(ncclSignal, (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream),
              (peer, sigIdx, ctx, flags, comm, stream))
PASS_IN_ORDER(ncclWaitSignal, (int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream),
              (nDesc, signalDescs, comm, stream))

ncclResult_t hook_ncclGroupStart(void)
{
  ncclResult_t result = REAL(ncclGroupStart)();

  if (result == ncclSuccess)
    group_entered();
  return result;
}

/* An error leaves the group too. */
ncclResult_t hook_ncclGroupEnd(void)
{
  return group_end(REAL(ncclGroupEnd));
}

/* Ends the group too, without doing what is in it. */
ncclResult_t hook_ncclGroupSimulateEnd(ncclSimInfo_t *simInfo)
{
  ncclResult_t result;

  group_mix(); /* so that NCCL sees all of it */
  result = REAL(ncclGroupSimulateEnd)(simInfo);
  group_left(result);
  return result;
}

/* NCCL's handles of such ops are ncclNumOps and above (2.28.9), which tells them from the built-in ones. */
ncclResult_t hook_ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                           ncclScalarResidence_t residence, ncclComm_t comm)
{
  struct comm *known = comm_enter(comm);
  ncclResult_t result = REAL(ncclRedOpCreatePreMulSum)(op, scalar, datatype, residence, comm);

  if (known && result == ncclSuccess)
    redop_created(&known->redops, *op, scalar, datatype, residence);
  if (known)
    comm_leave(known);
  return result;
}

ncclResult_t hook_ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
  struct comm *known = comm_enter(comm);
  ncclResult_t result;

  group_mix(); /* a call that is kept may be the last to use it */
  result = REAL(ncclRedOpDestroy)(op, comm);
  if (known && result == ncclSuccess)
    redop_destroyed(&known->redops, op);
  if (known)
    comm_leave(known);
  return result;
}

/* A buffer that the job registers itself is the job's: registered twice its use is undefined (NCCL's api/comms). */

ncclResult_t hook_ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
  ncclResult_t result;

  group_mix();
  comm_turn_to(comm);
  result = REAL(ncclCommRegister)(comm, buff, size, handle);
  if (result == ncclSuccess && !comm_is_child(comm))
    window_job_add(comm, buff, size, *handle);
  return result;
}

ncclResult_t hook_ncclCommDeregister(const ncclComm_t comm, void *handle)
{
  group_mix();
  window_job_remove(comm, handle);
  comm_turn_to(comm);
  return REAL(ncclCommDeregister)(comm, handle);
}

/* Inside a group, or on a non-blocking communicator, the handle comes later: then the range is the job's for good. */
ncclResult_t hook_ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)
{
  ncclResult_t result;

  group_mix();
  comm_turn_to(comm);
  result = REAL(ncclCommWindowRegister)(comm, buff, size, win, winFlags);
  if ((result == ncclSuccess || result == ncclInProgress) && !comm_is_child(comm))
    window_job_add(comm, buff, size, result == ncclSuccess && !group_is_open() ? *win : NULL);
  return result;
}

ncclResult_t hook_ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
  group_mix();
  window_job_remove(comm, win);
  comm_turn_to(comm);
  return REAL(ncclCommWindowDeregister)(comm, win);
}
