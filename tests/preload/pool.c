/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/preload/pool.h"

#include "tests/preload/check.h"

enum { ALIGNMENT = 512 };

static size_t round_up(size_t bytes)
{
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void *pool_alloc_in(struct pool *pool, int segment, size_t bytes)
{
  size_t wanted = round_up(bytes);
  char *memory;

  while (pool->count <= segment && pool->count < POOL_SEGMENTS) {
    void *made = NULL;
    CUDA_CHECK(cudaMalloc(&made, pool->segment_bytes));
    pool->used[pool->count] = 0;
    pool->segments[pool->count++] = made;
  }
  if (segment >= pool->count || wanted > pool->segment_bytes - pool->used[segment])
    job_fail("a tensor of %zu bytes does not fit the pool", bytes);
  memory = pool->segments[segment] + pool->used[segment];
  pool->used[segment] += wanted;
  return memory;
}

void *pool_alloc(struct pool *pool, size_t bytes)
{
  int segment = 0;

  while (segment < pool->count && pool->segment_bytes - pool->used[segment] < round_up(bytes))
    segment++;
  return pool_alloc_in(pool, segment, bytes);
}

void *pool_alloc_loose(struct pool *pool, size_t bytes)
{
  void *memory = NULL;

  if (pool->loose_count == POOL_LOOSE)
    job_fail("too many allocations in one batch");
  CUDA_CHECK(cudaMalloc(&memory, bytes));
  pool->loose[pool->loose_count++] = memory;
  return memory;
}

struct pool_mark pool_mark(const struct pool *pool)
{
  struct pool_mark mark = {{0}};

  for (int i = 0; i < pool->count; i++)
    mark.used[i] = pool->used[i];
  return mark;
}

void pool_back(struct pool *pool, const struct pool_mark *mark)
{
  for (int i = 0; i < pool->count; i++)
    pool->used[i] = mark->used[i];
  while (pool->loose_count > 0)
    CUDA_CHECK(cudaFree(pool->loose[--pool->loose_count]));
}

void pool_release(struct pool *pool)
{
  while (pool->count > 0)
    CUDA_CHECK(cudaFree(pool->segments[--pool->count]));
}
