/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA's virtual memory management. An allocation is a memfd, an address range a mapping without access, and
 * cuMemMap puts the one over the other. Nothing here waits for the device, so work that still uses memory which
 * is unmapped faults, as on a GPU.
 *
 * The memory comes back when nobody has it any more, in whatever process. Who else has it shows in locks: each
 * descriptor given out and each import is an open file of its own with a read lock, which the kernel takes away
 * when the file is closed, whatever ends the process.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/sim/gpu.h"

struct allocation {
  struct allocation *next;
  unsigned int refs;     /* handles given out */
  unsigned int mappings; /* memory lives on while it is mapped */
  size_t size;
  int fd;
  bool imported; /* another process pays for it */
  CUmemAllocationProp prop;
};

struct reservation {
  struct reservation *next;
  uintptr_t base;
  size_t size;
};

static struct allocation *allocations;
static struct allocation *lingering; /* this process has done with them, another has not */
static struct reservation *reservations;

static bool granular(uintptr_t value)
{
  return value % GPU_GRANULARITY == 0;
}

static struct allocation *allocation_find(CUmemGenericAllocationHandle handle)
{
  for (struct allocation *at = allocations; at; at = at->next)
    if ((uintptr_t)at == handle && at->refs > 0)
      return at;
  return NULL;
}

static void file_lock(int fd, short type)
{
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0)
    control_die("the lock on an allocation's file cannot be changed");
}

static bool file_shared(int fd)
{
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* The same memory as another open file, which counts as somebody's who has it. */
static int file_share(int fd)
{
  char path[64];
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  int own = open(path, O_RDWR | O_CLOEXEC);
  if (own >= 0)
    file_lock(own, F_RDLCK);
  return own;
}

static void allocation_free(struct allocation *allocation)
{
  if (!allocation->imported)
    gpu_memory_give(allocation->prop.location.id, allocation->size);
  close(allocation->fd);
  free(allocation);
}

void gpu_vmm_sweep(void)
{
  for (struct allocation **at = &lingering; *at;) {
    struct allocation *allocation = *at;
    if (file_shared(allocation->fd)) {
      at = &allocation->next;
      continue;
    }
    *at = allocation->next;
    allocation_free(allocation);
  }
}

/* After a reference or a mapping went away. */
static void allocation_settle(struct allocation *allocation)
{
  if (allocation->refs > 0 || allocation->mappings > 0)
    return;
  struct allocation **at = &allocations;
  while (*at != allocation)
    at = &(*at)->next;
  *at = allocation->next;
  if (allocation->imported)
    file_lock(allocation->fd, F_UNLCK); /* a forked child may have the file open too */
  if (allocation->imported || !file_shared(allocation->fd)) {
    allocation_free(allocation);
    return;
  }
  allocation->next = lingering;
  lingering = allocation;
}

static CUmemGenericAllocationHandle allocation_add(const struct allocation *new)
{
  struct allocation *allocation = malloc(sizeof(*allocation));
  *allocation = *new;
  allocation->refs = 1;
  allocation->next = allocations;
  allocations = allocation;
  return (uintptr_t)allocation;
}

/* An anonymous file of the device's memory. Its name tells an importer whose it is. */
static int memory_file(int device, size_t size)
{
  char name[32];
  snprintf(name, sizeof(name), "sim-gpu-%d", device);
  int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
    close(fd);
    fd = -1;
  }
  return fd;
}

CUresult gpu_vmm_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop)
{
  if (size == 0 || !granular(size) || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
      prop->location.id >= gpu_context_device_count())
    return CUDA_ERROR_INVALID_VALUE;
  const char *fabric = getenv("SIM_FABRIC");
  if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC && !(fabric && *fabric == '1'))
    return CUDA_ERROR_NOT_PERMITTED;

  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  gpu_memory_lock();
  if (gpu_memory_take(prop->location.id, size)) {
    int fd = memory_file(prop->location.id, size);
    if (fd >= 0) {
      *handle = allocation_add(&(struct allocation){.size = size, .fd = fd, .prop = *prop});
      result = CUDA_SUCCESS;
    } else {
      gpu_memory_give(prop->location.id, size);
    }
  }
  gpu_memory_unlock();
  return result;
}

CUresult gpu_vmm_release(CUmemGenericAllocationHandle handle)
{
  gpu_memory_lock();
  struct allocation *allocation = allocation_find(handle);
  if (allocation) {
    allocation->refs--;
    allocation_settle(allocation);
  }
  gpu_memory_unlock();
  return allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpu_vmm_retain(CUmemGenericAllocationHandle *handle, const void *ptr)
{
  gpu_memory_lock();
  const struct sim_memory *memory = gpu_memory_at((uintptr_t)ptr);
  bool mapped = memory && memory->kind == SIM_MEMORY_MAPPED;
  if (mapped) {
    ((struct allocation *)(uintptr_t)memory->handle)->refs++;
    *handle = memory->handle;
  }
  gpu_memory_unlock();
  return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpu_vmm_export(int *fd, CUmemGenericAllocationHandle handle)
{
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  gpu_memory_lock();
  const struct allocation *allocation = allocation_find(handle);
  if (allocation && allocation->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    *fd = file_share(allocation->fd);
    result = *fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  gpu_memory_unlock();
  return result;
}

CUresult gpu_vmm_import(CUmemGenericAllocationHandle *handle, int fd)
{
  char path[64];
  char name[64] = "";
  struct stat stat;
  int device;
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  if (readlink(path, name, sizeof(name) - 1) < 0 || sscanf(name, "/memfd:sim-gpu-%d", &device) != 1 ||
      fstat(fd, &stat) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  int own = file_share(fd);
  if (own < 0)
    return CUDA_ERROR_OUT_OF_MEMORY;

  struct allocation new = {.size = (size_t)stat.st_size, .fd = own, .imported = true};
  new.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  new.prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  new.prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
  gpu_memory_lock();
  *handle = allocation_add(&new);
  gpu_memory_unlock();
  return CUDA_SUCCESS;
}

/* The mapping stays, but no longer counts as somebody's who has the memory. */
void gpu_vmm_disown(uintptr_t base)
{
  gpu_memory_lock();
  const struct sim_memory *memory = gpu_memory_at(base);
  const struct allocation *allocation = memory ? (const struct allocation *)(uintptr_t)memory->handle : NULL;
  if (allocation && allocation->imported)
    file_lock(allocation->fd, F_UNLCK);
  gpu_memory_unlock();
}

CUresult gpu_vmm_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
  gpu_memory_lock();
  const struct allocation *allocation = allocation_find(handle);
  if (allocation)
    *prop = allocation->prop;
  gpu_memory_unlock();
  return allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Address space without access; what a larger mapping has too much on either side is given back. */
static uintptr_t space_take(size_t size, size_t alignment, uintptr_t hint)
{
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (hint && hint % alignment == 0) {
    void *at = mmap((void *)hint, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != MAP_FAILED)
      return (uintptr_t)at;
  }
  char *wide = mmap(NULL, size + alignment, PROT_NONE, flags, -1, 0);
  if (wide == MAP_FAILED)
    return 0;
  uintptr_t base = ((uintptr_t)wide + alignment - 1) & ~(uintptr_t)(alignment - 1);
  size_t before = base - (uintptr_t)wide;
  if (before > 0)
    munmap(wide, before);
  if (before < alignment)
    munmap((void *)(base + size), alignment - before);
  return base;
}

CUresult gpu_vmm_reserve(uintptr_t *base, size_t size, size_t alignment, uintptr_t hint)
{
  if (size == 0 || !granular(size) || (alignment & (alignment - 1)))
    return CUDA_ERROR_INVALID_VALUE;
  if (alignment < GPU_GRANULARITY)
    alignment = GPU_GRANULARITY;
  uintptr_t taken = space_take(size, alignment, hint);
  if (!taken)
    return CUDA_ERROR_OUT_OF_MEMORY;

  struct reservation *reservation = malloc(sizeof(*reservation));
  gpu_memory_lock();
  *reservation = (struct reservation){.next = reservations, .base = taken, .size = size};
  reservations = reservation;
  gpu_memory_unlock();
  *base = taken;
  return CUDA_SUCCESS;
}

CUresult gpu_vmm_unreserve(uintptr_t base, size_t size)
{
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  gpu_memory_lock();
  const struct sim_memory *inside = gpu_memory_next(base);
  bool empty = !inside || inside->base >= base + size;
  for (struct reservation **at = &reservations; *at && empty; at = &(*at)->next) {
    struct reservation *reservation = *at;
    if (reservation->base != base || reservation->size != size)
      continue;
    *at = reservation->next;
    free(reservation);
    munmap((void *)base, size);
    result = CUDA_SUCCESS;
    break;
  }
  gpu_memory_unlock();
  return result;
}

static bool reserved(uintptr_t base, size_t size)
{
  for (const struct reservation *at = reservations; at; at = at->next)
    if (at->base <= base && base + size <= at->base + at->size)
      return true;
  return false;
}

CUresult gpu_vmm_map(uintptr_t base, size_t size, size_t offset, CUmemGenericAllocationHandle handle)
{
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  gpu_memory_lock();
  struct allocation *allocation = allocation_find(handle);
  const struct sim_memory *inside = gpu_memory_next(base);
  /* Whole handles only: neither an offset nor a part is taken. */
  if (allocation && offset == 0 && size == allocation->size && granular(base) && reserved(base, size) &&
      (!inside || inside->base >= base + size)) {
    void *at = mmap((void *)base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd, 0);
    result = at == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  }
  if (result == CUDA_SUCCESS) {
    madvise((void *)base, size, MADV_DONTFORK);
    allocation->mappings++;
    gpu_memory_insert(&(struct sim_memory){.base = base,
                                           .size = size,
                                           .kind = SIM_MEMORY_MAPPED,
                                           .device = allocation->prop.location.id,
                                           .handle = handle});
  }
  gpu_memory_unlock();
  return result;
}

/* Whether the range is made of whole mappings, one after the other. */
static bool whole_mappings(uintptr_t base, size_t size)
{
  uintptr_t end = base + size;
  while (base < end) {
    const struct sim_memory *memory = gpu_memory_at(base);
    if (!memory || memory->kind != SIM_MEMORY_MAPPED || memory->base != base || memory->size > end - base)
      return false;
    base += memory->size;
  }
  return true;
}

CUresult gpu_vmm_unmap(uintptr_t base, size_t size)
{
  gpu_memory_lock();
  bool whole = size > 0 && whole_mappings(base, size);
  for (uintptr_t at = base; whole && at < base + size;) {
    struct sim_memory memory = *gpu_memory_at(at);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    mmap((void *)at, memory.size, PROT_NONE, flags, -1, 0);
    gpu_memory_remove(at);
    struct allocation *allocation = (struct allocation *)(uintptr_t)memory.handle;
    allocation->mappings--;
    allocation_settle(allocation);
    at += memory.size;
  }
  gpu_memory_unlock();
  return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* One description; the protection of the host's mapping is what any device may do. */
static CUresult access_set(struct sim_memory *memory, const CUmemAccessDesc *desc)
{
  if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE || desc->location.id < 0 ||
      desc->location.id >= gpu_context_device_count())
    return CUDA_ERROR_INVALID_VALUE;
  unsigned int bit = 1U << desc->location.id;
  if (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    memory->access |= bit;
  else if (desc->flags == 0)
    memory->access &= ~bit;
  else
    return CUDA_ERROR_NOT_SUPPORTED;
  mprotect((void *)memory->base, memory->size, memory->access ? PROT_READ | PROT_WRITE : PROT_NONE);
  return CUDA_SUCCESS;
}

CUresult gpu_vmm_set_access(uintptr_t base, size_t size, const CUmemAccessDesc *desc, size_t count)
{
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  gpu_memory_lock();
  if (size > 0 && count > 0 && whole_mappings(base, size)) {
    result = CUDA_SUCCESS;
    for (uintptr_t at = base; at < base + size && result == CUDA_SUCCESS;) {
      struct sim_memory *memory = gpu_memory_at(at);
      for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = access_set(memory, &desc[i]);
      at += memory->size;
    }
  }
  gpu_memory_unlock();
  return result;
}
