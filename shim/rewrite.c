/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/rewrite.h"

#include <pthread.h>

#include "shim/real.h"

enum { MAX_CONTEXTS = 64, BLOCK_THREADS = 512, BLOCKS_PER_SM = 4, VECTOR_BYTES = 16 };

extern const char symmshim_scale_ptx[]; /* kernels/embed.S */

struct kernels {
  CUcontext context;
  CUfunction scale_bf16, scale_fp32;
  unsigned max_blocks;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* writers only; not held across a driver call */
static struct kernels loaded[MAX_CONTEXTS];
static size_t loaded_count;

static const struct kernels *kernels_of(CUcontext context)
{
  size_t count = __atomic_load_n(&loaded_count, __ATOMIC_ACQUIRE); /* pairs with the release in rewrite_prepare() */

  for (size_t i = 0; i < count; i++)
    if (loaded[i].context == context)
      return &loaded[i];
  return NULL;
}

bool rewrite_prepare(CUcontext context)
{
  const struct driver *driver = real_driver();
  struct kernels fresh = {.context = context};
  CUmodule module;
  CUdevice device;
  int processors = 0;

  if (kernels_of(context))
    return true;
  if (!driver || driver->cuModuleLoadData(&module, symmshim_scale_ptx) != CUDA_SUCCESS)
    return false;
  if (driver->cuModuleGetFunction(&fresh.scale_bf16, module, "symmshim_scale_bf16") != CUDA_SUCCESS ||
      driver->cuModuleGetFunction(&fresh.scale_fp32, module, "symmshim_scale_fp32") != CUDA_SUCCESS ||
      driver->cuCtxGetDevice(&device) != CUDA_SUCCESS ||
      driver->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS) {
    driver->cuModuleUnload(module);
    return false;
  }
  fresh.max_blocks = (unsigned)processors * BLOCKS_PER_SM;
  pthread_mutex_lock(&lock);
  if (loaded_count < MAX_CONTEXTS) {
    loaded[loaded_count] = fresh;
    __atomic_store_n(&loaded_count, loaded_count + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return kernels_of(context) != NULL;
}

bool rewrite_scale(CUcontext context, CUstream stream, void *data, size_t count, enum policy_dtype dtype, float factor)
{
  const struct kernels *kernels = kernels_of(context);
  unsigned long long elements = count;
  void *params[] = {&data, &elements, &factor};
  size_t vectors = count * policy_dtype_size(dtype) / VECTOR_BYTES + 1;
  size_t blocks = (vectors + BLOCK_THREADS - 1) / BLOCK_THREADS;
  CUfunction function;

  if (!kernels || (dtype != POLICY_DTYPE_bf16 && dtype != POLICY_DTYPE_fp32))
    return false;
  function = dtype == POLICY_DTYPE_bf16 ? kernels->scale_bf16 : kernels->scale_fp32;
  if (blocks > kernels->max_blocks)
    blocks = kernels->max_blocks;
  return real_driver()->cuLaunchKernel(function, (unsigned)blocks, 1, 1, BLOCK_THREADS, 1, 1, 0, stream, params,
                                       NULL) == CUDA_SUCCESS;
}
