/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers of CUDA IPC. Plain memory and its handles are the real runtime's; so are all errors but those of mapping.
 * The runtime's functions are enough: PyTorch calls no others, and libraries that call the driver's (UCX) have ways of
 * their own for VMM memory. IPC of events is not touched.
 */
#include <errno.h>

#include "shim/hooks.h"
#include "shim/ipc.h"
#include "shim/real.h"

cudaError_t hook_cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *devPtr)
{
  /* As with plain memory a pointer into an allocation gives the handle of the whole. */
  const struct segment *segment = handle ? arena_find(devPtr) : NULL;
  int saved_errno = errno;
  bool done = segment && ipc_handle(segment, handle);

  errno = saved_errno;
  return done ? cudaSuccess : REAL(cudaIpcGetMemHandle)(handle, devPtr);
}

cudaError_t hook_cudaIpcOpenMemHandle(void **devPtr, cudaIpcMemHandle_t handle, unsigned int flags)
{
  cudaError_t result = cudaSuccess;
  int saved_errno = errno;
  bool done = devPtr && flags == cudaIpcMemLazyEnablePeerAccess && ipc_open(&handle, devPtr, &result);

  errno = saved_errno;
  return done ? result : REAL(cudaIpcOpenMemHandle)(devPtr, handle, flags);
}

cudaError_t hook_cudaIpcCloseMemHandle(void *devPtr)
{
  cudaError_t result;
  int saved_errno = errno;
  bool done = ipc_close(devPtr, &result);

  errno = saved_errno;
  return done ? result : REAL(cudaIpcCloseMemHandle)(devPtr);
}
