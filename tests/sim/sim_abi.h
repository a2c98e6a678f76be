/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stand-ins need of CUDA's and NCCL's ABI beyond shim/abi: further types, and the prototypes of all
 * functions that they export. Tests include this in place of the real headers, and link to the stand-ins.
 */
#ifndef SYMMSHIM_SIM_ABI_H
#define SYMMSHIM_SIM_ABI_H

#include "shim/abi/cuda.h"
#include "shim/abi/nccl.h"

/* Macros, so that shim/abi may come to declare the same names as enumerators. */
#define cudaErrorInvalidDevice 101
#define cudaErrorDeviceUninitialized 201
#define cudaErrorMapBufferObjectFailed 205
#define cudaErrorInvalidResourceHandle 400
#define cudaErrorNotReady 600
#define cudaErrorPeerAccessNotEnabled 705
#define cudaErrorLaunchFailure 719
#define cudaErrorNotPermitted 800
#define cudaErrorStreamCaptureUnsupported 900
#define cudaErrorStreamCaptureInvalidated 901
#define cudaErrorStreamCaptureUnmatched 903
#define cudaErrorStreamCaptureUnjoined 904
#define cudaErrorStreamCaptureImplicit 906
#define cudaErrorUnknown 999
#define CUDA_ERROR_INVALID_DEVICE 101
#define CUDA_ERROR_INVALID_IMAGE 200
#define CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED 704
#define CUDA_ERROR_PEER_ACCESS_NOT_ENABLED 705
#define CUDA_ERROR_MAP_FAILED 205
#define CUDA_ERROR_INVALID_HANDLE 400
#define CUDA_ERROR_ILLEGAL_STATE 401
#define CUDA_ERROR_NOT_FOUND 500
#define CUDA_ERROR_NOT_READY 600
#define CUDA_ERROR_NOT_PERMITTED 800
#define CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED 900
#define CUDA_ERROR_STREAM_CAPTURE_INVALIDATED 901
#define CUDA_ERROR_STREAM_CAPTURE_MERGE 902
#define CUDA_ERROR_STREAM_CAPTURE_UNMATCHED 903
#define CUDA_ERROR_STREAM_CAPTURE_UNJOINED 904
#define CUDA_ERROR_STREAM_CAPTURE_ISOLATION 905
#define CUDA_ERROR_STREAM_CAPTURE_IMPLICIT 906
#define CUDA_ERROR_CAPTURED_EVENT 907
#define CU_STREAM_CAPTURE_STATUS_ACTIVE 1
#define CU_STREAM_CAPTURE_STATUS_INVALIDATED 2
#define CU_STREAM_CAPTURE_MODE_GLOBAL 0
#define CU_STREAM_CAPTURE_MODE_THREAD_LOCAL 1
#define CU_STREAM_NON_BLOCKING 1
#define CU_EVENT_RECORD_EXTERNAL 1
#define CU_EVENT_WAIT_EXTERNAL 1
#define CU_USER_OBJECT_NO_DESTRUCTOR_SYNC 1
#define CU_GRAPH_USER_OBJECT_MOVE 1
#define CU_MEM_ACCESS_FLAGS_PROT_READ 1
#define CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS 1
#define CU_POINTER_ATTRIBUTE_CONTEXT 1
#define CU_POINTER_ATTRIBUTE_MEMORY_TYPE 2
#define CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL 9
#define CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE 10
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR 75
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR 76
#define CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED 103
#define CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED 128

/* The two streams that have a number instead of an object. */
#define SIM_STREAM_LEGACY ((cudaStream_t)0x1)
#define SIM_STREAM_PER_THREAD ((cudaStream_t)0x2)

typedef unsigned int cudaMemcpyKind;
typedef CUevent cudaEvent_t;
typedef CUgraph cudaGraph_t;
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef void (*cudaHostFn_t)(void *arg);

struct cudaPointerAttributes {
  unsigned int type; /* 0 unregistered, 1 host, 2 device */
  int device;
  void *devicePointer;
  void *hostPointer;
  long reserved[8];
};

/* The runtime (libcudart.so.13). */
cudaError_t cudaMalloc(void **ptr, size_t size);
cudaError_t cudaFree(void *ptr);
cudaError_t cudaMallocAsync(void **ptr, size_t size, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream);
cudaError_t cudaMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height);
cudaError_t cudaMallocHost(void **ptr, size_t size);
cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned int flags);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device, size_t count);
cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t count,
                                cudaStream_t stream);
cudaError_t cudaMemset(void *ptr, int value, size_t count);
cudaError_t cudaMemsetAsync(void *ptr, int value, size_t count, cudaStream_t stream);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags);
cudaError_t cudaDeviceDisablePeerAccess(int peer);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr);
cudaError_t cudaIpcOpenMemHandle(void **ptr, cudaIpcMemHandle_t handle, unsigned int flags);
cudaError_t cudaIpcCloseMemHandle(void *ptr);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, CUstreamCaptureStatus *status);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, CUstreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *arg);

/* The driver (libcuda.so.1). */
#define SIM_DRIVER_FUNCTIONS(X)                                                                                        \
  X(cuInit, (unsigned int flags))                                                                                      \
  X(cuDriverGetVersion, (int *version))                                                                                \
  X(cuDeviceGet, (CUdevice * device, int ordinal))                                                                     \
  X(cuDeviceGetCount, (int *count))                                                                                    \
  X(cuDeviceGetName, (char *name, int length, CUdevice device))                                                        \
  X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                                  \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                                   \
  X(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active))                                   \
  X(cuCtxSetCurrent, (CUcontext context))                                                                              \
  X(cuMemAlloc_v2, (CUdeviceptr * ptr, size_t size))                                                                   \
  X(cuMemFree_v2, (CUdeviceptr ptr))                                                                                   \
  X(cuMemcpyDtoH_v2, (void *dst, CUdeviceptr src, size_t count))                                                       \
  X(cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t count))                                                 \
  X(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t * size, CUdeviceptr ptr))                                     \
  X(cuMemExportToShareableHandle,                                                                                      \
    (void *shareable, CUmemGenericAllocationHandle handle, unsigned int type, unsigned long long flags))               \
  X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * handle, void *os_handle, unsigned int type))       \
  X(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle))         \
  X(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr))                       \
  X(cuPointerGetAttribute, (void *data, unsigned int attribute, CUdeviceptr ptr))                                      \
  X(cuStreamCreate, (CUstream * stream, unsigned int flags))                                                           \
  X(cuStreamDestroy_v2, (CUstream stream))                                                                             \
  X(cuStreamSynchronize, (CUstream stream))                                                                            \
  X(cuStreamQuery, (CUstream stream))                                                                                  \
  X(cuStreamGetCaptureInfo_v3, (CUstream stream, CUstreamCaptureStatus * status, uint64_t * id, CUgraph * graph,       \
                                const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count))       \
  X(cuGraphReleaseUserObject, (CUgraph graph, CUuserObject object, unsigned int count))                                \
  X(cuUserObjectRetain, (CUuserObject object, unsigned int count))                                                     \
  X(cuGraphDestroy, (CUgraph graph))                                                                                   \
  X(cuGraphExecDestroy, (cudaGraphExec_t exec))                                                                        \
  X(cuMemcpyDtoDAsync_v2, (CUdeviceptr dst, CUdeviceptr src, size_t count, CUstream stream))                           \
  X(cuGetErrorString, (CUresult error, const char **text))                                                             \
  X(cuGetErrorName, (CUresult error, const char **name))

#define SIM_DECLARE(name, parameters) CUresult name parameters;
ABI_DRIVER_FUNCTIONS(SIM_DECLARE)
SIM_DRIVER_FUNCTIONS(SIM_DECLARE)
#undef SIM_DECLARE

/* Only the stand-in has this: tools ask for it to say "simulated GPU". Always 1. */
int sim_is_simulation(void);

/* NCCL (libnccl.so.2); each function exists as pncclX too. */
#define SIM_NCCL_FUNCTIONS(X)                                                                                          \
  X(GetVersion, (int *version))                                                                                        \
  X(GetUniqueId, (ncclUniqueId * id))                                                                                  \
  X(CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))                                          \
  X(CommInitRankConfig, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config))              \
  X(CommInitRankScalable,                                                                                              \
    (ncclComm_t * comm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config))                      \
  X(CommInitAll, (ncclComm_t * comms, int ndev, const int *devices))                                                   \
  X(CommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config))                         \
  X(CommShrink, (ncclComm_t comm, int *exclude, int count, ncclComm_t *child, ncclConfig_t *config, int flags))        \
  X(CommFinalize, (ncclComm_t comm))                                                                                   \
  X(CommDestroy, (ncclComm_t comm))                                                                                    \
  X(CommAbort, (ncclComm_t comm))                                                                                      \
  X(CommSuspend, (ncclComm_t comm, int flags))                                                                         \
  X(CommResume, (ncclComm_t comm))                                                                                     \
  X(CommRevoke, (ncclComm_t comm, int flags))                                                                          \
  X(CommCount, (const ncclComm_t comm, int *count))                                                                    \
  X(CommUserRank, (const ncclComm_t comm, int *rank))                                                                  \
  X(CommCuDevice, (const ncclComm_t comm, int *device))                                                                \
  X(CommGetAsyncError, (ncclComm_t comm, ncclResult_t * error))                                                        \
  X(CommRegister, (const ncclComm_t comm, void *ptr, size_t size, void **handle))                                      \
  X(CommDeregister, (const ncclComm_t comm, void *handle))                                                             \
  X(CommWindowRegister, (ncclComm_t comm, void *ptr, size_t size, ncclWindow_t *window, int flags))                    \
  X(CommWindowDeregister, (ncclComm_t comm, ncclWindow_t window))                                                      \
  X(RedOpCreatePreMulSum,                                                                                              \
    (ncclRedOp_t * op, void *scalar, ncclDataType_t type, ncclScalarResidence_t residence, ncclComm_t comm))           \
  X(RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))                                                                   \
  X(AllGather,                                                                                                         \
    (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream))           \
  X(ReduceScatter, (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,  \
                    cudaStream_t stream))                                                                              \
  X(AllReduce, (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,      \
                cudaStream_t stream))                                                                                  \
  X(Broadcast,                                                                                                         \
    (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)) \
  X(Bcast, (void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream))          \
  X(Reduce, (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,                \
             ncclComm_t comm, cudaStream_t stream))                                                                    \
  X(AlltoAll, (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)) \
  X(Gather,                                                                                                            \
    (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)) \
  X(Scatter,                                                                                                           \
    (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)) \
  X(Send, (const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))       \
  X(Recv, (void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))             \
  X(GroupStart, (void))                                                                                                \
  X(GroupEnd, (void))                                                                                                  \
  X(GroupSimulateEnd, (ncclSimInfo_t * info))                                                                          \
  X(MemAlloc, (void **ptr, size_t size))                                                                               \
  X(MemFree, (void *ptr))

/* From 2.31.2 on; coll_config.c. */
#define SIM_NCCL_CONFIG_FUNCTIONS(X)                                                                                   \
  X(AllGatherConfig, (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,                \
                      cudaStream_t stream, const ncclCollConfig_t *config))                                            \
  X(ReduceScatterConfig, (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,             \
                          ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config))                       \
  X(AllReduceConfig, (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,                 \
                      ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config))                           \
  X(BroadcastConfig, (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,      \
                      cudaStream_t stream, const ncclCollConfig_t *config))                                            \
  X(ReduceConfig, (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,          \
                   ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config))                              \
  X(AlltoAllConfig, (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,                 \
                     cudaStream_t stream, const ncclCollConfig_t *config))                                             \
  X(GatherConfig, (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,         \
                   cudaStream_t stream, const ncclCollConfig_t *config))                                               \
  X(ScatterConfig, (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,        \
                    cudaStream_t stream, const ncclCollConfig_t *config))

/* From 2.29.2 on; rma.c. */
struct abi_nccl_wait_signal_desc {
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
};
#define SIM_NCCL_RMA_FUNCTIONS(X)                                                                                      \
  X(PutSignal, (const void *local, size_t count, ncclDataType_t type, int peer, ncclWindow_t window, size_t offset,    \
                int signal, int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream))                    \
  X(Signal, (int peer, int signal, int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream))             \
  X(WaitSignal, (int count, ncclWaitSignalDesc_t *descs, ncclComm_t comm, cudaStream_t stream))

#define SIM_DECLARE(name, parameters)                                                                                  \
  ncclResult_t nccl##name parameters;                                                                                  \
  ncclResult_t pnccl##name parameters;
SIM_NCCL_FUNCTIONS(SIM_DECLARE)
SIM_NCCL_CONFIG_FUNCTIONS(SIM_DECLARE)
SIM_NCCL_RMA_FUNCTIONS(SIM_DECLARE)
#undef SIM_DECLARE
const char *ncclGetErrorString(ncclResult_t result);
const char *pncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
const char *pncclGetLastError(ncclComm_t comm);

/* What NCCL_COLLCONFIG_INITIALIZER makes. */
#define SIM_NCCL_COLL_CONFIG_INITIALIZER                                                                               \
  {                                                                                                                    \
    .size = sizeof(ncclCollConfig_t), .magic = ABI_NCCL_CONFIG_MAGIC, .version = ABI_NCCL_NEWEST, .ext = NULL,         \
    .minCTAs = NCCL_CONFIG_UNDEF_INT, .maxCTAs = NCCL_CONFIG_UNDEF_INT, .nvlsCTAs = NCCL_CONFIG_UNDEF_INT,             \
    .cgaClusterSize = NCCL_CONFIG_UNDEF_INT, .algSelection = NULL, .forceAlgSelection = 1,                             \
    .CTAPolicy = NCCL_CONFIG_UNDEF_INT, .userProfilerTag = 0, .launchCompletionEvent = NULL                            \
  }

/* What NCCL_CONFIG_INITIALIZER makes. */
#define SIM_NCCL_CONFIG_INITIALIZER                                                                                    \
  {                                                                                                                    \
    .size = sizeof(ncclConfig_t), .magic = ABI_NCCL_CONFIG_MAGIC, .version = ABI_NCCL_CONFIG_VERSION,                  \
    .blocking = NCCL_CONFIG_UNDEF_INT, .cgaClusterSize = NCCL_CONFIG_UNDEF_INT, .minCTAs = NCCL_CONFIG_UNDEF_INT,      \
    .maxCTAs = NCCL_CONFIG_UNDEF_INT, .netName = NULL, .splitShare = NCCL_CONFIG_UNDEF_INT,                            \
    .trafficClass = NCCL_CONFIG_UNDEF_INT, .commName = NULL, .collnetEnable = NCCL_CONFIG_UNDEF_INT,                   \
    .CTAPolicy = NCCL_CONFIG_UNDEF_INT, .shrinkShare = NCCL_CONFIG_UNDEF_INT, .nvlsCTAs = NCCL_CONFIG_UNDEF_INT        \
  }

#endif
