/* SPDX-License-Identifier: Apache-2.0 */
/* States of a communicator: under way, in error, revoked, suspended, and in a graph. */
#include "tests/sim/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

enum { COUNT = 1000 };

#define SEGMENT ((size_t)2 << 20)
#define MS (1000L * 1000)

static float *ones(void)
{
  void *data;
  CHECK_OK(cudaMallocHost(&data, COUNT * sizeof(float)));
  for (size_t i = 0; i < COUNT; i++)
    ((float *)data)[i] = 1;
  return data;
}

static ncclResult_t sum(ncclComm_t comm, float *data, cudaStream_t stream)
{
  return ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, comm, stream);
}

static ncclResult_t state_of(ncclComm_t comm)
{
  ncclResult_t state = ncclInternalError;
  CHECK_OK(ncclCommGetAsyncError(comm, &state));
  return state;
}

static ncclResult_t settled(ncclComm_t comm)
{
  while (state_of(comm) == ncclInProgress)
    nanosleep(&(struct timespec){.tv_nsec = MS}, NULL);
  return state_of(comm);
}

/* A non-blocking communicator, ready. */
static struct job nonblocking_start(void)
{
  struct job job = {.rank = sim_bootstrap_rank(), .size = sim_bootstrap_size()};
  ncclConfig_t config = SIM_NCCL_CONFIG_INITIALIZER;
  float *data = ones();
  int count;
  config.blocking = 0;
  CHECK_OK(cudaSetDevice(job.rank));
  CHECK_OK(cudaStreamCreateWithFlags(&job.stream, CU_STREAM_NON_BLOCKING));
  CHECK_IS(ncclCommInitRankConfig(&job.comm, job.size, sim_bootstrap_id(job.rank), job.rank, &config), ncclInProgress);
  CHECK(job.comm != NULL);
  CHECK_IS(ncclCommCount(job.comm, &count), ncclInvalidArgument);
  CHECK_IS(sum(job.comm, data, job.stream), ncclInvalidArgument);
  CHECK_IS(settled(job.comm), ncclInvalidArgument); /* the wrong call has become its state ... */
  while (state_of(job.comm) == ncclInvalidArgument) /* ... until the init ends */
    nanosleep(&(struct timespec){.tv_nsec = MS}, NULL);
  CHECK_OK(state_of(job.comm));
  return job;
}

/* SIM_DELAY=nonblocking:*=50 makes sure of what is under way. */
static void nonblocking_work(void)
{
  struct job job = nonblocking_start();
  cudaEvent_t event;
  float *data = ones();
  CHECK_OK(cudaEventCreate(&event));

  /* The work comes to the stream after the call has returned, and after what follows the call. */
  CHECK_IS(sum(job.comm, data, job.stream), ncclInProgress);
  CHECK_OK(cudaEventRecord(event, job.stream));
  CHECK_OK(cudaEventSynchronize(event));
  nanosleep(&(struct timespec){.tv_nsec = 20 * MS}, NULL);
  CHECK(data[0] == 1);
  CHECK_IS(state_of(job.comm), ncclInProgress);
  CHECK_OK(settled(job.comm));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  CHECK(data[0] == (float)job.size);

  /* In a group the end has it. */
  CHECK_OK(ncclGroupStart());
  CHECK_OK(sum(job.comm, data, job.stream));
  CHECK_IS(ncclGroupEnd(), ncclInProgress);
  CHECK_OK(settled(job.comm));

  CHECK_IS(ncclCommFinalize(job.comm), ncclInProgress);
  CHECK_OK(settled(job.comm));
  CHECK_OK(ncclCommDestroy(job.comm));
}

static void nonblocking_window(void)
{
  struct job job = nonblocking_start();
  ncclWindow_t window = NULL;
  CHECK_OK(ncclCommWindowRegister(job.comm, segment_create(SEGMENT), SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC));
  CHECK(window == NULL);
  CHECK_OK(settled(job.comm));
  CHECK(window != NULL);
  CHECK_OK(ncclCommDestroy(job.comm));
}

static void nonblocking_split(void)
{
  struct job job = nonblocking_start();
  ncclComm_t child = job.comm;
  CHECK_OK(ncclCommSplit(job.comm, 0, 0, &child, NULL)); /* and yet it is not there */
  CHECK(child == NULL);
  CHECK_IS(state_of(job.comm), ncclInProgress);
  CHECK_OK(settled(job.comm));
  CHECK(child != NULL);
  CHECK_OK(state_of(child));
  CHECK_OK(ncclCommDestroy(child));
  CHECK_OK(ncclCommDestroy(job.comm));
}

/* Destroying it too early fails, and leaves the thread in a group. */
static void nonblocking_destroy(void)
{
  struct job job = nonblocking_start();
  float *data = ones();
  CHECK_IS(sum(job.comm, data, job.stream), ncclInProgress);
  CHECK_IS(ncclCommDestroy(job.comm), ncclInvalidArgument);
  CHECK_OK(settled(job.comm));
  CHECK_OK(sum(job.comm, data, job.stream));
  CHECK_OK(state_of(job.comm)); /* nothing was started */
  CHECK_IS(ncclGroupEnd(), ncclInProgress);
  CHECK_OK(settled(job.comm));
  CHECK_OK(ncclCommDestroy(job.comm));
  CHECK_IS(ncclGroupEnd(), ncclInvalidUsage);
}

/* SIM_ASYNC_ERROR=child:2@rank1=6 */
static void async_error(void)
{
  struct job job = job_start();
  ncclComm_t child;
  float *data = ones();
  ncclResult_t error = job.rank == 1 ? ncclRemoteError : ncclSuccess;
  CHECK_OK(ncclCommSplit(job.comm, 0, job.rank, &child, NULL));
  CHECK_OK(sum(child, data, job.stream));
  CHECK_OK(state_of(child));
  CHECK_OK(sum(child, data, job.stream));
  CHECK_IS(state_of(child), error);
  CHECK_OK(cudaStreamSynchronize(job.stream));
  if (job.rank == 1) {
    ncclWindow_t window;
    CHECK_IS(sum(child, data, job.stream), ncclRemoteError);
    CHECK_IS(ncclCommWindowRegister(child, data, SEGMENT, &window, 0), ncclRemoteError);
    CHECK_IS(ncclCommDestroy(child), ncclRemoteError);
    CHECK_OK(ncclGroupEnd()); /* which the destroy has left open */
    CHECK_IS(ncclGroupEnd(), ncclInvalidUsage);
  }
  CHECK_OK(ncclCommAbort(child));
  CHECK_OK(sum(job.comm, data, job.stream));
  CHECK_OK(state_of(job.comm));
  job_end(&job);
}

/* Ends what waits for a rank that does not come, and leaves what the bootstrap is needed for. */
static void revoke(void)
{
  struct job job = job_start();
  ncclComm_t child;
  float *data = ones();
  CHECK_IS(ncclCommRevoke(job.comm, 1), ncclInvalidArgument);
  if (job.rank == 0)
    CHECK_OK(sum(job.comm, data, job.stream));
  CHECK_OK(ncclCommRevoke(job.comm, 0));
  CHECK_OK(cudaStreamQuery(job.stream));
  CHECK_IS(sum(job.comm, data, job.stream), ncclInvalidUsage);
  CHECK_IS(ncclCommRevoke(job.comm, 0), ncclInvalidArgument);
  CHECK_IS(ncclCommFinalize(job.comm), ncclInvalidArgument);
  CHECK_OK(ncclCommSplit(job.comm, 0, job.rank, &child, NULL));
  CHECK_OK(sum(child, data, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  CHECK_OK(ncclCommDestroy(child));
  job_end(&job);
}

static size_t free_memory(void)
{
  size_t free;
  size_t total;
  CHECK_OK(cudaMemGetInfo(&free, &total));
  return free;
}

/* SIM_COMM_MEMORY=64M */
static void suspend(void)
{
  struct job job = job_start();
  float *data = ones();
  size_t before = free_memory();
  int version;
  CHECK_OK(ncclGetVersion(&version));
  if (version < 22907) {
    CHECK_IS(ncclCommSuspend(job.comm, 1), ncclInvalidUsage);
    CHECK_IS(ncclCommResume(job.comm), ncclInvalidUsage);
  } else {
    CHECK_OK(ncclCommSuspend(job.comm, 0));
    CHECK_IS(ncclCommResume(job.comm), ncclInvalidUsage);
    CHECK_OK(ncclCommSuspend(job.comm, 1));
    CHECK_IS(free_memory() - before, 64 << 20);
    CHECK_IS(ncclCommSuspend(job.comm, 1), ncclInvalidUsage);
    CHECK_OK(ncclCommResume(job.comm));
    CHECK_IS(free_memory(), before);
  }
  CHECK_OK(sum(job.comm, data, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  CHECK(data[0] == (float)job.size);
  job_end(&job);
}

static void suspended_use(void)
{
  struct job job = job_start();
  CHECK_OK(ncclCommSuspend(job.comm, 1));
  CHECK_OK(sum(job.comm, ones(), job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
}

struct captured {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  atomic_bool gone;
};

static void capture(const struct job *job, struct captured *captured)
{
  float *data = ones();
  CHECK_OK(cudaStreamBeginCapture(job->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK_OK(sum(job->comm, data, job->stream));
  CHECK_OK(cudaStreamEndCapture(job->stream, &captured->graph));
  CHECK_OK(cudaGraphInstantiate(&captured->exec, captured->graph, 0));
  atomic_store(&captured->gone, false);
}

static void *graph_destroy_main(void *arg)
{
  struct captured *captured = arg;
  CHECK_OK(cudaGraphDestroy(captured->graph));
  nanosleep(&(struct timespec){.tv_nsec = 60 * MS}, NULL);
  atomic_store(&captured->gone, true);
  CHECK_OK(cudaGraphExecDestroy(captured->exec));
  return NULL;
}

/* The communicator's end waits for the graphs that it is in. */
static void end_waits(ncclResult_t (*end)(ncclComm_t comm))
{
  struct job job = job_start();
  struct captured captured;
  pthread_t thread;
  capture(&job, &captured);
  CHECK_OK(pthread_create(&thread, NULL, graph_destroy_main, &captured));
  CHECK_OK(end(job.comm));
  CHECK(atomic_load(&captured.gone));
  CHECK_OK(pthread_join(thread, NULL));
}

static void graph_destroy(void)
{
  end_waits(ncclCommDestroy);
}

static void graph_abort(void)
{
  end_waits(ncclCommAbort);
}

static void graph_finalize(void)
{
  end_waits(ncclCommFinalize);
}

static void graph_stays(void)
{
  struct job job = job_start();
  struct captured captured;
  capture(&job, &captured);
  CHECK_OK(ncclCommAbort(job.comm));
}

/* Broken captures hold nothing, ... */
static void graph_broken(void)
{
  struct job job = job_start();
  cudaGraph_t graph;
  float *data = ones();
  CHECK_OK(cudaStreamBeginCapture(job.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK_OK(sum(job.comm, data, job.stream));
  CHECK_IS(cudaStreamSynchronize(job.stream), cudaErrorStreamCaptureUnsupported);
  CHECK_IS(cudaStreamEndCapture(job.stream, &graph), cudaErrorStreamCaptureInvalidated);
  job_end(&job);
}

/* ... and one rank alone is in none. */
static void graph_alone(void)
{
  struct job job = job_start();
  struct captured captured;
  capture(&job, &captured);
  job_end(&job);
}

/* A revoked one does not wait, and then is not there for its graphs. */
static void revoked_graph(struct captured *captured, struct job *job)
{
  *job = job_start();
  capture(job, captured);
  CHECK_OK(ncclCommRevoke(job->comm, 0));
  CHECK_OK(ncclCommDestroy(job->comm));
}

static void dead_graph_launch(void)
{
  struct job job;
  struct captured captured;
  revoked_graph(&captured, &job);
  CHECK_OK(cudaGraphLaunch(captured.exec, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
}

static void dead_graph_destroy(void)
{
  struct job job;
  struct captured captured;
  revoked_graph(&captured, &job);
  CHECK_OK(cudaGraphDestroy(captured.graph));
  CHECK_OK(cudaGraphExecDestroy(captured.exec));
  nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
}

int main(int argc, char **argv)
{
  static const struct scenario scenarios[] = {
      {"nonblocking-work", nonblocking_work},
      {"nonblocking-window", nonblocking_window},
      {"nonblocking-split", nonblocking_split},
      {"nonblocking-destroy", nonblocking_destroy},
      {"async-error", async_error},
      {"revoke", revoke},
      {"suspend", suspend},
      {"suspended-use", suspended_use},
      {"graph-destroy", graph_destroy},
      {"graph-abort", graph_abort},
      {"graph-finalize", graph_finalize},
      {"graph-stays", graph_stays},
      {"graph-broken", graph_broken},
      {"graph-alone", graph_alone},
      {"dead-graph-launch", dead_graph_launch},
      {"dead-graph-destroy", dead_graph_destroy},
  };
  return scenario_main(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
