/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, primary contexts, and which context a thread has current. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/sim/gpu.h"

static pthread_once_t context_once = PTHREAD_ONCE_INIT;
static pid_t context_pid;
static int device_count;
static struct CUctx_st contexts[GPU_MAX_DEVICES];
static bool peers[GPU_MAX_DEVICES][GPU_MAX_DEVICES];
enum { STACK_DEPTH = 16 };

static __thread CUcontext current;
static __thread CUcontext stack[STACK_DEPTH]; /* what pushes have hidden */
static __thread size_t stack_depth;
static __thread int current_device;

static void context_start(void)
{
  const char *devices = getenv("SIM_DEVICES");
  device_count = devices ? atoi(devices) : 8;
  if (device_count < 0 || device_count > GPU_MAX_DEVICES)
    control_die("SIM_DEVICES: \"%s\" is not 0 to %d", devices, GPU_MAX_DEVICES);
  for (int i = 0; i < GPU_MAX_DEVICES; i++)
    contexts[i].device = i;
  context_pid = getpid();
  const char *banner = getenv("SIM_BANNER");
  if (banner && *banner == '1')
    dprintf(STDERR_FILENO, "sim: %d simulated GPUs in host memory\n", device_count);
}

CUresult gpu_context_init(void)
{
  if (gpu_object_callback())
    return CUDA_ERROR_NOT_PERMITTED;
  pthread_once(&context_once, context_start);
  /* A child of fork inherits a driver that is of no use to it. */
  return context_pid == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult gpu_context_check(bool need_context)
{
  if (gpu_object_callback())
    return CUDA_ERROR_NOT_PERMITTED;
  if (context_pid != getpid())
    return CUDA_ERROR_NOT_INITIALIZED;
  return need_context && !current ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

int gpu_context_device_count(void)
{
  return device_count;
}

CUcontext gpu_context_primary(int device)
{
  if (device < 0 || device >= device_count)
    return NULL;
  __atomic_store_n(&contexts[device].active, true, __ATOMIC_RELAXED);
  return &contexts[device];
}

CUcontext gpu_context_current(void)
{
  return current;
}

void gpu_context_make_current(CUcontext context)
{
  current = context;
  if (context)
    current_device = context->device;
}

bool gpu_context_is_active(int device)
{
  return __atomic_load_n(&contexts[device].active, __ATOMIC_RELAXED);
}

CUresult gpu_context_push(CUcontext context)
{
  if (stack_depth == STACK_DEPTH)
    return CUDA_ERROR_INVALID_VALUE;
  stack[stack_depth++] = current;
  gpu_context_make_current(context);
  return CUDA_SUCCESS;
}

CUresult gpu_context_pop(CUcontext *context)
{
  if (stack_depth == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (context)
    *context = current;
  gpu_context_make_current(stack[--stack_depth]);
  return CUDA_SUCCESS;
}

CUresult gpu_context_set_device(int device)
{
  CUresult result = gpu_context_init();
  if (result != CUDA_SUCCESS)
    return result;
  CUcontext context = gpu_context_primary(device);
  if (!context)
    return CUDA_ERROR_INVALID_DEVICE;
  gpu_context_make_current(context);
  return CUDA_SUCCESS;
}

int gpu_context_device(void)
{
  return current_device;
}

CUresult gpu_context_enter(int *device)
{
  CUresult result = gpu_context_init();
  if (result == CUDA_SUCCESS && !current)
    result = gpu_context_set_device(current_device);
  *device = current_device;
  return result;
}

CUresult gpu_context_reset(void)
{
  int device = current_device;
  CUresult result = gpu_stream_device_synchronize(device);
  if (result != CUDA_SUCCESS)
    return result;
  gpu_memory_reset(device);
  for (int i = 0; i < GPU_MAX_DEVICES; i++)
    peers[device][i] = peers[i][device] = false;
  __atomic_store_n(&contexts[device].active, false, __ATOMIC_RELAXED);
  current = NULL; /* the next runtime call makes it anew */
  return CUDA_SUCCESS;
}

CUresult gpu_context_peer_set(int device, int peer, bool enable)
{
  if (peer < 0 || peer >= device_count || peer == device)
    return CUDA_ERROR_INVALID_DEVICE;
  if (peers[device][peer] == enable)
    return enable ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  peers[device][peer] = enable;
  return CUDA_SUCCESS;
}
