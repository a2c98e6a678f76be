/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/arena.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "shim/capture.h"
#include "shim/log.h"
#include "shim/real.h"

enum {
  MAX_DEVICES = 64,
  MAX_SEGMENTS = 1 << 16,
  RANGE_FACTOR = 8, /* address space is reserved for so many times the device's memory */
  GAP = 1           /* granules between segments, so that what runs past one's end faults */
};

struct range {
  uintptr_t base;
  size_t size, granularity;
  uint32_t *owners;  /* per granule the segment's place in the table plus 1, or 0; read without a lock */
  size_t next;       /* granule at which the next search begins */
  size_t used;       /* bytes of its segments, parked ones too */
  size_t parked;     /* bytes of those that the job has freed */
  CUcontext context; /* that used it last; its work is waited for when memory is freed from another device */
  CUmemAllocationProp prop;
  int state; /* 0: not tried, 1: ready, -1: this device has no arena; last, since it is read without the lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* ranges and segments; never held across a driver call */
static struct range ranges[MAX_DEVICES];
static uint64_t peers_of[MAX_DEVICES]; /* devices that may access a device's memory, a bit each */
static uint64_t met;                   /* devices that have memory of whatever kind, a bit each */
static uint32_t unsettled;             /* segments that were freed where the device could not be waited for */
static struct segment *segments;       /* MAX_SEGMENTS of them */
static uint32_t segments_used;         /* entries that were ever taken */
static uint64_t last_id;
static bool used; /* memory was given out, or was to be; read without a lock */

static void *map_table(size_t bytes)
{
  void *table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

  return table == MAP_FAILED ? NULL : table;
}

static size_t round_up(size_t size, size_t granularity)
{
  return (size + granularity - 1) / granularity * granularity;
}

/* Handle types are probed by a real allocation: a device may say that it supports FABRIC and then not permit it. */
static bool probe_handle_types(const struct driver *driver, struct range *range)
{
  static const unsigned int types[] = {CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};

  for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
    CUmemGenericAllocationHandle handle;
    range->prop.requestedHandleTypes = types[i];
    if (driver->cuMemGetAllocationGranularity(&range->granularity, &range->prop,
                                              CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
      continue;
    if (driver->cuMemCreate(&handle, range->granularity, &range->prop, 0) == CUDA_SUCCESS) {
      driver->cuMemRelease(handle);
      return true;
    }
  }
  return false;
}

/* Reserves the address range and its table; no device memory is taken. */
static bool open_range(const struct driver *driver, int device, struct range *range)
{
  CUdeviceptr base = 0;
  size_t total = 0;
  int vmm = 0, rdma = 0;

  driver->cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
  driver->cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
  if (!vmm || driver->cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS)
    return false;
  range->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  range->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  range->prop.location.id = device;
  range->prop.allocFlags.gpuDirectRDMACapable = rdma != 0;
  if (!probe_handle_types(driver, range))
    return false;
  range->size = round_up(total, range->granularity) * RANGE_FACTOR;
  if (driver->cuMemAddressReserve(&base, range->size, range->granularity, 0, 0) != CUDA_SUCCESS)
    return false;
  range->base = (uintptr_t)base;
  range->owners = map_table(range->size / range->granularity * sizeof(*range->owners));
  if (range->owners)
    return true;
  driver->cuMemAddressFree(base, range->size);
  return false;
}

/* The runtime loads the driver with its first call, which may be the cudaMalloc that is being answered. */
static const struct driver *loaded_driver(void)
{
  const struct driver *driver = real_driver();

  return !driver && REAL(cudaFree)(NULL) == cudaSuccess ? real_driver() : driver;
}

/*
 * cudaMalloc's memory can be copied between a process's devices whether or not peer access is enabled; VMM memory only
 * where it is mapped. So each device that the process has memory on may reach the arena's.
 */
static void grant_both_ways(int device)
{
  uint64_t others = __atomic_or_fetch(&met, 1ULL << device, __ATOMIC_SEQ_CST) & ~(1ULL << device);

  for (int other = 0; others >> other; other++)
    if (others >> other & 1) {
      arena_grant(other, device);
      arena_grant(device, other);
    }
}

void arena_meet(void)
{
  const struct driver *driver = real_driver();
  CUdevice device;

  if (driver && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS && device >= 0 && device < MAX_DEVICES &&
      !(__atomic_load_n(&met, __ATOMIC_RELAXED) >> device & 1))
    grant_both_ways(device);
}

/* The current device's range, opened at first use; NULL where there can be none. */
static struct range *current_range(const struct driver *driver)
{
  struct range fresh = {0}, *range;
  CUcontext context = NULL;
  CUdevice device;
  bool ready;

  /* cudaMalloc would make the primary context now (and initialise the driver, where that was not done); cuMemCreate
   * wants it made. */
  if ((driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) && REAL(cudaFree)(NULL) != cudaSuccess)
    return NULL;
  if (driver->cuCtxGetDevice(&device) != CUDA_SUCCESS || device < 0 || device >= MAX_DEVICES)
    return NULL;
  driver->cuCtxGetCurrent(&fresh.context);
  range = &ranges[device];
  if (__atomic_load_n(&range->state, __ATOMIC_ACQUIRE) != 0) {          /* pairs with the release below */
    __atomic_store_n(&range->context, fresh.context, __ATOMIC_RELAXED); /* another one after cudaDeviceReset */
    return range->state > 0 ? range : NULL;
  }

  ready = open_range(driver, device, &fresh);
  pthread_mutex_lock(&lock);
  if (!segments)
    segments = map_table(MAX_SEGMENTS * sizeof(*segments));
  if (range->state == 0) {
    memcpy(range, &fresh, offsetof(struct range, state));
    __atomic_store_n(&range->state, ready && segments ? 1 : -1, __ATOMIC_RELEASE);
    fresh.owners = NULL;
  }
  pthread_mutex_unlock(&lock);
  if (fresh.owners) { /* another thread was first */
    munmap(fresh.owners, fresh.size / fresh.granularity * sizeof(*fresh.owners));
    driver->cuMemAddressFree(fresh.base, fresh.size);
  }
  if (range->state > 0)
    grant_both_ways(device);
  else
    log_info("device %d has no shareable memory: its allocations stay plain", device);
  return range->state > 0 ? range : NULL;
}

static uint32_t *owner_of(struct range *range, uintptr_t address)
{
  return &range->owners[(address - range->base) / range->granularity];
}

/* Marks a segment's granules; release pairs with the acquire in arena_find(). */
static void set_owner(struct range *range, const struct segment *segment, uint32_t owner)
{
  for (size_t offset = 0; offset < segment->size; offset += range->granularity)
    __atomic_store_n(owner_of(range, segment->base + offset), owner, __ATOMIC_RELEASE);
}

/*
 * Next fit: finds `size` bytes of unused addresses, with a gap on both sides: a copy that runs past the end of
 * cudaMalloc's memory is refused, and one over mappings side by side is not. Holds the lock.
 */
static bool find_addresses(struct range *range, size_t size, uintptr_t *base)
{
  size_t granules = range->size / range->granularity, wanted = size / range->granularity + 2 * GAP, run = 0;

  if (wanted > granules)
    return false;
  for (size_t i = 0, at = range->next; i < granules + wanted; i++, at++) {
    if (at >= granules) {
      at = 0;
      run = 0;
    }
    run = range->owners[at] == 0 ? run + 1 : 0;
    if (run == wanted) {
      *base = range->base + (at + 1 - wanted + GAP) * range->granularity;
      range->next = (at + 1 - GAP) % granules; /* one gap between two is enough */
      return true;
    }
  }
  return false;
}

/* Takes a table entry and addresses for it. Holds the lock. The entry is not found by arena_find() yet. */
static struct segment *take_segment(struct range *range, int device, size_t size, uint32_t *ret_owner)
{
  uint64_t next_id = last_id + 1;
  uint32_t i = 0;
  uintptr_t base;

  while (i < segments_used && segments[i].id != 0)
    i++;
  if (i == MAX_SEGMENTS || !find_addresses(range, size, &base))
    return NULL;
  if (i == segments_used)
    segments_used++;
  segments[i] = (struct segment){.id = next_id, .base = base, .size = size, .device = device};
  last_id = next_id;
  range->used += size;
  *ret_owner = i + 1;
  return &segments[i];
}

static void forget_segment(struct range *range, struct segment *segment)
{
  pthread_mutex_lock(&lock);
  set_owner(range, segment, 0);
  range->used -= segment->imported ? 0 : segment->size;
  memset(segment, 0, sizeof(*segment));
  pthread_mutex_unlock(&lock);
}

static CUresult set_access(const struct driver *driver, const struct segment *segment, uint64_t devices)
{
  CUmemAccessDesc access[MAX_DEVICES];
  size_t count = 0;

  for (int device = 0; device < MAX_DEVICES; device++)
    if (devices >> device & 1)
      access[count++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return driver->cuMemSetAccess(segment->base, segment->size, access, count);
}

/* Puts its memory behind a segment's addresses. On failure the memory is let go of, and nothing is left behind. */
static CUresult map_segment(const struct driver *driver, struct segment *segment, uint64_t devices)
{
  CUresult result = driver->cuMemMap(segment->base, segment->size, 0, segment->handle, 0);

  if (result == CUDA_SUCCESS) {
    result = set_access(driver, segment, devices);
    if (result == CUDA_SUCCESS)
      return result;
    driver->cuMemUnmap(segment->base, segment->size);
  }
  driver->cuMemRelease(segment->handle);
  return result;
}

static CUresult back_segment(const struct driver *driver, struct range *range, struct segment *segment,
                             uint64_t devices)
{
  CUresult result = driver->cuMemCreate(&segment->handle, segment->size, &range->prop, 0);

  return result == CUDA_SUCCESS ? map_segment(driver, segment, devices) : result;
}

static void unback_segment(const struct driver *driver, const struct segment *segment)
{
  driver->cuMemUnmap(segment->base, segment->size);
  driver->cuMemRelease(segment->handle);
}

/* Makes a device's context current if it is not. */
static CUresult enter_device(const struct driver *driver, int device, bool *ret_entered)
{
  CUdevice current;

  *ret_entered = driver->cuCtxGetDevice(&current) != CUDA_SUCCESS || current != device;
  return *ret_entered ? driver->cuCtxPushCurrent_v2(__atomic_load_n(&ranges[device].context, __ATOMIC_RELAXED))
                      : (CUresult)CUDA_SUCCESS;
}

/*
 * Waits for all work of a device, whichever is current. By the runtime, where the job asked for it: a failure is then
 * its last error, as cudaFree's would be. Both APIs have the same numbers since CUDA 10.1.
 */
static cudaError_t settle_device(const struct driver *driver, int device, bool by_runtime)
{
  CUcontext previous;
  bool entered;
  cudaError_t result = (cudaError_t)enter_device(driver, device, &entered);

  if (result != cudaSuccess)
    return result;
  result = by_runtime ? REAL(cudaDeviceSynchronize)() : (cudaError_t)driver->cuCtxSynchronize();
  if (entered)
    driver->cuCtxPopCurrent_v2(&previous);
  return result;
}

/*
 * In relaxed mode cudaFree is allowed while the thread captures a graph, and a wait for the device breaks the capture.
 * Whether there is a capture this cannot tell; such threads are few.
 */
static bool may_wait(void)
{
  return !capture_is_relaxed();
}

/* A parked segment that fits, its windows still valid; NULL if there is none. */
static struct segment *unpark(int device, size_t size)
{
  struct segment *found = NULL;

  pthread_mutex_lock(&lock);
  for (uint32_t i = 0; i < segments_used; i++) {
    struct segment *segment = &segments[i];
    if (segment->parked && !segment->retired && !segment->unsettled && segment->device == device &&
        segment->size >= size && segment->size - size <= size / ARENA_PARKED_FIT &&
        (!found || segment->size < found->size))
      found = segment;
  }
  if (found) {
    __atomic_store_n(&found->parked, false, __ATOMIC_RELAXED);
    __atomic_fetch_add(&found->lives, 1, __ATOMIC_RELAXED);
    ranges[device].parked -= found->size;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

static void give_back(const struct driver *driver, struct segment *segment)
{
  unback_segment(driver, segment);
  forget_segment(&ranges[segment->device], segment);
}

/* The first of the unsettled segments with an id above `after`, copied; its id is 0 if there is none. */
static struct segment next_unsettled(uint64_t after)
{
  struct segment next = {0};

  pthread_mutex_lock(&lock);
  for (uint32_t i = 0; i < segments_used; i++)
    if (segments[i].unsettled && segments[i].id > after && (next.id == 0 || segments[i].id < next.id))
      next = segments[i];
  pthread_mutex_unlock(&lock);
  return next;
}

/* A segment whose device was waited for stays parked for its windows alone, or goes. Returns whether it went. */
static bool mark_settled(const struct driver *driver, const struct segment *copy)
{
  struct segment *segment = NULL;
  bool held = true;

  pthread_mutex_lock(&lock);
  for (uint32_t i = 0; i < segments_used && !segment; i++)
    if (segments[i].id == copy->id && segments[i].unsettled)
      segment = &segments[i];
  if (segment) { /* no other thread was first */
    segment->unsettled = false;
    __atomic_sub_fetch(&unsettled, 1, __ATOMIC_RELAXED);
    held = segment->windows > 0;
    ranges[segment->device].parked -= held ? 0 : segment->size;
  }
  pthread_mutex_unlock(&lock);
  if (!held)
    give_back(driver, segment);
  return !held;
}

bool arena_settle_freed(void)
{
  const struct driver *driver = real_driver();
  struct segment copy = {0};
  bool went = false;

  if (__atomic_load_n(&unsettled, __ATOMIC_RELAXED) == 0 || !driver || !may_wait())
    return false;
  while ((copy = next_unsettled(copy.id)).id != 0)
    if (settle_device(driver, copy.device, false) == cudaSuccess)
      went |= mark_settled(driver, &copy);
  return went;
}

int arena_alloc(void **ptr, size_t size, size_t max_bytes, enum arena_kind kind)
{
  const struct driver *driver = loaded_driver();
  struct range *range = driver ? current_range(driver) : NULL;
  struct segment *segment = NULL;
  uint32_t owner = 0;
  uint64_t devices = 0, peers;
  bool full = false;
  CUresult result;
  int device;

  if (!range)
    return -ENODEV;
  if (size == 0 || size > range->size)
    return size == 0 ? -EINVAL : -ENOMEM;
  device = range->prop.location.id;
  size = round_up(size, range->granularity);
  segment = kind == ARENA_JOB ? unpark(device, size) : NULL;
  if (segment) {
    *ptr = (void *)segment->base;
    return 0;
  }

  pthread_mutex_lock(&lock);
  full = max_bytes != 0 && (size > max_bytes || range->used > max_bytes - size);
  if (!full)
    segment = take_segment(range, device, size, &owner);
  if (segment) {
    /* From here on nobody else takes the addresses; arena_find() sees them when the memory is there. */
    devices = __atomic_load_n(&peers_of[device], __ATOMIC_ACQUIRE) | 1ULL << device;
    __atomic_store_n(&used, true, __ATOMIC_RELAXED);
    set_owner(range, segment, owner);
  }
  pthread_mutex_unlock(&lock);
  if (!segment)
    return full ? -ENOSPC : -ENFILE;

  result = back_segment(driver, range, segment, devices);
  if (result != CUDA_SUCCESS) {
    forget_segment(range, segment);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;
  }
  pthread_mutex_lock(&lock);
  segment->backed = true;
  pthread_mutex_unlock(&lock);
  /* A peer that was granted access meanwhile did not see this segment, or saw it without memory. */
  peers = __atomic_load_n(&peers_of[device], __ATOMIC_ACQUIRE);
  if (peers & ~devices)
    set_access(driver, segment, peers & ~devices);
  *ptr = (void *)segment->base;
  return 0;
}

/* Whatever has an address, parked and imported ones too. */
static struct segment *segment_at(const void *ptr)
{
  uintptr_t address = (uintptr_t)ptr;

  for (int device = 0; device < MAX_DEVICES; device++) {
    struct range *range = &ranges[device];
    uint32_t owner;
    if (__atomic_load_n(&range->state, __ATOMIC_ACQUIRE) <= 0 || address - range->base >= range->size)
      continue;
    owner = __atomic_load_n(owner_of(range, address), __ATOMIC_ACQUIRE); /* pairs with set_owner() */
    return owner == 0 ? NULL : &segments[owner - 1];
  }
  return NULL;
}

struct segment *arena_find(const void *ptr)
{
  struct segment *segment = segment_at(ptr);

  return segment && !segment->imported && !__atomic_load_n(&segment->parked, __ATOMIC_RELAXED) ? segment : NULL;
}

/* Parks a segment if a window holds it, or its device could not be waited for. False: give the memory back. */
static bool park(struct segment *segment, bool settled)
{
  bool parked;

  pthread_mutex_lock(&lock);
  parked = segment->windows > 0 || !settled;
  if (parked) {
    segment->unsettled = !settled;
    __atomic_add_fetch(&unsettled, settled ? 0 : 1, __ATOMIC_RELAXED);
    __atomic_store_n(&segment->parked, true, __ATOMIC_RELAXED);
    ranges[segment->device].parked += segment->size;
  }
  pthread_mutex_unlock(&lock);
  return parked;
}

/* A live segment that begins there, or NULL: then the pointer is not the arena's to free. */
static struct segment *find_base(const void *ptr)
{
  struct segment *segment = arena_find(ptr);

  return segment && (uintptr_t)ptr == segment->base ? segment : NULL;
}

bool arena_free(void *ptr, cudaError_t *result)
{
  const struct driver *driver = real_driver();
  struct segment *segment = find_base(ptr);
  bool wait;

  if (!driver || !segment)
    return false;
  arena_settle_freed();
  wait = may_wait();
  *result = wait ? settle_device(driver, segment->device, true) : cudaSuccess;
  if (*result == cudaSuccess && !park(segment, wait))
    give_back(driver, segment);
  return true;
}

bool arena_free_in_stream(void *ptr, cudaStream_t stream, cudaError_t *result)
{
  const struct driver *driver = real_driver();
  struct segment *segment = find_base(ptr);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

  /* In a capture only a graph's own memory can be freed so; the real function says it. */
  if (!driver || !segment || driver->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
      status != CU_STREAM_CAPTURE_STATUS_NONE)
    return false;
  *result = REAL(cudaStreamSynchronize)(stream);
  if (*result == cudaSuccess && !park(segment, true))
    give_back(driver, segment);
  return true;
}

void arena_retire(struct segment *segment)
{
  bool held;

  pthread_mutex_lock(&lock);
  held = segment->windows > 0;
  if (held) {
    segment->retired = true;
    __atomic_store_n(&segment->parked, true, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&lock);
  if (!held)
    give_back(real_driver(), segment);
}

/* The first segment of a device with an id above `after`; NULL if there is none. */
static struct segment *next_of_device(int device, uint64_t after)
{
  struct segment *next = NULL;

  pthread_mutex_lock(&lock);
  for (uint32_t i = 0; i < segments_used; i++)
    if (segments[i].id > after && segments[i].device == device && !segments[i].retired && !segments[i].imported &&
        (!next || segments[i].id < next->id))
      next = &segments[i];
  pthread_mutex_unlock(&lock);
  return next;
}

void arena_forget_device(int device)
{
  struct segment *segment;
  uint64_t id = 0;

  while ((segment = next_of_device(device, id))) {
    id = segment->id;
    pthread_mutex_lock(&lock);
    ranges[device].parked -= segment->parked ? segment->size : 0;
    __atomic_sub_fetch(&unsettled, segment->unsettled ? 1 : 0, __ATOMIC_RELAXED);
    segment->unsettled = false;
    pthread_mutex_unlock(&lock);
    arena_retire(segment);
  }
}

size_t arena_parked_bytes(int device)
{
  size_t parked;

  pthread_mutex_lock(&lock);
  parked = device >= 0 && device < MAX_DEVICES ? ranges[device].parked : 0;
  pthread_mutex_unlock(&lock);
  return parked;
}

bool arena_is_parking_more_than(uint64_t max)
{
  bool more = false;

  pthread_mutex_lock(&lock);
  for (int device = 0; device < MAX_DEVICES; device++)
    more |= ranges[device].parked > max;
  pthread_mutex_unlock(&lock);
  return more;
}

void arena_pin(struct segment *segment)
{
  pthread_mutex_lock(&lock);
  segment->windows++;
  pthread_mutex_unlock(&lock);
}

void arena_unpin(struct segment *segment)
{
  const struct driver *driver = real_driver();
  bool last;

  pthread_mutex_lock(&lock);
  last = --segment->windows == 0 && segment->parked && !segment->unsettled;
  if (last) {
    __atomic_store_n(&segment->parked, false, __ATOMIC_RELAXED);
    ranges[segment->device].parked -= segment->retired ? 0 : segment->size;
  }
  pthread_mutex_unlock(&lock);
  if (last)
    give_back(driver, segment);
}

void arena_grant(int owner, int accessor)
{
  const struct driver *driver = real_driver();
  uint64_t device;

  if (!driver || owner < 0 || owner >= MAX_DEVICES || accessor < 0 || accessor >= MAX_DEVICES)
    return;
  device = 1ULL << accessor;
  /* Segments made from now on are mapped for the peer by arena_alloc(). */
  if (__atomic_fetch_or(&peers_of[owner], device, __ATOMIC_ACQ_REL) & device)
    return;
  for (uint32_t i = 0;; i++) {
    struct segment copy = {0};
    pthread_mutex_lock(&lock);
    if (i < segments_used)
      copy = segments[i];
    else
      i = UINT32_MAX;
    pthread_mutex_unlock(&lock);
    if (i == UINT32_MAX)
      return;
    if (copy.id != 0 && copy.device == owner)
      set_access(driver, &copy, device);
  }
}

/* Pins the live segment of an id, so that it is there until it is unpinned; NULL if there is none. */
static struct segment *pin_live(uint64_t id, uint32_t lives)
{
  struct segment *found = NULL;

  pthread_mutex_lock(&lock);
  for (uint32_t i = 0; i < segments_used && !found; i++)
    if (segments[i].id == id && segments[i].lives == lives && segments[i].backed && !segments[i].parked)
      found = &segments[i];
  if (found)
    found->windows++;
  pthread_mutex_unlock(&lock);
  return found;
}

int arena_export(uint64_t id, uint32_t lives)
{
  const struct driver *driver = real_driver();
  struct segment *segment = id != 0 && driver ? pin_live(id, lives) : NULL;
  int fd = -1;
  CUresult result;

  if (!segment)
    return -ESTALE;
  result = driver->cuMemExportToShareableHandle(&fd, segment->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  /* If the job has freed it meanwhile its memory goes here. */
  arena_unpin(segment);
  if (result == CUDA_SUCCESS)
    return fd;
  log_info("a segment's descriptor is not to be had: error %u", result);
  return -EIO;
}

/* Addresses for another process's memory: they count against no cap, since the memory is not ours. */
static struct segment *take_import(struct range *range, size_t size)
{
  struct segment *segment;
  uint32_t owner;

  pthread_mutex_lock(&lock);
  segment = take_segment(range, range->prop.location.id, size, &owner);
  if (segment) {
    segment->imported = true;
    range->used -= size;
    set_owner(range, segment, owner);
  }
  pthread_mutex_unlock(&lock);
  return segment;
}

/* The device on which an allocation lies, as it is numbered here; `otherwise` where that is not to be learned. */
static int home_of(const struct driver *driver, CUmemGenericAllocationHandle handle, int otherwise)
{
  CUmemAllocationProp prop = {0};

  if (driver->cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS || prop.location.id < 0 ||
      prop.location.id >= MAX_DEVICES)
    return otherwise;
  return prop.location.id;
}

CUresult arena_import(int fd, size_t size, void **ptr)
{
  const struct driver *driver = loaded_driver();
  struct range *range = driver ? current_range(driver) : NULL;
  CUmemGenericAllocationHandle handle;
  struct segment *segment;
  uint64_t others;
  CUresult result;

  if (!range || size == 0 || size % range->granularity != 0)
    return range ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  result =
      driver->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS)
    return result;
  segment = take_import(range, size);
  if (!segment) {
    driver->cuMemRelease(handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  segment->handle = handle;
  result = map_segment(driver, segment, 1ULL << segment->device);
  if (result != CUDA_SUCCESS) {
    forget_segment(range, segment);
    return result;
  }
  /* One by one: the memory may lie on a device that some of them cannot reach, or that is not to be seen here. */
  others =
      __atomic_load_n(&peers_of[segment->device], __ATOMIC_ACQUIRE) | 1ULL << home_of(driver, handle, segment->device);
  others &= ~(1ULL << segment->device);
  for (int device = 0; device < MAX_DEVICES; device++)
    if (others >> device & 1)
      set_access(driver, segment, 1ULL << device);
  *ptr = (void *)segment->base;
  return CUDA_SUCCESS;
}

void arena_unimport(void *ptr)
{
  struct segment *segment = segment_at(ptr);

  if (segment && segment->imported)
    give_back(real_driver(), segment);
}

CUresult arena_settle(void)
{
  const struct driver *driver = real_driver();
  CUresult result = CUDA_SUCCESS;

  for (int device = 0; driver && device < MAX_DEVICES && result == CUDA_SUCCESS; device++)
    if (__atomic_load_n(&ranges[device].state, __ATOMIC_ACQUIRE) > 0)
      result = (CUresult)settle_device(driver, device, false);
  return result;
}

bool arena_is_used(void)
{
  return __atomic_load_n(&used, __ATOMIC_RELAXED);
}
