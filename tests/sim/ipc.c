/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA IPC of plain memory. At its first export an allocation's bytes move into an anonymous file, which other
 * processes open through /proc; the handle says where. VMM memory is refused, as the real runtime refuses it.
 *
 * Which code is for what: 201 in the owner's own process is what drivers give (2026, UCX's tracker); the others
 * are those that the documentation of CUDA 13.0 lists.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/sim/gpu.h"

/* What a handle says of its memory. */
struct place {
  int pid;
  int fd; /* in that process */
  int device;
  uintptr_t base;
  size_t size;
  unsigned long file; /* tells a file from a later one of the same number */
};

struct opened {
  struct opened *next;
  struct place place;
  unsigned int refs;
  void *ptr;
};

static struct opened *list; /* under memory.c's lock */

static bool same_place(const struct place *one, const struct place *other)
{
  return one->pid == other->pid && one->file == other->file && one->base == other->base && one->size == other->size;
}

static void place_write(cudaIpcMemHandle_t *handle, const struct place *place)
{
  memset(handle, 0, sizeof(*handle));
  snprintf(handle->reserved, sizeof(handle->reserved), "sim:%d:%d:%d:%zx:%zx:%lx", place->pid, place->fd, place->device,
           (size_t)place->base, place->size, place->file);
}

/* Strict: what is not to the byte as it was written is no handle. */
static bool place_read(struct place *place, const cudaIpcMemHandle_t *handle)
{
  cudaIpcMemHandle_t again;
  char text[sizeof(handle->reserved) + 1] = "";
  size_t base;
  memcpy(text, handle->reserved, sizeof(handle->reserved));
  if (sscanf(text, "sim:%d:%d:%d:%zx:%zx:%lx", &place->pid, &place->fd, &place->device, &base, &place->size,
             &place->file) != 6)
    return false;
  place->base = base;
  place_write(&again, place);
  return memcmp(&again, handle, sizeof(again)) == 0;
}

CUresult gpu_ipc_export(const void *ptr, cudaIpcMemHandle_t *handle)
{
  struct sim_memory memory;
  struct stat stat;
  if (!handle || !gpu_memory_find(ptr, &memory) || memory.kind != SIM_MEMORY_PLAIN)
    return CUDA_ERROR_INVALID_VALUE;
  /* The bytes move, so nothing may be at work on them. */
  gpu_stream_device_synchronize(memory.device);
  gpu_memory_lock();
  int fd = gpu_memory_share(memory.base);
  gpu_memory_unlock();
  if (fd < 0 || fstat(fd, &stat) != 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  place_write(handle, &(struct place){.pid = getpid(),
                                      .fd = fd,
                                      .device = memory.device,
                                      .base = memory.base,
                                      .size = memory.size,
                                      .file = (unsigned long)stat.st_ino});
  return CUDA_SUCCESS;
}

/* The owner's file; -1 when the owner or the memory is gone. */
static int place_file(const struct place *place)
{
  char path[64];
  char name[64] = "";
  struct stat stat;
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", place->pid, place->fd);
  if (readlink(path, name, sizeof(name) - 1) < 0 || strncmp(name, "/memfd:sim-ipc", 14) != 0)
    return -1;
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd >= 0 && (fstat(fd, &stat) != 0 || (unsigned long)stat.st_ino != place->file)) {
    close(fd);
    fd = -1;
  }
  return fd;
}

/* Holds memory.c's lock. */
static CUresult open_new(void **ptr, const struct place *place)
{
  int fd = place_file(place);
  if (fd < 0)
    return CUDA_ERROR_INVALID_HANDLE;
  *ptr = gpu_memory_map_file(fd, place->device, place->size);
  close(fd);
  if (!*ptr)
    return CUDA_ERROR_MAP_FAILED;
  struct opened *new = malloc(sizeof(*new));
  *new = (struct opened){.next = list, .place = *place, .refs = 1, .ptr = *ptr};
  list = new;
  return CUDA_SUCCESS;
}

CUresult gpu_ipc_open(void **ptr, const cudaIpcMemHandle_t *handle, unsigned int flags)
{
  struct place place;
  CUresult result = CUDA_SUCCESS;
  if (!ptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return CUDA_ERROR_INVALID_VALUE;
  if (!place_read(&place, handle))
    return CUDA_ERROR_INVALID_HANDLE;
  if (place.pid == getpid())
    return CUDA_ERROR_INVALID_CONTEXT;
  gpu_memory_lock();
  struct opened *found = list;
  while (found && !same_place(&found->place, &place))
    found = found->next;
  if (found) {
    found->refs++;
    *ptr = found->ptr;
  } else {
    result = open_new(ptr, &place);
  }
  gpu_memory_unlock();
  return result;
}

CUresult gpu_ipc_close(void *ptr)
{
  struct sim_memory memory;
  if (!gpu_memory_find(ptr, &memory) || memory.kind != SIM_MEMORY_IPC || memory.base != (uintptr_t)ptr)
    return CUDA_ERROR_INVALID_VALUE;
  for (int device = 0; device < gpu_context_device_count(); device++)
    gpu_stream_device_synchronize(device);
  gpu_memory_lock();
  struct opened **at = &list;
  while (*at && (*at)->ptr != ptr)
    at = &(*at)->next;
  struct opened *found = *at;
  if (found && --found->refs == 0) {
    *at = found->next;
    free(found);
    gpu_memory_unmap_file(memory.base);
  }
  gpu_memory_unlock();
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
