/* SPDX-License-Identifier: Apache-2.0 */
/* Rows about order (work that runs, streams, captures), and rows of two devices. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "tests/preload/memory_table.h"

static cudaStream_t new_stream(void)
{
  cudaStream_t stream = NULL;

  say("stream", cudaStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

static atomic_bool done;

static void slow(void *unused)
{
  (void)unused;
  usleep(100000);
  atomic_store(&done, true);
}

/* cudaFree waits for whatever runs on the device, whether or not that uses the memory. */
static void free_waits(void)
{
  void *memory = take();
  cudaStream_t stream = new_stream();

  say("launch", cudaLaunchHostFunc(stream, slow, NULL));
  say("memset", cudaMemsetAsync(memory, 1, LARGE, stream));
  say("free", cudaFree(memory));
  say_number("done", atomic_load(&done));
  say("stream", cudaStreamSynchronize(stream));
}

static void free_async(void)
{
  void *memory = take();
  cudaStream_t stream = new_stream();

  say("launch", cudaLaunchHostFunc(stream, slow, NULL));
  say("memset", cudaMemsetAsync(memory, 1, LARGE, stream));
  say("free", cudaFreeAsync(memory, stream));
  say("stream", cudaStreamSynchronize(stream));
  say_number("done", atomic_load(&done));
  say("free again", cudaFree(memory));
}

static void free_async_default(void)
{
  void *memory = take();

  say("free", cudaFreeAsync(memory, NULL));
  say("device", cudaDeviceSynchronize());
  say("free again", cudaFreeAsync(memory, NULL));
}

static void free_async_wrong(void)
{
  char *memory = take();
  int local = 0;

  say("interior", cudaFreeAsync(memory + 512, NULL));
  say("stack", cudaFreeAsync(&local, NULL));
  say("null", cudaFreeAsync(NULL, NULL));
  say("memset", cudaMemset(memory, 1, LARGE));
  say("free", cudaFree(memory));
}

static void capture_with(void (*call)(void *memory, cudaStream_t stream), CUstreamCaptureMode mode)
{
  void *memory = take();
  cudaStream_t stream = new_stream();
  cudaGraph_t graph = NULL;

  say("begin", cudaStreamBeginCapture(stream, mode));
  call(memory, stream);
  say("end", cudaStreamEndCapture(stream, &graph));
  say_number("graph", graph != NULL);
}

static void call_free(void *memory, cudaStream_t stream)
{
  (void)stream;
  say("free", cudaFree(memory));
}

static void call_free_relaxed(void *memory, cudaStream_t stream)
{
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

  (void)stream;
  say("exchange", cudaThreadExchangeStreamCaptureMode(&mode));
  say("free", cudaFree(memory));
  say("exchange", cudaThreadExchangeStreamCaptureMode(&mode));
}

static void call_malloc_relaxed(void *memory, cudaStream_t stream)
{
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  void *more = NULL;

  (void)memory;
  (void)stream;
  say("exchange", cudaThreadExchangeStreamCaptureMode(&mode));
  say("malloc", cudaMalloc(&more, LARGE));
  say("exchange", cudaThreadExchangeStreamCaptureMode(&mode));
}

static void call_malloc(void *memory, cudaStream_t stream)
{
  void *more = NULL;

  (void)memory;
  (void)stream;
  say("malloc", cudaMalloc(&more, LARGE));
}

static void call_free_async(void *memory, cudaStream_t stream)
{
  say("free", cudaFreeAsync(memory, stream));
}

static void capture_free(void)
{
  capture_with(call_free, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static void capture_free_local(void)
{
  capture_with(call_free, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

static void capture_free_relaxed(void)
{
  capture_with(call_free_relaxed, CU_STREAM_CAPTURE_MODE_GLOBAL);
  say("free after it", cudaFree(take()));
}

/* What was freed so is there when it is needed. */
static void capture_free_comes_back(void)
{
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  void *much = NULL, *more = NULL;
  cudaStream_t stream = new_stream();
  cudaGraph_t graph = NULL;
  size_t free_bytes = 0, left = 0, total = 0;

  take();
  cudaMemGetInfo(&free_bytes, &total);
  say("malloc half", cudaMalloc(&much, free_bytes / 2));
  say("begin", cudaStreamBeginCapture(stream, mode));
  say("exchange", cudaThreadExchangeStreamCaptureMode(&mode));
  say("free", cudaFree(much));
  say("exchange", cudaThreadExchangeStreamCaptureMode(&mode));
  say("end", cudaStreamEndCapture(stream, &graph));
  say("malloc more", cudaMalloc(&more, free_bytes / 4 * 3));
  say("info", cudaMemGetInfo(&left, &total));
  say_number("eighths left", (long)((left + free_bytes / 16) / (free_bytes / 8)));
}

/* And gone with the device, once. */
static void capture_free_reset(void)
{
  const size_t much = (size_t)512 * MIB;
  void *memory = NULL;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  size_t before, after, total = 0;

  take();
  cudaMemGetInfo(&before, &total);
  say("malloc", cudaMalloc(&memory, much));
  say("exchange", cudaThreadExchangeStreamCaptureMode(&mode));
  say("free", cudaFree(memory));
  say("exchange", cudaThreadExchangeStreamCaptureMode(&mode));
  say("reset", cudaDeviceReset());
  take();
  cudaMemGetInfo(&after, &total);
  say_number("all is free", before - much / 4 < after && after < before + much / 4);
}

static void capture_malloc_relaxed(void)
{
  capture_with(call_malloc_relaxed, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static void capture_malloc(void)
{
  capture_with(call_malloc, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static void capture_free_async(void)
{
  capture_with(call_free_async, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static sem_t begun, freed;

static void *capture_there(void *stream)
{
  cudaGraph_t graph = NULL;
  cudaError_t result = cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);

  sem_post(&begun);
  sem_wait(&freed);
  say("begin", result);
  say("end", cudaStreamEndCapture(stream, &graph));
  return NULL;
}

/* A capture in thread-local mode forbids nothing to other threads. */
static void capture_elsewhere(void)
{
  void *memory = take();
  cudaStream_t stream = new_stream();
  pthread_t thread;

  sem_init(&begun, 0, 0);
  sem_init(&freed, 0, 0);
  pthread_create(&thread, NULL, capture_there, stream);
  sem_wait(&begun);
  say("free", cudaFree(memory));
  sem_post(&freed);
  pthread_join(thread, NULL);
}

const struct row rows_ordered[] = {
    {"free_waits", free_waits, 0, NULL},
    {"free_async", free_async, 0, NULL},
    {"free_async_default", free_async_default, 0, NULL},
    {"free_async_wrong", free_async_wrong, 0, NULL},
    {"capture_free", capture_free, 0, NULL},
    {"capture_free_local", capture_free_local, 0, NULL},
    {"capture_free_relaxed", capture_free_relaxed, 0, NULL},
    {"capture_free_comes_back", capture_free_comes_back, 0, NULL},
    {"capture_free_reset", capture_free_reset, 0, NULL},
    {"capture_malloc_relaxed", capture_malloc_relaxed, 0, NULL},
    {"capture_malloc", capture_malloc, 0, "VMM memory may be made in any capture, and cudaMalloc would break this one"},
    {"capture_free_async", capture_free_async, 0, NULL},
    {"capture_elsewhere", capture_elsewhere, 0,
     "the shim waits with cudaDeviceSynchronize, which a capture on the device does not allow"},
    {NULL, NULL, 0, NULL},
};

static const char sent[] = "from one device to the other";

static void copy_and_look(const char *what, void *to, void *from, int how)
{
  char received[sizeof(sent)] = "";

  cudaMemset(to, 0, sizeof(sent));
  cudaMemcpy(from, sent, sizeof(sent), 1);
  say(what, how == 0   ? cudaMemcpyPeer(to, 1, from, 0, sizeof(sent))
            : how == 1 ? cudaMemcpyPeerAsync(to, 1, from, 0, sizeof(sent), NULL)
            : how == 2 ? cudaMemcpyAsync(to, from, sizeof(sent), 4, NULL)
                       : cudaMemcpy(to, from, sizeof(sent), 3));
  say("device", cudaDeviceSynchronize());
  cudaMemcpy(received, to, sizeof(received), 2);
  say_number("right", strcmp(received, sent) == 0);
}

static void copy_all_ways(void *to, void *from)
{
  copy_and_look("peer", to, from, 0);
  copy_and_look("peer async", to, from, 1);
  copy_and_look("async", to, from, 2);
  copy_and_look("copy", to, from, 3);
}

static void copies(void)
{
  void *from = take(), *to;

  use_device(1);
  to = take();
  use_device(0);
  copy_all_ways(to, from);
  copy_all_ways(take(), from);
}

/* The other device has memory of the runtime's own only. */
static void copies_to_small(void)
{
  void *from = take(), *to = NULL;

  use_device(1);
  say("malloc", cudaMalloc(&to, SMALL));
  use_device(0);
  copy_all_ways(to, from);
  copy_all_ways(from, to);
}

static void copies_from_small(void)
{
  void *from = NULL, *to;

  use_device(1);
  say("malloc", cudaMalloc(&from, SMALL));
  use_device(0);
  to = take();
  copy_all_ways(to, from);
}

static void copies_with_peers(void)
{
  void *from = take(), *to;

  say("enable", cudaDeviceEnablePeerAccess(1, 0));
  use_device(1);
  to = take();
  say("enable", cudaDeviceEnablePeerAccess(0, 0));
  use_device(0);
  copy_all_ways(to, from);
  say("disable", cudaDeviceDisablePeerAccess(1));
  copy_all_ways(to, from);
  copy_all_ways(take(), from);
}

static void peers(void)
{
  int can = -1;

  take();
  say("can", cudaDeviceCanAccessPeer(&can, 0, 1));
  say_number("can", can);
  say("disable first", cudaDeviceDisablePeerAccess(1));
  say("enable", cudaDeviceEnablePeerAccess(1, 0));
  say("again", cudaDeviceEnablePeerAccess(1, 0));
  say("disable", cudaDeviceDisablePeerAccess(1));
  say("again", cudaDeviceDisablePeerAccess(1));
  say("itself", cudaDeviceEnablePeerAccess(0, 0));
  say("nobody", cudaDeviceEnablePeerAccess(999, 0));
  say("flags", cudaDeviceEnablePeerAccess(1, 1));
}

static void copy_to_nobody(void)
{
  char *memory = take();

  say("to", cudaMemcpyPeer(memory, 999, memory + MIB, 0, SMALL));
  say("from", cudaMemcpyPeer(memory, 0, memory + MIB, -1, SMALL));
}

static void free_from_other(void)
{
  void *memory = take();
  int device = -1;

  use_device(1);
  say("free", cudaFree(memory));
  say("again", cudaFree(memory));
  say("device", cudaGetDevice(&device));
  say_number("device", device);
}

static void free_waits_for_other(void)
{
  void *memory = take();
  cudaStream_t stream = new_stream();

  say("launch", cudaLaunchHostFunc(stream, slow, NULL));
  use_device(1);
  say("free", cudaFree(memory));
  say_number("done", atomic_load(&done));
}

static void reset_of_other(void)
{
  void *memory = take(), *other;

  use_device(1);
  other = take();
  say("reset", cudaDeviceReset());
  use_device(0);
  say("memset", cudaMemset(memory, 1, LARGE));
  say("free the other's", cudaFree(other));
  use_device(1);
  other = take();
  use_device(0);
  copy_all_ways(other, memory);
  use_device(0);
  say("free from here", cudaFree(other));
  say("free", cudaFree(memory));
}

const struct row rows_peers[] = {
    {"peers", peers, 2, NULL},
    {"copies", copies, 2, NULL},
    {"copies_to_small", copies_to_small, 2, NULL},
    {"copies_from_small", copies_from_small, 2, NULL},
    {"copies_with_peers", copies_with_peers, 2, NULL},
    {"copy_to_nobody", copy_to_nobody, 0, NULL},
    {"free_from_other", free_from_other, 2, NULL},
    {"free_waits_for_other", free_waits_for_other, 2, NULL},
    {"reset_of_other", reset_of_other, 2, NULL},
    {NULL, NULL, 0, NULL},
};
