/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcudart.so.13: a thin layer over the engine, which it finds like the real one finds the driver: when it is
 * first needed, with dlopen("libcuda.so.1"). Owns what the driver does not have: the thread's last error, which
 * a failing runtime call sets and a driver call never does.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "tests/sim/control.h"
#include "tests/sim/engine.h"

static pthread_once_t engine_once = PTHREAD_ONCE_INIT;
static const struct sim_engine *engine;
static __thread cudaError_t last_error;

static void engine_open(void)
{
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  const struct sim_engine *(*get)(void) = NULL;
  if (library)
    *(void **)&get = dlsym(library, "sim_engine");
  if (!get)
    control_die("the libcuda.so.1 that libcudart.so.13 found is not the simulated one");
  engine = get();
}

/* Nothing of the driver's is called in a forked child: context_init says so. */
static cudaError_t runtime_init(void)
{
  pthread_once(&engine_once, engine_open);
  return engine->context_init();
}

static cudaError_t runtime_enter(void)
{
  int device;
  cudaError_t result = runtime_init();
  return result == cudaSuccess ? engine->context_enter(&device) : result;
}

static cudaError_t runtime_leave(cudaError_t result)
{
  if (result != cudaSuccess)
    last_error = result;
  return result;
}

/* A runtime call that makes a context where there is none. */
#define RUNTIME(name, call, ...)                                                                                       \
  runtime_leave(SIM_CALL(name, runtime_prepare(runtime_enter()) ? (call) : prepared, __VA_ARGS__))
/* One that does not. */
#define RUNTIME_BARE(name, call, ...)                                                                                  \
  runtime_leave(SIM_CALL(name, runtime_prepare(runtime_init()) ? (call) : prepared, __VA_ARGS__))

static __thread cudaError_t prepared;

static bool runtime_prepare(cudaError_t result)
{
  prepared = result;
  return result == cudaSuccess;
}

/* Work that a capture in global mode forbids. */
#define SAFE(call) (runtime_prepare(engine->capture_unsafe()) ? (call) : prepared)

/* Memory */

cudaError_t cudaMalloc(void **ptr, size_t size)
{
  return RUNTIME(cudaMalloc,
                 ptr ? SAFE(engine->memory_alloc(engine->context_device(), size, ptr))
                     : (cudaError_t)cudaErrorInvalidValue,
                 "size=%zu", size);
}

cudaError_t cudaFree(void *ptr)
{
  return RUNTIME(cudaFree, ptr ? SAFE(engine->memory_free(ptr)) : (cudaError_t)cudaSuccess, "%p", ptr);
}

cudaError_t cudaMallocAsync(void **ptr, size_t size, cudaStream_t stream)
{
  return RUNTIME(cudaMallocAsync, engine->pool_alloc(engine->context_device(), size, stream, ptr), "size=%zu stream=%p",
                 size, (void *)stream);
}

cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
  return RUNTIME(cudaFreeAsync, ptr ? engine->pool_free(ptr, stream) : (cudaError_t)cudaSuccess, "%p stream=%p", ptr,
                 (void *)stream);
}

cudaError_t cudaMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height)
{
  enum { ALIGNMENT = 512 };
  *pitch = (width + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return RUNTIME(cudaMallocPitch, SAFE(engine->memory_alloc(engine->context_device(), *pitch * height, ptr)),
                 "width=%zu height=%zu", width, height);
}

cudaError_t cudaMallocHost(void **ptr, size_t size)
{
  return RUNTIME(cudaMallocHost, SAFE(engine->memory_host_alloc(size, ptr)), "size=%zu", size);
}

cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned int flags)
{
  return RUNTIME(cudaHostAlloc, SAFE(engine->memory_host_alloc(size, ptr)), "size=%zu flags=%u", size, flags);
}

cudaError_t cudaFreeHost(void *ptr)
{
  return RUNTIME(cudaFreeHost, ptr ? SAFE(engine->memory_host_free(ptr)) : (cudaError_t)cudaSuccess, "%p", ptr);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, cudaMemcpyKind kind)
{
  return RUNTIME(cudaMemcpy, engine->copy_now(dst, src, count), "%p %p count=%zu kind=%u", dst, src, count, kind);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, cudaMemcpyKind kind, cudaStream_t stream)
{
  return RUNTIME(cudaMemcpyAsync, engine->copy_submit(dst, src, count, stream), "%p %p count=%zu kind=%u stream=%p",
                 dst, src, count, kind, (void *)stream);
}

static bool is_device(int device)
{
  return device >= 0 && device < engine->context_device_count();
}

#define ORDINALS(dst, src, call) (is_device(dst) && is_device(src) ? (call) : (cudaError_t)cudaErrorInvalidDevice)

cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device, size_t count)
{
  return RUNTIME(cudaMemcpyPeer, ORDINALS(dst_device, src_device, engine->copy_now(dst, src, count)),
                 "%p@%d %p@%d count=%zu", dst, dst_device, src, src_device, count);
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t count,
                                cudaStream_t stream)
{
  return RUNTIME(cudaMemcpyPeerAsync, ORDINALS(dst_device, src_device, engine->copy_submit(dst, src, count, stream)),
                 "%p@%d %p@%d count=%zu stream=%p", dst, dst_device, src, src_device, count, (void *)stream);
}

cudaError_t cudaMemset(void *ptr, int value, size_t count)
{
  return RUNTIME(cudaMemset, engine->copy_fill(ptr, value, count, SIM_STREAM_LEGACY), "%p value=%d count=%zu", ptr,
                 value, count);
}

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t count, cudaStream_t stream)
{
  return RUNTIME(cudaMemsetAsync, engine->copy_fill(ptr, value, count, stream), "%p value=%d count=%zu stream=%p", ptr,
                 value, count, (void *)stream);
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
  return RUNTIME(cudaMemGetInfo, engine->memory_info(engine->context_device(), free, total), "%s", "");
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr)
{
  return RUNTIME(cudaIpcGetMemHandle, SAFE(engine->ipc_export(ptr, handle)), "%p", ptr);
}

cudaError_t cudaIpcOpenMemHandle(void **ptr, cudaIpcMemHandle_t handle, unsigned int flags)
{
  return RUNTIME(cudaIpcOpenMemHandle, SAFE(engine->ipc_open(ptr, &handle, flags)), "flags=%u", flags);
}

cudaError_t cudaIpcCloseMemHandle(void *ptr)
{
  return RUNTIME(cudaIpcCloseMemHandle, SAFE(engine->ipc_close(ptr)), "%p", ptr);
}

static cudaError_t pointer_attributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
  struct sim_memory memory;
  *attributes = (struct cudaPointerAttributes){.device = -2, .hostPointer = (void *)ptr};
  if (!engine->memory_find(ptr, &memory))
    return cudaSuccess;
  bool host = memory.kind == SIM_MEMORY_HOST;
  attributes->type = host ? 1 : 2;
  attributes->device = memory.device;
  attributes->devicePointer = (void *)ptr;
  attributes->hostPointer = host ? (void *)ptr : NULL;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
  return RUNTIME(cudaPointerGetAttributes, pointer_attributes(attributes, ptr), "%p", ptr);
}

/* Devices */

cudaError_t cudaSetDevice(int device)
{
  return RUNTIME_BARE(cudaSetDevice, engine->context_set_device(device), "device=%d", device);
}

static cudaError_t device_get(int *device)
{
  *device = engine->context_device();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
  return RUNTIME_BARE(cudaGetDevice, device_get(device), "%s", "");
}

static cudaError_t device_count(int *count)
{
  *count = engine->context_device_count();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
  return RUNTIME_BARE(cudaGetDeviceCount, device_count(count), "%s", "");
}

static cudaError_t device_synchronize(int device)
{
  cudaError_t result = engine->capture_wait(device);
  return result == cudaSuccess ? engine->stream_device_synchronize(device) : result;
}

cudaError_t cudaDeviceSynchronize(void)
{
  return RUNTIME(cudaDeviceSynchronize, device_synchronize(engine->context_device()), "%s", "");
}

cudaError_t cudaDeviceReset(void)
{
  return RUNTIME(cudaDeviceReset, SAFE(engine->context_reset()), "%s", "");
}

static cudaError_t device_peer(int *can, int device, int peer)
{
  int count = engine->context_device_count();
  if (device < 0 || device >= count || peer < 0 || peer >= count)
    return cudaErrorInvalidDevice;
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
  return RUNTIME_BARE(cudaDeviceCanAccessPeer, device_peer(can, device, peer), "device=%d peer=%d", device, peer);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
  return RUNTIME(cudaDeviceEnablePeerAccess,
                 flags ? (cudaError_t)cudaErrorInvalidValue
                       : engine->context_peer_set(engine->context_device(), peer, true),
                 "peer=%d flags=%u", peer, flags);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
  return RUNTIME(cudaDeviceDisablePeerAccess, engine->context_peer_set(engine->context_device(), peer, false),
                 "peer=%d", peer);
}

/* Errors and versions */

cudaError_t cudaGetLastError(void)
{
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void)
{
  return last_error;
}

const char *cudaGetErrorString(cudaError_t error)
{
  runtime_init();
  return engine->error_text(error);
}

const char *cudaGetErrorName(cudaError_t error)
{
  runtime_init();
  return engine->error_name(error);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
  *version = 13000;
  return cudaSuccess;
}

/* Streams, captures and graphs */

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
  return RUNTIME(cudaStreamCreate, engine->stream_create(stream, engine->context_device(), 0), "%s", "");
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
  return RUNTIME(cudaStreamCreateWithFlags, engine->stream_create(stream, engine->context_device(), flags), "flags=%u",
                 flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
  return RUNTIME(cudaStreamDestroy, engine->stream_destroy(stream), "%p", (void *)stream);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
  return RUNTIME(cudaStreamSynchronize, engine->stream_synchronize(stream), "%p", (void *)stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
  return RUNTIME(cudaStreamQuery, engine->stream_query(stream), "%p", (void *)stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
  return RUNTIME(cudaStreamWaitEvent, engine->event_wait(stream, event, flags), "%p %p flags=%u", (void *)stream,
                 (void *)event, flags);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, CUstreamCaptureStatus *status)
{
  return RUNTIME(cudaStreamIsCapturing, engine->capture_status(stream, status), "%p", (void *)stream);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, CUstreamCaptureMode mode)
{
  return RUNTIME(cudaStreamBeginCapture, engine->capture_begin(stream, mode), "%p mode=%u", (void *)stream, mode);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
  return RUNTIME(cudaStreamEndCapture, engine->capture_end(stream, graph), "%p", (void *)stream);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
  return RUNTIME_BARE(cudaThreadExchangeStreamCaptureMode, engine->capture_exchange_mode(mode), "%s", "");
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
  return RUNTIME(cudaGraphInstantiate, engine->graph_instantiate(exec, graph), "%p flags=%llu", (void *)graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
  return RUNTIME(cudaGraphLaunch, engine->graph_launch(exec, stream), "%p stream=%p", (void *)exec, (void *)stream);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
  return RUNTIME(cudaGraphDestroy, engine->graph_destroy(graph), "%p", (void *)graph);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
  return RUNTIME(cudaGraphExecDestroy, engine->graph_exec_destroy(exec), "%p", (void *)exec);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *arg)
{
  const struct sim_work work = {.run = function, .arg = arg};
  return RUNTIME(cudaLaunchHostFunc, engine->stream_submit(stream, &work, NULL), "%p", (void *)stream);
}

/* Events */

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
  return RUNTIME(cudaEventCreate, engine->event_create(event, 0), "%s", "");
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
  return RUNTIME(cudaEventCreateWithFlags, engine->event_create(event, flags), "flags=%u", flags);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
  return RUNTIME(cudaEventRecord, engine->event_record(event, stream, 0), "%p %p", (void *)event, (void *)stream);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
  return RUNTIME(cudaEventRecordWithFlags, engine->event_record(event, stream, flags), "%p %p flags=%u", (void *)event,
                 (void *)stream, flags);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
  return RUNTIME(cudaEventSynchronize, engine->event_synchronize(event), "%p", (void *)event);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
  return RUNTIME(cudaEventQuery, engine->event_query(event), "%p", (void *)event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
  return RUNTIME(cudaEventDestroy, engine->event_destroy(event), "%p", (void *)event);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
  return RUNTIME(cudaEventElapsedTime, engine->event_elapsed(ms, start, end), "%p %p", (void *)start, (void *)end);
}
