/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The map of memory: which address belongs to which allocation or mapping, and how much of each device's memory
 * is in use. Also cudaMalloc's kind of memory: a private anonymous mapping (a
 * shared one of a file once it was exported) with a page behind it that faults.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/sim/gpu.h"

enum { PAGE = 4096 };

static pthread_mutex_t memory_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sim_memory *map; /* sorted by base */
static size_t map_count;
static size_t map_room;
static size_t used[GPU_MAX_DEVICES];

void gpu_memory_lock(void)
{
  pthread_mutex_lock(&memory_mutex);
}

void gpu_memory_unlock(void)
{
  pthread_mutex_unlock(&memory_mutex);
}

size_t gpu_memory_total(void)
{
  return control_env_size("SIM_DEVICE_MEMORY", (size_t)8 << 30);
}

bool gpu_memory_take(int device, size_t size)
{
  gpu_vmm_sweep();
  if (size > gpu_memory_total() - used[device])
    return false;
  used[device] += size;
  return true;
}

void gpu_memory_give(int device, size_t size)
{
  used[device] -= size;
}

/* The index of the first entry that ends after ptr. */
static size_t map_search(uintptr_t ptr)
{
  size_t low = 0;
  size_t high = map_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (map[middle].base + map[middle].size <= ptr)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

struct sim_memory *gpu_memory_next(uintptr_t ptr)
{
  size_t i = map_search(ptr);
  return i < map_count ? &map[i] : NULL;
}

struct sim_memory *gpu_memory_at(uintptr_t ptr)
{
  struct sim_memory *memory = gpu_memory_next(ptr);
  return memory && memory->base <= ptr ? memory : NULL;
}

void gpu_memory_insert(const struct sim_memory *new)
{
  if (map_count == map_room) {
    map_room = map_room ? map_room * 2 : 64;
    map = realloc(map, map_room * sizeof(*map));
  }
  size_t i = map_search(new->base);
  memmove(&map[i + 1], &map[i], (map_count - i) * sizeof(*map));
  map[i] = *new;
  map_count++;
}

void gpu_memory_remove(uintptr_t base)
{
  size_t i = map_search(base);
  memmove(&map[i], &map[i + 1], (map_count - i - 1) * sizeof(*map));
  map_count--;
}

bool gpu_memory_find(const void *ptr, struct sim_memory *found)
{
  gpu_memory_lock();
  const struct sim_memory *memory = gpu_memory_at((uintptr_t)ptr);
  if (memory)
    *found = *memory;
  gpu_memory_unlock();
  return memory != NULL;
}

bool gpu_memory_find_from(const void *ptr, struct sim_memory *found)
{
  gpu_memory_lock();
  const struct sim_memory *memory = gpu_memory_next((uintptr_t)ptr);
  if (memory)
    *found = *memory;
  gpu_memory_unlock();
  return memory != NULL;
}

static size_t page_round(size_t size)
{
  return (size + PAGE - 1) & ~(size_t)(PAGE - 1);
}

static CUresult memory_map(int device, size_t size, enum sim_memory_kind kind, void **ptr)
{
  char *base = mmap(NULL, page_round(size) + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  mprotect(base, page_round(size), PROT_READ | PROT_WRITE);
  /* A forked child has no device memory; pinned host memory stays. */
  if (kind == SIM_MEMORY_PLAIN)
    madvise(base, page_round(size), MADV_DONTFORK);
  gpu_memory_insert(&(struct sim_memory){.base = (uintptr_t)base, .size = size, .kind = kind, .device = device});
  *ptr = base;
  return CUDA_SUCCESS;
}

static void memory_unmap(struct sim_memory memory)
{
  if (memory.file > 0)
    close(memory.file - 1);
  gpu_memory_remove(memory.base);
  munmap((void *)memory.base, page_round(memory.size) + PAGE);
}

CUresult gpu_memory_alloc(int device, size_t size, void **ptr)
{
  *ptr = NULL;
  if (size == 0)
    return CUDA_SUCCESS;
  gpu_memory_lock();
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  if (gpu_memory_take(device, size)) {
    result = memory_map(device, size, SIM_MEMORY_PLAIN, ptr);
    if (result != CUDA_SUCCESS)
      gpu_memory_give(device, size);
  }
  gpu_memory_unlock();
  return result;
}

CUresult gpu_memory_free(void *ptr)
{
  struct sim_memory memory;
  if (!gpu_memory_find(ptr, &memory) || memory.kind != SIM_MEMORY_PLAIN || memory.base != (uintptr_t)ptr)
    return CUDA_ERROR_INVALID_VALUE;
  /* The real one waits for everything that runs on the device, whether or not it uses this memory. */
  gpu_stream_device_synchronize(memory.device);
  gpu_memory_lock();
  memory_unmap(memory);
  gpu_memory_give(memory.device, memory.size);
  gpu_memory_unlock();
  return CUDA_SUCCESS;
}

/* A file with the memory's bytes, mapped in their place; -1 when that cannot be. */
static int file_of(const struct sim_memory *memory)
{
  size_t size = page_round(memory->size);
  int fd = memfd_create("sim-ipc", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, (off_t)size) == 0) {
    void *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (copy != MAP_FAILED) {
      memcpy(copy, (const void *)memory->base, memory->size);
      munmap(copy, size);
      if (mmap((void *)memory->base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED) {
        madvise((void *)memory->base, size, MADV_DONTFORK);
        return fd;
      }
    }
  }
  if (fd >= 0)
    close(fd);
  return -1;
}

int gpu_memory_share(uintptr_t base)
{
  struct sim_memory *memory = gpu_memory_at(base);
  if (memory->file == 0)
    memory->file = file_of(memory) + 1;
  return memory->file - 1;
}

void *gpu_memory_map_file(int fd, int device, size_t size)
{
  char *base = mmap(NULL, page_round(size) + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return NULL;
  if (mmap(base, page_round(size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    munmap(base, page_round(size) + PAGE);
    return NULL;
  }
  madvise(base, page_round(size), MADV_DONTFORK);
  gpu_memory_insert(
      &(struct sim_memory){.base = (uintptr_t)base, .size = size, .kind = SIM_MEMORY_IPC, .device = device});
  return base;
}

void gpu_memory_unmap_file(uintptr_t base)
{
  memory_unmap(*gpu_memory_at(base));
}

void gpu_memory_drop(uintptr_t base)
{
  gpu_memory_lock();
  const struct sim_memory *memory = gpu_memory_at(base);
  if (!memory || memory->kind != SIM_MEMORY_PLAIN || memory->base != base)
    control_die("memory at %p is freed twice", (void *)base);
  gpu_memory_give(memory->device, memory->size);
  memory_unmap(*memory);
  gpu_memory_unlock();
}

/* What cudaMalloc gave goes with the context; VMM memory belongs to none. */
void gpu_memory_reset(int device)
{
  gpu_memory_lock();
  for (size_t i = 0; i < map_count;)
    if (map[i].kind == SIM_MEMORY_PLAIN && map[i].device == device) {
      gpu_memory_give(device, map[i].size);
      memory_unmap(map[i]);
    } else {
      i++;
    }
  gpu_memory_unlock();
}

CUresult gpu_memory_host_alloc(size_t size, void **ptr)
{
  *ptr = NULL;
  if (size == 0)
    return CUDA_SUCCESS;
  gpu_memory_lock();
  CUresult result = memory_map(0, size, SIM_MEMORY_HOST, ptr);
  gpu_memory_unlock();
  return result;
}

CUresult gpu_memory_host_free(void *ptr)
{
  struct sim_memory memory;
  if (!gpu_memory_find(ptr, &memory) || memory.kind != SIM_MEMORY_HOST || memory.base != (uintptr_t)ptr)
    return CUDA_ERROR_INVALID_VALUE;
  for (int device = 0; device < gpu_context_device_count(); device++)
    gpu_stream_device_synchronize(device);
  gpu_memory_lock();
  memory_unmap(memory);
  gpu_memory_unlock();
  return CUDA_SUCCESS;
}

CUresult gpu_memory_info(int device, size_t *free, size_t *total)
{
  gpu_memory_lock();
  gpu_vmm_sweep();
  *total = gpu_memory_total();
  *free = *total - used[device];
  gpu_memory_unlock();
  return CUDA_SUCCESS;
}

CUresult gpu_memory_charge(int device, size_t size)
{
  gpu_memory_lock();
  bool taken = gpu_memory_take(device, size);
  gpu_memory_unlock();
  return taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void gpu_memory_discharge(int device, size_t size)
{
  gpu_memory_lock();
  gpu_memory_give(device, size);
  gpu_memory_unlock();
}

/* One side of a copy: within its allocation (mappings side by side count as one), and open to the other device. */
static CUresult copy_side_check(uintptr_t ptr, size_t count, int other)
{
  while (count > 0) {
    const struct sim_memory *memory = gpu_memory_at(ptr);
    if (!memory)
      return CUDA_ERROR_INVALID_VALUE;
    if (memory->kind == SIM_MEMORY_MAPPED) {
      if (!(memory->access & 1U << memory->device) || (other >= 0 && !(memory->access & 1U << other)))
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t here = memory->base + memory->size - ptr;
    if (here >= count)
      return CUDA_SUCCESS;
    if (memory->kind != SIM_MEMORY_MAPPED)
      return CUDA_ERROR_INVALID_VALUE;
    ptr += here;
    count -= here;
  }
  return CUDA_SUCCESS;
}

CUresult gpu_memory_copy_check(const void *dst, const void *src, size_t count)
{
  CUresult result = CUDA_SUCCESS;
  gpu_memory_lock();
  const struct sim_memory *to = gpu_memory_at((uintptr_t)dst);
  const struct sim_memory *from = src ? gpu_memory_at((uintptr_t)src) : NULL;
  int to_device = to && to->kind != SIM_MEMORY_HOST ? to->device : -1;
  int from_device = from && from->kind != SIM_MEMORY_HOST ? from->device : -1;
  if (to)
    result = copy_side_check((uintptr_t)dst, count, from_device);
  if (result == CUDA_SUCCESS && from)
    result = copy_side_check((uintptr_t)src, count, to_device);
  gpu_memory_unlock();
  return result;
}
