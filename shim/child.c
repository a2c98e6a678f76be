/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/child.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "shim/capture.h"
#include "shim/comm.h"
#include "shim/life.h"
#include "shim/log.h"
#include "shim/real.h"
#include "shim/rewrite.h"
#include "shim/total.h"
#include "shim/verdict.h"
#include "shim/watch.h"

/* Graphs that hold calls on a child. Outlives the child, and goes with the last of them. */
struct child_graphs {
  uint32_t holders; /* graphs, and the child itself */
};

/* Ranks need not say that they succeeded as quickly as that they are ready: NCCL lets them go one by one. */
enum { STEP_PATIENCE = 10 };

static uint32_t setup_wait_us(void)
{
  return life_policy()->setup_ms * 1000;
}

static uint32_t step_wait_us(void)
{
  uint64_t wait = (uint64_t)setup_wait_us() * STEP_PATIENCE;

  return wait < UINT32_MAX ? (uint32_t)wait : UINT32_MAX;
}

bool child_enter_context(const struct child *child)
{
  const struct driver *driver = real_driver();
  CUcontext current = NULL;

  if (!child->context)
    return false;
  driver->cuCtxGetCurrent(&current);
  return current != child->context && driver->cuCtxPushCurrent_v2(child->context) == CUDA_SUCCESS;
}

void child_leave_context(bool entered)
{
  CUcontext ignored;

  if (entered)
    real_driver()->cuCtxPopCurrent_v2(&ignored);
}

static bool has_memory(uint64_t wanted)
{
  size_t free_bytes = 0, total = 0;

  return wanted == 0 || (real_driver()->cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS && free_bytes >= wanted);
}

/* Everything about making the child that can fail on this rank alone. Its context is current. */
static enum reason prepare(struct child *child)
{
  if (!child->context)
    return REASON_other_device;
  if (!has_memory(life_policy()->child_memory))
    return REASON_no_memory;
  if (!rewrite_prepare(child->context))
    return REASON_no_kernel;
  return order_open(&child->order) ? REASON_none : REASON_no_memory;
}

enum reason child_obstacle(const struct child *child)
{
  if (child->windows.count + 2 > WINDOW_MAX)
    return REASON_no_window_room;
  return has_memory(life_policy()->window_memory) ? REASON_none : REASON_no_memory;
}

ncclResult_t child_await(ncclComm_t handle, ncclResult_t result)
{
  while (result == ncclInProgress) {
    sched_yield();
    if (REAL(ncclCommGetAsyncError)(handle, &result) != ncclSuccess)
      return ncclInternalError;
  }
  return result;
}

/* Split off a non-blocking communicator, the child is there when that says so; the call itself says success (2.28.9).
 */
static ncclResult_t await_split(struct comm *comm)
{
  ncclResult_t state = ncclInProgress;

  while (state == ncclInProgress && !comm_is_dead(comm)) {
    if (REAL(ncclCommGetAsyncError)(comm->handle, &state) != ncclSuccess)
      return ncclInternalError;
    sched_yield();
  }
  return state;
}

static bool split(struct comm *comm)
{
  const struct policy *policy = life_policy();
  struct child *child = &comm->child;
  /* minCTAs alone or maxCTAs alone is an invalid argument (2.28.9). A blocking child, since a non-blocking one
   * starts a thread for every call. */
  ncclConfig_t config = {.size = sizeof(config),
                         .magic = ABI_NCCL_CONFIG_MAGIC,
                         .version = ABI_NCCL_CONFIG_VERSION,
                         .blocking = 1,
                         .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
                         .minCTAs = (int)policy->child_min_ctas,
                         .maxCTAs = (int)policy->child_max_ctas,
                         .splitShare = 0,
                         .trafficClass = NCCL_CONFIG_UNDEF_INT,
                         .commName = "symmshim",
                         .collnetEnable = NCCL_CONFIG_UNDEF_INT,
                         .CTAPolicy = NCCL_CONFIG_UNDEF_INT,
                         .shrinkShare = NCCL_CONFIG_UNDEF_INT,
                         .nvlsCTAs = NCCL_CONFIG_UNDEF_INT};
  struct watch watch;
  ncclResult_t result;

  watch_begin(&watch, policy->warn_s, "rank %d of %d, communicator %016llx: ncclCommSplit for the child communicator",
              comm->rank, comm->nranks, (unsigned long long)comm->id);
  child->making = NULL; /* in the record, since NCCL may write it when nobody waits for it any more */
  result = REAL(ncclCommSplit)(comm->handle, 0, comm->rank, &child->making, &config);
  if (result == ncclInProgress || result == ncclSuccess)
    result = await_split(comm);
  if (result == ncclSuccess && child->making)
    result = child_await(child->making, ncclInProgress);
  watch_end(&watch);
  if (result == ncclSuccess)
    __atomic_store_n(&child->handle, child->making, __ATOMIC_RELEASE);
  else if (child->making && result != ncclInProgress)
    REAL(ncclCommAbort)(child->making); /* handed out although it could not be made (init.cc, 2.28.9) */
  return child->handle != NULL;
}

/* A question that all ranks come to at the same call, and under the same epoch. */
static struct board_ballot ballot_of(const struct comm *comm, enum verdict_question question)
{
  return (struct board_ballot){.words = {question, comm->asking, comm->child.epoch}, .stance = BOARD_STRICT};
}

bool child_all_succeeded(struct comm *comm, enum verdict_question question, bool succeeded)
{
  struct board_ballot ballot = ballot_of(comm, question);

  if (succeeded)
    return board_vote_step(comm->board, &ballot, step_wait_us()) == BOARD_YES;
  board_decline(comm->board);
  return false;
}

/* Tells how the child came to be, and how long it took. */
static void tell_made(struct comm *comm, uint64_t start)
{
  uint64_t setup_ns = audit_clock() - start;

  comm_tell(comm, REASON_none, setup_ns);
  log_info("rank %d of %d, communicator %016llx: child communicator made in %llu us", comm->rank, comm->nranks,
           (unsigned long long)comm->id, (unsigned long long)setup_ns / 1000);
}

/* This rank cannot: not now, or, where the driver does not take the device code, never. */
static enum reason decline(struct comm *comm, enum reason reason)
{
  enum { CALLS_TO_NEXT_TRY = 1000 };

  board_decline(comm->board);
  if (reason == REASON_no_memory)
    comm->child.retry_at = comm->asking + CALLS_TO_NEXT_TRY;
  if (reason == REASON_no_kernel) {
    board_leave(comm->board);
    comm_make_plain(comm, reason, 0);
  }
  return reason;
}

static enum reason make(struct comm *comm)
{
  struct board_ballot ballot = ballot_of(comm, VERDICT_CHILD_READY);
  enum reason reason = prepare(&comm->child);
  uint64_t start = audit_clock();

  if (reason != REASON_none)
    return decline(comm, reason);
  reason = verdict_reason(board_vote(comm->board, &ballot, setup_wait_us()));
  if (reason != REASON_none)
    return reason;
  if (child_all_succeeded(comm, VERDICT_CHILD_MADE, split(comm))) {
    tell_made(comm, start);
    return REASON_none;
  }
  comm_make_plain(comm, REASON_child_failed, audit_clock() - start);
  child_end(comm, ORDER_NOW);
  return REASON_child_failed;
}

enum reason child_make(struct comm *comm)
{
  CUstreamCaptureMode mode;
  enum reason reason;
  bool entered;

  if (comm->asking < comm->child.retry_at) {
    board_decline(comm->board);
    return comm->child.drops > 0 ? REASON_given_up : REASON_no_memory;
  }
  mode = capture_relax();
  entered = child_enter_context(&comm->child);
  reason = make(comm);
  child_leave_context(entered);
  capture_restore(mode);
  return reason;
}

static enum window_outcome register_segment(struct comm *comm, struct segment *segment)
{
  uint64_t start = audit_clock(), took;
  struct watch watch;
  enum window_outcome outcome;

  watch_begin(&watch, life_policy()->warn_s, "rank %d of %d, communicator %016llx: ncclCommWindowRegister of %zu bytes",
              comm->rank, comm->nranks, (unsigned long long)comm->id, segment->size);
  outcome = window_register(&comm->child.windows, comm->child.handle, segment, comm->nccl_version);
  watch_end(&watch);
  took = audit_clock() - start;
  audit_window(comm->id, segment->id, segment->size, took);
  total_setup(took);
  return outcome;
}

enum reason child_register(struct comm *comm, struct segment *const segments[], int count)
{
  CUstreamCaptureMode mode = capture_relax();
  enum window_outcome outcome = WINDOW_MADE;
  bool all_made = true;

  /* Where one has failed the others are still in it; where it gave no window they are in the next one already. */
  for (int i = 0; i < count && outcome != WINDOW_FAILED; i++) {
    outcome = register_segment(comm, segments[i]);
    all_made &= outcome == WINDOW_MADE;
  }
  capture_restore(mode);
  if (child_all_succeeded(comm, VERDICT_REGISTERED, all_made))
    return REASON_none;
  /*
   * Never again on this child: what the failed one has mapped would be in the way (2.28.9). Ending it also ends the
   * wait of the ranks that are still inside their registration (bootstrap.cc). What was called on it before, every rank
   * has called, so that work ends.
   */
  comm_make_plain(comm, REASON_register_failed, 0);
  child_end(comm, step_wait_us() / 1000);
  return REASON_register_failed;
}

/* A graph that held calls on the child is gone; on a thread of the driver's, where CUDA must not be called. */
static void release_graphs(void *data)
{
  struct child_graphs *graphs = data;

  if (__atomic_sub_fetch(&graphs->holders, 1, __ATOMIC_ACQ_REL) == 0)
    free(graphs);
}

static bool is_in_graphs(const struct child *child)
{
  return child->graphs && __atomic_load_n(&child->graphs->holders, __ATOMIC_ACQUIRE) > 1;
}

/* The driver tells of a graph's end a little later, from a thread of its own. */
static bool graphs_are_gone(const struct child *child, uint32_t wait_ms)
{
  enum { MILLISECOND_NS = 1000000 };

  for (uint32_t i = 0; is_in_graphs(child) && i < wait_ms; i++)
    nanosleep(&(struct timespec){.tv_nsec = MILLISECOND_NS}, NULL);
  return !is_in_graphs(child);
}

/* Hands the graph an object whose end the driver tells of. */
static bool hold_by(CUgraph graph, struct child_graphs *graphs)
{
  const struct driver *driver = real_driver();
  CUuserObject object;

  __atomic_add_fetch(&graphs->holders, 1, __ATOMIC_RELAXED);
  if (driver->cuUserObjectCreate(&object, graphs, release_graphs, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) !=
      CUDA_SUCCESS) {
    release_graphs(graphs);
    return false;
  }
  if (driver->cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS)
    return true;
  driver->cuUserObjectRelease(object, 1); /* which calls release_graphs() */
  return false;
}

bool child_keep_for_graph(struct child *child, CUstream stream)
{
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t capture = 0;
  CUgraph graph = NULL;

  if (!child->handle ||
      real_driver()->cuStreamGetCaptureInfo_v2(stream, &status, &capture, &graph, NULL, NULL) != CUDA_SUCCESS || !graph)
    return false;
  if (capture == child->kept_capture)
    return true;
  if (!child->graphs) {
    child->graphs = calloc(1, sizeof(*child->graphs));
    if (!child->graphs)
      return false;
    child->graphs->holders = 1;
  }
  if (!hold_by(graph, child->graphs))
    return false;
  child->kept_capture = capture;
  return true;
}

ncclResult_t child_async_error(struct comm *comm)
{
  struct child *child = &comm->child;
  ncclResult_t error = ncclSuccess;
  ncclComm_t handle;

  /* Sequentially consistent, like the exchange in take_handle(): either the handle is gone here or this is seen there.
   */
  __atomic_add_fetch(&child->observers, 1, __ATOMIC_SEQ_CST);
  handle = __atomic_load_n(&child->handle, __ATOMIC_SEQ_CST);
  if (handle && REAL(ncclCommGetAsyncError)(handle, &error) != ncclSuccess)
    error = ncclSuccess;
  __atomic_sub_fetch(&child->observers, 1, __ATOMIC_SEQ_CST);
  return error == ncclInProgress ? ncclSuccess : error;
}

/* From here on no other thread has the handle. Looking at it takes no time, so neither does this. */
static ncclComm_t take_handle(struct child *child)
{
  ncclComm_t handle = __atomic_exchange_n(&child->handle, NULL, __ATOMIC_SEQ_CST);

  while (__atomic_load_n(&child->observers, __ATOMIC_SEQ_CST) > 0)
    sched_yield();
  return handle;
}

/* The work on the child is done. */
static void end(struct child *child)
{
  ncclComm_t handle = take_handle(child);

  if (handle) {
    child->stage = (struct stage){0}; /* its windows alone keep the memory */
    window_drop_all(&child->windows, handle);
    /* Abort, not destroy: local to this rank, and the peers' children may live on. */
    REAL(ncclCommAbort)(handle);
  }
  order_close(&child->order);
  if (child->graphs)
    release_graphs(child->graphs);
  child->graphs = NULL;
  child->kept_capture = 0;
}

bool child_end(struct comm *comm, uint32_t wait_ms)
{
  struct child *child = &comm->child;
  CUstreamCaptureMode mode;
  bool done;

  if (!child->handle && !child->order.event)
    return true;
  if (wait_ms != ORDER_FOR_EVER && !graphs_are_gone(child, wait_ms))
    return false;
  mode = capture_relax();
  done = order_is_done(child, wait_ms);
  if (done)
    end(child);
  capture_restore(mode);
  return done;
}

/* This rank has given its child up for memory's sake, and waits twice as long as the last time before the next. */
static void wait_for_next(struct comm *comm)
{
  enum { CALLS = 1000, MAX_DOUBLINGS = 10 };
  struct child *child = &comm->child;

  child->epoch = board_epoch(comm->board);
  child->retry_at = comm->calls + ((uint64_t)CALLS << (child->drops < MAX_DOUBLINGS ? child->drops : MAX_DOUBLINGS));
  child->drops++;
  audit_drop(comm->id, REASON_given_up, child->retry_at);
  log_info("rank %d of %d, communicator %016llx: windows given up, device memory is short; not tried again before "
           "call %llu",
           comm->rank, comm->nranks, (unsigned long long)comm->id, (unsigned long long)child->retry_at);
}

static bool follow(struct comm *comm)
{
  if (board_epoch(comm->board) == comm->child.epoch)
    return true;
  if (comm->child.handle && !child_end(comm, ORDER_NOW))
    return false;
  wait_for_next(comm);
  return true;
}

static void follow_too(struct comm *comm, void *data)
{
  if (comm == data || !comm_hold_child(comm))
    return;
  if (comm->board && __atomic_load_n(&comm->plain, __ATOMIC_ACQUIRE) == REASON_none)
    follow(comm);
  comm_release_child(comm);
}

bool child_follow(struct comm *comm)
{
  if (board_epoch(comm->board) == comm->child.epoch)
    return true;
  /* Memory comes back when no communicator has it any more, and the others' next calls may be far away, or wait. */
  comm_each(follow_too, comm);
  return follow(comm);
}

/* Before anything is ended, since the others may take a while to hear of it. */
static void announce(struct comm *comm, void *data)
{
  (void)data;
  if (!comm_hold_child(comm))
    return;
  if (comm->child.handle && !is_in_graphs(&comm->child))
    board_end_epoch(comm->board, comm->child.epoch);
  comm_release_child(comm);
}

static void drop(struct comm *comm, void *data)
{
  bool *dropped = data;

  if (!comm_hold_child(comm))
    return;
  if (comm->child.handle && !is_in_graphs(&comm->child)) {
    board_end_epoch(comm->board, comm->child.epoch); /* where another thread had it before */
    /* Work that waits for a rank that is gone never ends; then this rank follows itself, at its next call. */
    *dropped |= child_end(comm, ORDER_SOON);
    if (!comm->child.handle)
      wait_for_next(comm);
  }
  comm_release_child(comm);
}

bool child_drop_all(void)
{
  bool dropped = false;

  comm_each(announce, NULL);
  comm_each(drop, &dropped);
  return dropped;
}
