/* SPDX-License-Identifier: Apache-2.0 */
/* What graphs, errors in the background, and suspension do to a communicator. */
#include <stdlib.h>

#include "tests/sim/group.h"

enum { SUSPEND_MEM = 1, VERSION_SUSPEND = 22907 };

void comm_count_launch(ncclComm_t comm)
{
  unsigned int error = 0;
  if (comm->serial == 0)
    error = control_async("first");
  if (error == 0 && comm->child)
    error = control_async("child");
  if (error != 0)
    atomic_store(&comm->async, error);
}

/* On the driver's thread, where CUDA must not be called. */
static void persist_end(void *arg)
{
  ncclComm_t comm = arg;
  if (atomic_load(&comm->magic) == COMM_DEAD)
    control_die("a graph outlives its communicator (%p), whose memory NCCL writes to now", (void *)comm);
  atomic_fetch_sub(&comm->persistent, 1);
}

ncclResult_t comm_persist(ncclComm_t comm, CUstream stream)
{
  struct sim_capture_info info;
  CUuserObject object;
  /* One rank copies, and has no work that is kept. */
  if (comm->nranks == 1 || GPU->capture_info(stream, &info) != CUDA_SUCCESS ||
      info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    return ncclSuccess;
  if (GPU->object_create(&object, comm, persist_end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) != CUDA_SUCCESS)
    return ncclUnhandledCudaError;
  atomic_fetch_add(&comm->persistent, 1);
  if (GPU->graph_retain_object(info.graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS)
    return ncclSuccess;
  GPU->object_release(object, 1);
  return ncclUnhandledCudaError;
}

/* Collective. What the communicator has on the device goes, and comes back; windows are the caller's memory. */
static ncclResult_t suspend_run(struct group_task *task)
{
  ncclComm_t comm = task->comm;
  if (comm->suspended)
    return ncclInvalidUsage;
  GPU->stream_device_synchronize(comm->device);
  ncclResult_t result = comm_gather(comm, SHARED_CONNECT, NULL, NULL, 0);
  if (result != ncclSuccess)
    return result;
  GPU->memory_discharge(comm->device, comm->charged);
  comm->suspended = true;
  return ncclSuccess;
}

static ncclResult_t resume_run(struct group_task *task)
{
  ncclComm_t comm = task->comm;
  if (!comm->suspended)
    return ncclInvalidUsage;
  if (GPU->memory_charge(comm->device, comm->charged) != CUDA_SUCCESS)
    return ncclUnhandledCudaError;
  comm->suspended = false;
  return comm_gather(comm, SHARED_CONNECT, NULL, NULL, 0);
}

static ncclResult_t memory_task(ncclComm_t comm, ncclResult_t (*run)(struct group_task *task))
{
  ncclResult_t result = comm_ready(comm);
  if (result != ncclSuccess)
    return result;
  struct group_task *task = calloc(1, sizeof(*task));
  *task = (struct group_task){.phase = GROUP_REGISTER, .comm = comm, .run = run};
  group_start();
  group_add(task);
  result = group_end();
  return comm->config.blocking ? result : comm_state(comm);
}

/* As if the function were not there, in versions that have not got it. */
ncclResult_t comm_suspend(ncclComm_t comm, int flags)
{
  if (nccl_version() < VERSION_SUSPEND)
    return ncclInvalidUsage;
  return flags & SUSPEND_MEM ? memory_task(comm, suspend_run) : comm_ready(comm);
}

ncclResult_t comm_resume(ncclComm_t comm)
{
  return nccl_version() < VERSION_SUSPEND ? (ncclResult_t)ncclInvalidUsage : memory_task(comm, resume_run);
}
