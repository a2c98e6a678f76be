/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/window.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim/child.h"
#include "shim/real.h"

enum { NCCL_DEVICE_HANDLES = 22800 };

static uint32_t bucket_of(uint64_t segment_id)
{
  return (uint32_t)(segment_id * 0x9e3779b97f4a7c15ULL >> 32) & (WINDOW_BUCKETS - 1);
}

uint32_t window_find(const struct window_table *table, const struct segment *segment)
{
  for (uint32_t at = bucket_of(segment->id); table->buckets[at] != 0; at = (at + 1) & (WINDOW_BUCKETS - 1))
    if (table->windows[table->buckets[at] - 1].segment_id == segment->id)
      return table->buckets[at];
  return 0;
}

static void remember(struct window_table *table, uint32_t number)
{
  uint32_t at = bucket_of(table->windows[number - 1].segment_id);

  while (table->buckets[at] != 0)
    at = (at + 1) & (WINDOW_BUCKETS - 1);
  table->buckets[at] = (uint16_t)number;
}

/*
 * Where NCCL cannot go symmetric (no peer access, NCCL_WIN_ENABLE=0, NCCL_CUMEM_ENABLE=0), registration succeeds all
 * the same: from 2.29.2 on with a NULL window, in 2.28 with the handle of a plain registration, which is host memory,
 * where a window is described in device memory (ncclCommWindowRegister, dev_runtime.cc). 2.27 cannot be told.
 */
static bool is_window(ncclWindow_t handle, int nccl_version)
{
  unsigned int type = 0;

  if (!handle || nccl_version < NCCL_DEVICE_HANDLES)
    return handle != NULL;
  return real_driver()->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                              (CUdeviceptr)(uintptr_t)handle) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE;
}

enum window_outcome window_register(struct window_table *table, ncclComm_t child, struct segment *segment,
                                    int nccl_version)
{
  struct window *window = &table->windows[table->count];
  ncclResult_t result;

  *window = (struct window){.segment_id = segment->id, .segment = segment};
  arena_pin(segment);
  remember(table, ++table->count);
  result = REAL(ncclCommWindowRegister)(child, (void *)segment->base, segment->size, &window->handle,
                                        NCCL_WIN_COLL_SYMMETRIC);
  /* A non-blocking child returns before there is a window, with success (2.28.9) or as in progress. */
  if (result == ncclInProgress || (result == ncclSuccess && !window->handle))
    result = child_await(child, ncclInProgress);
  if (result != ncclSuccess)
    return WINDOW_FAILED;
  return is_window(window->handle, nccl_version) ? WINDOW_MADE : WINDOW_NONE;
}

void window_drop_all(struct window_table *table, ncclComm_t child)
{
  for (uint32_t i = table->count; i > 0; i--)
    if (table->windows[i - 1].handle)
      REAL(ncclCommWindowDeregister)(child, table->windows[i - 1].handle);
  while (table->count > 0)
    arena_unpin(table->windows[--table->count].segment);
  memset(table->buckets, 0, sizeof(table->buckets));
}

/* The job's own registrations: few, and seldom changed. */
struct job_range {
  ncclComm_t comm;
  uintptr_t base;
  size_t size;
  const void *handle;
};
static pthread_mutex_t job_lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a real call */
static struct job_range *job_ranges;
static size_t job_count, job_room;
static bool job_lost; /* a range could not be remembered: then every buffer counts as the job's */

static bool make_room(void)
{
  size_t room = job_room ? 2 * job_room : 64;
  struct job_range *grown;

  if (job_count < job_room)
    return true;
  grown = realloc(job_ranges, room * sizeof(*grown));
  if (!grown)
    return false;
  job_ranges = grown;
  job_room = room;
  return true;
}

void window_job_add(ncclComm_t comm, const void *ptr, size_t size, const void *handle)
{
  pthread_mutex_lock(&job_lock);
  if (make_room()) {
    job_ranges[job_count] = (struct job_range){comm, (uintptr_t)ptr, size, handle};
    __atomic_store_n(&job_count, job_count + 1, __ATOMIC_RELEASE);
  } else {
    __atomic_store_n(&job_lost, true, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&job_lock);
}

/* Removes the ranges of a communicator: all, or the first with this handle. */
static void remove_ranges(ncclComm_t comm, bool all, const void *handle)
{
  pthread_mutex_lock(&job_lock);
  for (size_t i = job_count; i > 0; i--) {
    struct job_range *range = &job_ranges[i - 1];
    if (range->comm != comm || (!all && range->handle != handle))
      continue;
    *range = job_ranges[job_count - 1];
    __atomic_store_n(&job_count, job_count - 1, __ATOMIC_RELEASE);
    if (!all)
      break;
  }
  pthread_mutex_unlock(&job_lock);
}

void window_job_remove(ncclComm_t comm, const void *handle)
{
  if (handle)
    remove_ranges(comm, false, handle);
}

void window_job_forget(ncclComm_t comm)
{
  remove_ranges(comm, true, NULL);
}

bool window_job_overlaps(const void *ptr, size_t size)
{
  uintptr_t base = (uintptr_t)ptr;
  bool found = __atomic_load_n(&job_lost, __ATOMIC_ACQUIRE);

  /* Most jobs register nothing: no lock then. */
  if (found || __atomic_load_n(&job_count, __ATOMIC_ACQUIRE) == 0)
    return found;
  pthread_mutex_lock(&job_lock);
  for (size_t i = 0; i < job_count && !found; i++)
    found = base < job_ranges[i].base + job_ranges[i].size && job_ranges[i].base < base + size;
  pthread_mutex_unlock(&job_lock);
  return found;
}
