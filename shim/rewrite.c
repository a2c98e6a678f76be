/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/rewrite.h"

#include <pthread.h>

#include "shim/real.h"

enum { MAX_CONTEXTS = 64, BLOCK_THREADS = 512, BLOCKS_PER_SM = 4, VECTOR_BYTES = 16 };

extern const char symmshim_scale_ptx[]; /* kernels/embed.S */

/* The types that there is a kernel for. */
static const struct {
  enum policy_dtype dtype;
  const char *kernel;
} types[] = {{POLICY_DTYPE_bf16, "symmshim_scale_bf16"},
             {POLICY_DTYPE_fp16, "symmshim_scale_fp16"},
             {POLICY_DTYPE_fp32, "symmshim_scale_fp32"}};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

struct kernels {
  CUcontext context;
  CUfunction scale[TYPES];
  unsigned max_blocks;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* writers only; not held across a driver call */
static struct kernels loaded[MAX_CONTEXTS];
static size_t loaded_count;

static const struct kernels *kernels_of(CUcontext context)
{
  size_t count = __atomic_load_n(&loaded_count, __ATOMIC_ACQUIRE); /* pairs with the release in rewrite_prepare() */

  for (size_t i = 0; i < count; i++)
    if (__atomic_load_n(&loaded[i].context, __ATOMIC_RELAXED) == context)
      return &loaded[i];
  return NULL;
}

static bool load(const struct driver *driver, CUmodule module, struct kernels *kernels)
{
  CUdevice device;
  int processors = 0;

  for (int i = 0; i < TYPES; i++)
    if (driver->cuModuleGetFunction(&kernels->scale[i], module, types[i].kernel) != CUDA_SUCCESS)
      return false;
  if (driver->cuCtxGetDevice(&device) != CUDA_SUCCESS ||
      driver->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS)
    return false;
  kernels->max_blocks = (unsigned)processors * BLOCKS_PER_SM;
  return true;
}

bool rewrite_prepare(CUcontext context)
{
  const struct driver *driver = real_driver();
  struct kernels fresh = {.context = context};
  CUmodule module;

  if (kernels_of(context))
    return true;
  if (!driver || driver->cuModuleLoadData(&module, symmshim_scale_ptx) != CUDA_SUCCESS)
    return false;
  if (!load(driver, module, &fresh)) {
    driver->cuModuleUnload(module);
    return false;
  }
  pthread_mutex_lock(&lock);
  if (loaded_count < MAX_CONTEXTS) {
    loaded[loaded_count] = fresh;
    __atomic_store_n(&loaded_count, loaded_count + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return kernels_of(context) != NULL;
}

void rewrite_forget(CUcontext context)
{
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < loaded_count; i++)
    if (loaded[i].context == context)
      __atomic_store_n(&loaded[i].context, NULL, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lock);
}

bool rewrite_scale(CUcontext context, CUstream stream, void *to, const void *from, size_t count,
                   enum policy_dtype dtype, float factor)
{
  const struct kernels *kernels = kernels_of(context);
  unsigned long long elements = count;
  void *params[] = {&to, &from, &elements, &factor};
  size_t vectors = count * policy_dtype_size(dtype) / VECTOR_BYTES + 1;
  size_t blocks = (vectors + BLOCK_THREADS - 1) / BLOCK_THREADS;
  int type = 0;

  while (type < TYPES && types[type].dtype != dtype)
    type++;
  if (!kernels || type == TYPES)
    return false;
  if (blocks > kernels->max_blocks)
    blocks = kernels->max_blocks;
  return real_driver()->cuLaunchKernel(kernels->scale[type], (unsigned)blocks, 1, 1, BLOCK_THREADS, 1, 1, 0, stream,
                                       params, NULL) == CUDA_SUCCESS;
}
