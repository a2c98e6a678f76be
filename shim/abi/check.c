/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled only where the real CUDA and NCCL headers are installed: holds the tables against them. abi/cuda.h and
 * abi/nccl.h take the real headers in here and assert constants and layouts; this file asserts the prototypes.
 */
#include "shim/hooks.h"

#define CHECK_PROTOTYPE(library, name, ret, params, args, missing)                                                     \
  _Static_assert(__builtin_types_compatible_p(__typeof__(&name), ret(*) params), #name " has another prototype");

/* ncclCommGrow came with 2.29; nothing to hold its row against in an older header. */
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0)
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
                          ncclConfig_t *config);
#endif

/* Likewise ncclCommSuspend, with 2.29.7. */
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 7)
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
#endif

/* One-sided calls came with 2.29.2. */
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 2)
ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,
                           size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream);
#endif

/* Collectives with settings of their own came with 2.31.2. */
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 31, 0)
ncclResult_t ncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                     const ncclCollConfig_t *config);
ncclResult_t ncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                              const ncclCollConfig_t *config);
ncclResult_t ncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                              ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
#endif

HOOKS(CHECK_PROTOTYPE)
CALLED(CHECK_PROTOTYPE)

#define CHECK_DRIVER(name, params)                                                                                     \
  _Static_assert(__builtin_types_compatible_p(__typeof__(&name), CUresult(*) params), #name " has another prototype");

/* CUDA 13's header has it for its own use only; its driver exports it all the same. */
#if CUDA_VERSION >= 13000
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count);
#endif

ABI_DRIVER_FUNCTIONS(CHECK_DRIVER)
