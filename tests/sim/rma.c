/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided calls, from 2.29.2 on: a put writes into a peer's part of a window, where this rank's own offsets say that
 * it is; signals are counted by who gets them. They have their place among the communicator's other work (enqueue.cc,
 * 2.30.7: all of it is launched on one stream of the communicator's), so a wait holds up what comes after it.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/group.h"
#include "tests/sim/numeric.h"
#include "tests/sim/symmetric.h"

enum { FIRST_VERSION = 22902 };

enum rma_kind { RMA_PUT, RMA_SIGNAL, RMA_WAIT };

struct rma {
  enum rma_kind kind;
  ncclComm_t comm;
  CUstream stream;
  int peer;
  const void *from;
  void *to;
  size_t bytes;
  unsigned int awaited[SHARED_MAX_RANKS]; /* of each rank */
};

struct rma_task {
  struct group_task task;
  struct rma rma;
};

static void give(const struct rma *rma)
{
  atomic_uint *signals = &rma->comm->shared->ranks[rma->peer].signals[rma->comm->rank];
  shared_post(signals, atomic_load(signals) + 1); /* nobody else adds to it */
}

static void wait_for(const struct rma *rma)
{
  ncclComm_t comm = rma->comm;
  for (int r = 0; r < comm->nranks; r++) {
    comm->signals[r] += rma->awaited[r];
    if (!shared_wait(&comm->shared->ranks[comm->rank].signals[r], comm->signals[r], comm_abort_flags(comm)))
      return;
  }
}

/* On the stream's thread. A graph may run it again, so it stays as it is. */
static void rma_run(void *arg)
{
  const struct rma *rma = arg;
  if (comm_check(rma->comm, "work that was still queued, or in a graph") != ncclSuccess)
    return;
  if (rma->kind == RMA_WAIT) {
    wait_for(rma);
    return;
  }
  if (rma->kind == RMA_PUT)
    memcpy(rma->to, rma->from, rma->bytes);
  give(rma);
}

static ncclResult_t rma_launch(struct group_task *task)
{
  static const char *const names[] = {"PutSignal", "Signal", "WaitSignal"};
  struct rma *rma = malloc(sizeof(*rma));
  *rma = ((struct rma_task *)task)->rma;
  control_note("[Plain] %s bytes=%zu comm=%p rank=%d stream=%p", names[rma->kind], rma->bytes, (void *)rma->comm,
               rma->comm->rank, (void *)rma->stream);
  comm_count_launch(rma->comm);
  ncclResult_t persisted = comm_persist(rma->comm, rma->stream);
  if (persisted != ncclSuccess) {
    free(rma);
    return persisted;
  }
  const struct sim_work work = {.run = rma_run, .drop = free, .arg = rma};
  CUresult result = GPU->stream_submit(rma->stream, &work, rma->comm->chain);
  return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t rma_add(const struct rma *rma)
{
  ncclResult_t result = atomic_load(&rma->comm->revoked) ? (ncclResult_t)ncclInvalidUsage : comm_ready(rma->comm);
  if (result != ncclSuccess)
    return result;
  struct rma_task *task = calloc(1, sizeof(*task));
  task->task = (struct group_task){
      .phase = GROUP_LAUNCH, .comm = rma->comm, .run = rma_launch, .stream = rma->stream, .launches = true};
  task->rma = *rma;
  group_add(&task->task);
  return ncclSuccess;
}

/* What of the arguments must be 0 for now, and whether there is such a peer. */
static bool is_valid(ncclComm_t comm, int peer, int signal, int context, unsigned int flags)
{
  return peer >= 0 && peer < comm->nranks && signal == 0 && context == 0 && flags == 0;
}

static ncclResult_t enqueue(const struct rma *rma, bool valid)
{
  group_start();
  return group_call_end(rma->comm, valid ? rma_add(rma) : (ncclResult_t)ncclInvalidArgument);
}

static ncclResult_t check(ncclComm_t comm, const char *name)
{
  if (nccl_version() < FIRST_VERSION)
    return ncclInvalidUsage; /* it has no such function */
  return comm_check(comm, name);
}

static ncclResult_t put(struct rma *rma, ncclDataType_t type, size_t count, ncclWindow_t window, size_t offset,
                        bool valid)
{
  ncclResult_t result = check(rma->comm, "ncclPutSignal");
  if (result != ncclSuccess)
    return result;
  rma->bytes = count * numeric_size(type);
  if (valid)
    rma->to = symmetric_peer(rma->comm, window, rma->peer, offset, rma->bytes);
  return enqueue(rma, valid && rma->to && symmetric_holds(rma->comm, rma->from, rma->bytes));
}

ncclResult_t pncclPutSignal(const void *local, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
                            size_t offset, int signal, int context, unsigned int flags, ncclComm_t comm,
                            cudaStream_t stream)
{
  struct rma rma = {.kind = RMA_PUT, .comm = comm, .stream = stream, .peer = peer, .from = local};
  return SIM_CALL(ncclPutSignal,
                  put(&rma, type, count, window, offset, comm && is_valid(comm, peer, signal, context, flags)),
                  "%p count=%zu type=%u peer=%d window=%p offset=%zu comm=%p stream=%p", local, count, type, peer,
                  (void *)window, offset, (void *)comm, (void *)stream);
}

static ncclResult_t signal_peer(const struct rma *rma, int signal, int context, unsigned int flags)
{
  ncclResult_t result = check(rma->comm, "ncclSignal");
  return result == ncclSuccess ? enqueue(rma, is_valid(rma->comm, rma->peer, signal, context, flags)) : result;
}

ncclResult_t pncclSignal(int peer, int signal, int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream)
{
  const struct rma rma = {.kind = RMA_SIGNAL, .comm = comm, .stream = stream, .peer = peer};
  return SIM_CALL(ncclSignal, signal_peer(&rma, signal, context, flags), "peer=%d comm=%p stream=%p", peer,
                  (void *)comm, (void *)stream);
}

static ncclResult_t wait_signals(struct rma *rma, int count, const ncclWaitSignalDesc_t *descs)
{
  bool valid = count > 0 && descs;
  ncclResult_t result = check(rma->comm, "ncclWaitSignal");
  if (result != ncclSuccess)
    return result;
  for (int i = 0; i < count && valid; i++) {
    valid = descs[i].opCnt > 0 && is_valid(rma->comm, descs[i].peer, descs[i].sigIdx, descs[i].ctx, 0);
    if (valid)
      rma->awaited[descs[i].peer] += (unsigned int)descs[i].opCnt;
  }
  return enqueue(rma, valid);
}

ncclResult_t pncclWaitSignal(int count, ncclWaitSignalDesc_t *descs, ncclComm_t comm, cudaStream_t stream)
{
  struct rma rma = {.kind = RMA_WAIT, .comm = comm, .stream = stream};
  return SIM_CALL(ncclWaitSignal, wait_signals(&rma, count, descs), "count=%d comm=%p stream=%p", count, (void *)comm,
                  (void *)stream);
}

#define ALIAS(name, parameters) __attribute__((weak, alias("pnccl" #name))) ncclResult_t nccl##name parameters;
SIM_NCCL_RMA_FUNCTIONS(ALIAS)
#undef ALIAS
