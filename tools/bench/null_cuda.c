/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda.so.1 likewise: one device, all that the shim asks of it, nothing behind it. */
#include "shim/abi/cuda.h"

#include <stdint.h>
#include <sys/mman.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { GRANULARITY = 2 << 20, MEMORY = 1 << 30 };

static char something; /* whatever handles point to */

#define DECLARE(name, params) CUresult name params;
ABI_DRIVER_FUNCTIONS(DECLARE)

#define DO_NOTHING(name, params)                                                                                       \
  CUresult name params                                                                                                 \
  {                                                                                                                    \
    return CUDA_SUCCESS;                                                                                               \
  }
DO_NOTHING(cuCtxPushCurrent_v2, (CUcontext context))
DO_NOTHING(cuCtxSynchronize, (void))
DO_NOTHING(cuMemAddressFree, (CUdeviceptr ptr, size_t size))
DO_NOTHING(cuMemRelease, (CUmemGenericAllocationHandle handle))
DO_NOTHING(cuMemMap,
           (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags))
DO_NOTHING(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle))
DO_NOTHING(cuMemExportToShareableHandle, (void *shareable, CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType type, unsigned long long flags))
DO_NOTHING(cuMemImportFromShareableHandle,
           (CUmemGenericAllocationHandle * handle, void *osHandle, CUmemAllocationHandleType type))
DO_NOTHING(cuMemUnmap, (CUdeviceptr ptr, size_t size))
DO_NOTHING(cuMemSetAccess, (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count))
DO_NOTHING(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode))
DO_NOTHING(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags))
DO_NOTHING(cuEventDestroy_v2, (CUevent event))
DO_NOTHING(cuEventRecord, (CUevent event, CUstream stream))
DO_NOTHING(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags))
DO_NOTHING(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))
DO_NOTHING(cuUserObjectCreate,
           (CUuserObject * object, void *data, CUhostFn destroy, unsigned int references, unsigned int flags))
DO_NOTHING(cuUserObjectRelease, (CUuserObject object, unsigned int references))
DO_NOTHING(cuGraphRetainUserObject, (CUgraph graph, CUuserObject object, unsigned int references, unsigned int flags))
DO_NOTHING(cuEventQuery, (CUevent event))
DO_NOTHING(cuEventSynchronize, (CUevent event))
DO_NOTHING(cuModuleUnload, (CUmodule module))
DO_NOTHING(cuLaunchKernel, (CUfunction function, unsigned int gridX, unsigned int gridY, unsigned int gridZ,
                            unsigned int blockX, unsigned int blockY, unsigned int blockZ, unsigned int sharedBytes,
                            CUstream stream, void **params, void **extra))

#define GIVE(name, params, result, value)                                                                              \
  CUresult name params                                                                                                 \
  {                                                                                                                    \
    *(result) = (value);                                                                                               \
    return CUDA_SUCCESS;                                                                                               \
  }
GIVE(cuCtxGetCurrent, (CUcontext * context), context, (CUcontext)(void *)&something)
GIVE(cuCtxPopCurrent_v2, (CUcontext * context), context, (CUcontext)(void *)&something)
GIVE(cuCtxGetDevice, (CUdevice * device), device, 0)
GIVE(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device), value, 1)
GIVE(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device), bytes, MEMORY)
GIVE(cuMemGetAllocationGranularity,
     (size_t * granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option), granularity,
     GRANULARITY)
GIVE(cuMemCreate,
     (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags),
     handle, 1)
/* All is device memory, of no pool. */
GIVE(cuPointerGetAttribute, (void *data, CUpointer_attribute attribute, CUdeviceptr ptr), (unsigned int *)data,
     attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE : 0)
GIVE(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), status, CU_STREAM_CAPTURE_STATUS_NONE)
GIVE(cuStreamGetCaptureInfo_v2,
     (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies,
      size_t *count),
     status, CU_STREAM_CAPTURE_STATUS_NONE)
GIVE(cuEventCreate, (CUevent * event, unsigned int flags), event, (CUevent)(void *)&something)
GIVE(cuModuleLoadData, (CUmodule * module, const void *image), module, (CUmodule)(void *)&something)
GIVE(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name), function,
     (CUfunction)(void *)&something)

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *ptr)
{
  (void)handle;
  (void)ptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
  *free = *total = MEMORY;
  return CUDA_SUCCESS;
}

/* Addresses that nothing else in the process has. */
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
  void *base = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

  if (base == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *ptr = ((uintptr_t)base + alignment - 1) / alignment * alignment;
  return CUDA_SUCCESS;
}

/* The shim does without the driver where one function is missing: fails to link when there is a new one. */
#define REFER(name, params) (void (*)(void)) name,
__attribute__((used)) static void (*const all[])(void) = {ABI_DRIVER_FUNCTIONS(REFER)};
