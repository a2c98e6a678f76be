/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: when the symmetric path is taken, and each way in which it bites. A scenario that ends in a hang is
 * expected to be killed by `ranks`, one that ends in a fault to die of it.
 */
#include "tests/sim/check.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define SEGMENT (8 * MIB)

enum { COUNT = 10007 };

static float value(int rank, size_t i)
{
  return (float)((i + 3 * (size_t)rank) % 1000);
}

static void fill(float *data, int rank, size_t count)
{
  for (size_t i = 0; i < count; i++)
    data[i] = value(rank, i);
}

/* How many elements of an all-gather's result are not what they ought to be. */
static size_t gather_errors(const struct job *job, const float *recv)
{
  size_t errors = 0;
  for (int r = 0; r < job->size; r++)
    for (size_t i = 0; i < COUNT; i++)
      errors += recv[(size_t)r * COUNT + i] != value(r, i);
  return errors;
}

static float sum_of(const struct job *job, size_t i)
{
  float sum = 0;
  for (int r = 0; r < job->size; r++)
    sum += value(r, i);
  return sum;
}

static void synchronize(const struct job *job)
{
  CHECK_OK(cudaStreamSynchronize(job->stream));
}

/* Sleeps for ever: what a rank does whose peers are to be seen hanging. */
static _Noreturn void stay(void)
{
  for (;;)
    pause();
}

/* The three collectives with both buffers in windows; in 3 ranks and more than one window. */
static void both_buffers(void)
{
  trace_start();
  struct job job = job_start();
  float *send = segment_create(SEGMENT);
  float *recv = segment_create(SEGMENT);
  window_create(&job, send, SEGMENT);
  window_create(&job, recv, SEGMENT);

  fill(send, job.rank, COUNT);
  CHECK_OK(ncclAllGather(send, recv, COUNT, ncclFloat32, job.comm, job.stream));
  synchronize(&job);
  CHECK_IS(gather_errors(&job, recv), 0);
  CHECK_IS(trace_count("[Symmetric] AllGather"), 1);

  fill(send, job.rank, COUNT * (size_t)job.size);
  CHECK_OK(ncclReduceScatter(send, recv, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  synchronize(&job);
  for (size_t i = 0; i < COUNT; i++)
    CHECK(recv[i] == sum_of(&job, i + COUNT * (size_t)job.rank));
  CHECK_IS(trace_count("[Symmetric] ReduceScatter"), 1);

  CHECK_OK(ncclAllReduce(send, recv, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_OK(ncclAllReduce(send, send, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  synchronize(&job);
  for (size_t i = 0; i < COUNT; i++)
    CHECK(recv[i] == sum_of(&job, i) && send[i] == recv[i]);
  CHECK_IS(trace_count("[Symmetric] AllReduce"), 2);
  CHECK_IS(trace_count("[Plain]"), 0);
  job_end(&job);
}

/* 2.28 wants both buffers in windows, 2.29.2 the one that peers touch; neither looks at other ops, types and calls. */
static void which_buffers(void)
{
  trace_start();
  struct job job = job_start();
  float *inside = segment_create(SEGMENT);
  float *outside = segment_create(SEGMENT);
  window_create(&job, inside, SEGMENT);

  CHECK_OK(ncclAllGather(outside, inside, COUNT, ncclFloat32, job.comm, job.stream));
  CHECK_OK(ncclReduceScatter(inside, outside, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  synchronize(&job);
  bool one_side = getenv("SIM_NCCL_VERSION") != NULL;
  CHECK_IS(trace_count("[Symmetric]"), one_side ? 2 : 0);
  CHECK_OK(ncclAllGather(inside, outside, COUNT, ncclFloat32, job.comm, job.stream));
  CHECK_OK(ncclReduceScatter(outside, inside, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_OK(ncclAllReduce(inside, outside, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_OK(ncclAllReduce(outside, inside, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  synchronize(&job);
  CHECK_IS(trace_count("[Symmetric]"), one_side ? 2 : 0);

  int before = trace_count("[Plain]");
  CHECK_OK(ncclAllReduce(inside, inside, COUNT, ncclFloat32, ncclMax, job.comm, job.stream));
  CHECK_OK(ncclReduceScatter(inside, inside + MIB, COUNT, ncclFloat32, ncclAvg, job.comm, job.stream));
  CHECK_OK(ncclAllReduce(inside, inside, COUNT, ncclFloat64, ncclSum, job.comm, job.stream));
  CHECK_OK(ncclAllReduce(inside, inside, COUNT, ncclInt32, ncclSum, job.comm, job.stream));
  CHECK_OK(ncclBroadcast(inside, inside, COUNT, ncclFloat32, 0, job.comm, job.stream));
  synchronize(&job);
  CHECK_IS(trace_count("[Plain]") - before, 5);
  CHECK_OK(ncclAllGather(inside, inside, COUNT, ncclInt64, job.comm, job.stream));
  synchronize(&job);
  CHECK_IS(trace_count("[Symmetric] AllGather"), one_side ? 2 : 1);
  job_end(&job);
}

/* 2.30.3 has an average of its own for reduce-scatter, and none for all-reduce: that reads outside a table. */
static void native_average(void)
{
  trace_start();
  struct job job = job_start();
  float *data = segment_create(SEGMENT);
  window_create(&job, data, SEGMENT);
  fill(data, job.rank, COUNT * (size_t)job.size);
  CHECK_OK(ncclReduceScatter(data, data + MIB, COUNT, ncclFloat32, ncclAvg, job.comm, job.stream));
  synchronize(&job);
  CHECK_IS(trace_count("[Symmetric] ReduceScatter"), 1);
  for (size_t i = 0; i < COUNT; i++)
    CHECK(data[MIB + i] == sum_of(&job, i + COUNT * (size_t)job.rank) / (float)job.size);
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclAvg, job.comm, job.stream));
}

/* Same window, another offset on rank 1: wrong data on some rank, and no error anywhere. */
static void unequal_offsets(void)
{
  struct job job = job_start();
  float *segment = segment_create(SEGMENT);
  window_create(&job, segment, SEGMENT);
  float *send = segment + (job.rank ? 512 : 0);
  float *recv = segment + MIB + (job.rank ? 512 : 0);
  fill(send, job.rank, COUNT);
  CHECK_OK(ncclAllGather(send, recv, COUNT, ncclFloat32, job.comm, job.stream));
  synchronize(&job);
  CHECK(gather_errors(&job, recv) > 0);
  ncclResult_t error = ncclInternalError;
  CHECK_OK(ncclCommGetAsyncError(job.comm, &error));
  CHECK_OK(error);
  job_end(&job);
}

/* Two windows of one size, registered in another order on rank 1: the same. */
static void unequal_order(void)
{
  struct job job = job_start();
  float *first = segment_create(SEGMENT);
  float *second = segment_create(SEGMENT);
  window_create(&job, job.rank ? second : first, SEGMENT);
  window_create(&job, job.rank ? first : second, SEGMENT);
  fill(first, job.rank, COUNT);
  CHECK_OK(ncclAllGather(first, first + MIB, COUNT, ncclFloat32, job.comm, job.stream));
  synchronize(&job);
  CHECK(gather_errors(&job, first + MIB) > 0);
  job_end(&job);
}

/* Offsets are given out in each rank's own order of register and deregister. */
static void unequal_deregister(void)
{
  struct job job = job_start();
  float *segments[3];
  ncclWindow_t windows[2];
  for (int i = 0; i < 3; i++)
    segments[i] = segment_create(SEGMENT);
  windows[0] = window_create(&job, segments[0], SEGMENT);
  windows[1] = window_create(&job, segments[1], SEGMENT);
  CHECK_OK(ncclCommWindowDeregister(job.comm, windows[job.rank]));
  window_create(&job, segments[2], SEGMENT);
  fill(segments[2], job.rank, COUNT);
  CHECK_OK(ncclAllGather(segments[2], segments[2] + MIB, COUNT, ncclFloat32, job.comm, job.stream));
  synchronize(&job);
  CHECK(gather_errors(&job, segments[2] + MIB) > 0);
  job_end(&job);
}

/* Rank 1's buffer is in no window: rank 0 waits on the symmetric barrier, rank 1 in the plain path, for ever. */
static void one_rank_only(void)
{
  struct job job = job_start();
  float *inside = segment_create(SEGMENT);
  float *outside = segment_create(SEGMENT);
  window_create(&job, inside, SEGMENT);
  float *data = job.rank ? outside : inside;
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  synchronize(&job);
}

/* The same, but abort ends the plain one and, from 2.29 on, the symmetric one. */
static void one_rank_only_abort(void)
{
  struct job job = job_start();
  float *inside = segment_create(SEGMENT);
  float *outside = segment_create(SEGMENT);
  window_create(&job, inside, SEGMENT);
  float *data = job.rank ? outside : inside;
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  sim_bootstrap_barrier("launched");
  CHECK_OK(ncclCommAbort(job.comm));
  synchronize(&job);
}

/* A process with a stuck stream can still exit. */
static void one_rank_only_exit(void)
{
  struct job job = job_start();
  float *data = segment_create(SEGMENT);
  if (job.rank == 0)
    CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  exit(0);
}

static void absent_rank(void)
{
  struct job job = job_start();
  if (job.rank == 1)
    stay();
  window_create(&job, segment_create(SEGMENT), SEGMENT);
}

/* With SIM_FAIL=ncclCommWindowRegister:1@rank1 rank 1 gets an error at once, and rank 0 stays where it is. */
static void failing_rank(void)
{
  struct job job = job_start();
  void *segment = segment_create(SEGMENT);
  ncclWindow_t window = NULL;
  ncclResult_t result = ncclCommWindowRegister(job.comm, segment, SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC);
  CHECK(job.rank == 1);
  CHECK_IS(result, ncclSystemError);
  stay();
}

/* ... until another thread aborts the communicator. */
static void *abort_main(void *comm)
{
  nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
  CHECK_OK(ncclCommAbort(comm));
  return NULL;
}

static void failing_rank_abort(void)
{
  struct job job = job_start();
  void *segment = segment_create(SEGMENT);
  ncclWindow_t window = NULL;
  pthread_t thread;
  CHECK_OK(pthread_create(&thread, NULL, abort_main, job.comm));
  CHECK(ncclCommWindowRegister(job.comm, segment, SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC) != ncclSuccess);
  CHECK(window == NULL);
  CHECK_OK(pthread_join(thread, NULL));
  sim_bootstrap_barrier("over");
}

/* cuMemMap takes whole handles only, and each rank maps its peers' with its own size: all fail, none hangs. */
static struct job unequal_sizes_start(void)
{
  struct job job = job_start();
  size_t size = job.rank ? SEGMENT : SEGMENT / 2;
  ncclWindow_t window = NULL;
  CHECK_IS(ncclCommWindowRegister(job.comm, segment_create(size), size, &window, NCCL_WIN_COLL_SYMMETRIC),
           ncclUnhandledCudaError);
  CHECK(window == NULL);
  return job;
}

static void unequal_sizes(void)
{
  struct job job = unequal_sizes_start();
  job_end(&job);
}

/* Rank 0 had mapped its own before it failed, which is now in its way; rank 1 waits for it. */
static void unequal_sizes_again(void)
{
  struct job job = unequal_sizes_start();
  ncclWindow_t window = NULL;
  void *segment = segment_create(SEGMENT);
  ncclResult_t result = ncclCommWindowRegister(job.comm, segment, SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC);
  CHECK(job.rank == 0);
  CHECK_IS(result, ncclUnhandledCudaError);
  stay(); /* its end would be seen */
}

/* Only the start of a buffer is looked up: one that runs past its window is taken all the same. */
static void past_window(void)
{
  trace_start();
  struct job job = job_start();
  float *segment = segment_create(SEGMENT);
  window_create(&job, segment, MIB);
  float *recv = segment + MIB / sizeof(float) - 64;
  fill(segment, job.rank, COUNT);
  CHECK_OK(ncclAllGather(segment, recv, COUNT, ncclFloat32, job.comm, job.stream));
  synchronize(&job);
  CHECK_IS(trace_count("[Symmetric] AllGather"), getenv("SIM_NCCL_VERSION") ? 0 : 1);
  CHECK_IS(gather_errors(&job, recv), 0);
  job_end(&job);
}

/* ... and one that runs past its segment faults. */
static void past_segment(void)
{
  struct job job = job_start();
  float *segment = segment_create(SEGMENT);
  window_create(&job, segment, SEGMENT);
  float *recv = segment + SEGMENT / sizeof(float) - 64;
  CHECK_OK(ncclAllGather(segment, recv, COUNT, ncclFloat32, job.comm, job.stream));
  synchronize(&job);
}

/* Memory of cudaMalloc, and a start that is no multiple of 4096, cannot be windows. */
static void unfit_memory(void)
{
  struct job job = job_start();
  void *plain;
  char *segment = segment_create(SEGMENT);
  ncclWindow_t window = (ncclWindow_t)&job;
  CHECK_OK(cudaMalloc(&plain, SEGMENT));
  CHECK_IS(ncclCommWindowRegister(job.comm, plain, SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC), ncclUnhandledCudaError);
  CHECK(window == NULL);
  window = (ncclWindow_t)&job;
  CHECK_IS(ncclCommWindowRegister(job.comm, segment + 512, MIB, &window, NCCL_WIN_COLL_SYMMETRIC), ncclInvalidArgument);
  CHECK(window == NULL);
  job_end(&job);
}

/* With NCCL_WIN_ENABLE=0: success, and a handle that means nothing (2.28) or none (from 2.29.2 on). */
static void disabled(void)
{
  trace_start();
  struct job job = job_start();
  float *segment = segment_create(SEGMENT);
  ncclWindow_t window = NULL;
  CHECK_OK(ncclCommWindowRegister(job.comm, segment, SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC));
  CHECK((window == NULL) == (getenv("SIM_NCCL_VERSION") != NULL));
  CHECK_OK(ncclAllReduce(segment, segment, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  synchronize(&job);
  CHECK_IS(trace_count("[Plain] AllReduce"), 1);
  CHECK_OK(ncclCommWindowDeregister(job.comm, window));
  job_end(&job);
}

/* In a group the handle comes at its end, and the window serves the group's own collectives. */
static void in_group(void)
{
  trace_start();
  struct job job = job_start();
  float *segment = segment_create(SEGMENT);
  ncclWindow_t window = NULL;
  CHECK_OK(ncclGroupStart());
  CHECK_OK(ncclAllReduce(segment, segment, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_OK(ncclCommWindowRegister(job.comm, segment, SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC));
  CHECK(window == NULL);
  CHECK_OK(ncclGroupEnd());
  CHECK(window != NULL);
  synchronize(&job);
  CHECK_IS(trace_count("[Symmetric] AllReduce"), 1);
  CHECK_OK(ncclCommWindowDeregister(job.comm, window));
  CHECK_OK(ncclAllReduce(segment, segment, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  synchronize(&job);
  CHECK_IS(trace_count("[Plain] AllReduce"), 1);
  job_end(&job);
}

/* Registration allocates, and so breaks a capture in global mode; from 2.30.7 on it does not. */
static void in_capture(void)
{
  struct job job = job_start();
  void *segment = segment_create(SEGMENT);
  ncclWindow_t window = NULL;
  cudaGraph_t graph;
  bool careful = getenv("SIM_NCCL_VERSION") != NULL;
  CHECK_OK(cudaStreamBeginCapture(job.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ncclResult_t result = ncclCommWindowRegister(job.comm, segment, SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC);
  CHECK_IS(result, careful ? ncclSuccess : ncclUnhandledCudaError);
  CHECK_IS(cudaStreamEndCapture(job.stream, &graph), careful ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
  CHECK((window != NULL) == careful);
  if (careful)
    CHECK_OK(cudaGraphDestroy(graph));
  job_end(&job);
}

/* Symmetric work in a graph. */
static void graphs(void)
{
  trace_start();
  struct job job = job_start();
  float *data = segment_create(SEGMENT);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  window_create(&job, data, SEGMENT);
  for (size_t i = 0; i < COUNT; i++)
    data[i] = 1;
  CHECK_OK(cudaStreamBeginCapture(job.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_OK(cudaStreamEndCapture(job.stream, &graph));
  CHECK_IS(trace_count("[Symmetric] AllReduce"), 1);
  CHECK_OK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_OK(cudaGraphLaunch(exec, job.stream));
  CHECK_OK(cudaGraphLaunch(exec, job.stream));
  synchronize(&job);
  for (size_t i = 0; i < COUNT; i++)
    CHECK(data[i] == (float)(job.size * job.size));
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphDestroy(graph));
  job_end(&job);
}

/* Deregistering does not wait for the work on the window, which then faults. */
static void deregister_in_use(void)
{
  struct job job = job_start();
  float *segment = segment_create(SEGMENT);
  ncclWindow_t window = window_create(&job, segment, SEGMENT);
  if (job.rank == 0)
    CHECK_OK(ncclAllReduce(segment, segment, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  sim_bootstrap_barrier("launched");
  if (job.rank == 0)
    CHECK_OK(ncclCommWindowDeregister(job.comm, window));
  sim_bootstrap_barrier("gone");
  if (job.rank == 1)
    CHECK_OK(ncclAllReduce(segment, segment, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  if (job.rank == 1)
    stay(); /* until rank 0 has died */
  synchronize(&job);
}

/* Two mappings of one handle: a window over the second keeps the first one's addresses outside of it. */
static void second_mapping(void)
{
  trace_start();
  struct job job = job_start();
  float *first = segment_create(SEGMENT);
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, job.rank}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr base;
  CHECK_OK(cuMemRetainAllocationHandle(&handle, first));
  CHECK_OK(cuMemAddressReserve(&base, SEGMENT, 0, 0, 0));
  CHECK_OK(cuMemMap(base, SEGMENT, 0, handle, 0));
  CHECK_OK(cuMemSetAccess(base, SEGMENT, &access, 1));
  float *second = (float *)(uintptr_t)base;
  window_create(&job, second, SEGMENT);
  for (size_t i = 0; i < COUNT; i++)
    first[i] = 1;
  CHECK_OK(ncclAllReduce(first, first, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_OK(ncclAllReduce(second, second, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  synchronize(&job);
  CHECK_IS(trace_count("[Plain] AllReduce"), 1);
  CHECK_IS(trace_count("[Symmetric] AllReduce"), 1);
  for (size_t i = 0; i < COUNT; i++)
    CHECK(first[i] == (float)(job.size * job.size));
  job_end(&job);
}

/* A child's windows are not its parent's. Where it wants no CTAs, all-gathers go by copy engine. */
static void child(void)
{
  trace_start();
  struct job job = job_start();
  struct job inner = job;
  ncclConfig_t config = SIM_NCCL_CONFIG_INITIALIZER;
  float *data = segment_create(SEGMENT);
  config.CTAPolicy = 2;
  CHECK_OK(ncclCommSplit(job.comm, 0, job.rank, &inner.comm, &config));
  window_create(&inner, data, SEGMENT);
  fill(data, job.rank, COUNT);
  CHECK_OK(ncclAllGather(data, data + MIB, COUNT, ncclFloat32, job.comm, job.stream));
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, inner.comm, job.stream));
  synchronize(&job);
  CHECK_IS(gather_errors(&job, data + MIB), 0);
  CHECK_IS(trace_count("[Plain] AllGather"), 1);
  CHECK_IS(trace_count("[Symmetric] AllReduce"), 1);
  CHECK_IS(trace_count("copy_engine"), 0);
  fill(data, job.rank, COUNT);
  CHECK_OK(ncclAllGather(data, data + MIB, COUNT, ncclFloat32, inner.comm, job.stream));
  synchronize(&job);
  CHECK_IS(gather_errors(&job, data + MIB), 0);
  CHECK_IS(trace_count("copy_engine"), 1);
  CHECK_OK(ncclCommAbort(inner.comm));
  job_end(&job);
}

/* A non-blocking communicator's call returns at once, without the window. */
static void nonblocking(void)
{
  struct job job = {.rank = sim_bootstrap_rank(), .size = sim_bootstrap_size()};
  ncclConfig_t config = SIM_NCCL_CONFIG_INITIALIZER;
  ncclResult_t state = ncclInProgress;
  ncclWindow_t window = NULL;
  config.blocking = 0;
  CHECK_OK(cudaSetDevice(job.rank));
  ncclUniqueId id = sim_bootstrap_id(job.rank);
  CHECK_IS(ncclCommInitRankConfig(&job.comm, job.size, id, job.rank, &config), ncclInProgress);
  while (state == ncclInProgress)
    CHECK_OK(ncclCommGetAsyncError(job.comm, &state));
  CHECK_OK(state);

  float *segment = segment_create(SEGMENT);
  if (job.rank == 0) {
    /* Rank 1 has not come yet, so it cannot be done; and in the middle of it nothing else goes. */
    CHECK_OK(ncclCommWindowRegister(job.comm, segment, SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(window == NULL);
    CHECK_IS(ncclAllReduce(segment, segment, COUNT, ncclFloat32, ncclSum, job.comm, NULL), ncclInvalidArgument);
  }
  sim_bootstrap_barrier("asked");
  if (job.rank == 1)
    CHECK_OK(ncclCommWindowRegister(job.comm, segment, SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC));
  /* The call that was too early is the state of rank 0's, until the registration sets it anew. */
  for (state = ncclInProgress; state == ncclInProgress || (job.rank == 0 && state == ncclInvalidArgument);)
    CHECK_OK(ncclCommGetAsyncError(job.comm, &state));
  CHECK_OK(state);
  CHECK(window != NULL);
  CHECK_OK(ncclCommDestroy(job.comm));
}

static ncclResult_t put_to_next(const struct job *job, const float *from, ncclWindow_t window, size_t offset)
{
  return ncclPutSignal(from, COUNT, ncclFloat32, (job->rank + 1) % job->size, window, offset, 0, 0, 0, job->comm,
                       job->stream);
}

/* A put lands in the next rank's part of the window, and a wait ends when it is there. */
static void one_sided(void)
{
  struct job job = job_start();
  int before = (job.rank + job.size - 1) % job.size, version;
  ncclWaitSignalDesc_t from_before = {.opCnt = 2, .peer = before};
  float *segment = segment_create(SEGMENT), *outside = segment_create(SEGMENT);
  size_t half = SEGMENT / 2 / sizeof(float);
  ncclWindow_t window = window_create(&job, segment, SEGMENT);

  CHECK_OK(ncclGetVersion(&version));
  fill(segment, job.rank, COUNT);
  memset(segment + half, 0, COUNT * sizeof(float));
  sim_bootstrap_barrier("empty"); /* before anybody puts something there */
  if (version < 22902) {
    CHECK_IS(put_to_next(&job, segment, window, SEGMENT / 2), ncclInvalidUsage);
    job_end(&job);
    return;
  }
  CHECK_IS(put_to_next(&job, outside, window, 0), ncclInvalidArgument);
  CHECK_IS(put_to_next(&job, segment, window, SEGMENT - sizeof(float)), ncclInvalidArgument);
  CHECK_OK(put_to_next(&job, segment, window, SEGMENT / 2));
  CHECK_OK(ncclSignal((job.rank + 1) % job.size, 0, 0, 0, job.comm, job.stream));
  CHECK_OK(ncclWaitSignal(1, &from_before, job.comm, job.stream));
  synchronize(&job);
  for (size_t i = 0; i < COUNT; i++)
    CHECK(segment[half + i] == value(before, i));
  job_end(&job);
}

/* A wait for a signal that nobody gives. */
static void unsignalled(void)
{
  struct job job = job_start();
  ncclWaitSignalDesc_t desc = {.opCnt = 1, .peer = 0};

  CHECK_OK(ncclWaitSignal(1, &desc, job.comm, job.stream));
  synchronize(&job);
}

int main(int argc, char **argv)
{
  static const struct scenario scenarios[] = {
      {"one-sided", one_sided},
      {"unsignalled", unsignalled},
      {"both-buffers", both_buffers},
      {"which-buffers", which_buffers},
      {"native-average", native_average},
      {"unequal-offsets", unequal_offsets},
      {"unequal-order", unequal_order},
      {"unequal-deregister", unequal_deregister},
      {"one-rank-only", one_rank_only},
      {"one-rank-only-abort", one_rank_only_abort},
      {"one-rank-only-exit", one_rank_only_exit},
      {"absent-rank", absent_rank},
      {"failing-rank", failing_rank},
      {"failing-rank-abort", failing_rank_abort},
      {"unequal-sizes", unequal_sizes},
      {"unequal-sizes-again", unequal_sizes_again},
      {"past-window", past_window},
      {"past-segment", past_segment},
      {"unfit-memory", unfit_memory},
      {"disabled", disabled},
      {"in-group", in_group},
      {"in-capture", in_capture},
      {"graphs", graphs},
      {"deregister-in-use", deregister_in_use},
      {"second-mapping", second_mapping},
      {"child", child},
      {"nonblocking", nonblocking},
  };
  return scenario_main(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
