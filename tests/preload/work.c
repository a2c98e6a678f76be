/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/preload/work.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/preload/check.h"
#include "tests/sim/numeric.h"

enum { GAP = 4096, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, ANY_ERRNO = 4242 };

static void *allocate(const struct options *options, struct worker *worker, int call, size_t elements)
{
  size_t bytes = elements * numeric_size(options->dtype);
  bool last = worker->seat->rank == worker->seat->nranks - 1;

  if (options->diverge == DIVERGE_PLAIN && last)
    return pool_alloc_loose(&worker->pool, bytes);
  if (options->diverge == DIVERGE_WINDOW)
    return pool_alloc_in(&worker->pool, (call + (last && call >= 4)) % 2, bytes);
  return pool_alloc(&worker->pool, bytes);
}

/* What else is allocated before the buffers of a call, on some ranks only. */
static void diverge(const struct options *options, struct worker *worker, enum op op, int call)
{
  int rank = worker->seat->rank;

  if (options->diverge == DIVERGE_OFFSET && rank == worker->seat->nranks - 1 && call % 2 == 1)
    pool_alloc(&worker->pool, GAP);
  if (options->diverge == DIVERGE_BATCH && op != OP_ALL_GATHER)
    pool_alloc(&worker->pool, (size_t)(1 + (call + rank) % 7) * GAP);
}

static void place_buffers(const struct options *options, struct worker *worker, struct placed *placed)
{
  size_t count = options->count, wide = count * (size_t)worker->seat->nranks;
  size_t skip = count * (size_t)worker->seat->rank * numeric_size(options->dtype);
  bool small = options->small_recv && placed->op == OP_REDUCE_SCATTER;

  placed->send_count = placed->op == OP_REDUCE_SCATTER ? wide : count;
  placed->recv_count = placed->op == OP_ALL_GATHER ? wide : count;
  if (!options->inplace) {
    placed->recv = small ? pool_alloc_loose(&worker->pool, count * numeric_size(options->dtype))
                         : allocate(options, worker, placed->call, placed->recv_count);
    placed->send = options->apart ? pool_alloc_in(&worker->pool, 1, placed->send_count * numeric_size(options->dtype))
                                  : allocate(options, worker, placed->call, placed->send_count);
    return;
  }
  placed->send = placed->recv = allocate(options, worker, placed->call, placed->op == OP_ALL_REDUCE ? count : wide);
  if (placed->op == OP_ALL_GATHER)
    placed->send = (char *)placed->send + skip;
  else if (placed->op == OP_REDUCE_SCATTER)
    placed->recv = (char *)placed->recv + skip;
}

void work_place(const struct options *options, struct worker *worker, int first, int count)
{
  for (int i = 0; i < count; i++) {
    struct placed *placed = &worker->placed[i];
    *placed = (struct placed){.op = options->ops[(first + i) % options->op_count], .call = first + i};
    placed->data = (struct data){options->dtype, options->redop, worker->seat->nranks, 0};
    placed->stream = worker->streams[(first + i) % options->streams];
    diverge(options, worker, placed->op, placed->call);
    place_buffers(options, worker, placed);
  }
}

void work_fill(const struct options *options, struct worker *worker, int count, int round)
{
  size_t size = numeric_size(options->dtype);

  for (int i = 0; i < count; i++) {
    struct placed *placed = &worker->placed[i];
    placed->data.seed = (uint64_t)worker->seat->half << 48 | (uint64_t)placed->call << 16 | (uint64_t)round;
    free(placed->host);
    placed->host = malloc(placed->send_count * size);
    if (!placed->host)
      job_fail("no host memory");
    data_fill(&placed->data, worker->seat->rank, 0, placed->send_count, placed->host);
    CUDA_CHECK(cudaMemsetAsync(placed->recv, 0xa5, placed->recv_count * size, placed->stream));
    CUDA_CHECK(cudaMemcpyAsync(placed->send, placed->host, placed->send_count * size, HOST_TO_DEVICE, placed->stream));
  }
}

static ncclResult_t issue(const struct options *options, const struct worker *worker, const struct placed *placed)
{
  ncclComm_t comm = worker->seat->comm;
  ncclRedOp_t redop = (ncclRedOp_t)options->redop;
  bool made = options->redop == REDOP_PREMULSUM && placed->op != OP_ALL_GATHER;
  unsigned char scalar[8];
  ncclResult_t result = ncclInternalError;

  if (made) {
    data_factor(options->dtype, scalar);
    NCCL_CHECK(ncclRedOpCreatePreMulSum(&redop, scalar, options->dtype, ncclScalarHostImmediate, comm));
  }
  switch (placed->op) {
  case OP_ALL_GATHER:
    result = ncclAllGather(placed->send, placed->recv, options->count, options->dtype, comm, placed->stream);
    break;
  case OP_REDUCE_SCATTER:
    result = ncclReduceScatter(placed->send, placed->recv, options->count, options->dtype, redop, comm, placed->stream);
    break;
  case OP_ALL_REDUCE:
  case OP_COUNT:
    result = ncclAllReduce(placed->send, placed->recv, options->count, options->dtype, redop, comm, placed->stream);
    break;
  }
  if (made)
    NCCL_CHECK(ncclRedOpDestroy(redop, comm));
  return result;
}

/* As a program would see it that looks at errno and at the last error after each call. */
static void issue_watched(const struct options *options, const struct worker *worker, const struct placed *placed)
{
  cudaError_t before = cudaPeekAtLastError();
  ncclResult_t result;

  errno = ANY_ERRNO;
  result = issue(options, worker, placed);
  if (options->errors && errno != ANY_ERRNO)
    job_fail("call %d: errno is %d instead of %d", placed->call, errno, ANY_ERRNO);
  if (options->errors && cudaPeekAtLastError() != before)
    job_fail("call %d: the last error is %u instead of %u", placed->call, cudaPeekAtLastError(), before);
  if (result != ncclSuccess && options->abort_ms > 0) {
    printf("job: rank %d of %d: aborted, the call gives %u\n", job_rank(), job_size(), result);
    exit(0);
  }
  NCCL_CHECK(result);
}

static void misbehave(const struct options *options, int rank, int call)
{
  if (rank == options->kill_rank && call == options->kill_call)
    kill(getpid(), SIGKILL);
  if (rank == options->late_rank && call >= options->late_first && call <= options->late_last)
    usleep((useconds_t)options->late_ms * 1000);
}

void work_issue(const struct options *options, struct worker *workers, int worker_count, int count)
{
  bool group = worker_count > 1 || (options->group && workers[0].placed[0].call > 0);

  if (group)
    NCCL_CHECK(ncclGroupStart());
  for (int i = 0; i < count; i++)
    for (int w = 0; w < worker_count; w++) {
      misbehave(options, workers[w].seat->rank, workers[w].placed[i].call);
      CUDA_CHECK(cudaSetDevice(workers[w].seat->device));
      if (options->elsewhere && workers[w].placed[i].call == 0)
        CUDA_CHECK(cudaSetDevice(workers[w].seat->device + job_size()));
      issue_watched(options, &workers[w], &workers[w].placed[i]);
    }
  if (group)
    NCCL_CHECK(ncclGroupEnd());
  if (options->init == INIT_NONBLOCKING)
    comms_settle(workers[0].seat->comm);
}

static bool check_one(const struct options *options, const struct worker *worker, const struct placed *placed)
{
  size_t size = numeric_size(options->dtype), count = options->count;
  char *result = malloc(placed->recv_count * size), what[64];
  int rank = worker->seat->rank;
  bool right = true;

  if (!result)
    job_fail("no host memory");
  CUDA_CHECK(cudaMemcpy(result, placed->recv, placed->recv_count * size, DEVICE_TO_HOST));
  snprintf(what, sizeof(what), "call %d, %s", placed->call, op_name(placed->op));
  if (placed->op == OP_ALL_GATHER)
    for (int from = 0; from < worker->seat->nranks; from++)
      right &= data_check_copied(&placed->data, from, 0, count, result + (size_t)from * count * size, what);
  else
    right = data_check_reduced(&placed->data, placed->op == OP_REDUCE_SCATTER ? (size_t)rank * count : 0, count, result,
                               what);
  free(result);
  return right;
}

bool work_check(const struct options *options, struct worker *worker, int count)
{
  bool right = true;

  for (int i = 0; i < options->streams; i++)
    CUDA_CHECK(cudaStreamSynchronize(worker->streams[i]));
  for (int i = 0; i < count; i++) {
    right &= check_one(options, worker, &worker->placed[i]);
    free(worker->placed[i].host);
    worker->placed[i].host = NULL;
  }
  return right;
}
