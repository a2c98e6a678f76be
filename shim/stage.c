/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/stage.h"

#include "shim/arena.h"
#include "shim/capture.h"
#include "shim/comm.h"
#include "shim/life.h"
#include "shim/log.h"
#include "shim/real.h"
#include "shim/verdict.h"

#define LEAST_SLOT (UINT64_C(2) << 20)

bool stage_fits(const struct stage *stage, uint64_t bytes)
{
  return bytes <= stage->slot_bytes;
}

static uint64_t slot_size_for(uint64_t bytes)
{
  uint64_t size = LEAST_SLOT;

  while (size < bytes && size <= UINT64_MAX / 2)
    size *= 2;
  return size;
}

/* Memory for slots of this size, on this rank alone. The child's context is current. */
static struct segment *allocate(const struct child *child, uint64_t slot_bytes)
{
  void *ptr = NULL;

  if (child_obstacle(child) != REASON_none)
    return NULL;
  if (arena_alloc(&ptr, STAGE_SLOTS * slot_bytes, life_policy()->arena_max_bytes, ARENA_SLOT) != 0)
    return NULL;
  return arena_find(ptr);
}

static void use(struct comm *comm, struct segment *segment, uint64_t slot_bytes)
{
  struct stage *stage = &comm->child.stage;

  stage->segments[stage->sizes++] = segment;
  stage->total += STAGE_SLOTS * slot_bytes;
  stage->slot_bytes = slot_bytes;
  log_info("rank %d of %d, communicator %016llx: %d slots of %llu bytes for staged calls", comm->rank, comm->nranks,
           (unsigned long long)comm->id, STAGE_SLOTS, (unsigned long long)slot_bytes);
}

static enum reason make(struct comm *comm, uint64_t slot_bytes)
{
  enum { CALLS_TO_NEXT_TRY = 1000 };
  struct stage *stage = &comm->child.stage;
  struct segment *segment = allocate(&comm->child, slot_bytes);
  enum reason reason;

  if (!child_all_succeeded(comm, VERDICT_SLOT_READY, segment != NULL)) {
    stage->retry_at = comm->asking + CALLS_TO_NEXT_TRY;
    if (segment)
      arena_retire(segment);
    return REASON_no_slot;
  }
  reason = child_register(comm, &segment, 1);
  arena_retire(segment); /* from here on its window alone keeps it */
  if (reason == REASON_none)
    use(comm, segment, slot_bytes);
  return reason;
}

enum reason stage_make(struct comm *comm, uint64_t bytes)
{
  struct stage *stage = &comm->child.stage;
  uint64_t slot_bytes = slot_size_for(bytes), room = life_policy()->stage_max;
  CUstreamCaptureMode mode;
  enum reason reason;
  bool entered;

  if (stage_fits(stage, bytes))
    return REASON_none;
  if (slot_bytes > room / STAGE_SLOTS || stage->total > room - STAGE_SLOTS * slot_bytes ||
      stage->sizes == STAGE_SIZES || comm->asking < stage->retry_at)
    return REASON_no_slot;
  mode = capture_relax();
  entered = child_enter_context(&comm->child);
  reason = make(comm, slot_bytes);
  child_leave_context(entered);
  capture_restore(mode);
  return reason;
}

void *stage_slot(const struct stage *stage)
{
  return (void *)(stage->segments[stage->sizes - 1]->base + stage->next * stage->slot_bytes);
}

void stage_turn(struct stage *stage)
{
  stage->next = (stage->next + 1) % STAGE_SLOTS;
}
