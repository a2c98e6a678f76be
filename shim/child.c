/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/child.h"

#include <time.h>

#include "shim/comm.h"
#include "shim/life.h"
#include "shim/log.h"
#include "shim/real.h"
#include "shim/rewrite.h"
#include "shim/verdict.h"
#include "shim/watch.h"

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

static bool open_event(struct child *child)
{
  return child->event ||
         (child->context && real_driver()->cuEventCreate(&child->event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
}

/* Everything about making the child that can fail on this rank alone. Its context is current. */
static enum reason prepare(struct child *child, int device)
{
  CUdevice current;

  if (!child->context || real_driver()->cuCtxGetDevice(&current) != CUDA_SUCCESS || current != device)
    return REASON_other_device;
  if (!has_memory(life_policy()->child_memory))
    return REASON_no_memory;
  if (!rewrite_prepare(child->context))
    return REASON_no_kernel;
  return open_event(child) ? REASON_none : REASON_no_memory;
}

enum reason child_obstacle(const struct child *child)
{
  if (child->windows.count + 2 > WINDOW_MAX)
    return REASON_no_window_room;
  return has_memory(life_policy()->window_memory) ? REASON_none : REASON_no_memory;
}

/*
 * Allocations, and questions about events, must not break a capture that another thread has under way; the thread's
 * own mode is put back as it was (pytorch/pytorch#192524 is what happens otherwise).
 */
static CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode)
{
  real_driver()->cuThreadExchangeStreamCaptureMode(&mode);
  return mode;
}

/* Makes the child where it belongs: NCCL may write the handle later than it returns. */
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
  result = REAL(ncclCommSplit)(comm->handle, 0, comm->rank, &child->handle, &config);
  watch_end(&watch);
  return result == ncclSuccess && child->handle != NULL;
}

/* Asks whether all ranks succeeded in what they entered together. */
static bool all_succeeded(struct comm *comm, enum verdict_question question, bool succeeded)
{
  struct board_ballot ballot = {{(uint64_t)question}};

  if (succeeded)
    return board_vote_step(comm->board, &ballot, step_wait_us()) == BOARD_YES;
  board_decline(comm->board);
  return false;
}

/* Tells how the child came to be, and how long it took. */
static void tell_made(struct comm *comm, uint64_t start)
{
  uint64_t setup_ns = audit_clock() - start;

  audit_comm(comm->id, comm->rank, comm->nranks, comm->nccl_version, REASON_none, setup_ns);
  log_info("rank %d of %d, communicator %016llx: child communicator made in %llu us", comm->rank, comm->nranks,
           (unsigned long long)comm->id, (unsigned long long)setup_ns / 1000);
}

/* This rank cannot: not now, or, where the driver does not take the device code, never. */
static enum reason decline(struct comm *comm, enum reason reason)
{
  enum { CALLS_TO_NEXT_TRY = 1000 };

  board_decline(comm->board);
  if (reason == REASON_no_memory)
    comm->child.retry_at = comm->calls + CALLS_TO_NEXT_TRY;
  if (reason == REASON_no_kernel)
    comm_make_plain(comm, reason, 0);
  return reason;
}

static enum reason make(struct comm *comm, int device)
{
  struct board_ballot ballot = {{VERDICT_CHILD_READY}};
  enum reason reason = prepare(&comm->child, device);
  uint64_t start = audit_clock();

  if (reason != REASON_none)
    return decline(comm, reason);
  reason = verdict_reason(board_vote(comm->board, &ballot, setup_wait_us()));
  if (reason != REASON_none)
    return reason;
  if (all_succeeded(comm, VERDICT_CHILD_MADE, split(comm))) {
    tell_made(comm, start);
    return REASON_none;
  }
  comm_make_plain(comm, REASON_child_failed, audit_clock() - start);
  child_end(comm, CHILD_NOW);
  return REASON_child_failed;
}

enum reason child_make(struct comm *comm, int device)
{
  CUstreamCaptureMode mode;
  enum reason reason;
  bool entered;

  if (comm->calls < comm->child.retry_at) {
    board_decline(comm->board);
    return REASON_no_memory;
  }
  mode = exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
  entered = child_enter_context(&comm->child);
  reason = make(comm, device);
  child_leave_context(entered);
  exchange_capture_mode(mode);
  return reason;
}

static bool register_segment(struct comm *comm, struct segment *segment)
{
  uint64_t start = audit_clock();
  struct watch watch;
  bool registered;

  watch_begin(&watch, life_policy()->warn_s, "rank %d of %d, communicator %016llx: ncclCommWindowRegister of %zu bytes",
              comm->rank, comm->nranks, (unsigned long long)comm->id, segment->size);
  registered = window_register(&comm->child.windows, comm->child.handle, segment, comm->nccl_version);
  watch_end(&watch);
  audit_window(comm->id, segment->id, segment->size, audit_clock() - start);
  return registered;
}

enum reason child_register(struct comm *comm, struct segment *const segments[], int count)
{
  CUstreamCaptureMode mode = exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
  bool registered = true;

  /* All of them even after one failed: the other ranks are in the next one already. */
  for (int i = 0; i < count; i++)
    registered &= register_segment(comm, segments[i]);
  exchange_capture_mode(mode);
  if (all_succeeded(comm, VERDICT_REGISTERED, registered))
    return REASON_none;
  /* Never again on this child: what the failed one has mapped would be in the way (2.28.9). */
  comm_make_plain(comm, REASON_register_failed, 0);
  child_end(comm, CHILD_NOW);
  return REASON_register_failed;
}

/* Where the device cannot be told to keep an order, the host does. */
static void settle(void)
{
  CUstreamCaptureMode mode = exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);

  real_driver()->cuCtxSynchronize();
  exchange_capture_mode(mode);
}

void child_order_before(struct child *child, enum child_lane lane, CUstream stream)
{
  bool entered;

  if ((!child->event_valid && !child->event_missing) || child->last_lane == lane)
    return;
  entered = child_enter_context(child);
  if (!child->event_valid || real_driver()->cuStreamWaitEvent(stream, child->event, 0) != CUDA_SUCCESS)
    settle();
  child_leave_context(entered);
}

void child_order_after(struct child *child, enum child_lane lane, CUstream stream)
{
  bool entered;

  if (!child->context)
    return;
  entered = child_enter_context(child);
  child->event_valid = open_event(child) && real_driver()->cuEventRecord(child->event, stream) == CUDA_SUCCESS;
  child_leave_context(entered);
  child->event_missing = !child->event_valid;
  child->last_lane = lane;
}

/* Whether the work behind the event is done, after waiting as long as one may. */
static bool is_done(const struct child *child, enum child_patience patience)
{
  enum { SOON_TRIES = 100, SOON_NS = 1000000 };
  const struct driver *driver = real_driver();
  CUresult result = CUDA_SUCCESS;
  bool entered;

  if (!child->event_valid && !child->event_missing)
    return true;
  if (!child->event_valid && patience != CHILD_WAIT)
    return false;
  entered = child_enter_context(child);
  if (!child->event_valid)
    settle();
  else if (patience == CHILD_WAIT)
    driver->cuEventSynchronize(child->event);
  else
    result = driver->cuEventQuery(child->event);
  for (int i = 0; result == CUDA_ERROR_NOT_READY && patience == CHILD_SOON && i < SOON_TRIES; i++) {
    nanosleep(&(struct timespec){.tv_nsec = SOON_NS}, NULL);
    result = driver->cuEventQuery(child->event);
  }
  child_leave_context(entered);
  return result != CUDA_ERROR_NOT_READY;
}

bool child_end(struct comm *comm, enum child_patience patience)
{
  struct child *child = &comm->child;
  CUstreamCaptureMode mode;
  bool done = true;

  if (!child->handle && !child->event)
    return true;
  mode = exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
  done = is_done(child, patience);
  if (done) {
    if (child->handle) {
      window_drop_all(&child->windows, child->handle);
      /* Abort, not destroy: local to this rank, and the peers' children may live on. */
      REAL(ncclCommAbort)(child->handle);
    }
    if (child->event)
      real_driver()->cuEventDestroy_v2(child->event);
    child->handle = NULL;
    child->event = NULL;
    child->event_valid = child->event_missing = false;
  }
  exchange_capture_mode(mode);
  return done;
}

static void drop(struct comm *comm, void *data)
{
  bool *dropped = data;

  if (!comm_hold_child(comm))
    return;
  if (comm->child.handle) {
    child_end(comm, CHILD_WAIT);
    board_leave(comm->board);
    comm_make_plain(comm, REASON_no_memory, 0);
    *dropped = true;
  }
  comm_release_child(comm);
}

bool child_drop_all(void)
{
  bool dropped = false;

  comm_each(drop, &dropped);
  return dropped;
}
