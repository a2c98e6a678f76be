/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated runtime and driver within one process: contexts, memory, faults on demand, exports. */
#include "tests/sim/test_cuda.h"

#include "shim/hooks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static CUdeviceptr map_piece(int device, CUmemGenericAllocationHandle *handle)
{
  CUmemAllocationProp prop = prop_of(device);
  CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr base;
  assert_ok(cuMemCreate(handle, PIECE, &prop, 0));
  assert_ok(cuMemAddressReserve(&base, PIECE, 0, 0, 0));
  assert_ok(cuMemMap(base, PIECE, 0, *handle, 0));
  assert_ok(cuMemSetAccess(base, PIECE, &access, 1));
  return base;
}

static void unmap_piece(CUdeviceptr base, CUmemGenericAllocationHandle handle)
{
  assert_ok(cuMemUnmap(base, PIECE));
  assert_ok(cuMemAddressFree(base, PIECE));
  assert_ok(cuMemRelease(handle));
}

static void *gate_opener(void *arg)
{
  (void)arg;
  nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
  atomic_store(&gate_open, true);
  return NULL;
}

static pthread_t gate_open_later(void)
{
  pthread_t thread;
  assert_ok(pthread_create(&thread, NULL, gate_opener, NULL));
  return thread;
}

enum child { NO_CONTEXT, USE_AFTER_UNMAP, USE_AFTER_FREE, OUT_OF_BOUNDS, NO_ACCESS };

/* Runs one of main's children in a process with a driver of its own; gives the status that the shell would. */
static int in_child(enum child child)
{
  char self[4096];
  char name[32];
  ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  assert_true(length > 0);
  self[length] = '\0';
  snprintf(name, sizeof(name), "%d", (int)child);
  pid_t pid = fork();
  if (pid == 0) {
    setenv("SIM_TEST_CHILD", name, 1);
    execl(self, self, (char *)NULL);
    _exit(127);
  }
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void child_no_context(void)
{
  CUcontext context = (CUcontext)&context;
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop = prop_of(0);
  int device;
  if (cuCtxGetCurrent(&context) != CUDA_ERROR_NOT_INITIALIZED || cudaGetDevice(&device) != cudaSuccess)
    _exit(1);
  if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || context)
    _exit(2);
  if (cuMemCreate(&handle, PIECE, &prop, 0) != CUDA_ERROR_INVALID_CONTEXT)
    _exit(3);
  if (cudaFree(NULL) != cudaSuccess || cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
    _exit(4);
  if (cuMemCreate(&handle, PIECE, &prop, 0) != CUDA_SUCCESS)
    _exit(5);
  _exit(0);
}

static void test_context(void **state)
{
  unused(state);
  assert_int_equal(in_child(NO_CONTEXT), 0);
}

static void child_use_after_unmap(void)
{
  CUmemGenericAllocationHandle handle;
  cudaStream_t stream;
  cudaSetDevice(0);
  cudaStreamCreate(&stream);
  CUdeviceptr base = map_piece(0, &handle);
  cudaLaunchHostFunc(stream, gate_run, NULL);
  cudaMemsetAsync((void *)(uintptr_t)base, 1, PIECE, stream);
  cuMemUnmap(base, PIECE); /* returns, though the device is not done */
  atomic_store(&gate_open, true);
  cudaStreamSynchronize(stream);
  _exit(0);
}

static void test_unmap_does_not_wait(void **state)
{
  unused(state);
  assert_int_equal(in_child(USE_AFTER_UNMAP), 139);
}

static void child_use_after_free(void)
{
  char *data;
  cudaMalloc((void **)&data, MIB);
  data[0] = 1;
  cudaFree(data);
  data[0] = 2;
  _exit(0);
}

static void child_out_of_bounds(void)
{
  char *data;
  cudaMalloc((void **)&data, MIB);
  data[MIB] = 2;
  _exit(0);
}

static void child_no_access(void)
{
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop = prop_of(0);
  CUdeviceptr base;
  cudaSetDevice(0);
  cuMemCreate(&handle, PIECE, &prop, 0);
  cuMemAddressReserve(&base, PIECE, 0, 0, 0);
  cuMemMap(base, PIECE, 0, handle, 0);
  *(volatile char *)(uintptr_t)base = 1;
  _exit(0);
}

static void test_faults(void **state)
{
  unused(state);
  assert_int_equal(in_child(USE_AFTER_FREE), 139);
  assert_int_equal(in_child(OUT_OF_BOUNDS), 139);
  assert_int_equal(in_child(NO_ACCESS), 139);
}

static void test_free_waits(void **state)
{
  unused(state);
  void *data;
  cudaStream_t stream;
  assert_ok(cudaMalloc(&data, MIB));
  assert_ok(cudaStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
  gate_place(stream);
  assert_ok(cudaMemsetAsync(data, 1, MIB, stream));
  assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
  pthread_t thread = gate_open_later();
  assert_ok(cudaFree(data));
  assert_true(atomic_load(&gate_open));
  assert_ok(cudaStreamQuery(stream));
  assert_ok(pthread_join(thread, NULL));
  assert_ok(cudaStreamDestroy(stream));
  cudaGetLastError();
}

static void test_last_error(void **state)
{
  unused(state);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr base = map_piece(0, &handle);
  cudaIpcMemHandle_t ipc;
  void *plain;
  assert_ok(cudaGetLastError());

  /* The real cudaFree and IPC know nothing of such memory; the memory stays as it is. */
  assert_int_equal(cudaFree((void *)(uintptr_t)base), cudaErrorInvalidValue);
  assert_int_equal(cudaPeekAtLastError(), cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  assert_ok(cudaGetLastError());
  *(char *)(uintptr_t)base = 1;
  assert_int_equal(cudaIpcGetMemHandle(&ipc, (void *)(uintptr_t)base), cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);

  /* A success does not clear it, a failing driver call does not set it. */
  assert_int_equal(cudaSetDevice(99), cudaErrorInvalidDevice);
  assert_ok(cudaMalloc(&plain, MIB));
  assert_int_equal(cuMemUnmap(base + 1, PIECE), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
  assert_int_equal(cuMemUnmap(base + 1, PIECE), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cudaGetLastError());

  assert_ok(cudaIpcGetMemHandle(&ipc, plain));
  assert_ok(cudaFree(plain));
  unmap_piece(base, handle);
}

/* cudaMalloc's memory goes when the stream comes to it; VMM memory is refused. */
static void test_free_async(void **state)
{
  unused(state);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr base = map_piece(0, &handle);
  cudaStream_t stream;
  cudaGraph_t graph;
  void *data;
  assert_ok(cudaMalloc(&data, MIB));
  assert_ok(cudaStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
  assert_int_equal(cudaFreeAsync((void *)(uintptr_t)base, stream), cudaErrorInvalidValue);
  assert_int_equal(cudaFreeAsync((char *)data + 512, stream), cudaErrorInvalidValue);
  assert_ok(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  assert_int_equal(cudaFreeAsync(data, stream), cudaErrorNotSupported);
  assert_ok(cudaStreamEndCapture(stream, &graph));
  gate_place(stream);
  assert_ok(cudaMemsetAsync(data, 1, MIB, stream));
  assert_ok(cudaFreeAsync(data, stream));
  *(char *)data = 2;
  pthread_t thread = gate_open_later();
  assert_ok(cudaStreamSynchronize(stream));
  assert_ok(pthread_join(thread, NULL));
  assert_int_equal(cudaFree(data), cudaErrorInvalidValue);
  assert_ok(cudaGraphDestroy(graph));
  assert_ok(cudaStreamDestroy(stream));
  unmap_piece(base, handle);
  cudaGetLastError();
}

/* A wait for the device breaks a capture on it, whatever the modes; cudaFree in relaxed mode does not. */
static void test_wait_in_capture(void **state)
{
  unused(state);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  cudaStream_t stream;
  cudaGraph_t graph = NULL;
  void *data;
  assert_ok(cudaMalloc(&data, MIB));
  assert_ok(cudaStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
  assert_ok(cudaThreadExchangeStreamCaptureMode(&mode));
  assert_ok(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  assert_ok(cudaFree(data));
  assert_ok(cudaSetDevice(1));
  assert_ok(cudaDeviceSynchronize());
  assert_ok(cudaSetDevice(0));
  assert_int_equal(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  assert_ok(cudaThreadExchangeStreamCaptureMode(&mode));
  assert_ok(cudaStreamDestroy(stream));
  cudaGetLastError();
}

/* What cudaMalloc gave goes, of this device alone; VMM memory stays. */
static void test_reset(void **state)
{
  unused(state);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr base = map_piece(2, &handle);
  void *mine;
  void *other;
  assert_ok(cudaMalloc(&other, MIB));
  assert_ok(cudaSetDevice(2));
  assert_ok(cudaMalloc(&mine, MIB));
  assert_ok(cudaDeviceEnablePeerAccess(0, 0));
  assert_ok(cudaDeviceReset());
  assert_int_equal(cudaFree(mine), cudaErrorInvalidValue);
  assert_ok(cudaDeviceEnablePeerAccess(0, 0));
  *(char *)(uintptr_t)base = 1;
  assert_ok(cudaDeviceReset());
  assert_ok(cudaSetDevice(0));
  assert_ok(cudaMemset(other, 1, MIB));
  assert_ok(cudaFree(other));
  unmap_piece(base, handle);
  cudaGetLastError();
}

static void test_vmm_rules(void **state)
{
  unused(state);
  CUmemGenericAllocationHandle handle;
  CUmemGenericAllocationHandle again;
  CUmemAllocationProp prop = prop_of(0);
  CUdeviceptr base;
  CUdeviceptr found;
  size_t size;
  assert_int_equal(cuMemCreate(&handle, PIECE + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  assert_int_equal(cuMemCreate(&handle, PIECE, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
  prop = prop_of(0);
  assert_ok(cuMemCreate(&handle, 2 * PIECE, &prop, 0));
  assert_ok(cuMemAddressReserve(&base, 8 * PIECE, 0, 0, 0));
  assert_int_equal(base % PIECE, 0);

  /* Whole handles only, inside a reservation, over nothing else; but twice if you like. */
  assert_int_equal(cuMemMap(base, PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuMemMap(base, PIECE, PIECE, handle, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuMemMap(base + 7 * PIECE, 2 * PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cuMemMap(base, 2 * PIECE, 0, handle, 0));
  assert_int_equal(cuMemMap(base + PIECE, 2 * PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cuMemMap(base + 2 * PIECE, 2 * PIECE, 0, handle, 0));
  CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  assert_int_equal(cuMemSetAccess(base, 5 * PIECE, &access, 1), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cuMemSetAccess(base, 4 * PIECE, &access, 1));
  *(char *)(uintptr_t)base = 42;
  assert_int_equal(*(char *)(uintptr_t)(base + 2 * PIECE), 42);

  /* Chunks side by side keep their own base. */
  assert_ok(cuMemGetAddressRange_v2(&found, &size, base + 3 * PIECE));
  assert_int_equal(found, base + 2 * PIECE);
  assert_int_equal(size, 2 * PIECE);
  assert_ok(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(base + PIECE)));
  assert_int_equal(again, handle);
  assert_ok(cuMemRelease(again));

  assert_int_equal(cuMemAddressFree(base, 8 * PIECE), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuMemUnmap(base, PIECE), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cuMemUnmap(base, 4 * PIECE));
  assert_ok(cuMemRelease(handle));
  assert_int_equal(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cuMemAddressFree(base, 8 * PIECE));

  void *plain;
  assert_ok(cudaMalloc(&plain, PIECE));
  assert_int_equal(cuMemRetainAllocationHandle(&again, plain), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cudaFree(plain));
}

/* Memory of a pool says so, and goes when its stream gets to the free. */
static void test_pool(void **state)
{
  (void)state;
  void *pooled, *plain, *pool = NULL;
  size_t before, after, total;
  cudaStream_t stream;
  assert_ok(cudaMalloc(&plain, PIECE));
  assert_ok(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, (CUdeviceptr)(uintptr_t)plain));
  assert_null(pool);
  assert_ok(cudaStreamCreateWithFlags(&stream, 1));
  assert_ok(cudaMemGetInfo(&before, &total));
  assert_ok(cudaMallocAsync(&pooled, PIECE, stream));
  assert_ok(cudaMemsetAsync(pooled, 1, PIECE, stream));
  assert_ok(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, (CUdeviceptr)(uintptr_t)pooled));
  assert_non_null(pool);
  CUmemGenericAllocationHandle handle;
  assert_int_equal(cuMemRetainAllocationHandle(&handle, pooled), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cudaFreeAsync(pooled, stream));
  assert_ok(cudaStreamSynchronize(stream));
  assert_ok(cudaMemGetInfo(&after, &total));
  assert_int_equal(after, before);
  assert_int_equal(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, (CUdeviceptr)(uintptr_t)pooled),
                   CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cudaFreeAsync(pooled, stream), cudaErrorInvalidValue);
  assert_ok(cudaMallocAsync(&pooled, PIECE, stream));
  assert_ok(cudaFree(pooled));
  assert_ok(cudaStreamDestroy(stream));
  assert_ok(cudaFree(plain));
  cudaGetLastError();
}

/* A descriptor of it is the same memory, and names its device. */
static void test_vmm_export(void **state)
{
  unused(state);
  CUmemGenericAllocationHandle handle;
  CUmemGenericAllocationHandle imported;
  CUmemAllocationProp prop;
  CUdeviceptr base = map_piece(3, &handle);
  CUdeviceptr other;
  int fd;
  assert_ok(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  assert_ok(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  assert_ok(cuMemGetAllocationPropertiesFromHandle(&prop, imported));
  assert_int_equal(prop.location.id, 3);
  CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  assert_ok(cuMemAddressReserve(&other, PIECE, 0, 0, 0));
  assert_ok(cuMemMap(other, PIECE, 0, imported, 0));
  assert_ok(cuMemSetAccess(other, PIECE, &access, 1));
  *(char *)(uintptr_t)base = 17;
  assert_int_equal(*(char *)(uintptr_t)other, 17);
  unmap_piece(other, imported);
  unmap_piece(base, handle);
  assert_int_equal(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)STDERR_FILENO,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                   CUDA_ERROR_INVALID_VALUE);
}

static size_t free_of_device(void)
{
  size_t free;
  size_t total;
  assert_ok(cudaMemGetInfo(&free, &total));
  return free;
}

/* SIM_DEVICE_MEMORY is 64M here. A descriptor and an import keep the memory from its device until they go. */
static void test_vmm_shared(void **state)
{
  unused(state);
  CUmemGenericAllocationHandle handles[2];
  CUmemGenericAllocationHandle imported;
  CUmemAllocationProp prop = prop_of(0);
  const unsigned int type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const size_t size = 40 * MIB;
  int fds[2];
  size_t before = free_of_device();
  assert_ok(cuMemCreate(&handles[0], size, &prop, 0));
  assert_ok(cuMemExportToShareableHandle(&fds[0], handles[0], type, 0));
  assert_ok(cuMemExportToShareableHandle(&fds[1], handles[0], type, 0));
  assert_ok(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fds[0], type));
  assert_ok(cuMemRelease(handles[0]));
  close(fds[0]);
  assert_int_equal(before - free_of_device(), size);
  close(fds[1]);
  assert_int_equal(before - free_of_device(), size);
  assert_int_equal(cuMemCreate(&handles[1], size, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  assert_ok(cuMemRelease(imported));
  assert_ok(cuMemCreate(&handles[1], size, &prop, 0));
  assert_ok(cuMemExportToShareableHandle(&fds[0], handles[1], type, 0));
  assert_ok(cuMemRelease(handles[1]));
  assert_int_equal(before - free_of_device(), size);
  close(fds[0]);
  assert_int_equal(free_of_device(), before);
}

static void test_peer_copies(void **state)
{
  unused(state);
  CUmemGenericAllocationHandle handle;
  void *near;
  void *far;
  assert_ok(cudaSetDevice(1));
  assert_ok(cudaMalloc(&far, MIB));
  assert_ok(cudaSetDevice(0));
  assert_ok(cudaMalloc(&near, MIB));
  CUdeviceptr base = map_piece(0, &handle);
  void *mapped = (void *)(uintptr_t)base;

  assert_ok(cudaMemcpy(far, near, MIB, 3));
  assert_ok(cudaMemcpy(mapped, near, MIB, 3));
  assert_int_equal(cudaMemcpy(far, mapped, MIB, 3), cudaErrorInvalidValue);
  assert_int_equal(cudaMemcpyPeer(mapped, 0, far, 1, MIB), cudaErrorInvalidValue);
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  assert_ok(cuMemSetAccess(base, PIECE, &access, 1));
  assert_ok(cudaMemcpyPeer(mapped, 0, far, 1, MIB));
  /* Past the end. */
  assert_int_equal(cudaMemcpy(near, far, MIB + 1, 3), cudaErrorInvalidValue);

  int can;
  assert_ok(cudaDeviceCanAccessPeer(&can, 0, 1));
  assert_int_equal(can, 1);
  assert_ok(cudaDeviceEnablePeerAccess(1, 0));
  assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  assert_ok(cudaDeviceDisablePeerAccess(1));
  assert_int_equal(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
  cudaGetLastError();
  assert_ok(cudaFree(near));
  assert_ok(cudaFree(far));
  unmap_piece(base, handle);
}

/* SIM_DEVICE_MEMORY is 64M here. */
static void test_memory_cap(void **state)
{
  unused(state);
  size_t before;
  size_t now;
  size_t total;
  void *data;
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop = prop_of(0);
  assert_ok(cudaMemGetInfo(&before, &total));
  assert_int_equal(total, 64 * MIB);
  assert_int_equal(cudaMalloc(&data, 65 * MIB), cudaErrorMemoryAllocation);
  assert_null(data);
  assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
  assert_ok(cudaMalloc(&data, 40 * MIB));
  assert_int_equal(cuMemCreate(&handle, 26 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  assert_ok(cuMemCreate(&handle, 20 * MIB, &prop, 0));
  assert_ok(cudaMemGetInfo(&now, &total));
  assert_int_equal(before - now, 60 * MIB);
  assert_ok(cudaFree(data));
  assert_ok(cuMemRelease(handle));
  assert_ok(cudaMemGetInfo(&now, &total));
  assert_int_equal(now, before);
}

/* A forked child has neither the driver nor the device's memory. */
static void test_fork(void **state)
{
  unused(state);
  char *data;
  int status;
  assert_ok(cudaMalloc((void **)&data, MIB));
  data[0] = 1;
  pid_t pid = fork();
  if (pid == 0) {
    void *more;
    if (cudaMalloc(&more, MIB) != cudaErrorInitializationError)
      _exit(1);
    signal(SIGSEGV, SIG_DFL); /* cmocka's handler came along */
    data[0] = 2;
    _exit(0);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  assert_int_equal(data[0], 1);
  assert_ok(cudaFree(data));
}

/* SIM_FAIL=cuDevicePrimaryCtxRetain:2=999,cudaHostAlloc:*=801,cudaStreamQuery:1@rank7 */
static void test_fail(void **state)
{
  unused(state);
  CUcontext context;
  void *data;
  for (int i = 1; i <= 3; i++)
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), i == 2 ? 999 : 0);
  assert_int_equal(cudaHostAlloc(&data, 1, 0), 801);
  assert_int_equal(cudaHostAlloc(&data, 1, 0), 801);
  assert_int_equal(cudaGetLastError(), 801);
  assert_ok(cudaStreamQuery(NULL));
}

/* What an interposer and a linker see. */
static void test_exports(void **state)
{
  unused(state);
  void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  assert_non_null(runtime);
  assert_non_null(nccl);
  assert_non_null(driver);
  assert_non_null(dlvsym(runtime, "cudaMalloc", "libcudart.so.13"));
  assert_null(dlvsym(runtime, "cudaMalloc", "libcudart.so.12"));
#define TWINS(name, parameters)                                                                                        \
  assert_non_null(dlsym(nccl, "nccl" #name));                                                                          \
  assert_ptr_equal(dlsym(nccl, "nccl" #name), dlsym(nccl, "pnccl" #name));
  SIM_NCCL_FUNCTIONS(TWINS)
#undef TWINS
  assert_null(dlsym(nccl, "ncclCommGrow"));
  /* Whatever the shim interposes or calls is here, but for the one that is left out on purpose. */
#define HOOKED(library, name, ...)                                                                                     \
  assert_true(dlsym(strcmp(#library, "NCCL") == 0 ? nccl : runtime, #name) || strcmp(#name, "ncclCommGrow") == 0);
  HOOKS(HOOKED)
  CALLED(HOOKED)
#undef HOOKED
#define EXISTS(name, parameters) assert_non_null(dlsym(driver, #name));
  ABI_DRIVER_FUNCTIONS(EXISTS)
#undef EXISTS
  assert_int_equal(sim_is_simulation(), 1);
  int version;
  assert_ok(ncclGetVersion(&version));
  assert_int_equal(version, 22809);
}

int main(void)
{
  static void (*const children[])(void) = {
      [NO_CONTEXT] = child_no_context,         [USE_AFTER_UNMAP] = child_use_after_unmap,
      [USE_AFTER_FREE] = child_use_after_free, [OUT_OF_BOUNDS] = child_out_of_bounds,
      [NO_ACCESS] = child_no_access,
  };
  const char *child = getenv("SIM_TEST_CHILD");
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_context),
      cmocka_unit_test(test_unmap_does_not_wait),
      cmocka_unit_test(test_faults),
      cmocka_unit_test(test_free_waits),
      cmocka_unit_test(test_pool),
      cmocka_unit_test(test_last_error),
      cmocka_unit_test(test_vmm_rules),
      cmocka_unit_test(test_vmm_export),
      cmocka_unit_test(test_vmm_shared),
      cmocka_unit_test(test_peer_copies),
      cmocka_unit_test(test_memory_cap),
      cmocka_unit_test(test_fork),
      cmocka_unit_test(test_fail),
      cmocka_unit_test(test_exports),
      cmocka_unit_test(test_free_async),
      cmocka_unit_test(test_reset),
      cmocka_unit_test(test_wait_in_capture),
  };
  if (child)
    children[atoi(child)]();
  cudaSetDevice(0);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
