/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/layout.h"

#include "shim/arena.h"
#include "shim/comm.h"
#include "shim/forecast.h"
#include "shim/foreign.h"
#include "shim/life.h"
#include "shim/log.h"
#include "shim/shadow.h"
#include "shim/verdict.h"

/* What stands in a ballot for a window that only this rank need know, and for the same new one as before. */
enum { WINDOW_ANY = WINDOW_MAX + 1, WINDOW_NEW_SHARED };

static uint64_t multiply(uint64_t a, uint64_t b)
{
  uint64_t product;

  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

struct layout layout_of(const struct call *call, const struct policy_request *request)
{
  struct layout layout = {.send.ptr = call->send, .recv.ptr = call->recv};
  uint64_t small = multiply(call->count, policy_dtype_size(request->dtype));

  layout.send.bytes = call->op == POLICY_OP_reduce_scatter ? request->bytes : small;
  layout.recv.bytes = call->op == POLICY_OP_all_gather ? request->bytes : small;
  layout.send.peers_touch = call->op != POLICY_OP_all_gather;
  layout.recv.peers_touch = call->op != POLICY_OP_reduce_scatter;
  return layout;
}

struct segment *layout_segment_at(const void *ptr)
{
  return forecast_is_wanted() ? shadow_find(ptr) : arena_find(ptr);
}

/* Why a buffer is not in the arena. */
static enum reason outside(const void *ptr)
{
  enum reason reason = foreign_reason(ptr);

  if (reason == REASON_not_in_arena && life_policy()->arena && !arena_is_used() && !forecast_is_wanted())
    log_warn_once(
        "no memory came from the arena, so nothing can go symmetric: the job's allocator does not call "
        "cudaMalloc where the shim sees it (a static CUDA runtime, for one), or [arena] callers does not name "
        "it");
  return reason;
}

static enum reason look_at_buffer(struct comm *comm, struct buffer *buffer)
{
  if (window_job_overlaps(buffer->ptr, buffer->bytes))
    return REASON_job_registered;
  buffer->segment = layout_segment_at(buffer->ptr);
  if (!buffer->segment)
    return outside(buffer->ptr);
  if (buffer->segment->device != comm->child.device)
    return REASON_other_device;
  if (buffer->bytes > buffer->segment->size - ((uintptr_t)buffer->ptr - buffer->segment->base))
    return REASON_crosses_segment;
  buffer->window = window_find(&comm->child.windows, buffer->segment);
  return REASON_none;
}

static bool is_new(const struct buffer *buffer)
{
  return !buffer->copied && buffer->window == WINDOW_NEW;
}

/*
 * A buffer that peers do not touch can be copied by this rank alone: an all-gather's input to its place in the output,
 * where NCCL takes it in place; a reduce-scatter's output out of a slot.
 */
static bool can_copy_alone(const struct comm *comm, const struct call *call, const struct layout *layout,
                           const struct buffer *buffer)
{
  if (buffer->peers_touch)
    return false;
  return call->op == POLICY_OP_all_gather || (!layout->capturing && stage_fits(&comm->child.stage, buffer->bytes));
}

/* With slots: what has no window is copied, by this rank alone or by all. */
static enum reason look_leniently(struct comm *comm, const struct call *call, struct layout *layout)
{
  struct buffer *buffers[] = {&layout->send, &layout->recv};
  enum reason reason = REASON_none;

  for (int i = 0; i < 2; i++) {
    struct buffer *buffer = buffers[i];
    enum reason found = look_at_buffer(comm, buffer);
    bool hopeless = found == REASON_none && buffer->window == WINDOW_NEW && buffer->segment->refused;

    if (found == REASON_none && !hopeless)
      continue;
    buffer->copied = can_copy_alone(comm, call, layout, buffer);
    if (!buffer->copied && found != REASON_none)
      reason = found;
  }
  if (reason == REASON_none && (is_new(&layout->send) || is_new(&layout->recv)) && comm->child.handle)
    reason = layout->capturing ? REASON_capturing : child_obstacle(&comm->child);
  if (reason == REASON_none || layout->capturing)
    return reason;
  layout->apart = true;
  layout->send.copied = layout->recv.copied = false;
  return REASON_none;
}

static enum reason look_strictly(struct comm *comm, struct layout *layout)
{
  enum reason reason = look_at_buffer(comm, &layout->send);

  if (reason == REASON_none)
    reason = look_at_buffer(comm, &layout->recv);
  if (reason == REASON_none && (is_new(&layout->send) || is_new(&layout->recv))) {
    if (layout->capturing)
      return REASON_capturing;
    if (comm->child.handle)
      return child_obstacle(&comm->child);
  }
  return reason;
}

/* What is scaled on the way in goes through a slot in any case. */
static enum reason look_at_factor(const struct comm *comm, const struct call *call, struct layout *layout)
{
  float factor;

  if (layout->capturing)
    return REASON_capturing;
  if (!redop_factor(&comm->redops, call->redop, call->dtype, comm->nranks, &factor))
    return REASON_no_factor;
  layout->apart = true;
  return REASON_none;
}

enum reason layout_look(struct comm *comm, const struct call *call, const struct plan *plan, struct layout *layout)
{
  enum reason reason;

  if (plan->rewrite == POLICY_REWRITE_pre_scale)
    return look_at_factor(comm, call, layout);
  reason = plan->path == POLICY_PATH_staged ? look_leniently(comm, call, layout) : look_strictly(comm, layout);
  if (reason == REASON_none && layout->capturing && !child_keep_for_graph(&comm->child, call->stream))
    return REASON_capturing;
  return reason;
}

enum reason layout_watch(struct comm *comm, const struct call *call, const struct plan *plan, struct layout *layout,
                         enum reason *send, enum reason *recv)
{
  if (!comm->child.context) /* as child.c finds when the child is to be made */
    return REASON_other_device;
  if (plan->rewrite == POLICY_REWRITE_pre_scale)
    return look_at_factor(comm, call, layout);
  *send = look_at_buffer(comm, &layout->send);
  *recv = look_at_buffer(comm, &layout->recv);
  if (plan->path == POLICY_PATH_staged)
    return REASON_none;
  return *send != REASON_none ? *send : *recv;
}

/*
 * Where peers touch a buffer, its window and its offset must be the same everywhere. Where they do not, it is enough
 * that it has a window, or will have the other buffer's new one, or is copied; which is this rank's business. A new
 * window is registered by all ranks together, so its size must be the same, and whether both buffers share it.
 */
static void describe(uint64_t words[3], const struct buffer *buffer, bool shares_new)
{
  bool registers = is_new(buffer) && (buffer->peers_touch || !shares_new);
  uint64_t window = buffer->window;

  if (!registers && !buffer->peers_touch)
    window = WINDOW_ANY;
  if (registers && shares_new)
    window = WINDOW_NEW_SHARED;
  words[0] = window;
  words[1] = registers ? buffer->segment->size : 0;
  words[2] = buffer->peers_touch ? (uintptr_t)buffer->ptr - buffer->segment->base : 0;
}

struct board_ballot layout_ballot(const struct comm *comm, const struct call *call, const struct plan *plan,
                                  const struct layout *layout)
{
  ncclRedOp_t redop = call->redop < ncclNumOps ? call->redop : ncclNumOps; /* the job's own have numbers of their own */
  /* The number of the call too: calls repeat, and ranks that are out of step must not take one for another. */
  struct board_ballot ballot = {.words = {VERDICT_CALL | (uint64_t)call->op << 8 | (uint64_t)call->dtype << 16 |
                                              (uint64_t)redop << 24 | comm->asking << 32,
                                          call->count, comm->child.epoch}};
  bool shared = layout->recv.segment == layout->send.segment;

  if (layout->apart) {
    ballot.stance = BOARD_APART;
    return ballot;
  }
  /* What is captured cannot go through a slot, which a replay would use at a time of its own. */
  ballot.stance = plan->path == POLICY_PATH_staged && !layout->capturing ? BOARD_LENIENT : BOARD_STRICT;
  describe(&ballot.words[BOARD_QUESTION], &layout->send, shared && !layout->send.peers_touch);
  describe(&ballot.words[BOARD_QUESTION + 3], &layout->recv, shared && layout->send.peers_touch);
  return ballot;
}

int layout_new_segments(const struct layout *layout, struct segment *segments[2])
{
  int count = 0;

  if (layout->apart)
    return 0;
  if (is_new(&layout->send))
    segments[count++] = layout->send.segment;
  if (is_new(&layout->recv) && (count == 0 || layout->recv.segment != layout->send.segment))
    segments[count++] = layout->recv.segment;
  return count;
}

void layout_refused(const struct layout *layout)
{
  const struct buffer *alone = layout->send.peers_touch ? &layout->recv : &layout->send;
  const struct buffer *shared = layout->send.peers_touch ? &layout->send : &layout->recv;

  if (!layout->apart && !alone->peers_touch && is_new(alone) && alone->segment != shared->segment)
    alone->segment->refused = true;
}
