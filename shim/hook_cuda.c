/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of the CUDA runtime's functions. Each decides whose business a call is; the arena does the rest. */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "shim/arena.h"
#include "shim/comm.h"
#include "shim/guard.h"
#include "shim/hooks.h"
#include "shim/life.h"
#include "shim/log.h"
#include "shim/real.h"

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

static bool is_for_arena(size_t size)
{
  const struct policy *policy = life_policy();

  return life_passive_reason() == REASON_none && policy->arena && size >= policy->arena_min_bytes && size > 0 &&
         caller_is_served(policy);
}

/*
 * Whatever goes wrong, the real cudaMalloc is asked: it may still have memory, and if it has none it says so as the
 * job expects (cudaErrorMemoryAllocation, which PyTorch answers by freeing its caches and trying again).
 */
cudaError_t hook_cudaMalloc(void **devPtr, size_t size)
{
  int saved_errno = errno, error;

  if (!devPtr || !is_for_arena(size))
    return REAL(cudaMalloc)(devPtr, size);
  error = arena_alloc(devPtr, size, life_policy()->arena_max_bytes);
  /* Memory may be parked for windows' sake: rather no windows than a job that runs out of memory. */
  if (error == -ENOMEM && arena_parked() > 0 && comm_drop_children())
    error = arena_alloc(devPtr, size, life_policy()->arena_max_bytes);
  errno = saved_errno;
  if (error == 0)
    return cudaSuccess;
  return REAL(cudaMalloc)(devPtr, size);
}

cudaError_t hook_cudaFree(void *devPtr)
{
  cudaError_t result;

  if (devPtr && arena_free(devPtr, &result))
    return result;
  return REAL(cudaFree)(devPtr);
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

cudaError_t hook_cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *devPtr)
{
  if (arena_find(devPtr))
    log_warn_once("cudaIpcGetMemHandle: memory of the arena cannot be shared this way, so the call fails; to keep such "
                  "memory plain, leave the library that allocates it out of `callers`, or set `enable = no`, in "
                  "[arena] of the policy file");
  return REAL(cudaIpcGetMemHandle)(handle, devPtr);
}
