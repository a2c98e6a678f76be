/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments from cudaMalloc, places in them. Of the slots all ranks have the same and take the same places, but for
 * some, drawn for each rank: a little further on, or in a segment of its own.
 */
#include "tests/soak/soak.h"

enum { SLACK = 8192, ALIGNMENT = 512, SMALL = 16, HOARD_SEGMENTS = 24, HOARD_BYTES = 16 << 20, OWN_LARGEST_KB = 5000 };

static bool allocate(struct soak *soak, char **memory, size_t size)
{
  void *made = NULL;
  cudaError_t error = cudaMalloc(&made, size);

  *memory = made;
  if (error == cudaSuccess)
    return true;
  if (error != cudaErrorMemoryAllocation)
    soak_fail("cudaMalloc(%zu) gives %u", size, error);
  cudaGetLastError();
  soak->refusals++;
  return false;
}

static void release(char **memory)
{
  if (*memory)
    CUDA_CHECK(cudaFree(*memory));
  *memory = NULL;
}

static void release_own(struct soak *soak)
{
  for (int i = 0; i < OWN_SEGMENTS; i++) {
    release(&soak->own_segments[i].memory);
    soak->own_segments[i] = (struct segment_of_own){0};
  }
}

/* There is enough for all slots; more than that is this rank's own doing. */
static void allocate_slot(struct soak *soak, struct slot *slot)
{
  if (allocate(soak, &slot->memory, slot->size))
    return;
  release_own(soak);
  if (!allocate(soak, &slot->memory, slot->size)) {
    size_t left = 0, total = 0;
    cudaMemGetInfo(&left, &total);
    soak_fail("WRONG: no memory for %zu bytes where %zu of %zu are free", slot->size, left, total);
  }
}

void heap_open(struct soak *soak)
{
  static const size_t sizes_kb[] = {256, 1024, 1300, 2048, 3072, 4096, 6000};

  for (int i = 0; i < SLOTS; i++) {
    soak->slots[i] = (struct slot){.size = sizes_kb[random_below(&soak->common, 7)] << 10};
    if (i == 0) /* one for the largest place that there is */
      soak->slots[i].size = (size_t)4 << 20;
    allocate_slot(soak, &soak->slots[i]);
  }
  heap_reset(soak);
}

void heap_close(struct soak *soak)
{
  release_own(soak);
  for (int i = 0; i < SLOTS; i++)
    release(&soak->slots[i].memory);
}

void heap_reset(struct soak *soak)
{
  for (int i = 0; i < SLOTS; i++)
    soak->slots[i].used = (size_t)random_below(&soak->common, 64) * ALIGNMENT;
  for (int i = 0; i < OWN_SEGMENTS; i++)
    soak->own_segments[i].used = 0;
}

static char *place_in_own(struct soak *soak, size_t bytes)
{
  int first = random_below(&soak->own, OWN_SEGMENTS);

  for (int i = 0; i < OWN_SEGMENTS; i++) {
    struct segment_of_own *own = &soak->own_segments[(first + i) % OWN_SEGMENTS];
    size_t at = own->used;
    if (!own->memory || own->size - at < bytes)
      continue;
    own->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (own->used > own->size)
      own->used = own->size;
    return own->memory + at;
  }
  return NULL;
}

char *heap_place(struct soak *soak, size_t bytes)
{
  int first = random_below(&soak->common, SLOTS);
  size_t alignment = random_chance(&soak->common, 80) ? ALIGNMENT : SMALL;
  size_t wanted = (bytes + GUARD_BYTES + SLACK + alignment - 1) / alignment * alignment;
  struct slot *slot = NULL;
  char *place, *own = NULL;

  for (int i = 0; i < SLOTS && !slot; i++) {
    slot = &soak->slots[(first + i) % SLOTS];
    if (slot->size - slot->used < wanted)
      slot = NULL;
  }
  if (!slot)
    return NULL;
  place = slot->memory + slot->used;
  slot->used += wanted;
  if (slot->used > slot->size)
    slot->used = slot->size;
  if (!random_chance(&soak->own, soak->options.diverge))
    return place;
  if (random_chance(&soak->own, 50))
    own = place_in_own(soak, bytes + GUARD_BYTES);
  return own ? own : place + SMALL * random_below(&soak->own, SLACK / SMALL);
}

/* A slot anew, on this rank alone: at the same address, or with something else in between at another. */
static void renew_slot(struct soak *soak)
{
  struct slot *slot = &soak->slots[random_below(&soak->own, SLOTS)];
  char *between = NULL;

  release(&slot->memory);
  if (random_chance(&soak->own, 30))
    allocate(soak, &between, slot->size);
  allocate_slot(soak, slot);
  release(&between);
}

static void change_own(struct soak *soak)
{
  struct segment_of_own *own = &soak->own_segments[random_below(&soak->own, OWN_SEGMENTS)];
  bool large = random_chance(&soak->own, 70);

  release(&own->memory);
  *own = (struct segment_of_own){.size = (size_t)(1 + random_below(&soak->own, large ? OWN_LARGEST_KB : 900)) << 10};
  if (!allocate(soak, &own->memory, own->size))
    own->size = 0;
}

/* All memory that there is, and gives it back. */
static void hoard(struct soak *soak)
{
  char *memory[HOARD_SEGMENTS] = {NULL};
  int count = 0;

  while (count < HOARD_SEGMENTS && allocate(soak, &memory[count], HOARD_BYTES))
    count++;
  for (int i = 0; i < HOARD_SEGMENTS; i++)
    release(&memory[i]);
}

void heap_event(struct soak *soak)
{
  static const int weights[] = {3, 5, 1};
  int kind = random_weighted(&soak->own, weights, 3);

  soak_at(soak, "memory of this rank", kind);
  calls_settle(soak); /* what is freed was looked at */
  if (kind == 0)
    renew_slot(soak);
  else if (kind == 1 || !soak->options.pressure)
    change_own(soak);
  else
    hoard(soak);
}
