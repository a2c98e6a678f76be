/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/operation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/group.h"
#include "tests/sim/numeric.h"
#include "tests/sim/plain.h"
#include "tests/sim/profiler.h"
#include "tests/sim/redop.h"
#include "tests/sim/symmetric.h"

struct operation_task {
  struct group_task task;
  struct operation op;
};

const char *operation_name(enum operation_function function)
{
  static const char *const names[] = {"AllGather", "ReduceScatter", "AllReduce", "Broadcast",
                                      "Reduce",    "AlltoAll",      "Gather",    "Scatter"};
  return names[function];
}

static bool reduces(enum operation_function function)
{
  return function == OPERATION_REDUCE_SCATTER || function == OPERATION_ALL_REDUCE || function == OPERATION_REDUCE;
}

/* The bytes of the call's large side. */
static size_t operation_bytes(const struct operation *op)
{
  size_t bytes = op->count * numeric_size(op->type);
  switch (op->function) {
  case OPERATION_ALL_REDUCE:
  case OPERATION_BROADCAST:
  case OPERATION_REDUCE:
    return bytes;
  case OPERATION_ALL_GATHER:
  case OPERATION_REDUCE_SCATTER:
  case OPERATION_ALL_TO_ALL:
  case OPERATION_GATHER:
  case OPERATION_SCATTER:
    break;
  }
  return bytes * (size_t)op->comm->nranks;
}

/* On the stream's thread. A graph may run the same operation again, so it stays as it is. */
static void operation_run(void *arg)
{
  struct operation op = *(const struct operation *)arg;
  if (comm_check(op.comm, "work that was still queued, or in a graph") != ncclSuccess)
    return;
  if (op.comm->suspended)
    control_die("work on a suspended communicator (%p), whose memory is not there", (void *)op.comm);
  if (op.scalar_pointer)
    memcpy(op.scalar, op.scalar_pointer, numeric_size(op.type));
  if (op.symmetric)
    symmetric_run(&op);
  else
    plain_run(&op);
}

/* What of the call's own settings NCCL would follow, for the record; "" where there is nothing. */
static void describe_config(const struct operation *op, char *text, size_t size)
{
  const ncclCollConfig_t *config = &op->config;
  int used = 0;
  text[0] = '\0';
  if (config->size == 0)
    return;
  if (config->minCTAs != NCCL_CONFIG_UNDEF_INT || config->maxCTAs != NCCL_CONFIG_UNDEF_INT)
    used += snprintf(text, size, " ctas=%d-%d", config->minCTAs, config->maxCTAs);
  if (config->userProfilerTag)
    snprintf(text + used, size - (size_t)used, " tag=%llu", (unsigned long long)config->userProfilerTag);
}

static void operation_note(const struct operation *op)
{
  char config[64];
  /* Copy engines do what a kernel would, where the communicator asks for no CTAs. */
  bool copy_engine = op->symmetric && op->function == OPERATION_ALL_GATHER && op->comm->config.CTAPolicy == 2;
  describe_config(op, config, sizeof(config));
  control_note("[%s] %s bytes=%zu comm=%p rank=%d stream=%p%s%s", op->symmetric ? "Symmetric" : "Plain",
               operation_name(op->function), operation_bytes(op), (void *)op->comm, op->comm->rank, (void *)op->stream,
               copy_engine ? " copy_engine" : "", config);
}

static ncclResult_t operation_launch(struct group_task *task)
{
  struct operation *op = malloc(sizeof(*op));
  *op = ((struct operation_task *)task)->op;
  symmetric_choose(op, task->siblings == 1);
  operation_note(op);
  if (!op->symmetric)
    profiler_launch(op);
  comm_count_launch(op->comm);
  ncclResult_t persisted = comm_persist(op->comm, op->stream);
  if (persisted != ncclSuccess) {
    free(op);
    return persisted;
  }
  const struct sim_work work = {.run = operation_run, .drop = free, .arg = op};
  CUresult result = GPU->stream_submit(op->stream, &work, op->comm->chain);
  return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t operation_add(const struct operation *call)
{
  ncclComm_t comm = call->comm;
  struct operation op = *call;
  ncclResult_t result = atomic_load(&comm->revoked) ? (ncclResult_t)ncclInvalidUsage : comm_ready(comm);
  if (result != ncclSuccess)
    return result;
  if (op.root < 0 || op.root >= comm->nranks || numeric_size(op.type) == 0)
    return ncclInvalidArgument;
  if (reduces(op.function))
    result = redop_resolve(&op);
  if (result != ncclSuccess || op.count == 0)
    return result;
  struct operation_task *task = calloc(1, sizeof(*task));
  task->task = (struct group_task){
      .phase = GROUP_LAUNCH, .comm = comm, .run = operation_launch, .stream = op.stream, .launches = true};
  task->op = op;
  task->op.api_event = profiler_call(&op);
  group_add(&task->task);
  return ncclSuccess;
}
