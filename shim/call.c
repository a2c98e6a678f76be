/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/call.h"

#include <errno.h>

#include "shim/arena.h"
#include "shim/comm.h"
#include "shim/life.h"
#include "shim/log.h"
#include "shim/order.h"
#include "shim/plan.h"
#include "shim/real.h"
#include "shim/rewrite.h"
#include "shim/verdict.h"

/* One of a call's buffers, as this rank sees it. */
struct buffer {
  const void *ptr;
  uint64_t bytes;   /* its full length; UINT64_MAX when that does not fit */
  bool peers_touch; /* other ranks read or write it, so that its offset must be theirs */
  struct segment *segment;
  uint32_t window;
};

/* Everything this rank finds out about a call. */
struct view {
  struct buffer send, recv;
  bool capturing;
};

static ncclResult_t issue(const struct call *call, ncclComm_t comm, ncclRedOp_t redop)
{
  switch (call->op) {
  case POLICY_OP_all_gather:
    return REAL(ncclAllGather)(call->send, call->recv, call->count, call->dtype, comm, call->stream);
  case POLICY_OP_reduce_scatter:
    return REAL(ncclReduceScatter)(call->send, call->recv, call->count, call->dtype, redop, comm, call->stream);
  case POLICY_OP_all_reduce:
    return REAL(ncclAllReduce)(call->send, call->recv, call->count, call->dtype, redop, comm, call->stream);
  case POLICY_OP_COUNT:
    break;
  }
  return ncclInternalError;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
  uint64_t product;

  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static enum policy_redop redop_of(const struct call *call)
{
  static const enum policy_redop redops[] = {[ncclSum] = POLICY_REDOP_sum,
                                             [ncclProd] = POLICY_REDOP_prod,
                                             [ncclMax] = POLICY_REDOP_max,
                                             [ncclMin] = POLICY_REDOP_min,
                                             [ncclAvg] = POLICY_REDOP_avg};

  if (call->op == POLICY_OP_all_gather)
    return POLICY_REDOP_none;
  return call->redop < ncclNumOps ? redops[call->redop] : POLICY_REDOP_premulsum;
}

/* Of a communicator made out of sight, or that was not complete when it was made, NCCL knows. */
static int nranks_of(const struct call *call, const struct comm *comm)
{
  int nranks = comm ? comm->nranks : 0;

  if (nranks == 0 && REAL(ncclCommCount)(call->comm, &nranks) != ncclSuccess)
    nranks = 0;
  return nranks;
}

static struct policy_request request_of(const struct call *call, const struct comm *comm)
{
  uint64_t bytes = multiply(call->count, policy_dtype_size((enum policy_dtype)call->dtype));
  int nranks = nranks_of(call, comm);

  return (struct policy_request){
      .op = call->op,
      .dtype = (enum policy_dtype)call->dtype, /* the order of the words is NCCL's */
      .redop = redop_of(call),
      .nranks = nranks,
      .bytes = call->op == POLICY_OP_all_reduce ? bytes : multiply(bytes, (uint64_t)nranks),
      .nccl_version = comm ? comm->nccl_version : 0,
  };
}

/* Which window a buffer lies in: a number that means the same on all ranks, or that it needs a new one. */
enum { WINDOW_NEW = 0, WINDOW_ANY = WINDOW_MAX + 1, WINDOW_NEW_SHARED };

static enum reason look_at_buffer(struct comm *comm, struct buffer *buffer)
{
  if (window_job_overlaps(buffer->ptr, buffer->bytes))
    return REASON_job_registered;
  buffer->segment = arena_find(buffer->ptr);
  if (!buffer->segment) {
    if (life_policy()->arena && !arena_is_used())
      log_warn_once("no memory came from the arena, so nothing can go symmetric: the job's allocator does not call "
                    "cudaMalloc where the shim sees it (expandable_segments, cudaMallocAsync, a static CUDA runtime), "
                    "or [arena] callers does not name it");
    return REASON_not_in_arena;
  }
  if (buffer->bytes > buffer->segment->size - ((uintptr_t)buffer->ptr - buffer->segment->base))
    return REASON_crosses_segment;
  buffer->window = window_find(&comm->child.windows, buffer->segment);
  return REASON_none;
}

static struct view view_of(const struct call *call, const struct policy_request *request)
{
  struct view view = {.send.ptr = call->send, .recv.ptr = call->recv};
  uint64_t small = multiply(call->count, policy_dtype_size(request->dtype));

  view.send.bytes = call->op == POLICY_OP_reduce_scatter ? request->bytes : small;
  view.recv.bytes = call->op == POLICY_OP_all_gather ? request->bytes : small;
  view.send.peers_touch = call->op != POLICY_OP_all_gather;
  view.recv.peers_touch = call->op != POLICY_OP_reduce_scatter;
  return view;
}

/* What keeps this rank from taking part in the plan, as only this rank can know; REASON_none if nothing. */
static enum reason objection(struct comm *comm, struct view *view)
{
  enum reason reason = look_at_buffer(comm, &view->send);

  if (reason == REASON_none)
    reason = look_at_buffer(comm, &view->recv);
  if (reason != REASON_none)
    return reason;
  if (order_in_group())
    return REASON_in_group;
  if (view->capturing)
    return REASON_capturing;
  if (comm->child.handle && (view->send.window == WINDOW_NEW || view->recv.window == WINDOW_NEW))
    return child_obstacle(&comm->child);
  return REASON_none;
}

/*
 * The rest of the ballot. Where peers touch a buffer, its window and its offset must be the same everywhere. Where
 * they do not, it is enough that it has a window; which one is this rank's business. A new window is registered
 * by all ranks together, so its size must be the same, and whether both buffers share it.
 */
static void describe(struct board_ballot *ballot, int at, const struct buffer *buffer, bool shares_new)
{
  uint64_t window = buffer->window;

  if (window != WINDOW_NEW && !buffer->peers_touch)
    window = WINDOW_ANY;
  if (window == WINDOW_NEW && shares_new)
    window = WINDOW_NEW_SHARED;
  ballot->words[at] = window;
  ballot->words[at + 1] = buffer->window == WINDOW_NEW ? buffer->segment->size : 0;
  ballot->words[at + 2] = buffer->peers_touch ? (uintptr_t)buffer->ptr - buffer->segment->base : 0;
}

static struct board_ballot ballot_of(const struct comm *comm, const struct call *call, const struct view *view)
{
  /* The number of the call too: calls repeat, and ranks that are out of step must not take one for another. */
  struct board_ballot ballot = {{VERDICT_CALL | (uint64_t)call->op << 8 | (uint64_t)call->dtype << 16 |
                                     (uint64_t)call->redop << 24 | comm->calls << 32,
                                 call->count}};

  describe(&ballot, 2, &view->send, false);
  describe(&ballot, 5, &view->recv, view->recv.segment == view->send.segment);
  return ballot;
}

/* Registers what the ballot called new, in the ballot's order. */
static enum reason register_new(struct comm *comm, struct view *view)
{
  struct segment *segments[2];
  int count = 0;

  if (view->send.window == WINDOW_NEW)
    segments[count++] = view->send.segment;
  if (view->recv.window == WINDOW_NEW && (count == 0 || view->recv.segment != view->send.segment))
    segments[count++] = view->recv.segment;
  return count == 0 ? REASON_none : child_register(comm, segments, count);
}

/* Brings a call whose plan is to go symmetric before the other ranks. REASON_none: all of them go. */
static enum reason agree(struct comm *comm, const struct call *call, struct view *view)
{
  const struct policy *policy = life_policy();
  enum reason reason = objection(comm, view);
  struct board_ballot ballot;
  uint32_t wait_us;

  if (reason != REASON_none) {
    board_decline(comm->board);
    return reason;
  }
  if (!comm->child.handle) {
    reason = child_make(comm, view->send.segment->device);
    if (reason != REASON_none)
      return reason;
  }
  ballot = ballot_of(comm, call, view);
  /* A first use costs milliseconds anyhow: it is worth waiting longer for. */
  wait_us =
      view->send.window == WINDOW_NEW || view->recv.window == WINDOW_NEW ? policy->setup_ms * 1000 : policy->agree_us;
  reason = verdict_reason(board_vote(comm->board, &ballot, wait_us));
  return reason == REASON_none ? register_new(comm, view) : reason;
}

/* The call on the child, with its rewrite. */
static ncclResult_t make_symmetric(struct comm *comm, const struct call *call, const struct plan *plan)
{
  struct child *child = &comm->child;
  bool scale = plan->rewrite == POLICY_REWRITE_post_scale;
  ncclResult_t result;
  bool entered;

  child_order_before(child, LANE_CHILD, call->stream);
  result = issue(call, child->handle, scale ? ncclSum : call->redop);
  if (result == ncclSuccess && scale) {
    entered = child_enter_context(child);
    if (!rewrite_scale(child->context, call->stream, call->recv, call->count, (enum policy_dtype)call->dtype,
                       1.0F / (float)comm->nranks)) {
      log_warn("rank %d of %d, communicator %016llx: the kernel that turns a sum into an average could not be "
               "launched; the call fails, since its output would be wrong",
               comm->rank, comm->nranks, (unsigned long long)comm->id);
      result = ncclUnhandledCudaError;
    }
    child_leave_context(entered);
  }
  child_order_after(child, LANE_CHILD, call->stream);
  return result;
}

/* The call as the job made it. */
static ncclResult_t make_plain(struct comm *comm, const struct call *call, bool capturing)
{
  bool ordered = comm && order_plain_begin(comm, call->stream, capturing);
  ncclResult_t result = issue(call, call->comm, call->redop);

  if (ordered)
    order_plain_end(comm, call->stream);
  return result;
}

/* Why nothing is asked about a call on this communicator; REASON_none if it is. */
static enum reason plain_for_good(const struct comm *comm, bool held)
{
  if (life_passive_reason() != REASON_none)
    return life_passive_reason();
  if (!comm)
    return REASON_unknown_comm;
  if (!held) /* a thread that is out of memory is giving the child up */
    return REASON_no_memory;
  return __atomic_load_n(&comm->plain, __ATOMIC_ACQUIRE);
}

/* Decides what becomes of a call. */
static struct plan decide(struct comm *comm, bool held, const struct call *call, const struct policy_request *request,
                          struct view *view)
{
  struct plan plan = plan_make(life_policy(), request);
  bool asked = comm && comm->board && plan.path != POLICY_PATH_plain;
  enum reason reason = plain_for_good(comm, held);

  /* The other ranks ask about every call with such a plan; without our word they would wait for it. */
  if (reason != REASON_none && asked)
    board_decline(comm->board);
  else if (reason == REASON_none && asked)
    reason = agree(comm, call, view);
  if (reason == REASON_peer_left)
    comm_make_plain(comm, reason, 0);
  /* What this rank has mapped of the others' memory has to go too, or theirs does not come back; but no waiting. */
  if (held && comm->child.handle && __atomic_load_n(&comm->plain, __ATOMIC_ACQUIRE) != REASON_none)
    child_end(comm, CHILD_NOW);
  if (reason == REASON_none)
    return plan;
  return (struct plan){.path = POLICY_PATH_plain, .reason = reason, .decision = plan.decision};
}

static struct audit_place place_of(const struct buffer *buffer)
{
  const struct segment *segment = arena_find(buffer->ptr);

  return segment ? (struct audit_place){segment->id, (uintptr_t)buffer->ptr - segment->base} : (struct audit_place){0};
}

ncclResult_t call_make(const struct call *call)
{
  uint64_t start = audit_clock(), before_real, after_real;
  struct comm *comm = comm_enter(call->comm);
  struct policy_request request = request_of(call, comm);
  struct view view = view_of(call, &request);
  bool held = comm && comm_hold_child(comm);
  int saved_errno = errno;
  struct audit_call account;
  struct plan plan;
  ncclResult_t result;

  view.capturing = order_is_capturing(call->stream);
  plan = decide(comm, held, call, &request, &view);
  errno = saved_errno;
  before_real = audit_clock();
  if (comm && comm_is_dead(comm))
    result = ncclInvalidArgument; /* aborted by another thread meanwhile: NCCL must not see the handle again */
  else if (plan.path == POLICY_PATH_window)
    result = make_symmetric(comm, call, &plan);
  else
    result = make_plain(held ? comm : NULL, call, view.capturing);
  after_real = audit_clock();

  account = (struct audit_call){.request = request,
                                .count = call->count,
                                .capturing = view.capturing,
                                .path = plan.path,
                                .rewrite = plan.rewrite,
                                .reason = plan.reason,
                                .send = place_of(&view.send),
                                .recv = place_of(&view.recv)};
  account.host_ns = before_real - start;
  comm_account(comm, &account, after_real);
  if (held)
    comm_release_child(comm);
  if (comm)
    comm_leave(comm);
  return result;
}
