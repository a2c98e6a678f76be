/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/order.h"

#include <time.h>

#include "shim/capture.h"
#include "shim/comm.h"
#include "shim/group.h"
#include "shim/real.h"

enum { GROUP_COMMS = 16, FIRST_CAPTURE_ERROR = 900, LAST_CAPTURE_ERROR = 908 };

/* The job's communicators that had calls in the open group: their order is noted when the group ends. */
struct notes {
  int count;
  struct {
    ncclComm_t comm;
    CUstream stream; /* of the last call; NCCL makes the streams of one communicator in a group wait for each other */
    bool capturing;
  } notes[GROUP_COMMS];
};
static __thread struct notes noted __attribute__((tls_model("initial-exec")));

bool order_open(struct order *order)
{
  CUevent *events[] = {&order->event, &order->capture_event, &order->join_event};

  for (int i = 0; i < 3; i++)
    if (!*events[i] && real_driver()->cuEventCreate(events[i], CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
      return false;
  return true;
}

void order_close(struct order *order)
{
  struct order left = {.launching = order->launching, .launch_stream = order->launch_stream};

  /* A graph with calls of the job's own communicator may still record it and wait for it. */
  if (order->in_graphs) {
    left.event = order->event;
    left.in_graphs = true;
  } else if (order->event) {
    real_driver()->cuEventDestroy_v2(order->event);
  }
  if (order->capture_event)
    real_driver()->cuEventDestroy_v2(order->capture_event);
  if (order->join_event)
    real_driver()->cuEventDestroy_v2(order->join_event);
  *order = left;
}

bool order_is_capturing(CUstream stream)
{
  const struct driver *driver = real_driver();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = driver ? driver->cuStreamIsCapturing(stream, &status) : CUDA_SUCCESS;

  if (result != CUDA_SUCCESS) /* another way to ask, before a capture is taken for none */
    result = driver->cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, NULL, NULL);
  /* An error of captures (the legacy stream while another captures) is as good as one; others say nothing of them. */
  return status != CU_STREAM_CAPTURE_STATUS_NONE || (result >= FIRST_CAPTURE_ERROR && result <= LAST_CAPTURE_ERROR);
}

/* Where the device cannot be told to keep an order, the host does. */
static void settle(void)
{
  CUstreamCaptureMode mode = capture_relax();

  real_driver()->cuCtxSynchronize();
  capture_restore(mode);
}

/* Whether the stream's capture is another one than the last that had a call in it. */
static bool enter_capture(struct order *order, enum lane lane, CUstream stream)
{
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t id = 0;

  real_driver()->cuStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL);
  if (id == order->capture)
    return false;
  order->capture = id;
  order->capture_last = lane; /* the event is still that of the capture before */
  return true;
}

static void before_captured(struct order *order, enum lane lane, CUstream stream, bool extra)
{
  const struct driver *driver = real_driver();

  if (!order->event)
    return;
  if (enter_capture(order, lane, stream))
    driver->cuStreamWaitEvent(stream, order->event, CU_EVENT_WAIT_EXTERNAL);
  else if (order->capture_last != lane || order->capture_trailing || extra)
    driver->cuStreamWaitEvent(stream, order->capture_event, 0);
}

static void after_captured(struct order *order, enum lane lane, CUstream stream, bool extra)
{
  const struct driver *driver = real_driver();

  if (!order->event)
    return;
  driver->cuEventRecord(order->capture_event, stream);
  driver->cuEventRecordWithFlags(order->event, stream, CU_EVENT_RECORD_EXTERNAL);
  order->capture_last = lane;
  order->capture_trailing = extra;
  order->in_graphs = true;
}

void order_before(struct child *child, enum lane lane, CUstream stream, bool capturing, bool extra)
{
  struct order *order = &child->order;
  bool idle = !order->valid && !order->missing && !order->in_graphs;
  bool kept_by_nccl = order->last == lane && !order->trailing && !extra && !order->in_graphs, entered;

  if (!capturing && (idle || kept_by_nccl))
    return;
  entered = child_enter_context(child);
  if (capturing)
    before_captured(order, lane, stream, extra);
  else if (order->missing || real_driver()->cuStreamWaitEvent(stream, order->event, 0) != CUDA_SUCCESS)
    settle();
  child_leave_context(entered);
}

void order_after(struct child *child, enum lane lane, CUstream stream, bool capturing, bool extra)
{
  struct order *order = &child->order;
  bool entered;

  if (!child->context)
    return;
  entered = child_enter_context(child);
  if (capturing) {
    after_captured(order, lane, stream, extra);
  } else {
    order->valid = order_open(order) && real_driver()->cuEventRecord(order->event, stream) == CUDA_SUCCESS;
    order->missing = !order->valid;
    order->launching = false;
    order->last = lane;
    order->trailing = extra;
  }
  child_leave_context(entered);
}

void order_join(struct child *child, const CUstream streams[], int count)
{
  const struct driver *driver = real_driver();
  struct order *order = &child->order;
  bool entered;

  if (!child->context)
    return;
  entered = child_enter_context(child);
  if (order_open(order)) {
    for (int i = 1; i < count; i++) {
      driver->cuEventRecord(order->join_event, streams[i]);
      driver->cuStreamWaitEvent(streams[0], order->join_event, 0);
    }
    driver->cuEventRecord(order->join_event, streams[0]);
    for (int i = 1; i < count; i++)
      driver->cuStreamWaitEvent(streams[i], order->join_event, 0);
  }
  child_leave_context(entered);
}

bool order_is_done(const struct child *child, uint32_t wait_ms)
{
  enum { MILLISECOND_NS = 1000000 };
  const struct order *order = &child->order;
  const struct driver *driver = real_driver();
  CUresult result = CUDA_SUCCESS;
  bool entered;

  if (!order->valid && !order->missing && !order->in_graphs)
    return true;
  if (order->missing && wait_ms != ORDER_FOR_EVER)
    return false;
  entered = child_enter_context(child);
  if (order->missing)
    settle();
  else if (wait_ms == ORDER_FOR_EVER)
    driver->cuEventSynchronize(order->event);
  else
    result = driver->cuEventQuery(order->event);
  for (uint32_t i = 0; result == CUDA_ERROR_NOT_READY && i < wait_ms; i++) {
    nanosleep(&(struct timespec){.tv_nsec = MILLISECOND_NS}, NULL);
    result = driver->cuEventQuery(order->event);
  }
  child_leave_context(entered);
  return result != CUDA_ERROR_NOT_READY;
}

/* Whether a call on this communicator is, or may one day be, followed by one on its child. Asked with the child not
 * held: when another thread takes it away meanwhile, all work on it is done and there is no order left to keep. */
static bool may_have_child(const struct comm *comm)
{
  return __atomic_load_n(&comm->child.handle, __ATOMIC_ACQUIRE) ||
         (comm->board && __atomic_load_n(&comm->plain, __ATOMIC_ACQUIRE) == REASON_none);
}

/* The communicator's record with its child held, or NULL when there is no order to keep. */
static struct comm *enter_and_hold(ncclComm_t handle)
{
  struct comm *comm = comm_enter(handle);

  if (comm && may_have_child(comm) && comm_wait_child(comm))
    return comm;
  if (comm)
    comm_leave(comm);
  return NULL;
}

static void release_and_leave(struct comm *comm)
{
  comm_release_child(comm);
  comm_leave(comm);
}

static void note_in_group(ncclComm_t handle, CUstream stream, bool capturing)
{
  int at = 0;

  while (at < noted.count && noted.notes[at].comm != handle)
    at++;
  if (at == GROUP_COMMS)
    return;
  noted.notes[at].comm = handle;
  noted.notes[at].stream = stream;
  noted.notes[at].capturing = capturing;
  if (at == noted.count)
    noted.count++;
}

bool order_plain_begin(struct comm *comm, CUstream stream, bool capturing)
{
  bool entered, opened = true;

  if (!may_have_child(comm) || (capturing && !comm->child.context))
    return false;
  /* The graph may live to see the first child, or the next: only the event has to last, see order_close(). */
  if (capturing && !comm->child.order.capture_event) {
    entered = child_enter_context(&comm->child);
    opened = order_open(&comm->child.order);
    child_leave_context(entered);
  }
  if (!opened)
    return false;
  order_before(&comm->child, LANE_JOB, stream, capturing, false);
  return true;
}

/* A call on the job's communicator has been handed to NCCL, which may launch it from a thread of its own later on. */
static void plain_issued(struct comm *comm, CUstream stream, bool capturing, ncclResult_t result)
{
  struct order *order = &comm->child.order;

  if (result != ncclInProgress || capturing) {
    order_after(&comm->child, LANE_JOB, stream, capturing, false);
    return;
  }
  order->launching = order->missing = true;
  order->valid = false;
  order->launch_stream = stream;
  order->last = LANE_JOB;
}

void order_plain_end(struct comm *comm, CUstream stream, bool capturing, ncclResult_t result)
{
  if (group_is_open())
    note_in_group(comm->handle, stream, capturing);
  else
    plain_issued(comm, stream, capturing, result);
}

void order_launched(struct comm *comm)
{
  struct order *order = &comm->child.order;

  if (!__atomic_load_n(&order->launching, __ATOMIC_RELAXED) || !comm_hold_child(comm))
    return;
  if (order->launching) {
    order->launching = false;
    order_after(&comm->child, LANE_JOB, order->launch_stream, false, false);
  }
  comm_release_child(comm);
}

void order_await_launch(struct comm *comm, bool held)
{
  struct order *order = &comm->child.order;

  child_await(comm->handle, ncclInProgress);
  if (!held || !order->launching)
    return;
  order->launching = false;
  order_after(&comm->child, LANE_JOB, order->launch_stream, false, false);
}

struct order_passage order_pass_begin(ncclComm_t handle, CUstream stream)
{
  struct order_passage passage = {.stream = stream};

  group_mix();
  passage.comm = enter_and_hold(handle);
  if (!passage.comm)
    return passage;
  passage.capturing = order_is_capturing(stream);
  if (!order_plain_begin(passage.comm, stream, passage.capturing)) {
    release_and_leave(passage.comm);
    passage.comm = NULL;
  }
  return passage;
}

void order_pass_end(const struct order_passage *passage, ncclResult_t result)
{
  if (!passage->comm)
    return;
  order_plain_end(passage->comm, passage->stream, passage->capturing, result);
  release_and_leave(passage->comm);
}

void order_group_left(ncclResult_t result)
{
  for (int i = 0; i < noted.count; i++) {
    struct comm *comm = enter_and_hold(noted.notes[i].comm);
    if (!comm)
      continue;
    plain_issued(comm, noted.notes[i].stream, noted.notes[i].capturing, result);
    release_and_leave(comm);
  }
  noted.count = 0;
}
