/* SPDX-License-Identifier: Apache-2.0 */
/* The public CUDA and NCCL calls that a measuring rank makes; it links the libraries by their sonames. */
#ifndef SYMMSHIM_GPU_API_H
#define SYMMSHIM_GPU_API_H

#include <stdbool.h>

#include "shim/hooks.h"

enum { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaErrorNotReady = 600 };
typedef struct CUevent_st *cudaEvent_t;

#define GPU_DECLARE(library, name, ret, params, args, missing) ret name params;
HOOKS(GPU_DECLARE)
CALLED(GPU_DECLARE)
#define GPU_DECLARE_UNSEEN(name, params) ncclResult_t p##name params;
GPU_DECLARE_UNSEEN(ncclAllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))
GPU_DECLARE_UNSEEN(ncclReduceScatter,
                   (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))
GPU_DECLARE_UNSEEN(ncclAllReduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))
GPU_DECLARE_UNSEEN(ncclCommInitRank, (ncclComm_t *, int, ncclUniqueId, int))
GPU_DECLARE_UNSEEN(ncclCommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))
GPU_DECLARE_UNSEEN(ncclCommWindowRegister, (ncclComm_t, void *, size_t, ncclWindow_t *, int))

cudaError_t cudaSetDevice(int device);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, unsigned int kind);
cudaError_t cudaMemset(void *to, int value, size_t size);
const char *cudaGetErrorString(cudaError_t error);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
const char *ncclGetErrorString(ncclResult_t result);

/* The configuration of a communicator for windows. */
static inline ncclConfig_t gpu_config(int min_ctas, int max_ctas, bool copy_engine)
{
  return (ncclConfig_t){.size = sizeof(ncclConfig_t),
                        .magic = ABI_NCCL_CONFIG_MAGIC,
                        .version = ABI_NCCL_CONFIG_VERSION,
                        .blocking = 1,
                        .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
                        .minCTAs = min_ctas,
                        .maxCTAs = max_ctas,
                        .splitShare = NCCL_CONFIG_UNDEF_INT,
                        .trafficClass = NCCL_CONFIG_UNDEF_INT,
                        .collnetEnable = NCCL_CONFIG_UNDEF_INT,
                        .CTAPolicy = copy_engine ? NCCL_CTA_POLICY_ZERO : NCCL_CONFIG_UNDEF_INT,
                        .shrinkShare = NCCL_CONFIG_UNDEF_INT,
                        .nvlsCTAs = NCCL_CONFIG_UNDEF_INT};
}

#endif
