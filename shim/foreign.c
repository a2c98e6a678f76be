/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/foreign.h"

#include <stdint.h>

#include "shim/arena.h"
#include "shim/forecast.h"
#include "shim/life.h"
#include "shim/log.h"
#include "shim/real.h"

enum {
  BLOCK_SHIFT = 21, /* memory of one block is of one kind: 2 MiB is what pools and mappings are made of */
  BLOCKS = 1024,    /* a power of two */
  KIND_BITS = 2
};

enum kind { KIND_NONE, KIND_OTHER, KIND_VMM, KIND_POOL }; /* none: nothing is known */

static uint64_t blocks[BLOCKS]; /* number of a block, and in the low bits its kind */

/*
 * Asked of real memory of each kind on driver 580: only memory of a pool has a pool, and only what was mapped has a
 * handle to retain. KIND_NONE: the driver did not say (it has no context here).
 */
static enum kind ask(const struct driver *driver, const void *ptr)
{
  CUmemGenericAllocationHandle handle;
  void *pool = NULL;
  CUresult result =
      driver->cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, (CUdeviceptr)(uintptr_t)ptr);

  if (result == CUDA_SUCCESS && pool)
    return KIND_POOL;
  if (driver->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr) == CUDA_SUCCESS) {
    driver->cuMemRelease(handle);
    return KIND_VMM;
  }
  return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE ? KIND_OTHER : KIND_NONE;
}

static enum kind find(const void *ptr)
{
  uint64_t number = (uint64_t)(uintptr_t)ptr >> BLOCK_SHIFT;
  uint64_t *block = &blocks[(number * 0x9e3779b97f4a7c15ULL >> 32) & (BLOCKS - 1)];
  uint64_t known = __atomic_load_n(block, __ATOMIC_RELAXED);
  const struct driver *driver;
  enum kind kind;

  if (known >> KIND_BITS == number && known != 0)
    return (enum kind)(known & ((1 << KIND_BITS) - 1));
  driver = real_driver();
  kind = driver ? ask(driver, ptr) : KIND_NONE;
  if (kind != KIND_NONE)
    __atomic_store_n(block, number << KIND_BITS | kind, __ATOMIC_RELAXED);
  return kind;
}

/* Where nothing at all came from the arena, this is why nothing goes symmetric, which is worth a warning. */
static void tell(int *told, const char *text)
{
  if (__atomic_load_n(told, __ATOMIC_RELAXED) || __atomic_exchange_n(told, 1, __ATOMIC_RELAXED))
    return;
  log_write(life_policy()->arena && !arena_is_used() && !forecast_is_wanted() ? LOG_WARN : LOG_INFO,
            "%s: such memory cannot become a window, so calls on it are plain, or go through slots where the policy "
            "says path = staged",
            text);
}

enum reason foreign_reason(const void *ptr)
{
  static int told_vmm, told_pool;

  switch (find(ptr)) {
  case KIND_VMM:
    tell(&told_vmm, "a buffer lies in memory that the job's allocator maps itself (PYTORCH_CUDA_ALLOC_CONF has "
                    "expandable_segments:True, or the allocator is ncclMemAlloc)");
    return REASON_job_vmm;
  case KIND_POOL:
    tell(&told_pool, "a buffer comes from a stream-ordered pool (PYTORCH_CUDA_ALLOC_CONF has backend:cudaMallocAsync)");
    return REASON_job_pool;
  case KIND_OTHER:
  case KIND_NONE:
    break;
  }
  return REASON_not_in_arena;
}
