/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/call.h"

#include <errno.h>

#include "shim/collconfig.h"
#include "shim/comm.h"
#include "shim/forecast.h"
#include "shim/group.h"
#include "shim/issue.h"
#include "shim/layout.h"
#include "shim/life.h"
#include "shim/log.h"
#include "shim/order.h"
#include "shim/real.h"
#include "shim/rewrite.h"
#include "shim/stage.h"
#include "shim/verdict.h"
#include "shim/verify.h"

/* A call on its way. */
struct attempt {
  struct call call;
  struct comm *comm;
  bool held;      /* this thread has the child */
  bool kept;      /* in a group until now */
  bool following; /* an earlier call of this thread, which is not made yet, entered and holds the same communicator */
  struct policy_request request;
  struct plan plan;
  struct layout layout;
  uint64_t sequence;
  struct attempt *group; /* the attempts that it is made together with; NULL: it is alone */
  int group_count;
  bool decided, made;
  /* what came of it */
  enum policy_path path;
  enum policy_rewrite rewrite;
  enum reason reason;
  ncclResult_t result;
  enum observed observed;
  uint64_t start_ns, host_ns;
};

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

static struct policy_request request_of(const struct call *call, const struct comm *comm, bool is_kept)
{
  uint64_t bytes = multiply(call->count, policy_dtype_size((enum policy_dtype)call->dtype));
  int nranks = comm || !is_kept ? nranks_of(call, comm) : 0;

  return (struct policy_request){
      .op = call->op,
      .dtype = (enum policy_dtype)call->dtype, /* the order of the words is NCCL's */
      .redop = redop_of(call),
      .nranks = nranks,
      .bytes = call->op == POLICY_OP_all_reduce ? bytes : multiply(bytes, (uint64_t)nranks),
      .nccl_version = comm ? comm->nccl_version : 0,
  };
}

/*
 * Makes the calls of this communicator that are agreed already: ranks that do not make them in a group have made them,
 * and wait for them before they come to what is next.
 */
static void make_agreed(struct attempt *attempt);

/* Registers what the ballot called new. */
static enum reason register_new(struct attempt *attempt)
{
  struct comm *comm = attempt->comm;
  struct segment *segments[2];
  int count = layout_new_segments(&attempt->layout, segments);

  if (count == 0)
    return REASON_none;
  make_agreed(attempt);
  return child_register(comm, segments, count);
}

/* What a call asks for itself only the job's own communicator gives. */
static bool has_settings(const struct call *call)
{
  return call->config && !collconfig_is_unset(call->config);
}

/* Why this rank will not have the call moved, whatever its buffers are. */
static enum reason own_objection(const struct call *call)
{
  if (has_settings(call))
    return REASON_call_config;
  return group_is_open() ? REASON_in_group : REASON_none;
}

/* Brings a call whose plan is to go symmetric before the other ranks. REASON_none: all of them go by attempt->path. */
static enum reason agree(struct attempt *attempt)
{
  const struct policy *policy = life_policy();
  struct comm *comm = attempt->comm;
  struct layout *layout = &attempt->layout;
  struct segment *segments[2];
  enum reason reason = own_objection(&attempt->call);
  enum board_verdict verdict;
  struct board_ballot ballot;
  bool is_first_use;

  if (reason == REASON_none)
    reason = layout_look(comm, &attempt->call, &attempt->plan, layout);
  if (reason != REASON_none) {
    board_decline(comm->board);
    return reason;
  }
  if (!comm->child.handle) {
    reason = child_make(comm);
    if (reason != REASON_none)
      return reason;
  }
  ballot = layout_ballot(comm, &attempt->call, &attempt->plan, layout);
  is_first_use = layout_new_segments(layout, segments) > 0;
  /* A first use costs milliseconds anyhow: it is worth waiting longer for. */
  verdict = board_vote(comm->board, &ballot, is_first_use ? policy->setup_ms * 1000 : policy->agree_us);
  attempt->path = verdict == BOARD_MIXED ? POLICY_PATH_staged : POLICY_PATH_window;
  if (verdict == BOARD_MIXED) {
    layout_refused(layout);
    if (!stage_fits(&comm->child.stage, attempt->request.bytes))
      make_agreed(attempt);
    return stage_make(comm, attempt->request.bytes);
  }
  reason = verdict_reason(verdict);
  return reason == REASON_none ? register_new(attempt) : reason;
}

/* Why nothing is asked about a call on this communicator; REASON_none if it is. */
static enum reason plain_for_good(const struct attempt *attempt)
{
  struct comm *comm = attempt->comm;

  if (life_passive_reason() != REASON_none)
    return life_passive_reason();
  if (!comm)
    return REASON_unknown_comm;
  if (!attempt->held) /* a thread that is out of memory is giving the child up */
    return REASON_given_up;
  return __atomic_load_n(&comm->plain, __ATOMIC_ACQUIRE);
}

/* Each once a communicator: a rank that is late now and then is nobody's concern, one that is so always costs time. */
static void tell_late(struct comm *comm)
{
  int late = board_late_rank(comm->board);
  bool pausing = board_is_pausing(comm->board);

  if (late < 0 || (pausing ? comm->told_paused : comm->told_late))
    return; /* perhaps this one is the late one */
  comm->told_late = true;
  comm->told_paused = pausing;
  if (pausing)
    log_warn(
        "rank %d of %d, communicator %016llx: waited for rank %d to agree on a call, in vain and not for the first "
        "time; calls are plain, and the other ranks not waited for, for a while (pause_after, pause_calls)",
        comm->rank, comm->nranks, (unsigned long long)comm->id, late);
  else
    log_info("rank %d of %d, communicator %016llx: waited for rank %d to agree on a call, in vain: the call is plain",
             comm->rank, comm->nranks, (unsigned long long)comm->id, late);
}

/* Decides what becomes of a call. A rank that the others ask says at least no; they would wait for it. */
static void decide(struct attempt *attempt)
{
  struct comm *comm = attempt->comm;
  bool asked = comm && comm->board && attempt->plan.path != POLICY_PATH_plain;
  enum reason reason = plain_for_good(attempt);

  if (comm)
    comm->asking = attempt->sequence;
  /* Not between the verdict of an earlier call and its being made. */
  if (reason == REASON_none && comm->board && !attempt->following && !child_follow(comm))
    reason = REASON_given_up;
  if (reason != REASON_none && asked)
    board_decline(comm->board);
  else if (reason == REASON_none && asked)
    reason = agree(attempt);
  else if (reason == REASON_none)
    reason = attempt->plan.reason;
  if (reason == REASON_agree_timeout)
    tell_late(comm);
  if (reason == REASON_peer_left)
    comm_make_plain(comm, reason, 0);
  /* A rank that is short of memory may be the one that was waited for; in the plain call NCCL waits for it again. */
  if (reason != REASON_none && comm && comm->board && attempt->held && !attempt->following)
    child_follow(comm);
  /* What this rank has mapped of the others' memory has to go too, or theirs does not come back; but no waiting. */
  if (attempt->held && !attempt->following && comm->child.handle &&
      __atomic_load_n(&comm->plain, __ATOMIC_ACQUIRE) != REASON_none)
    child_end(comm, ORDER_NOW);
  attempt->reason = reason;
  if (reason != REASON_none)
    attempt->path = POLICY_PATH_plain;
}

static ncclResult_t fail(const struct comm *comm, const char *what)
{
  log_warn("rank %d of %d, communicator %016llx: %s; the call fails, since its output would be wrong", comm->rank,
           comm->nranks, (unsigned long long)comm->id, what);
  return ncclUnhandledCudaError;
}

static bool copy(void *to, const void *from, uint64_t bytes, CUstream stream)
{
  return to == from || real_driver()->cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes,
                                                    stream) == CUDA_SUCCESS;
}

static void *at(const void *base, uint64_t bytes)
{
  return (char *)base + bytes;
}

/* Where on the child a call is made, and what has to be copied out afterwards. */
struct buffers {
  const void *send;
  void *recv;
  void *slot; /* NULL: none is used */
  ncclRedOp_t redop;
};

/* The call on the job's own buffers, but for one that this rank copies by itself. */
static bool enter_windows(struct attempt *attempt, struct buffers *buffers)
{
  const struct call *call = &attempt->call;
  const struct layout *layout = &attempt->layout;
  struct comm *comm = attempt->comm;

  *buffers = (struct buffers){call->send, call->recv, NULL, call->redop};
  attempt->rewrite = attempt->plan.rewrite;
  if (attempt->rewrite == POLICY_REWRITE_post_scale)
    buffers->redop = ncclSum;
  if (layout->send.copied) { /* an all-gather's, to its place in the output */
    buffers->send = at(call->recv, (uint64_t)comm->rank * layout->send.bytes);
    return copy((void *)buffers->send, call->send, layout->send.bytes, call->stream);
  }
  if (layout->recv.copied) {
    buffers->slot = stage_slot(&comm->child.stage);
    buffers->recv = buffers->slot;
  }
  return true;
}

/* The call in place in a slot. */
static bool enter_slot(struct attempt *attempt, struct buffers *buffers)
{
  const struct call *call = &attempt->call;
  const struct layout *layout = &attempt->layout;
  struct comm *comm = attempt->comm;
  char *slot = stage_slot(&comm->child.stage), *mine;
  uint64_t mine_bytes = call->op == POLICY_OP_all_gather ? layout->send.bytes : layout->recv.bytes;
  float factor;

  mine = call->op == POLICY_OP_all_reduce ? slot : slot + (uint64_t)comm->rank * mine_bytes;
  *buffers = (struct buffers){slot, slot, slot, call->redop};
  if (call->op == POLICY_OP_all_gather)
    buffers->send = mine;
  else
    buffers->recv = mine;
  if (attempt->plan.rewrite == POLICY_REWRITE_none)
    return copy((void *)buffers->send, call->send, layout->send.bytes, call->stream);
  attempt->rewrite = POLICY_REWRITE_pre_scale;
  buffers->redop = ncclSum;
  return redop_factor(&comm->redops, call->redop, call->dtype, comm->nranks, &factor) &&
         rewrite_scale(comm->child.context, call->stream, slot, call->send,
                       layout->send.bytes / policy_dtype_size(attempt->request.dtype), attempt->request.dtype, factor);
}

/* Whether there is work on the call's stream before it; the job leans on NCCL's order for what that reads, too. */
static bool copies_in(const struct attempt *attempt)
{
  return attempt->path == POLICY_PATH_staged || attempt->layout.send.copied;
}

/* What is left to do on the call's stream after it. */
static bool leave(const struct attempt *attempt, const struct buffers *buffers)
{
  const struct call *call = &attempt->call;
  struct comm *comm = attempt->comm;

  if (attempt->rewrite == POLICY_REWRITE_post_scale &&
      !rewrite_scale(comm->child.context, call->stream, buffers->recv, buffers->recv, call->count,
                     attempt->request.dtype, 1.0F / (float)comm->nranks))
    return false;
  if (!buffers->slot)
    return true;
  if (attempt->path == POLICY_PATH_staged)
    stage_turn(&comm->child.stage);
  return copy(call->recv, buffers->recv, attempt->layout.recv.bytes, call->stream);
}

/* Aborted by another thread meanwhile: NCCL must not see the handle again. What was kept was known then. */
static bool is_gone(const struct attempt *attempt)
{
  return attempt->comm ? comm_is_dead(attempt->comm) : attempt->kept;
}

/* What NCCL told of calls just made. Captured, its telling may be left to the graph (enqueue.cc, ncclLaunchPrepare). */
static void observe(struct attempt *attempts, int count, ncclResult_t result)
{
  for (int i = 0; i < count; i++)
    attempts[i].observed =
        verify_end(i, count, result == ncclSuccess && !attempts[i].layout.capturing && !group_is_open());
}

/* One call on the child. */
static ncclResult_t make_symmetric(struct attempt *attempt)
{
  struct comm *comm = attempt->comm;
  struct child *child = &comm->child;
  struct buffers buffers = {0};
  bool entered = child_enter_context(child), sound;
  ncclResult_t result = ncclSuccess;

  order_before(child, LANE_CHILD, attempt->call.stream, attempt->layout.capturing, copies_in(attempt));
  sound = attempt->path == POLICY_PATH_staged ? enter_slot(attempt, &buffers) : enter_windows(attempt, &buffers);
  verify_begin();
  if (sound)
    result = issue(&attempt->call, buffers.send, buffers.recv, buffers.redop, child->handle);
  result = child_await(child->handle, result); /* what follows on the stream must not come before the launch */
  observe(attempt, 1, sound ? result : ncclInternalError);
  if (sound && result == ncclSuccess)
    sound = leave(attempt, &buffers);
  order_after(child, LANE_CHILD, attempt->call.stream, attempt->layout.capturing,
              attempt->rewrite == POLICY_REWRITE_post_scale || buffers.slot);
  child_leave_context(entered);
  return sound ? result : fail(comm, "a copy, or the kernel that scales, could not be launched");
}

/* Calls as the job made them; together where they are several. */
static ncclResult_t make_plain(struct attempt *attempts, int count)
{
  bool ordered[GROUP_CALLS];
  ncclResult_t result = ncclSuccess, ended;

  verify_begin();
  if (count > 1)
    result = REAL(ncclGroupStart)();
  for (int i = 0; i < count; i++) {
    const struct call *call = &attempts[i].call;

    ordered[i] = attempts[i].held && order_plain_begin(attempts[i].comm, call->stream, attempts[i].layout.capturing);
    if (result == ncclSuccess)
      result = is_gone(&attempts[i]) ? (ncclResult_t)ncclInvalidArgument
                                     : issue(call, call->send, call->recv, call->redop, call->comm);
  }
  if (count > 1) {
    ended = REAL(ncclGroupEnd)();
    result = result == ncclSuccess ? ended : result;
  }
  observe(attempts, count, result);
  for (int i = 0; i < count; i++)
    if (ordered[i])
      order_plain_end(attempts[i].comm, attempts[i].call.stream, attempts[i].layout.capturing, result);
  return result;
}

static ncclResult_t make(struct attempt *attempts, int count)
{
  if (attempts[0].path == POLICY_PATH_plain)
    return make_plain(attempts, count);
  return is_gone(&attempts[0]) ? (ncclResult_t)ncclInvalidArgument : make_symmetric(attempts);
}

static void make_agreed(struct attempt *attempt)
{
  for (int i = 0; i < attempt->group_count && attempt->group; i++) {
    struct attempt *earlier = &attempt->group[i];

    if (earlier->comm != attempt->comm || !earlier->decided || earlier->made)
      continue;
    if (earlier->following && earlier->comm->nonblocking)
      order_await_launch(earlier->comm, earlier->held);
    earlier->result = make(earlier, 1);
    earlier->made = true;
  }
}

static void begin(struct attempt *attempt, const struct call *call, bool is_kept, struct attempt *earlier, int count)
{
  struct comm *comm = comm_enter(call->comm);

  attempt->start_ns = audit_clock();
  attempt->call = *call;
  attempt->comm = comm;
  attempt->kept = is_kept;
  attempt->group = NULL;
  attempt->decided = attempt->made = false;
  attempt->following = false;
  attempt->rewrite = POLICY_REWRITE_none;
  attempt->observed = OBSERVED_unknown;
  for (int i = 0; i < count && comm && !attempt->following; i++) {
    attempt->following = earlier[i].comm == comm;
    attempt->held = earlier[i].held;
  }
  if (!attempt->following)
    attempt->held = comm && comm_wait_child(comm);
  if (comm && attempt->held)
    comm_settle(comm);
  attempt->request = request_of(call, comm, is_kept);
  attempt->plan = plan_make(life_policy(), &attempt->request);
  attempt->layout = layout_of(call, &attempt->request);
  attempt->layout.capturing = order_is_capturing(call->stream);
  attempt->sequence = comm ? ++comm->calls : 0;
}

static struct audit_place place_of(const struct buffer *buffer)
{
  const struct segment *segment = layout_segment_at(buffer->ptr);

  if (!segment)
    return (struct audit_place){0};
  return (struct audit_place){segment->id, (uintptr_t)buffer->ptr - segment->base,
                              forecast_is_wanted() ? segment->size : 0};
}

static void end(struct attempt *attempt, uint64_t now)
{
  struct comm *comm = attempt->comm;
  struct audit_call account = {.sequence = attempt->sequence,
                               .request = attempt->request,
                               .count = attempt->call.count,
                               .capturing = attempt->layout.capturing,
                               .path = attempt->path,
                               .rewrite = attempt->rewrite,
                               .reason = attempt->reason,
                               .send = place_of(&attempt->layout.send),
                               .recv = place_of(&attempt->layout.recv),
                               .observed = attempt->observed,
                               .start_ns = attempt->start_ns,
                               .host_ns = attempt->host_ns,
                               .call_ns = now - attempt->start_ns - attempt->host_ns,
                               .watched = forecast_is_wanted()};

  if (account.watched)
    account.forecast = forecast_call(comm, &attempt->call, &attempt->plan, &attempt->layout);
  if (!account.watched || !group_would_keep() || !group_hold(attempt->call.comm, &account))
    comm_account(comm, &account, now);
  if (!comm)
    return;
  if (attempt->held && !attempt->following)
    comm_release_child(comm);
  comm_leave(comm);
}

static ncclResult_t make_one(const struct call *call, bool is_kept)
{
  struct attempt attempt;
  int saved_errno = errno;
  ncclResult_t result;

  begin(&attempt, call, is_kept, NULL, 0);
  decide(&attempt);
  attempt.host_ns = audit_clock() - attempt.start_ns;
  errno = saved_errno;
  result = make(&attempt, 1);
  end(&attempt, audit_clock());
  return result;
}

ncclResult_t call_make(const struct call *call)
{
  return group_keep(call) ? (ncclResult_t)ncclSuccess : make_one(call, false);
}

ncclResult_t call_make_kept(const struct call *call)
{
  return make_one(call, true);
}

/*
 * Communicators in the order of their ids, which is the same on all ranks, so that no two ranks wait for each other at
 * two of them; the calls of each in their own order.
 */
static void decide_together(struct attempt *attempts, int count)
{
  for (int round = 0; round < count; round++) {
    int first = -1;

    for (int i = 0; i < count; i++)
      if (!attempts[i].decided &&
          (first < 0 || (attempts[i].comm && attempts[first].comm && attempts[i].comm->id < attempts[first].comm->id)))
        first = i;
    if (attempts[first].comm)
      guard.real = attempts[first].comm->real;
    decide(&attempts[first]);
    attempts[first].host_ns = audit_clock() - attempts[first].start_ns;
    attempts[first].decided = true;
  }
}

/*
 * Whether a call can share a group of NCCL's with the one before it: plain ones do, as the job made them. Symmetric ones
 * are made one at a time. What NCCL makes of several depends on all of them (2.27 takes no symmetric kernel, 2.28 one for
 * those that are alike), and so must not depend on what only this rank knows, such as a copy that it makes alone.
 */
static bool goes_with(const struct attempt *before, const struct attempt *attempt)
{
  return !attempt->made && !before->made && attempt->path == POLICY_PATH_plain && before->path == POLICY_PATH_plain &&
         attempt->comm && before->comm && attempt->comm->real == before->comm->real;
}

/*
 * A group over several streams is one operation on all of them: it comes after what is on any, and all come after it
 * (NCCL's user guide, groups). Where the shim does not make one group of a communicator's calls, or adds to it, it has
 * to join the streams itself.
 */
static void join(struct attempt *attempts, int count)
{
  for (int first = 0; first < count; first++) {
    struct comm *comm = attempts[first].comm;
    CUstream streams[GROUP_CALLS];
    int stream_count = 0, known;
    bool whole = true, capturing = attempts[first].layout.capturing, alike = true;

    if (!comm || attempts[first].following || !attempts[first].held || comm_is_dead(comm))
      continue;
    for (int i = first; i < count; i++) {
      if (attempts[i].comm != comm)
        continue;
      whole &= i == first || goes_with(&attempts[i - 1], &attempts[i]);
      whole &= attempts[i].path == POLICY_PATH_plain ||
               (attempts[i].plan.rewrite == POLICY_REWRITE_none && !attempts[i].layout.send.copied);
      alike &= attempts[i].layout.capturing == capturing;
      for (known = 0; known < stream_count && streams[known] != attempts[i].call.stream; known++)
        ;
      if (known == stream_count)
        streams[stream_count++] = attempts[i].call.stream;
    }
    if (!whole && alike && stream_count > 1)
      order_join(&comm->child, streams, stream_count);
  }
}

ncclResult_t call_make_together(const struct call *calls, int count)
{
  struct attempt attempts[GROUP_CALLS];
  ncclResult_t result = ncclSuccess;
  int saved_errno = errno;

  for (int i = 0; i < count; i++) {
    begin(&attempts[i], &calls[i], true, attempts, i);
    attempts[i].group = attempts;
    attempts[i].group_count = count;
  }
  decide_together(attempts, count);
  errno = saved_errno;
  join(attempts, count);
  for (int from = 0, to; from < count; from = to) {
    ncclResult_t made;

    for (to = from + 1; to < count && goes_with(&attempts[to - 1], &attempts[to]); to++)
      ;
    if (attempts[from].comm)
      guard.real = attempts[from].comm->real;
    /* What a non-blocking communicator still has to launch comes first, as it would in a group of NCCL's. */
    for (int i = from; i < to; i++)
      if (!attempts[i].made && attempts[i].following && attempts[i].comm->nonblocking &&
          !comm_is_dead(attempts[i].comm))
        order_await_launch(attempts[i].comm, attempts[i].held);
    made = attempts[from].made ? attempts[from].result : make(&attempts[from], to - from);
    result = result == ncclSuccess ? made : result;
  }
  join(attempts, count);
  for (int i = count - 1; i >= 0; i--)
    end(&attempts[i], audit_clock());
  return result;
}

/* Whether its ranks ask each other about calls, or would but for SYMMSHIM=audit. */
static bool may_be_asked(const struct comm *comm)
{
  if (forecast_is_wanted())
    return life_foreseen_reason() == REASON_none && __atomic_load_n(&comm->foreseen, __ATOMIC_RELAXED) == REASON_none;
  return life_passive_reason() == REASON_none && comm->board &&
         __atomic_load_n(&comm->plain, __ATOMIC_ACQUIRE) == REASON_none;
}

bool call_may_go_symmetric(const struct call *call)
{
  struct comm *comm = comm_enter(call->comm);
  struct policy_request request;
  bool may = false;

  if (!comm)
    return false;
  if (!has_settings(call) && may_be_asked(comm) && call->send && call->recv && comm->nranks > 0) {
    request = request_of(call, comm, true);
    may = plan_make(life_policy(), &request).path != POLICY_PATH_plain;
  }
  comm_leave(comm);
  return may;
}
