/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/window.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim/real.h"

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

bool window_register(struct window_table *table, ncclComm_t child, struct segment *segment)
{
  struct window *window = &table->windows[table->count];
  ncclWindow_t handle = NULL;
  ncclResult_t result;

  *window = (struct window){.segment_id = segment->id, .segment = segment};
  arena_pin(segment);
  remember(table, ++table->count);
  result = REAL(ncclCommWindowRegister)(child, (void *)segment->base, segment->size, &handle, NCCL_WIN_COLL_SYMMETRIC);
  window->handle = handle;
  return result == ncclSuccess && handle != NULL;
}

void window_forget_all(struct window_table *table)
{
  while (table->count > 0)
    arena_unpin(table->windows[--table->count].segment);
  memset(table->buckets, 0, sizeof(table->buckets));
}

void window_drop_all(struct window_table *table, ncclComm_t child)
{
  for (uint32_t i = table->count; i > 0; i--)
    if (table->windows[i - 1].handle)
      REAL(ncclCommWindowDeregister)(child, table->windows[i - 1].handle);
  window_forget_all(table);
}

/* The job's own registrations: few, and seldom changed. */
struct job_range {
  uintptr_t base;
  size_t size;
  const void *handle;
};
static pthread_mutex_t job_lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a real call */
static struct job_range *job_ranges;
static size_t job_count, job_room;
static bool job_lost; /* a range could not be remembered: then every buffer counts as the job's */

void window_job_add(const void *ptr, size_t size, const void *handle)
{
  pthread_mutex_lock(&job_lock);
  if (job_count == job_room) {
    size_t room = job_room ? 2 * job_room : 64;
    struct job_range *grown = realloc(job_ranges, room * sizeof(*grown));
    if (grown) {
      job_ranges = grown;
      job_room = room;
    }
  }
  if (job_count < job_room) {
    job_ranges[job_count] = (struct job_range){(uintptr_t)ptr, size, handle};
    __atomic_store_n(&job_count, job_count + 1, __ATOMIC_RELEASE);
  } else {
    __atomic_store_n(&job_lost, true, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&job_lock);
}

void window_job_remove(const void *handle)
{
  pthread_mutex_lock(&job_lock);
  for (size_t i = 0; i < job_count; i++)
    if (job_ranges[i].handle == handle) {
      job_ranges[i] = job_ranges[job_count - 1];
      __atomic_store_n(&job_count, job_count - 1, __ATOMIC_RELEASE);
      break;
    }
  pthread_mutex_unlock(&job_lock);
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
