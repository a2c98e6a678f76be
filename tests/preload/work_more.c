/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are not of the kinds that a batch is made of. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/preload/check.h"
#include "tests/preload/work.h"
#include "tests/sim/numeric.h"

enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, SLOW_US = 100000 };

static void put(const struct data *data, int rank, size_t count, void *device)
{
  size_t bytes = count * numeric_size(data->dtype);
  void *host = malloc(bytes);

  if (!host)
    job_fail("no host memory");
  data_fill(data, rank, 0, count, host);
  CUDA_CHECK(cudaMemcpy(device, host, bytes, HOST_TO_DEVICE));
  free(host);
}

static bool is_from(const struct data *data, int rank, size_t count, const void *device, const char *what)
{
  size_t bytes = count * numeric_size(data->dtype);
  void *host = malloc(bytes);
  bool right;

  if (!host)
    job_fail("no host memory");
  CUDA_CHECK(cudaMemcpy(host, device, bytes, DEVICE_TO_HOST));
  right = data_check_copied(data, rank, 0, count, host, what);
  free(host);
  return right;
}

static void settle(const struct options *options, const struct worker *worker)
{
  if (options->init == INIT_NONBLOCKING)
    comms_settle(worker->seat->comm);
}

bool work_mixed(const struct options *options, struct worker *worker, const struct placed *placed)
{
  struct data data = {options->dtype, options->redop, worker->seat->nranks, 0xb00 + (uint64_t)placed->call};
  int rank = worker->seat->rank, nranks = worker->seat->nranks, root = placed->call % nranks;
  int before = (rank + nranks - 1) % nranks;
  bool right;

  put(&data, rank, options->count, placed->recv);
  NCCL_CHECK(ncclBroadcast(placed->recv, placed->recv, options->count, options->dtype, root, worker->seat->comm,
                           placed->stream));
  settle(options, worker);
  CUDA_CHECK(cudaStreamSynchronize(placed->stream));
  right = is_from(&data, root, options->count, placed->recv, "broadcast");

  if (options->inplace) /* what is sent must not be what is received */
    return right;
  data.seed += 0x1000;
  put(&data, rank, options->count, placed->send);
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(
      ncclSend(placed->send, options->count, options->dtype, (rank + 1) % nranks, worker->seat->comm, placed->stream));
  NCCL_CHECK(ncclRecv(placed->recv, options->count, options->dtype, before, worker->seat->comm, placed->stream));
  NCCL_CHECK(ncclGroupEnd());
  settle(options, worker);
  CUDA_CHECK(cudaStreamSynchronize(placed->stream));
  return is_from(&data, before, options->count, placed->recv, "receive") && right;
}

static void rest(void *unused)
{
  (void)unused;
  usleep(SLOW_US);
}

/* Every rank scatters the same, so each element is the all-gather's, as often as there are ranks. */
static bool is_multiple(const struct data *data, int rank, size_t count, const void *device)
{
  size_t size = numeric_size(data->dtype);
  void *got = malloc(count * size), *one = malloc(count * size);
  size_t wrong = 0;

  if (!got || !one)
    job_fail("no host memory");
  CUDA_CHECK(cudaMemcpy(got, device, count * size, DEVICE_TO_HOST));
  data_fill(data, rank, 0, count, one);
  for (size_t i = 0; i < count; i++) {
    double want = (double)data->nranks * (double)numeric_load(data->dtype, one, i);
    wrong += !(fabs((double)numeric_load(data->dtype, got, i) - want) <= fabs(want) * 0x1p-21);
  }
  if (wrong > 0)
    fprintf(stderr, "job: rank %d: chain: %zu of %zu elements are wrong\n", rank, wrong, count);
  free(got);
  free(one);
  return wrong == 0;
}

bool work_chain(const struct options *options, struct worker *worker, int call)
{
  struct data data = {options->dtype, ncclSum, worker->seat->nranks, 0xc4a1 + (uint64_t)call};
  size_t count = options->count, size = numeric_size(options->dtype), wide = count * (size_t)worker->seat->nranks;
  /* One of the two calls has a buffer outside every large segment, turn about. */
  void *send = call % 2 == 0 ? pool_alloc(&worker->pool, count * size) : pool_alloc_loose(&worker->pool, count * size);
  void *all = pool_alloc(&worker->pool, wide * size);
  void *recv = call % 2 == 1 ? pool_alloc(&worker->pool, count * size) : pool_alloc_loose(&worker->pool, count * size);

  put(&data, worker->seat->rank, count, send);
  CUDA_CHECK(cudaMemset(all, 0xa5, wide * size));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaLaunchHostFunc(worker->streams[0], rest, NULL));
  if (options->group)
    NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclAllGather(send, all, count, options->dtype, worker->seat->comm, worker->streams[0]));
  if (options->group)
    NCCL_CHECK(ncclGroupEnd());
  settle(options, worker);
  if (options->mixed)
    NCCL_CHECK(ncclBroadcast(all, recv, count, options->dtype, 0, worker->seat->comm, worker->streams[1]));
  else
    NCCL_CHECK(ncclReduceScatter(all, recv, count, options->dtype, ncclSum, worker->seat->comm, worker->streams[1]));
  settle(options, worker);
  CUDA_CHECK(cudaStreamSynchronize(worker->streams[1]));
  CUDA_CHECK(cudaStreamSynchronize(worker->streams[0]));
  if (options->mixed)
    return is_from(&data, 0, count, recv, "chain");
  return is_multiple(&data, worker->seat->rank, count, recv);
}
