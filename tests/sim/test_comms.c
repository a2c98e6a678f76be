/* SPDX-License-Identifier: Apache-2.0 */
/* The life of communicators: children, configurations, abort, and what becomes of whoever uses a dead one. */
#include "tests/sim/check.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 1000 };

static float *ones(void)
{
  void *data;
  CHECK_OK(cudaMalloc(&data, COUNT * sizeof(float)));
  for (size_t i = 0; i < COUNT; i++)
    ((float *)data)[i] = 1;
  return data;
}

/* Sums ones over a communicator: its size. */
static float count_ranks(ncclComm_t comm, cudaStream_t stream)
{
  float *data = ones();
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, comm, stream));
  CHECK_OK(cudaStreamSynchronize(stream));
  float sum = data[COUNT - 1];
  CHECK_OK(cudaFree(data));
  return sum;
}

static void split(void)
{
  struct job job = job_start();
  ncclComm_t child = NULL;
  int rank;
  int size;

  /* All, in reverse. */
  CHECK_OK(ncclCommSplit(job.comm, 0, -job.rank, &child, NULL));
  CHECK_OK(ncclCommUserRank(child, &rank));
  CHECK_OK(ncclCommCount(child, &size));
  CHECK_IS(rank, job.size - 1 - job.rank);
  CHECK_IS(size, job.size);
  /* A child lives and dies beside its parent. */
  CHECK(count_ranks(child, job.stream) == (float)job.size);
  CHECK(count_ranks(job.comm, job.stream) == (float)job.size);
  CHECK_OK(ncclCommAbort(child));
  CHECK(count_ranks(job.comm, job.stream) == (float)job.size);

  /* Rank 0 stays out; but has to call. */
  child = (ncclComm_t)&job;
  CHECK_OK(ncclCommSplit(job.comm, job.rank ? 5 : NCCL_SPLIT_NOCOLOR, 0, &child, NULL));
  CHECK((child == NULL) == (job.rank == 0));
  if (child) {
    CHECK(count_ranks(child, job.stream) == (float)(job.size - 1));
    CHECK_OK(ncclCommDestroy(child));
  }
  CHECK_IS(ncclCommSplit(job.comm, -7, 0, &child, NULL), ncclInvalidArgument);
  job_end(&job);
}

static void split_absent(void)
{
  struct job job = job_start();
  ncclComm_t child;
  if (job.rank == 1)
    pause();
  CHECK_OK(ncclCommSplit(job.comm, 0, 0, &child, NULL));
}

/* SIM_FAIL=ncclCommSplit:1@rank1: the others wait for it, until the parent is aborted from outside. */
static void *abort_main(void *parent)
{
  nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
  CHECK_OK(ncclCommAbort(parent));
  return NULL;
}

static void split_failing(void)
{
  struct job job = job_start();
  ncclComm_t child = NULL;
  pthread_t thread;
  if (job.rank == 1) {
    CHECK_IS(ncclCommSplit(job.comm, 0, 0, &child, NULL), ncclSystemError);
  } else {
    CHECK_OK(pthread_create(&thread, NULL, abort_main, job.comm));
    CHECK(ncclCommSplit(job.comm, 0, 0, &child, NULL) != ncclSuccess);
    CHECK_OK(pthread_join(thread, NULL));
    CHECK(child != NULL);
    CHECK_OK(ncclCommAbort(child));
  }
  sim_bootstrap_barrier("over");
}

static void shrink(void)
{
  struct job job = job_start();
  int exclude = 1;
  ncclComm_t child;
  if (job.rank == 1) {
    CHECK_IS(ncclCommShrink(job.comm, &exclude, 1, &child, NULL, 0), ncclInvalidArgument);
    exit(0);
  }
  /* Work that waits for the rank that went is what the abort flag is for. */
  float *data = ones();
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_OK(ncclCommShrink(job.comm, &exclude, 1, &child, NULL, NCCL_SHRINK_ABORT));
  CHECK(count_ranks(child, job.stream) == (float)(job.size - 1));
  CHECK_OK(ncclCommDestroy(child));
  CHECK_OK(ncclCommAbort(job.comm));
}

static void configurations(void)
{
  ncclUniqueId id;
  ncclComm_t comm;
  CHECK_OK(ncclGetUniqueId(&id));
  const struct {
    int min;
    int max;
    int policy;
    unsigned int magic;
    ncclResult_t result;
  } cases[] = {
      {16, 64, NCCL_CONFIG_UNDEF_INT, ABI_NCCL_CONFIG_MAGIC, ncclSuccess},
      {16, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, ABI_NCCL_CONFIG_MAGIC, ncclInvalidArgument},
      {NCCL_CONFIG_UNDEF_INT, 64, NCCL_CONFIG_UNDEF_INT, ABI_NCCL_CONFIG_MAGIC, ncclSuccess},
      {64, 16, NCCL_CONFIG_UNDEF_INT, ABI_NCCL_CONFIG_MAGIC, ncclInvalidArgument},
      {0, 16, NCCL_CONFIG_UNDEF_INT, ABI_NCCL_CONFIG_MAGIC, ncclInvalidArgument},
      {1, 16, 3, ABI_NCCL_CONFIG_MAGIC, ncclInvalidArgument},
      {1, 16, 2, ABI_NCCL_CONFIG_MAGIC, ncclSuccess},
      {1, 16, 2, 0, ncclInvalidArgument},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    ncclConfig_t config = SIM_NCCL_CONFIG_INITIALIZER;
    config.minCTAs = cases[i].min;
    config.maxCTAs = cases[i].max;
    config.CTAPolicy = cases[i].policy;
    config.magic = cases[i].magic;
    CHECK_OK(ncclGetUniqueId(&id));
    CHECK_IS(ncclCommInitRankConfig(&comm, 1, id, 0, &config), cases[i].result);
    if (cases[i].result == ncclSuccess)
      CHECK_OK(ncclCommDestroy(comm));
  }
  CHECK_IS(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
}

/* A child may be non-blocking under a blocking parent, and the other way round. */
static void nonblocking_child(void)
{
  struct job job = job_start();
  ncclConfig_t config = SIM_NCCL_CONFIG_INITIALIZER;
  ncclComm_t child;
  ncclResult_t state = ncclInProgress;
  config.blocking = 0;
  CHECK_OK(ncclCommSplit(job.comm, 0, 0, &child, &config)); /* the parent's kind decides */
  CHECK_OK(ncclCommGetAsyncError(child, &state));
  CHECK_OK(state);
  float *data = ones();
  ncclResult_t result = ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, child, job.stream);
  CHECK(result == ncclSuccess || result == ncclInProgress);
  for (state = ncclInProgress; state == ncclInProgress;)
    CHECK_OK(ncclCommGetAsyncError(child, &state));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  CHECK(data[0] == (float)job.size);

  /* Both kinds in one group are refused. */
  CHECK_OK(ncclGroupStart());
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, child, job.stream));
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_IS(ncclGroupEnd(), ncclInvalidArgument);
  CHECK_OK(ncclCommDestroy(child));
  job_end(&job);
}

/* Init returns only after every rank has entered it. */
static void init_absent(void)
{
  int rank = sim_bootstrap_rank();
  ncclUniqueId id = sim_bootstrap_id(rank);
  ncclComm_t comm;
  CHECK_OK(cudaSetDevice(rank));
  if (rank == 1)
    pause();
  CHECK_OK(ncclCommInitRank(&comm, 2, id, rank));
}

static void duplicate_device(void)
{
  int rank = sim_bootstrap_rank();
  ncclUniqueId id = sim_bootstrap_id(rank);
  ncclComm_t comm;
  CHECK_OK(cudaSetDevice(0));
  CHECK_IS(ncclCommInitRank(&comm, 2, id, rank), ncclInvalidUsage);
  CHECK(comm == NULL);
}

/* With NCCL_COMM_ID all communicators have one id, and rank 0 is found by it, time and again. */
static void comm_id(void)
{
  ncclUniqueId ids[2];
  CHECK_OK(ncclGetUniqueId(&ids[0]));
  CHECK_OK(ncclGetUniqueId(&ids[1]));
  CHECK_IS(memcmp(&ids[0], &ids[1], sizeof(ids[0])), 0);
  int rank = sim_bootstrap_rank();
  cudaStream_t stream;
  CHECK_OK(cudaSetDevice(rank));
  CHECK_OK(cudaStreamCreate(&stream));
  ncclComm_t comms[3];
  for (int i = 0; i < 3; i++)
    CHECK_OK(ncclCommInitRank(&comms[i], sim_bootstrap_size(), ids[0], rank));
  for (int i = 0; i < 3; i++) {
    CHECK(count_ranks(comms[i], stream) == (float)sim_bootstrap_size());
    CHECK_OK(ncclCommDestroy(comms[i]));
  }
}

static void scalable(void)
{
  int rank = sim_bootstrap_rank();
  int size = sim_bootstrap_size();
  ncclUniqueId ids[2] = {sim_bootstrap_id(rank), sim_bootstrap_id(rank)};
  ncclComm_t comm;
  cudaStream_t stream;
  CHECK_OK(cudaSetDevice(rank));
  CHECK_OK(cudaStreamCreate(&stream));
  CHECK_OK(ncclCommInitRankScalable(&comm, size, rank, 2, ids, NULL));
  CHECK(count_ranks(comm, stream) == (float)size);
  CHECK_OK(ncclCommFinalize(comm));
  float *data = ones();
  CHECK_IS(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, comm, stream), ncclInvalidArgument);
  CHECK_OK(ncclCommDestroy(comm));
}

/* A plain collective that waits for a rank ends when its own rank aborts; the other rank's goes on waiting. */
static void abort_plain(void)
{
  struct job job = job_start();
  float *data = ones();
  if (job.rank == 0) {
    CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
    CHECK_OK(ncclCommAbort(job.comm));
    CHECK_OK(cudaStreamSynchronize(job.stream));
  }
  sim_bootstrap_barrier("aborted");
  if (job.rank == 1) {
    CHECK_OK(ncclCommRevoke(job.comm, 0));
    CHECK_IS(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream), ncclInvalidUsage);
    CHECK_OK(ncclCommDestroy(job.comm));
  }
}

static void dead_use(void)
{
  struct job job = job_start();
  float *data = ones();
  CHECK_OK(ncclCommDestroy(job.comm));
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
}

/* SIM_COMM_MEMORY: communicators cost device memory, and give it back. */
static void memory(void)
{
  struct job job = job_start();
  size_t before;
  size_t during;
  size_t after;
  size_t total;
  ncclComm_t child;
  CHECK_OK(cudaMemGetInfo(&before, &total));
  CHECK_OK(ncclCommSplit(job.comm, 0, 0, &child, NULL));
  CHECK_OK(cudaMemGetInfo(&during, &total));
  CHECK_OK(ncclCommDestroy(child));
  CHECK_OK(cudaMemGetInfo(&after, &total));
  CHECK_IS(before - during, 64 << 20);
  CHECK_IS(after, before);
  job_end(&job);
}

/* What NCCL calls by its exported names, an interposer sees. */
static int broadcasts;
static int registrations;

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
  broadcasts++;
  return pncclBroadcast(send, recv, count, type, root, comm, stream);
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *ptr, size_t size, void **handle)
{
  registrations++;
  return pncclCommRegister(comm, ptr, size, handle);
}

static void through_plt(void)
{
  struct job job = job_start();
  void *segment;
  CHECK_OK(ncclBcast(ones(), COUNT, ncclFloat32, 0, job.comm, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  CHECK_IS(broadcasts, 1);
  CHECK_OK(ncclMemAlloc(&segment, 5000));
  window_create(&job, segment, 5000);
  CHECK_IS(registrations, 1);
  job_end(&job);
  CHECK_OK(ncclMemFree(segment));
}

/* SIM_DELAY holds rank 0 back, nothing else changes. */
static void delayed(void)
{
  struct job job = job_start();
  CHECK(count_ranks(job.comm, job.stream) == (float)job.size);
  job_end(&job);
}

int main(int argc, char **argv)
{
  static const struct scenario scenarios[] = {
      {"split", split},
      {"split-absent", split_absent},
      {"split-failing", split_failing},
      {"shrink", shrink},
      {"configurations", configurations},
      {"nonblocking-child", nonblocking_child},
      {"init-absent", init_absent},
      {"duplicate-device", duplicate_device},
      {"comm-id", comm_id},
      {"scalable", scalable},
      {"abort-plain", abort_plain},
      {"dead-use", dead_use},
      {"memory", memory},
      {"through-plt", through_plt},
      {"delayed", delayed},
  };
  return scenario_main(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
