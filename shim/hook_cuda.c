/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers of the CUDA runtime's functions, but for CUDA IPC (hook_ipc.c). Each decides whose business a call is; the
 * arena does the rest.
 */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "shim/arena.h"
#include "shim/child.h"
#include "shim/forecast.h"
#include "shim/guard.h"
#include "shim/hooks.h"
#include "shim/life.h"
#include "shim/real.h"
#include "shim/rewrite.h"
#include "shim/shadow.h"

/* Whether the object that called is one whose memory the policy moves: base names are compared up to the first dot. */
static bool caller_is_served(const struct policy *policy)
{
  const char *base, *slash;
  Dl_info info;

  if (policy->any_caller)
    return true;
  if (!dladdr(guard.caller, &info) || !info.dli_fname)
    return false;
  slash = strrchr(info.dli_fname, '/');
  base = slash ? slash + 1 : info.dli_fname;
  for (int i = 0; i < policy->caller_count; i++) {
    size_t length = strlen(policy->callers[i]);
    if (strcspn(base, ".") == length && strncmp(base, policy->callers[i], length) == 0)
      return true;
  }
  return false;
}

static bool is_served(size_t size)
{
  const struct policy *policy = life_policy();

  return policy->arena && size >= policy->arena_min_bytes && size > 0 && caller_is_served(policy);
}

/* Whether the arena has, or may come to have, memory in this process. */
static bool is_serving(void)
{
  return life_passive_reason() == REASON_none && life_policy()->arena;
}

static bool is_for_arena(size_t size)
{
  return is_serving() && is_served(size);
}

/* In an audit-only run the memory is the real cudaMalloc's, and only noted. */
static void note_watched(const void *ptr, size_t size)
{
  int saved_errno = errno;

  if (forecast_is_wanted() && is_served(size))
    shadow_add(ptr, size, life_policy()->arena_max_bytes);
  errno = saved_errno;
}

/* Whatever goes wrong in the arena, the real cudaMalloc is asked: it knows best what to tell the job. */
static cudaError_t allocate(void **devPtr, size_t size, bool from_arena)
{
  int saved_errno = errno;
  bool done = from_arena && arena_alloc(devPtr, size, life_policy()->arena_max_bytes, ARENA_JOB) == 0;

  errno = saved_errno;
  return done ? cudaSuccess : REAL(cudaMalloc)(devPtr, size);
}

/*
 * Out of memory the shim gives up its children first, and with them the memory that is parked for windows' sake:
 * rather no windows than a job that does not fit. What other ranks have mapped of it comes back when they hear of it,
 * which takes them until their next call; so it is tried for a while.
 */
static cudaError_t allocate_again(void **devPtr, size_t size, bool from_arena)
{
  enum { TRIES = 20, PAUSE_NS = 10000000 };
  cudaError_t result = cudaErrorMemoryAllocation;

  for (int i = 0; i < TRIES && result == cudaErrorMemoryAllocation; i++) {
    if (i > 0)
      nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    REAL(cudaGetLastError)(); /* the failure before; if this one fails too it leaves its own */
    result = allocate(devPtr, size, from_arena);
  }
  return result;
}

/* Returns whether there may be more room now. */
static bool make_room(void)
{
  bool dropped = child_drop_all();

  return arena_settle_freed() || dropped;
}

cudaError_t hook_cudaMalloc(void **devPtr, size_t size)
{
  bool from_arena = devPtr && is_for_arena(size);
  cudaError_t result = allocate(devPtr, size, from_arena);

  if (result == cudaErrorMemoryAllocation && make_room())
    result = allocate_again(devPtr, size, from_arena);
  if (result == cudaSuccess && is_serving())
    arena_meet();
  if (result == cudaSuccess && devPtr)
    note_watched(*devPtr, size);
  return result;
}

/* In an audit-only run: the memory is about to be freed. */
static void note_freed(const void *ptr)
{
  if (forecast_is_wanted())
    shadow_remove(ptr);
}

static void respect_parked_max(void)
{
  if (life_policy()->arena_parked_max != 0 && arena_is_parking_more_than(life_policy()->arena_parked_max))
    child_drop_all();
}

cudaError_t hook_cudaFree(void *devPtr)
{
  cudaError_t result;

  if (!devPtr || !arena_free(devPtr, &result)) {
    note_freed(devPtr);
    return REAL(cudaFree)(devPtr);
  }
  respect_parked_max();
  return result;
}

/* Memory of cudaMalloc's may be freed so, after what is in the stream; of VMM memory CUDA's pools know nothing. */
cudaError_t hook_cudaFreeAsync(void *devPtr, cudaStream_t hStream)
{
  cudaError_t result;

  if (!devPtr || !arena_free_in_stream(devPtr, hStream, &result)) {
    note_freed(devPtr);
    return REAL(cudaFreeAsync)(devPtr, hStream);
  }
  respect_parked_max();
  return result;
}

/* Without the shim, what is parked would be free; and the next cudaMalloc gets it, or room in its place. */
cudaError_t hook_cudaMemGetInfo(size_t *free, size_t *total)
{
  const struct driver *driver = real_driver();
  cudaError_t result = REAL(cudaMemGetInfo)(free, total);
  CUdevice device;

  if (result == cudaSuccess && free && arena_is_used() && driver && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS)
    *free += arena_parked_bytes(device);
  return result;
}

/*
 * All that cudaMalloc gave on the device goes with it. VMM memory belongs to no context (cuMemCreate), so it is the
 * arena that has to let go of it; and windows before, while there is a context to give them up in.
 */
cudaError_t hook_cudaDeviceReset(void)
{
  const struct driver *driver = arena_is_used() ? real_driver() : NULL;
  CUcontext context = NULL;
  CUdevice device;
  cudaError_t result;

  if (!driver || driver->cuCtxGetDevice(&device) != CUDA_SUCCESS || driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS)
    return REAL(cudaDeviceReset)();
  child_drop_all();
  result = REAL(cudaDeviceReset)();
  if (result == cudaSuccess) {
    rewrite_forget(context);
    arena_forget_device(device);
  }
  return result;
}

cudaError_t hook_cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags)
{
  const struct driver *driver = real_driver();
  cudaError_t result = REAL(cudaDeviceEnablePeerAccess)(peerDevice, flags);
  CUdevice device;

  /* VMM memory does not follow the setting; it has to be mapped for each device that is to reach it. */
  if ((result == cudaSuccess || result == cudaErrorPeerAccessAlreadyEnabled) && driver &&
      driver->cuCtxGetDevice(&device) == CUDA_SUCCESS)
    arena_grant(peerDevice, device);
  return result;
}
