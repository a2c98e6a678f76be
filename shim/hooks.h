/* SPDX-License-Identifier: Apache-2.0 */
/*
 * THE table: every interposed function, once. From a row come the exported wrapper (entry.c), the way to the
 * real function (real.h), the declaration of the handler hook_NAME that hook_*.c writes by hand, and, where
 * the real headers are installed, a check of the prototype (abi/check.c).
 *
 *   X(library, name, result type, parameters, arguments, result when the real function does not exist)
 *
 * That last result is what a caller that probes would take as "not supported".
 */
#ifndef SYMMSHIM_HOOKS_H
#define SYMMSHIM_HOOKS_H

#include "shim/abi/nccl.h"

#define HOOKS(X)                                                                                                       \
  X(CUDART, cudaMalloc, cudaError_t, (void **devPtr, size_t size), (devPtr, size), cudaErrorInitializationError)       \
  X(CUDART, cudaFree, cudaError_t, (void *devPtr), (devPtr), cudaErrorInitializationError)                             \
  X(CUDART, cudaFreeAsync, cudaError_t, (void *devPtr, cudaStream_t hStream), (devPtr, hStream), /* from 11.2 */        \
    cudaErrorNotSupported)                                                                                             \
  X(CUDART, cudaMemGetInfo, cudaError_t, (size_t *free, size_t *total), (free, total), cudaErrorInitializationError)   \
  X(CUDART, cudaDeviceReset, cudaError_t, (void), (), cudaErrorInitializationError)                                    \
  X(CUDART, cudaDeviceEnablePeerAccess, cudaError_t, (int peerDevice, unsigned int flags), (peerDevice, flags),        \
    cudaErrorNotSupported)                                                                                             \
  X(CUDART, cudaIpcGetMemHandle, cudaError_t, (cudaIpcMemHandle_t * handle, void *devPtr), (handle, devPtr),           \
    cudaErrorNotSupported)                                                                                             \
  X(CUDART, cudaIpcOpenMemHandle, cudaError_t, (void **devPtr, cudaIpcMemHandle_t handle, unsigned int flags),         \
    (devPtr, handle, flags), cudaErrorNotSupported)                                                                    \
  X(CUDART, cudaIpcCloseMemHandle, cudaError_t, (void *devPtr), (devPtr), cudaErrorNotSupported)                       \
                                                                                                                       \
  X(NCCL, ncclAllGather, ncclResult_t,                                                                                 \
    (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,                 \
     cudaStream_t stream),                                                                                             \
    (sendbuff, recvbuff, sendcount, datatype, comm, stream), ncclInvalidUsage)                                         \
  X(NCCL, ncclReduceScatter, ncclResult_t,                                                                             \
    (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, \
     cudaStream_t stream),                                                                                             \
    (sendbuff, recvbuff, recvcount, datatype, op, comm, stream), ncclInvalidUsage)                                     \
  X(NCCL, ncclAllReduce, ncclResult_t,                                                                                 \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,     \
     cudaStream_t stream),                                                                                             \
    (sendbuff, recvbuff, count, datatype, op, comm, stream), ncclInvalidUsage)                                         \
                                                                                                                       \
  X(NCCL, ncclBroadcast, ncclResult_t,                                                                                 \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,           \
     cudaStream_t stream),                                                                                             \
    (sendbuff, recvbuff, count, datatype, root, comm, stream), ncclInvalidUsage)                                       \
  X(NCCL, ncclBcast, ncclResult_t,                                                                                     \
    (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream),               \
    (buff, count, datatype, root, comm, stream), ncclInvalidUsage)                                                     \
  X(NCCL, ncclReduce, ncclResult_t,                                                                                    \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,            \
     ncclComm_t comm, cudaStream_t stream),                                                                            \
    (sendbuff, recvbuff, count, datatype, op, root, comm, stream), ncclInvalidUsage)                                   \
  X(NCCL, ncclSend, ncclResult_t,                                                                                      \
    (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream),     \
    (sendbuff, count, datatype, peer, comm, stream), ncclInvalidUsage)                                                 \
  X(NCCL, ncclRecv, ncclResult_t,                                                                                      \
    (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream),           \
    (recvbuff, count, datatype, peer, comm, stream), ncclInvalidUsage)                                                 \
  X(NCCL, ncclAlltoAll, ncclResult_t, /* from 2.28 */                                                                  \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,                     \
     cudaStream_t stream),                                                                                             \
    (sendbuff, recvbuff, count, datatype, comm, stream), ncclInvalidUsage)                                             \
  X(NCCL, ncclGather, ncclResult_t, /* from 2.28 */                                                                    \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,           \
     cudaStream_t stream),                                                                                             \
    (sendbuff, recvbuff, count, datatype, root, comm, stream), ncclInvalidUsage)                                       \
  X(NCCL, ncclScatter, ncclResult_t, /* from 2.28 */                                                                   \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,           \
     cudaStream_t stream),                                                                                             \
    (sendbuff, recvbuff, count, datatype, root, comm, stream), ncclInvalidUsage)                                       \
                                                                                                                       \
  X(NCCL, ncclAllGatherConfig, ncclResult_t, /* from 2.31.2 */                                                         \
    (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,                 \
     cudaStream_t stream, const ncclCollConfig_t *config),                                                             \
    (sendbuff, recvbuff, sendcount, datatype, comm, stream, config), ncclInvalidUsage)                                 \
  X(NCCL, ncclReduceScatterConfig, ncclResult_t, /* from 2.31.2 */                                                     \
    (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, \
     cudaStream_t stream, const ncclCollConfig_t *config),                                                             \
    (sendbuff, recvbuff, recvcount, datatype, op, comm, stream, config), ncclInvalidUsage)                             \
  X(NCCL, ncclAllReduceConfig, ncclResult_t, /* from 2.31.2 */                                                         \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,     \
     cudaStream_t stream, const ncclCollConfig_t *config),                                                             \
    (sendbuff, recvbuff, count, datatype, op, comm, stream, config), ncclInvalidUsage)                                 \
  X(NCCL, ncclBroadcastConfig, ncclResult_t, /* from 2.31.2 */                                                         \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,           \
     cudaStream_t stream, const ncclCollConfig_t *config),                                                             \
    (sendbuff, recvbuff, count, datatype, root, comm, stream, config), ncclInvalidUsage)                               \
  X(NCCL, ncclReduceConfig, ncclResult_t, /* from 2.31.2 */                                                            \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,            \
     ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),                                            \
    (sendbuff, recvbuff, count, datatype, op, root, comm, stream, config), ncclInvalidUsage)                           \
  X(NCCL, ncclAlltoAllConfig, ncclResult_t, /* from 2.31.2 */                                                          \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,                     \
     cudaStream_t stream, const ncclCollConfig_t *config),                                                             \
    (sendbuff, recvbuff, count, datatype, comm, stream, config), ncclInvalidUsage)                                     \
  X(NCCL, ncclGatherConfig, ncclResult_t, /* from 2.31.2 */                                                            \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,           \
     cudaStream_t stream, const ncclCollConfig_t *config),                                                             \
    (sendbuff, recvbuff, count, datatype, root, comm, stream, config), ncclInvalidUsage)                               \
  X(NCCL, ncclScatterConfig, ncclResult_t, /* from 2.31.2 */                                                           \
    (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,           \
     cudaStream_t stream, const ncclCollConfig_t *config),                                                             \
    (sendbuff, recvbuff, count, datatype, root, comm, stream, config), ncclInvalidUsage)                               \
  X(NCCL, ncclPutSignal, ncclResult_t, /* from 2.29.2 */                                                               \
    (const void *localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,                     \
     size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream),             \
    (localbuff, count, datatype, peer, peerWin, peerWinOffset, sigIdx, ctx, flags, comm, stream), ncclInvalidUsage)    \
  X(NCCL, ncclSignal, ncclResult_t,                                                                                    \
    (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream),                         \
    (peer, sigIdx, ctx, flags, comm, stream), /* from 2.29.2 */ ncclInvalidUsage)                                      \
  X(NCCL, ncclWaitSignal, ncclResult_t,                                                                                \
    (int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream),                              \
    (nDesc, signalDescs, comm, stream), /* from 2.29.2 */ ncclInvalidUsage)                                            \
                                                                                                                       \
  X(NCCL, ncclGroupStart, ncclResult_t, (void), (), ncclInvalidUsage)                                                  \
  X(NCCL, ncclGroupEnd, ncclResult_t, (void), (), ncclInvalidUsage)                                                    \
  X(NCCL, ncclGroupSimulateEnd, ncclResult_t, (ncclSimInfo_t * simInfo), (simInfo), ncclInvalidUsage)                  \
  X(NCCL, ncclRedOpCreatePreMulSum, ncclResult_t,                                                                      \
    (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence, ncclComm_t comm),       \
    (op, scalar, datatype, residence, comm), ncclInvalidUsage)                                                         \
  X(NCCL, ncclRedOpDestroy, ncclResult_t, (ncclRedOp_t op, ncclComm_t comm), (op, comm), ncclInvalidUsage)             \
                                                                                                                       \
  X(NCCL, ncclCommInitRank, ncclResult_t, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank),              \
    (comm, nranks, commId, rank), ncclInvalidUsage)                                                                    \
  X(NCCL, ncclCommInitRankConfig, ncclResult_t,                                                                        \
    (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config),                              \
    (comm, nranks, commId, rank, config), ncclInvalidUsage)                                                            \
  X(NCCL, ncclCommInitRankScalable, ncclResult_t,                                                                      \
    (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds, ncclConfig_t *config),              \
    (newcomm, nranks, myrank, nId, commIds, config), ncclInvalidUsage)                                                 \
  X(NCCL, ncclCommInitAll, ncclResult_t, (ncclComm_t * comm, int ndev, const int *devlist), (comm, ndev, devlist),     \
    ncclInvalidUsage)                                                                                                  \
  X(NCCL, ncclCommSplit, ncclResult_t,                                                                                 \
    (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config),                                  \
    (comm, color, key, newcomm, config), ncclInvalidUsage)                                                             \
  X(NCCL, ncclCommShrink, ncclResult_t,                                                                                \
    (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm, ncclConfig_t *config,         \
     int shrinkFlags),                                                                                                 \
    (comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags), ncclInvalidUsage)                       \
  X(NCCL, ncclCommGrow, ncclResult_t, /* from 2.29 */                                                                  \
    (ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm, ncclConfig_t *config),  \
    (comm, nRanks, uniqueId, rank, newcomm, config), ncclInvalidUsage)                                                 \
  X(NCCL, ncclCommFinalize, ncclResult_t, (ncclComm_t comm), (comm), ncclInvalidUsage)                                 \
  X(NCCL, ncclCommDestroy, ncclResult_t, (ncclComm_t comm), (comm), ncclInvalidUsage)                                  \
  X(NCCL, ncclCommAbort, ncclResult_t, (ncclComm_t comm), (comm), ncclInvalidUsage)                                    \
  X(NCCL, ncclCommRevoke, ncclResult_t, (ncclComm_t comm, int revokeFlags), (comm, revokeFlags), ncclInvalidUsage)     \
                                                                                                                       \
  X(NCCL, ncclCommGetAsyncError, ncclResult_t, (ncclComm_t comm, ncclResult_t * asyncError), (comm, asyncError),       \
    ncclInvalidUsage)                                                                                                  \
  X(NCCL, ncclCommSuspend, ncclResult_t, (ncclComm_t comm, int flags), (comm, flags), /* from 2.29.7 */                \
    ncclInvalidUsage)                                                                                                  \
                                                                                                                       \
  X(NCCL, ncclCommRegister, ncclResult_t, (const ncclComm_t comm, void *buff, size_t size, void **handle),             \
    (comm, buff, size, handle), ncclInvalidUsage)                                                                      \
  X(NCCL, ncclCommDeregister, ncclResult_t, (const ncclComm_t comm, void *handle), (comm, handle), ncclInvalidUsage)   \
  X(NCCL, ncclCommWindowRegister, ncclResult_t,                                                                        \
    (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags), (comm, buff, size, win, winFlags),    \
    ncclInvalidUsage)                                                                                                  \
  X(NCCL, ncclCommWindowDeregister, ncclResult_t, (ncclComm_t comm, ncclWindow_t win), (comm, win), ncclInvalidUsage)

/* Real functions that the shim calls without interposing them; rows as above. */
#define CALLED(X)                                                                                                      \
  X(CUDART, cudaGetLastError, cudaError_t, (void), (), cudaErrorInitializationError)                                   \
  X(CUDART, cudaDeviceSynchronize, cudaError_t, (void), (), cudaErrorInitializationError)                              \
  X(CUDART, cudaStreamSynchronize, cudaError_t, (cudaStream_t stream), (stream), cudaErrorInitializationError)         \
  X(NCCL, ncclGetVersion, ncclResult_t, (int *version), (version), ncclInvalidUsage)                                   \
  X(NCCL, ncclCommCount, ncclResult_t, (const ncclComm_t comm, int *count), (comm, count), ncclInvalidUsage)           \
  X(NCCL, ncclCommUserRank, ncclResult_t, (const ncclComm_t comm, int *rank), (comm, rank), ncclInvalidUsage)

#define HOOK_DECLARE(library, name, ret, params, args, missing) ret hook_##name params;
HOOKS(HOOK_DECLARE)
#undef HOOK_DECLARE

#endif
