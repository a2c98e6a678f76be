/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA runtime's and driver's ABI that symmshim uses, declared in our own words, so that a
 * build needs no CUDA toolkit. Holds for CUDA 11.3 to 13.0 (the suffixed names are what those drivers export).
 *
 * With SYMMSHIM_REAL_HEADERS the real headers take the place of these declarations, and the lists and
 * assertions hold against them (shim/abi/check.c is compiled so where the toolkit is installed).
 */
#ifndef SYMMSHIM_ABI_CUDA_H
#define SYMMSHIM_ABI_CUDA_H

#include <stddef.h>
#include <stdint.h>

#define ABI_CUDA_CONSTANTS(X)                                                                                          \
  X(cudaSuccess, 0)                                                                                                    \
  X(cudaErrorInvalidValue, 1)                                                                                          \
  X(cudaErrorMemoryAllocation, 2)                                                                                      \
  X(cudaErrorInitializationError, 3)                                                                                   \
  X(cudaErrorDeviceUninitialized, 201)                                                                                 \
  X(cudaErrorPeerAccessAlreadyEnabled, 704)                                                                            \
  X(cudaErrorNotSupported, 801)                                                                                        \
  X(cudaIpcMemLazyEnablePeerAccess, 1)                                                                                 \
  X(CUDA_SUCCESS, 0)                                                                                                   \
  X(CUDA_ERROR_INVALID_VALUE, 1)                                                                                       \
  X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                                       \
  X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                                                     \
  X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                                                   \
  X(CUDA_ERROR_NOT_READY, 600)                                                                                         \
  X(CUDA_ERROR_NOT_SUPPORTED, 801)                                                                                     \
  X(CU_STREAM_CAPTURE_STATUS_NONE, 0)                                                                                  \
  X(CU_STREAM_CAPTURE_MODE_RELAXED, 2)                                                                                 \
  X(CU_EVENT_DISABLE_TIMING, 2)                                                                                        \
  X(CU_EVENT_RECORD_EXTERNAL, 1)                                                                                       \
  X(CU_EVENT_WAIT_EXTERNAL, 1)                                                                                         \
  X(CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, 1)                                                                              \
  X(CU_GRAPH_USER_OBJECT_MOVE, 1)                                                                                      \
  X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                                                                  \
  X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                                                                    \
  X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                                                                             \
  X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1)                                                                           \
  X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)                                                                       \
  X(CU_MEM_HANDLE_TYPE_FABRIC, 8)                                                                                      \
  X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                                                                               \
  X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 17)                                                                               \
  X(CU_MEMORYTYPE_DEVICE, 2)                                                                                           \
  X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                                                                      \
  X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)                                                      \
  X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110)

#ifdef SYMMSHIM_REAL_HEADERS
#include <cuda.h>
#include <cuda_runtime_api.h>
#define ABI_CUDA_CHECK(name, value) _Static_assert((int)(name) == (value), #name " differs from CUDA's");
ABI_CUDA_CONSTANTS(ABI_CUDA_CHECK)
#undef ABI_CUDA_CHECK
#else

#define ABI_CUDA_DEFINE(name, value) name = (value),
enum abi_cuda_constants { ABI_CUDA_CONSTANTS(ABI_CUDA_DEFINE) };
#undef ABI_CUDA_DEFINE

/* CUDA's enumerations cross the ABI as unsigned int (no negative member, gcc and clang). */
typedef unsigned int cudaError_t;
typedef unsigned int CUresult;
typedef unsigned int CUdevice_attribute;
typedef unsigned int CUpointer_attribute;
typedef unsigned int CUmemAllocationGranularity_flags;
typedef unsigned int CUmemAllocationHandleType;
typedef unsigned int CUstreamCaptureStatus;
typedef unsigned int CUstreamCaptureMode;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUstream_st *CUstream;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUuserObject_st *CUuserObject;
typedef void (*CUhostFn)(void *data);
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;

typedef struct {
  char reserved[64];
} cudaIpcMemHandle_t;

typedef struct {
  unsigned int type;
  int id;
} CUmemLocation;

typedef struct {
  unsigned int type;
  unsigned int requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
} CUmemAllocationProp;

typedef struct {
  CUmemLocation location;
  unsigned int flags;
} CUmemAccessDesc;

#endif

#define ABI_CUDA_FIELDS(X)                                                                                             \
  X(CUmemLocation, type, 0)                                                                                            \
  X(CUmemLocation, id, 4)                                                                                              \
  X(CUmemAllocationProp, type, 0)                                                                                      \
  X(CUmemAllocationProp, requestedHandleTypes, 4)                                                                      \
  X(CUmemAllocationProp, location, 8)                                                                                  \
  X(CUmemAllocationProp, win32HandleMetaData, 16)                                                                      \
  X(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable, 25)                                                          \
  X(CUmemAllocationProp, allocFlags.usage, 26)                                                                         \
  X(CUmemAccessDesc, location, 0)                                                                                      \
  X(CUmemAccessDesc, flags, 8)

#define ABI_CUDA_FIELD_CHECK(type, field, at)                                                                          \
  _Static_assert(offsetof(type, field) == (at), #type "." #field " is at another offset");
ABI_CUDA_FIELDS(ABI_CUDA_FIELD_CHECK)
#undef ABI_CUDA_FIELD_CHECK
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp has another size");
_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc has another size");
_Static_assert(sizeof(cudaIpcMemHandle_t) == 64, "cudaIpcMemHandle_t has another size");
_Static_assert(sizeof(cudaError_t) == 4 && sizeof(CUresult) == 4, "an enumeration of CUDA's has another size");

/*
 * The driver functions that the shim calls itself; none of them is interposed. The driver API is used
 * throughout, because unlike the runtime it never changes the host program's cudaGetLastError().
 */
#define ABI_DRIVER_FUNCTIONS(X)                                                                                        \
  X(cuCtxGetCurrent, (CUcontext * context))                                                                            \
  X(cuCtxGetDevice, (CUdevice * device))                                                                               \
  X(cuCtxPushCurrent_v2, (CUcontext context))                                                                          \
  X(cuCtxPopCurrent_v2, (CUcontext * context))                                                                         \
  X(cuCtxSynchronize, (void))                                                                                          \
  X(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))                                 \
  X(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                                                            \
  X(cuMemGetInfo_v2, (size_t * free, size_t * total))                                                                  \
  X(cuMemGetAllocationGranularity,                                                                                     \
    (size_t * granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option))                  \
  X(cuMemAddressReserve,                                                                                               \
    (CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags))                    \
  X(cuMemAddressFree, (CUdeviceptr ptr, size_t size))                                                                  \
  X(cuMemCreate,                                                                                                       \
    (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags))   \
  X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *ptr))                                   \
  X(cuMemRelease, (CUmemGenericAllocationHandle handle))                                                               \
  X(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle))         \
  X(cuMemExportToShareableHandle,                                                                                      \
    (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags))  \
  X(cuMemImportFromShareableHandle,                                                                                    \
    (CUmemGenericAllocationHandle * handle, void *osHandle, CUmemAllocationHandleType type))                           \
  X(cuMemMap,                                                                                                          \
    (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags))      \
  X(cuMemUnmap, (CUdeviceptr ptr, size_t size))                                                                        \
  X(cuMemSetAccess, (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count))                         \
  X(cuPointerGetAttribute, (void *data, CUpointer_attribute attribute, CUdeviceptr ptr))                               \
  X(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus * status))                                            \
  X(cuStreamGetCaptureInfo_v2, (CUstream stream, CUstreamCaptureStatus * status, uint64_t * id, CUgraph * graph,       \
                                const CUgraphNode **dependencies, size_t *count))                                      \
  X(cuUserObjectCreate,                                                                                                \
    (CUuserObject * object, void *data, CUhostFn destroy, unsigned int references, unsigned int flags))                \
  X(cuUserObjectRelease, (CUuserObject object, unsigned int references))                                               \
  X(cuGraphRetainUserObject, (CUgraph graph, CUuserObject object, unsigned int references, unsigned int flags))        \
  X(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                                  \
  X(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode))                                                   \
  X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags))                                           \
  X(cuEventCreate, (CUevent * event, unsigned int flags))                                                              \
  X(cuEventDestroy_v2, (CUevent event))                                                                                \
  X(cuEventRecord, (CUevent event, CUstream stream))                                                                   \
  X(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags))                                      \
  X(cuEventQuery, (CUevent event))                                                                                     \
  X(cuEventSynchronize, (CUevent event))                                                                               \
  X(cuModuleLoadData, (CUmodule * module, const void *image))                                                          \
  X(cuModuleUnload, (CUmodule module))                                                                                 \
  X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))                                   \
  X(cuLaunchKernel, (CUfunction function, unsigned int gridX, unsigned int gridY, unsigned int gridZ,                  \
                     unsigned int blockX, unsigned int blockY, unsigned int blockZ, unsigned int sharedBytes,          \
                     CUstream stream, void **params, void **extra))

#endif
