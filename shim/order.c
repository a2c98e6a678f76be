/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/order.h"

#include "shim/comm.h"
#include "shim/real.h"

enum { GROUP_COMMS = 16, FIRST_CAPTURE_ERROR = 900, LAST_CAPTURE_ERROR = 908 };

/* The job's communicators that had calls in the open group: their order is noted when the group ends. */
struct group {
  int depth, count;
  struct {
    ncclComm_t comm;
    CUstream stream; /* of the last call; NCCL makes the streams of one communicator in a group wait for each other */
  } notes[GROUP_COMMS];
};
static __thread struct group group __attribute__((tls_model("initial-exec")));

/* Whether a call on this communicator is, or may one day be, followed by one on its child. */
static bool may_have_child(const struct comm *comm)
{
  return comm->child.handle || (comm->board && __atomic_load_n(&comm->plain, __ATOMIC_ACQUIRE) == REASON_none);
}

/* The communicator's record with its child held, or NULL when there is no order to keep. */
static struct comm *enter_and_hold(ncclComm_t handle)
{
  struct comm *comm = comm_enter(handle);

  if (comm && may_have_child(comm) && comm_hold_child(comm))
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

bool order_in_group(void)
{
  return group.depth > 0;
}

void order_group_entered(void)
{
  group.depth++;
}

void order_group_left(void)
{
  if (group.depth > 0 && --group.depth > 0)
    return;
  for (int i = 0; i < group.count; i++) {
    struct comm *comm = enter_and_hold(group.notes[i].comm);
    if (!comm)
      continue;
    child_order_after(&comm->child, LANE_JOB, group.notes[i].stream);
    release_and_leave(comm);
  }
  group.count = 0;
}

static void note_in_group(ncclComm_t handle, CUstream stream)
{
  int at = 0;

  while (at < group.count && group.notes[at].comm != handle)
    at++;
  if (at == GROUP_COMMS)
    return;
  group.notes[at].comm = handle;
  group.notes[at].stream = stream;
  if (at == group.count)
    group.count++;
}

bool order_is_capturing(CUstream stream)
{
  const struct driver *driver = real_driver();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = driver ? driver->cuStreamIsCapturing(stream, &status) : CUDA_SUCCESS;

  /* An error of captures (the legacy stream while another captures) is as good as one; others say nothing of them. */
  return status != CU_STREAM_CAPTURE_STATUS_NONE || (result >= FIRST_CAPTURE_ERROR && result <= LAST_CAPTURE_ERROR);
}

bool order_plain_begin(struct comm *comm, CUstream stream, bool capturing)
{
  if (!may_have_child(comm) || capturing)
    return false;
  child_order_before(&comm->child, LANE_JOB, stream);
  return true;
}

void order_plain_end(struct comm *comm, CUstream stream)
{
  if (order_in_group())
    note_in_group(comm->handle, stream);
  else
    child_order_after(&comm->child, LANE_JOB, stream);
}

struct order_passage order_pass_begin(ncclComm_t handle, CUstream stream)
{
  struct order_passage passage = {.comm = enter_and_hold(handle), .stream = stream};

  if (passage.comm && !order_plain_begin(passage.comm, stream, order_is_capturing(stream))) {
    release_and_leave(passage.comm);
    passage.comm = NULL;
  }
  return passage;
}

void order_pass_end(const struct order_passage *passage)
{
  if (!passage->comm)
    return;
  order_plain_end(passage->comm, passage->stream);
  release_and_leave(passage->comm);
}
