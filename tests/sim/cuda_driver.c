/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcuda.so.1: the exported functions. Each checks what the driver checks first (initialised, not forked, a
 * context where one is needed), and leaves the rest to the engine.
 */
#include <stdio.h>
#include <string.h>

#include "tests/sim/export.h"
#include "tests/sim/module.h"

const struct sim_engine *sim_engine(void)
{
#define ENGINE_MEMBER(result, name, parameters) .name = gpu_##name,
  static const struct sim_engine engine = {SIM_ENGINE(ENGINE_MEMBER)};
#undef ENGINE_MEMBER
  return &engine;
}

int sim_is_simulation(void)
{
  return 1;
}

CUresult cuInit(unsigned int flags)
{
  return SIM_CALL(cuInit, gpu_context_init(), "flags=%u", flags);
}

CUresult cuDriverGetVersion(int *version)
{
  *version = GPU_VERSION;
  return SIM_CALL(cuDriverGetVersion, CUDA_SUCCESS, "%s", "");
}

/* Devices and contexts */

static CUresult device_check(CUdevice device)
{
  CUresult result = gpu_context_check(false);
  if (result != CUDA_SUCCESS)
    return result;
  return device >= 0 && device < gpu_context_device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
  *device = ordinal;
  return device_check(ordinal);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
  return SIM_CALL(cuDeviceGet, device_get(device, ordinal), "ordinal=%d", ordinal);
}

CUresult cuDeviceGetCount(int *count)
{
  *count = gpu_context_device_count();
  return SIM_CALL(cuDeviceGetCount, gpu_context_check(false), "%s", "");
}

static CUresult device_name(char *name, int length, CUdevice device)
{
  snprintf(name, (size_t)length, "Simulated GPU");
  return device_check(device);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
  return SIM_CALL(cuDeviceGetName, device_name(name, length, device), "device=%d", device);
}

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    *value = 4;
    break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
    *value = 9;
    break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    *value = 0;
    break;
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: /* says yes, and cuMemCreate says no */
  case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    *value = 1;
    break;
  default:
    *value = 0;
    break;
  }
  return device_check(device);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
  return SIM_CALL(cuDeviceGetAttribute, device_attribute(value, attribute, device), "attribute=%u device=%d", attribute,
                  device);
}

static CUresult device_total(size_t *bytes, CUdevice device)
{
  *bytes = gpu_memory_total();
  return device_check(device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
  return SIM_CALL(cuDeviceTotalMem_v2, device_total(bytes, device), "device=%d", device);
}

static CUresult primary_retain(CUcontext *context, CUdevice device)
{
  CUresult result = device_check(device);
  if (result == CUDA_SUCCESS)
    *context = gpu_context_primary(device);
  return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
  return SIM_CALL(cuDevicePrimaryCtxRetain, primary_retain(context, device), "device=%d", device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
  return SIM_CALL(cuDevicePrimaryCtxRelease_v2, device_check(device), "device=%d", device);
}

static CUresult primary_state(CUdevice device, unsigned int *flags, int *active)
{
  CUresult result = device_check(device);
  *flags = 0;
  *active = result == CUDA_SUCCESS && gpu_context_is_active(device);
  return result;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
  return SIM_CALL(cuDevicePrimaryCtxGetState, primary_state(device, flags, active), "device=%d", device);
}

static CUresult context_get(CUcontext *context)
{
  *context = gpu_context_current();
  return gpu_context_check(false);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
  return SIM_CALL(cuCtxGetCurrent, context_get(context), "%s", "");
}

static CUresult context_set(CUcontext context)
{
  gpu_context_make_current(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
  return SIM_CALL(cuCtxSetCurrent, READY(context_set(context)), "%p", (void *)context);
}

static CUresult context_device(CUdevice *device)
{
  *device = gpu_context_device();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
  return SIM_CALL(cuCtxGetDevice, IN_CONTEXT(context_device(device)), "%s", "");
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
  return SIM_CALL(cuCtxPushCurrent_v2, READY(gpu_context_push(context)), "%p", (void *)context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
  return SIM_CALL(cuCtxPopCurrent_v2, READY(gpu_context_pop(context)), "%s", "");
}

static CUresult context_synchronize(void)
{
  CUresult result = gpu_capture_wait(gpu_context_device());
  return result == CUDA_SUCCESS ? gpu_stream_device_synchronize(gpu_context_device()) : result;
}

CUresult cuCtxSynchronize(void)
{
  return SIM_CALL(cuCtxSynchronize, IN_CONTEXT(context_synchronize()), "%s", "");
}

/* Memory */

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
  return SIM_CALL(cuMemGetInfo_v2, IN_CONTEXT(gpu_memory_info(gpu_context_device(), free, total)), "%s", "");
}

static CUresult mem_alloc(CUdeviceptr *ptr, size_t size)
{
  void *at = NULL;
  CUresult result = gpu_capture_unsafe();
  if (result == CUDA_SUCCESS)
    result = size ? gpu_memory_alloc(gpu_context_device(), size, &at) : (CUresult)CUDA_ERROR_INVALID_VALUE;
  *ptr = (uintptr_t)at;
  return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
  return SIM_CALL(cuMemAlloc_v2, IN_CONTEXT(mem_alloc(ptr, size)), "size=%zu", size);
}

static CUresult mem_free(CUdeviceptr ptr)
{
  CUresult result = gpu_capture_unsafe();
  return result == CUDA_SUCCESS ? gpu_memory_free(P(ptr)) : result;
}

CUresult cuMemFree_v2(CUdeviceptr ptr)
{
  return SIM_CALL(cuMemFree_v2, IN_CONTEXT(mem_free(ptr)), "%p", P(ptr));
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t count)
{
  return SIM_CALL(cuMemcpyDtoH_v2, IN_CONTEXT(gpu_copy_now(dst, P(src), count)), "%p %p count=%zu", dst, P(src), count);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t count)
{
  return SIM_CALL(cuMemcpyHtoD_v2, IN_CONTEXT(gpu_copy_now(P(dst), src, count)), "%p %p count=%zu", P(dst), src, count);
}

static CUresult mem_range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
  struct sim_memory memory;
  if (!gpu_memory_find(P(ptr), &memory))
    return CUDA_ERROR_INVALID_VALUE;
  if (base)
    *base = memory.base;
  if (size)
    *size = memory.size;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
  return SIM_CALL(cuMemGetAddressRange_v2, IN_CONTEXT(mem_range(base, size, ptr)), "%p", P(ptr));
}

static CUresult mem_granularity(size_t *granularity, const CUmemAllocationProp *prop)
{
  *granularity = GPU_GRANULARITY;
  return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
  return SIM_CALL(cuMemGetAllocationGranularity, READY(mem_granularity(granularity, prop)), "option=%u", option);
}

static CUresult mem_reserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint)
{
  uintptr_t base = 0;
  CUresult result = gpu_vmm_reserve(&base, size, alignment, (uintptr_t)hint);
  if (result == CUDA_SUCCESS)
    *ptr = base;
  return result;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
  return SIM_CALL(cuMemAddressReserve, READY(mem_reserve(ptr, size, alignment, addr)), "size=%zu flags=%llu", size,
                  flags);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
  return SIM_CALL(cuMemAddressFree, READY(gpu_vmm_unreserve((uintptr_t)ptr, size)), "%p size=%zu", P(ptr), size);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
  return SIM_CALL(cuMemCreate, IN_CONTEXT(gpu_vmm_create(handle, size, prop)), "size=%zu flags=%llu", size, flags);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
  return SIM_CALL(cuMemRelease, READY(gpu_vmm_release(handle)), "handle=%p", P(handle));
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
  return SIM_CALL(cuMemMap, READY(gpu_vmm_map((uintptr_t)ptr, size, offset, handle)),
                  "%p size=%zu offset=%zu handle=%p flags=%llu", P(ptr), size, offset, P(handle), flags);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
  return SIM_CALL(cuMemUnmap, READY(gpu_vmm_unmap((uintptr_t)ptr, size)), "%p size=%zu", P(ptr), size);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
  return SIM_CALL(cuMemSetAccess, READY(gpu_vmm_set_access((uintptr_t)ptr, size, desc, count)), "%p size=%zu count=%zu",
                  P(ptr), size, count);
}

static CUresult mem_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
  struct sim_memory memory;
  if (!gpu_memory_find(P(ptr), &memory) || memory.kind != SIM_MEMORY_MAPPED)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = memory.access & 1U << location->id ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
  return SIM_CALL(cuMemGetAccess, READY(mem_access(flags, location, ptr)), "%p", P(ptr));
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *ptr)
{
  return SIM_CALL(cuMemRetainAllocationHandle, READY(gpu_vmm_retain(handle, ptr)), "%p", ptr);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, unsigned int type,
                                      unsigned long long flags)
{
  return SIM_CALL(cuMemExportToShareableHandle,
                  READY(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? gpu_vmm_export(shareable, handle)
                                                                         : (CUresult)CUDA_ERROR_INVALID_VALUE),
                  "handle=%p type=%u flags=%llu", P(handle), type, flags);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, unsigned int type)
{
  return SIM_CALL(cuMemImportFromShareableHandle,
                  READY(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                            ? gpu_vmm_import(handle, (int)(intptr_t)os_handle)
                            : (CUresult)CUDA_ERROR_INVALID_VALUE),
                  "fd=%d type=%u", (int)(intptr_t)os_handle, type);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
  return SIM_CALL(cuMemGetAllocationPropertiesFromHandle, READY(gpu_vmm_properties(prop, handle)), "handle=%p",
                  P(handle));
}

static CUresult pointer_attribute(void *data, unsigned int attribute, CUdeviceptr ptr)
{
  struct sim_memory memory;
  if (!gpu_memory_find(P(ptr), &memory))
    return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    *(CUcontext *)data = gpu_context_primary(memory.device);
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned int *)data = memory.kind == SIM_MEMORY_HOST ? 1 : 2;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)data = memory.device;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: /* each device has one pool */
    *(void **)data = memory.pooled ? (void *)gpu_context_primary(memory.device) : NULL;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    *(unsigned char *)data = memory.kind == SIM_MEMORY_PLAIN && !memory.pooled;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult cuPointerGetAttribute(void *data, unsigned int attribute, CUdeviceptr ptr)
{
  return SIM_CALL(cuPointerGetAttribute, READY(pointer_attribute(data, attribute, ptr)), "%p attribute=%u", P(ptr),
                  attribute);
}

/* Streams and events */

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
  return SIM_CALL(cuStreamCreate, IN_CONTEXT(gpu_stream_create(stream, gpu_context_device(), flags)), "flags=%u",
                  flags);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
  return SIM_CALL(cuStreamDestroy_v2, READY(gpu_stream_destroy(stream)), "%p", (void *)stream);
}

CUresult cuStreamSynchronize(CUstream stream)
{
  return SIM_CALL(cuStreamSynchronize, IN_CONTEXT(gpu_stream_synchronize(stream)), "%p", (void *)stream);
}

CUresult cuStreamQuery(CUstream stream)
{
  return SIM_CALL(cuStreamQuery, IN_CONTEXT(gpu_stream_query(stream)), "%p", (void *)stream);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
  return SIM_CALL(cuStreamIsCapturing, IN_CONTEXT(gpu_capture_status(stream, status)), "%p", (void *)stream);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
  return SIM_CALL(cuThreadExchangeStreamCaptureMode, READY(gpu_capture_exchange_mode(mode)), "%s", "");
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
  return SIM_CALL(cuStreamWaitEvent, IN_CONTEXT(gpu_event_wait(stream, event, flags)), "%p %p flags=%u", (void *)stream,
                  (void *)event, flags);
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
  return SIM_CALL(cuEventCreate, IN_CONTEXT(gpu_event_create(event, flags)), "flags=%u", flags);
}

CUresult cuEventDestroy_v2(CUevent event)
{
  return SIM_CALL(cuEventDestroy_v2, READY(gpu_event_destroy(event)), "%p", (void *)event);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
  return SIM_CALL(cuEventRecord, IN_CONTEXT(gpu_event_record(event, stream, 0)), "%p %p", (void *)event,
                  (void *)stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
  return SIM_CALL(cuEventRecordWithFlags, IN_CONTEXT(gpu_event_record(event, stream, flags)), "%p %p flags=%u",
                  (void *)event, (void *)stream, flags);
}

CUresult cuEventSynchronize(CUevent event)
{
  return SIM_CALL(cuEventSynchronize, READY(gpu_event_synchronize(event)), "%p", (void *)event);
}

CUresult cuEventQuery(CUevent event)
{
  return SIM_CALL(cuEventQuery, READY(gpu_event_query(event)), "%p", (void *)event);
}

/* Device code */

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
  return SIM_CALL(cuModuleLoadData, IN_CONTEXT(module_load(module, image)), "%s", "");
}

CUresult cuModuleUnload(CUmodule module)
{
  return SIM_CALL(cuModuleUnload, READY(module_unload(module)), "%p", (void *)module);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
  return SIM_CALL(cuModuleGetFunction, READY(module_function(function, module, name)), "%s", name);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int gridX, unsigned int gridY, unsigned int gridZ,
                        unsigned int blockX, unsigned int blockY, unsigned int blockZ, unsigned int sharedBytes,
                        CUstream stream, void **params, void **extra)
{
  unsigned long long threads = 1ULL * gridX * gridY * gridZ * blockX * blockY * blockZ;
  const char *name = function ? ((const struct sim_kernel *)(void *)function)->name : "(null)";
  CUresult bad = CUDA_ERROR_INVALID_VALUE;
  return SIM_CALL(cuLaunchKernel, IN_CONTEXT(extra ? bad : module_launch(function, threads, stream, params)),
                  "%s threads=%llu shared=%u stream=%p", name, threads, sharedBytes, (void *)stream);
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
  *text = gpu_error_text(error);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
  *name = gpu_error_name(error);
  return CUDA_SUCCESS;
}
