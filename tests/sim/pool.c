/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered memory (cudaMallocAsync): plain memory that says it is of a pool, and that goes when its stream gets
 * there. It is there at once, which the real one's is for the stream alone. Not in captures.
 */
#include "tests/sim/gpu.h"

static CUresult outside_captures(CUstream stream)
{
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = gpu_capture_status(stream, &status);
  if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
    return CUDA_ERROR_NOT_SUPPORTED;
  return result;
}

CUresult gpu_pool_alloc(int device, size_t size, CUstream stream, void **ptr)
{
  CUresult result = outside_captures(stream);
  if (result == CUDA_SUCCESS)
    result = gpu_memory_alloc(device, size, ptr);
  if (result != CUDA_SUCCESS || !*ptr)
    return result;
  gpu_memory_lock();
  gpu_memory_at((uintptr_t)*ptr)->pooled = true;
  gpu_memory_unlock();
  return CUDA_SUCCESS;
}

static void pool_free_run(void *arg)
{
  gpu_memory_drop((uintptr_t)arg);
}

/* cudaMalloc's memory may be freed so too (by NVIDIA's description of the allocator, not measured). */
CUresult gpu_pool_free(void *ptr, CUstream stream)
{
  struct sim_memory memory;
  CUresult result = outside_captures(stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (!gpu_memory_find(ptr, &memory) || memory.base != (uintptr_t)ptr || memory.kind != SIM_MEMORY_PLAIN)
    return CUDA_ERROR_INVALID_VALUE;
  return gpu_stream_submit(stream, &(struct sim_work){.run = pool_free_run, .arg = ptr}, NULL);
}
