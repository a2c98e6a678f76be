/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/shadow.h"

#include <pthread.h>

#include "shim/log.h"
#include "shim/real.h"

enum { MAX_DEVICES = 64, MAX_SEGMENTS = 4096 /* live and parked; PyTorch's allocator makes some hundreds */ };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct segment segments[MAX_SEGMENTS];            /* id 0: free */
static size_t sizes[MAX_SEGMENTS];                       /* that the job asked for */
static uint32_t segments_used;                           /* entries that were ever taken */
static uint64_t last_id;
static size_t used[MAX_DEVICES];          /* bytes of a device's segments, parked ones too */
static size_t granularities[MAX_DEVICES]; /* 0: not asked yet; UNSUPPORTED: the device has no shareable memory */
#define UNSUPPORTED SIZE_MAX

/* As arena.c asks for it; but it probes the handle types by an allocation, and here nothing is allocated. */
static size_t ask_granularity(const struct driver *driver, int device)
{
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
  size_t granularity = 0;
  int vmm = 0;

  driver->cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
  if (!vmm ||
      driver->cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
    return UNSUPPORTED;
  return granularity > 0 ? granularity : UNSUPPORTED;
}

/* The current device, and what its segments' sizes are multiples of; false where it has no arena. */
static bool ask_device(int *device, size_t *granularity)
{
  const struct driver *driver = real_driver();

  if (!driver || driver->cuCtxGetDevice(device) != CUDA_SUCCESS || *device < 0 || *device >= MAX_DEVICES)
    return false;
  *granularity = __atomic_load_n(&granularities[*device], __ATOMIC_RELAXED);
  if (*granularity == 0) {
    *granularity = ask_granularity(driver, *device);
    __atomic_store_n(&granularities[*device], *granularity, __ATOMIC_RELAXED);
  }
  return *granularity != UNSUPPORTED;
}

/* A parked segment that fits, as arena.c chooses it. Holds the lock. */
static struct segment *unpark(int device, size_t size)
{
  struct segment *found = NULL;

  for (uint32_t i = 0; i < segments_used; i++) {
    struct segment *segment = &segments[i];
    if (segment->parked && segment->device == device && segment->size >= size &&
        segment->size - size <= size / ARENA_PARKED_FIT && (!found || segment->size < found->size))
      found = segment;
  }
  if (found)
    found->parked = false;
  return found;
}

/* Holds the lock. NULL when the table is full. */
static struct segment *take(int device, size_t size)
{
  uint32_t i = 0;

  while (i < segments_used && segments[i].id != 0)
    i++;
  if (i == MAX_SEGMENTS)
    return NULL;
  segments_used += i == segments_used;
  segments[i] = (struct segment){.id = ++last_id, .size = size, .device = device};
  used[device] += size;
  return &segments[i];
}

void shadow_add(const void *ptr, size_t size, uint64_t max_bytes)
{
  struct segment *segment;
  size_t granularity, rounded;
  bool capped;
  int device;

  if (!ask_device(&device, &granularity))
    return;
  rounded = (size + granularity - 1) / granularity * granularity;
  pthread_mutex_lock(&lock);
  segment = unpark(device, rounded);
  capped = !segment && max_bytes != 0 && (rounded > max_bytes || used[device] > max_bytes - rounded);
  if (!segment && !capped)
    segment = take(device, rounded);
  if (segment) {
    segment->base = (uintptr_t)ptr;
    sizes[segment - segments] = size;
  }
  pthread_mutex_unlock(&lock);
  if (!segment && !capped)
    log_warn_once("more than %d allocations at a time: calls on the rest are foreseen as not_in_arena", MAX_SEGMENTS);
}

/* Holds the lock. */
static struct segment *find(uintptr_t address)
{
  for (uint32_t i = 0; i < segments_used; i++)
    if (segments[i].id != 0 && !segments[i].parked && address - segments[i].base < sizes[i])
      return &segments[i];
  return NULL;
}

void shadow_remove(const void *ptr)
{
  struct segment *segment;

  if (!ptr)
    return;
  pthread_mutex_lock(&lock);
  segment = find((uintptr_t)ptr);
  if (segment && segment->base == (uintptr_t)ptr) {
    segment->parked = segment->windows > 0;
    if (!segment->parked) {
      used[segment->device] -= segment->size;
      segment->id = 0;
    }
  }
  pthread_mutex_unlock(&lock);
}

struct segment *shadow_find(const void *ptr)
{
  struct segment *segment;

  pthread_mutex_lock(&lock);
  segment = find((uintptr_t)ptr);
  pthread_mutex_unlock(&lock);
  return segment;
}

void shadow_use(struct segment *segment)
{
  pthread_mutex_lock(&lock);
  segment->windows = 1;
  pthread_mutex_unlock(&lock);
}
