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
