/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills, in stream order. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/gpu.h"

struct copy {
  void *dst;
  const void *src; /* NULL: fill with value */
  int value;
  size_t count;
};

static void copy_run(void *arg)
{
  const struct copy *copy = arg;
  if (copy->src)
    memmove(copy->dst, copy->src, copy->count);
  else
    memset(copy->dst, copy->value, copy->count);
}

/* Memory that neither the driver nor the runtime made: the real thing stages it, so the call waits for it. */
static bool copy_pageable(const void *ptr)
{
  struct sim_memory memory;
  return ptr && !gpu_memory_find(ptr, &memory);
}

static CUresult copy_queue(const struct copy *new, CUstream stream)
{
  if (new->count == 0)
    return CUDA_SUCCESS;
  CUresult result = gpu_memory_copy_check(new->dst, new->src, new->count);
  if (result != CUDA_SUCCESS)
    return result;
  struct copy *copy = malloc(sizeof(*copy));
  *copy = *new;
  result = gpu_stream_submit(stream, &(struct sim_work){.run = copy_run, .drop = free, .arg = copy}, NULL);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (result == CUDA_SUCCESS && (copy_pageable(new->dst) || copy_pageable(new->src)) &&
      gpu_capture_status(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE)
    result = gpu_stream_synchronize(stream);
  return result;
}

CUresult gpu_copy_submit(void *dst, const void *src, size_t count, CUstream stream)
{
  if (!dst || !src)
    return count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  return copy_queue(&(struct copy){.dst = dst, .src = src, .count = count}, stream);
}

/* Both sides are memory that CUDA knows; else as above. */
CUresult gpu_copy_device(void *dst, const void *src, size_t count, CUstream stream)
{
  if (count > 0 && (copy_pageable(dst) || copy_pageable(src)))
    return CUDA_ERROR_INVALID_VALUE;
  return gpu_copy_submit(dst, src, count, stream);
}

CUresult gpu_copy_now(void *dst, const void *src, size_t count)
{
  CUresult result = gpu_capture_unsafe();
  if (result == CUDA_SUCCESS)
    result = gpu_copy_submit(dst, src, count, SIM_STREAM_LEGACY);
  return result == CUDA_SUCCESS ? gpu_stream_synchronize(SIM_STREAM_LEGACY) : result;
}

CUresult gpu_copy_fill(void *dst, int value, size_t count, CUstream stream)
{
  struct sim_memory memory;
  if (count > 0 && !gpu_memory_find(dst, &memory))
    return CUDA_ERROR_INVALID_VALUE;
  return copy_queue(&(struct copy){.dst = dst, .value = value, .count = count}, stream);
}
