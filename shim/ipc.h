/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA IPC of the arena's memory. The real runtime shares cudaMalloc's memory only (CUDA 12 and 13: VMM memory is an
 * invalid value), so here a handle of the arena's memory says which process has it and which segment it is, and
 * whoever opens it asks that process for a descriptor of the segment (cuMemExportToShareableHandle).
 *
 * The descriptor goes over a Unix socket. Taking it out of the other process (pidfd_getfd, as PyTorch's expandable
 * segments do) wants no help from there, but is ptrace's right: between siblings Yama's default denies it, and so
 * does the seccomp filter of Docker to everyone. A socket needs somebody who answers: a thread, started with the first
 * handle that is given out, with all signals blocked. The socket's name is abstract, so that nothing is left behind,
 * however the process ends; it has no permissions, so both sides look at the user of the other (SO_PEERCRED), and
 * what is asked for has to hold a secret that only handles hold.
 *
 * Owns the socket, the thread and the table of what is open in this process. Calls arena.h and the log; makes no call
 * to CUDA or NCCL itself. No lock is held across a call that can wait. Waits for another process for some seconds at
 * most.
 */
#ifndef SYMMSHIM_IPC_H
#define SYMMSHIM_IPC_H

#include "shim/arena.h"

/* The handle of a live segment, equal whenever it is asked for. False: there can be none. */
bool ipc_handle(const struct segment *segment, cudaIpcMemHandle_t *handle);

/*
 * Opens a handle: the same pointer each time while it is open. False: it is not a handle of the arena's memory, or its
 * owner does not give the memory; then the real runtime is to say so, to which it means nothing either way.
 */
bool ipc_open(const cudaIpcMemHandle_t *handle, void **ptr, cudaError_t *result);

/* Closes what was opened, and unmaps it the last time. False when `ptr` is no such pointer. */
bool ipc_close(void *ptr, cudaError_t *result);

/* In a forked child, which serves nobody. Async-signal-safe. */
void ipc_after_fork(void);

#endif
