/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives without windows: every operation, type and reduction, in place and not, in groups, on two streams. */
#include "tests/sim/check.h"
#include "tests/sim/numeric.h"

/* Larger than a slot for the 8-byte types, and no multiple of anything. */
enum { COUNT = 40009, MAX_RANKS = 8 };

static const char *const type_names[] = {"int8", "uint8", "int32", "uint32", "int64", "uint64",
                                         "fp16", "fp32",  "fp64",  "bf16",   "e4m3",  "e5m2"};

/* 1 or 2: exact in every type, and so are sums and products over up to 3 ranks. */
static float input(int rank, size_t i)
{
  return (float)((i * 7 + (size_t)rank * 3) % 5 % 2 + 1);
}

static void *buffer(ncclDataType_t type, size_t count)
{
  void *ptr;
  CHECK_OK(cudaMalloc(&ptr, count * numeric_size(type)));
  return ptr;
}

static void fill(void *ptr, ncclDataType_t type, int rank, size_t first, size_t count)
{
  for (size_t i = 0; i < count; i++)
    numeric_store(type, ptr, i, input(rank, first + i));
}

static float expected(ncclRedOp_t op, int size, size_t i)
{
  float value = input(0, i);
  for (int r = 1; r < size; r++) {
    float next = input(r, i);
    value = op == ncclSum    ? value + next
            : op == ncclProd ? value * next
            : op == ncclMax  ? (next > value ? next : value)
                             : (next < value ? next : value);
  }
  return value;
}

static void compare(const void *ptr, ncclDataType_t type, size_t at, float wanted, const char *what)
{
  float got = numeric_load(type, ptr, at);
  if (got == wanted)
    return;
  fprintf(stderr, "rank %d: %s %s: element %zu is %g, not %g\n", sim_bootstrap_rank(), what, type_names[type], at,
          (double)got, (double)wanted);
  _Exit(CHECK_FAILED);
}

static void all_reduce(const struct job *job, ncclDataType_t type, ncclRedOp_t op, bool in_place)
{
  void *send = buffer(type, COUNT);
  void *recv = in_place ? send : buffer(type, COUNT);
  fill(send, type, job->rank, 0, COUNT);
  CHECK_OK(ncclAllReduce(send, recv, COUNT, type, op, job->comm, job->stream));
  CHECK_OK(cudaStreamSynchronize(job->stream));
  for (size_t i = 0; i < COUNT; i++)
    compare(recv, type, i, expected(op, job->size, i), "AllReduce");
  CHECK_OK(cudaFree(send));
  if (!in_place)
    CHECK_OK(cudaFree(recv));
}

static void reduce_scatter(const struct job *job, ncclDataType_t type, ncclRedOp_t op, bool in_place)
{
  size_t all = COUNT * (size_t)job->size;
  size_t mine = COUNT * (size_t)job->rank;
  char *send = buffer(type, all);
  char *recv = in_place ? send + mine * numeric_size(type) : buffer(type, COUNT);
  fill(send, type, job->rank, 0, all);
  CHECK_OK(ncclReduceScatter(send, recv, COUNT, type, op, job->comm, job->stream));
  CHECK_OK(cudaStreamSynchronize(job->stream));
  for (size_t i = 0; i < COUNT; i++)
    compare(recv, type, i, expected(op, job->size, mine + i), "ReduceScatter");
  CHECK_OK(cudaFree(send));
  if (!in_place)
    CHECK_OK(cudaFree(recv));
}

static void all_gather(const struct job *job, ncclDataType_t type, bool in_place)
{
  char *recv = buffer(type, COUNT * (size_t)job->size);
  char *send = in_place ? recv + COUNT * (size_t)job->rank * numeric_size(type) : buffer(type, COUNT);
  fill(send, type, job->rank, 0, COUNT);
  CHECK_OK(ncclAllGather(send, recv, COUNT, type, job->comm, job->stream));
  CHECK_OK(cudaStreamSynchronize(job->stream));
  for (int r = 0; r < job->size; r++)
    for (size_t i = 0; i < COUNT; i++)
      compare(recv, type, COUNT * (size_t)r + i, input(r, i), "AllGather");
  CHECK_OK(cudaFree(recv));
  if (!in_place)
    CHECK_OK(cudaFree(send));
}

static void every_type(void)
{
  struct job job = job_start();
  for (ncclDataType_t type = 0; type < ncclNumTypes; type++) {
    for (ncclRedOp_t op = ncclSum; op <= ncclMin; op++) {
      all_reduce(&job, type, op, op % 2);
      reduce_scatter(&job, type, op, op % 2 == 0);
    }
    all_gather(&job, type, type % 2);
  }
  job_end(&job);
}

/* Calls with a root, and the three whose parts go to all. */
static void rooted(void)
{
  struct job job = job_start();
  const size_t all = COUNT * (size_t)job.size;
  float *send = buffer(ncclFloat32, all);
  float *recv = buffer(ncclFloat32, all);
  const int last = job.size - 1;

  fill(send, ncclFloat32, job.rank, 0, all);
  CHECK_OK(ncclReduce(send, recv, COUNT, ncclFloat32, ncclMax, last, job.comm, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  for (size_t i = 0; i < COUNT && job.rank == last; i++)
    compare(recv, ncclFloat32, i, expected(ncclMax, job.size, i), "Reduce");

  CHECK_OK(ncclBroadcast(send, recv, COUNT, ncclFloat32, last, job.comm, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  for (size_t i = 0; i < COUNT; i++)
    compare(recv, ncclFloat32, i, input(last, i), "Broadcast");

  CHECK_OK(ncclAlltoAll(send, recv, COUNT, ncclFloat32, job.comm, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  for (size_t i = 0; i < all; i++)
    compare(recv, ncclFloat32, i, input((int)(i / COUNT), COUNT * (size_t)job.rank + i % COUNT), "AlltoAll");

  CHECK_OK(ncclScatter(send, recv, COUNT, ncclFloat32, 0, job.comm, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  for (size_t i = 0; i < COUNT; i++)
    compare(recv, ncclFloat32, i, input(0, COUNT * (size_t)job.rank + i), "Scatter");

  CHECK_OK(ncclGather(send, recv, COUNT, ncclFloat32, last, job.comm, job.stream));
  CHECK_OK(ncclBcast(send, COUNT, ncclFloat32, 0, job.comm, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  for (size_t i = 0; i < all && job.rank == last; i++)
    compare(recv, ncclFloat32, i, input((int)(i / COUNT), i % COUNT), "Gather");
  for (size_t i = 0; i < COUNT; i++)
    compare(send, ncclFloat32, i, input(0, i), "Bcast");
  job_end(&job);
}

/* A ring of sends and receives, each rank to the next, and to itself; then nested groups of collectives. */
static void groups(void)
{
  struct job job = job_start();
  const int next = (job.rank + 1) % job.size;
  const int before = (job.rank + job.size - 1) % job.size;
  float *send = buffer(ncclFloat32, COUNT);
  float *recv = buffer(ncclFloat32, COUNT);
  float *self = buffer(ncclFloat32, COUNT);
  fill(send, ncclFloat32, job.rank, 0, COUNT);
  CHECK_OK(ncclGroupStart());
  CHECK_OK(ncclSend(send, COUNT, ncclFloat32, next, job.comm, job.stream));
  CHECK_OK(ncclSend(send, COUNT, ncclFloat32, job.rank, job.comm, job.stream));
  CHECK_OK(ncclRecv(self, COUNT, ncclFloat32, job.rank, job.comm, job.stream));
  CHECK_OK(ncclRecv(recv, COUNT, ncclFloat32, before, job.comm, job.stream));
  CHECK_OK(ncclGroupEnd());
  CHECK_OK(cudaStreamSynchronize(job.stream));
  for (size_t i = 0; i < COUNT; i++) {
    compare(recv, ncclFloat32, i, input(before, i), "Recv");
    compare(self, ncclFloat32, i, input(job.rank, i), "Recv from itself");
  }

  CHECK_OK(ncclGroupStart());
  CHECK_OK(ncclGroupStart());
  CHECK_OK(ncclAllReduce(send, recv, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_OK(ncclGroupEnd());
  /* Nothing is launched before the outermost end. */
  CHECK_OK(cudaStreamSynchronize(job.stream));
  compare(recv, ncclFloat32, 1, input(before, 1), "what was there before the group's end");
  CHECK_OK(ncclAllReduce(recv, self, COUNT, ncclFloat32, ncclMin, job.comm, job.stream));
  CHECK_OK(ncclGroupEnd());
  CHECK_OK(cudaStreamSynchronize(job.stream));
  for (size_t i = 0; i < COUNT; i++)
    compare(self, ncclFloat32, i, expected(ncclSum, job.size, i), "grouped AllReduce");
  CHECK_IS(ncclGroupEnd(), ncclInvalidUsage);

  /* A call that fails takes its group with it. */
  CHECK_OK(ncclGroupStart());
  CHECK_OK(ncclAllReduce(send, recv, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_IS(ncclAllReduce(send, recv, COUNT, ncclNumTypes, ncclSum, job.comm, job.stream), ncclInvalidArgument);
  CHECK_IS(ncclGroupEnd(), ncclInvalidArgument);
  job_end(&job);
}

/* One communicator's work keeps its order over two streams that know nothing of each other. */
static void two_streams(void)
{
  enum { STEPS = 50, SMALL = 1000 };
  struct job job = job_start();
  cudaStream_t other;
  CHECK_OK(cudaStreamCreateWithFlags(&other, CU_STREAM_NON_BLOCKING));
  float *data = buffer(ncclFloat32, SMALL);
  for (size_t i = 0; i < SMALL; i++)
    data[i] = 1;
  for (int step = 0; step < STEPS; step++) {
    cudaStream_t stream = step % 2 ? other : job.stream;
    ncclRedOp_t op = step % 3 == 0 ? ncclSum : step % 3 == 1 ? ncclMax : ncclAvg;
    CHECK_OK(ncclAllReduce(data, data, SMALL, ncclFloat32, op, job.comm, stream));
  }
  CHECK_OK(cudaDeviceSynchronize());
  float wanted = 1;
  for (int step = 0; step < STEPS; step += 3)
    wanted *= (float)job.size;
  for (size_t i = 0; i < SMALL; i++)
    compare(data, ncclFloat32, i, wanted, "chained AllReduce");
  job_end(&job);
}

/* An average multiplies each contribution, rounded to the type, and adds then: not what a scale after the sum gives. */
static void average(void)
{
  struct job job = job_start();
  const ncclDataType_t type = ncclBfloat16;
  uint16_t *send = buffer(type, COUNT);
  uint16_t *recv = buffer(type, COUNT);
  size_t differs = 0;
  for (size_t i = 0; i < COUNT; i++)
    numeric_store(type, send, i, (float)(i % 97) + (float)job.rank / 8);
  CHECK_OK(ncclAllReduce(send, recv, COUNT, type, ncclAvg, job.comm, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  for (size_t i = 0; i < COUNT; i++) {
    uint16_t factor;
    uint16_t sum = 0;
    uint16_t after = 0;
    numeric_store(type, &factor, 0, 1.0F / (float)job.size);
    for (int r = 0; r < job.size; r++) {
      uint16_t part;
      numeric_store(type, &part, 0, (float)(i % 97) + (float)r / 8);
      numeric_reduce(type, ncclSum, &after, &part, 1);
      numeric_scale(type, &part, &factor, 1);
      numeric_reduce(type, ncclSum, &sum, &part, 1);
    }
    numeric_scale(type, &after, &factor, 1);
    compare(recv, type, i, numeric_load(type, &sum, 0), "AllReduce of averages");
    differs += sum != after;
  }
  CHECK(job.size == 2 || differs > COUNT / 100);

  int32_t *numbers = buffer(ncclInt32, COUNT);
  for (size_t i = 0; i < COUNT; i++)
    numbers[i] = (int32_t)i * 3 + job.rank - 60000;
  CHECK_OK(ncclAllReduce(numbers, numbers, COUNT, ncclInt32, ncclAvg, job.comm, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  for (int32_t i = 0; i < COUNT; i++)
    CHECK_IS(numbers[i], (job.size * (i * 3 - 60000) + job.size * (job.size - 1) / 2) / job.size);
  job_end(&job);
}

/* PreMulSum with a scalar of the host's, taken at once, and one of the device's, read when the work runs. */
static void premultiplied(void)
{
  struct job job = job_start();
  float *data = buffer(ncclFloat32, COUNT);
  float *scalar = buffer(ncclFloat32, 1);
  float immediate = 3;
  ncclRedOp_t op;
  fill(data, ncclFloat32, job.rank, 0, COUNT);
  CHECK_OK(ncclRedOpCreatePreMulSum(&op, &immediate, ncclFloat32, ncclScalarHostImmediate, job.comm));
  CHECK(op >= ncclNumOps);
  immediate = 100;
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, op, job.comm, job.stream));
  CHECK_IS(ncclAllReduce(data, data, COUNT, ncclFloat16, op, job.comm, job.stream), ncclInvalidArgument);
  CHECK_OK(ncclRedOpDestroy(op, job.comm));
  CHECK_IS(ncclRedOpDestroy(ncclSum, job.comm), ncclInvalidArgument);
  CHECK_IS(ncclAllReduce(data, data, COUNT, ncclFloat32, op, job.comm, job.stream), ncclInvalidArgument);
  CHECK_OK(cudaStreamSynchronize(job.stream));
  for (size_t i = 0; i < COUNT; i++)
    compare(data, ncclFloat32, i, 3 * expected(ncclSum, job.size, i), "PreMulSum");

  fill(data, ncclFloat32, job.rank, 0, COUNT);
  CHECK_OK(ncclRedOpCreatePreMulSum(&op, scalar, ncclFloat32, ncclScalarDevice, job.comm));
  const float later = (float)(job.rank + 1);
  CHECK_OK(cudaMemcpyAsync(scalar, &later, sizeof(later), 1, job.stream));
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, op, job.comm, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  for (size_t i = 0; i < COUNT; i++) {
    float sum = 0;
    for (int r = 0; r < job.size; r++)
      sum += (float)(r + 1) * input(r, i);
    compare(data, ncclFloat32, i, sum, "PreMulSum with a device's scalar");
  }
  job_end(&job);
}

/* All ranks in one process. */
static void one_process(void)
{
  enum { RANKS = 3 };
  ncclComm_t comms[RANKS];
  float *data[RANKS];
  CHECK_OK(ncclCommInitAll(comms, RANKS, NULL));
  CHECK_OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    CHECK_OK(cudaSetDevice(r));
    data[r] = buffer(ncclFloat32, COUNT);
    fill(data[r], ncclFloat32, r, 0, COUNT);
    CHECK_OK(ncclAllReduce(data[r], data[r], COUNT, ncclFloat32, ncclSum, comms[r], NULL));
  }
  CHECK_OK(ncclGroupEnd());
  for (int r = 0; r < RANKS; r++) {
    CHECK_OK(cudaSetDevice(r));
    CHECK_OK(cudaDeviceSynchronize());
    for (size_t i = 0; i < COUNT; i++)
      compare(data[r], ncclFloat32, i, expected(ncclSum, RANKS, i), "AllReduce in one process");
    CHECK_OK(ncclCommDestroy(comms[r]));
  }
}

/* A captured collective runs at each launch of the graph, in turn with others, and not at capture. */
static void graphs(void)
{
  struct job job = job_start();
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  float *data = buffer(ncclFloat32, COUNT);
  for (size_t i = 0; i < COUNT; i++)
    data[i] = 1;
  CHECK_OK(cudaStreamBeginCapture(job.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclMax, job.comm, job.stream));
  CHECK_OK(cudaStreamEndCapture(job.stream, &graph));
  CHECK_OK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_OK(cudaGraphDestroy(graph));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  compare(data, ncclFloat32, 0, 1, "what was there before the launch");
  for (int i = 0; i < 3; i++) {
    CHECK_OK(cudaGraphLaunch(exec, job.stream));
    CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclMin, job.comm, job.stream));
  }
  CHECK_OK(cudaStreamSynchronize(job.stream));
  compare(data, ncclFloat32, COUNT - 1, (float)(job.size * job.size * job.size), "three launches");
  CHECK_OK(cudaGraphExecDestroy(exec));
  job_end(&job);
}

/* Two ranks that call different things: NCCL hangs or corrupts, the stand-in says so and aborts. */
static void mismatch(void)
{
  struct job job = job_start();
  float *data = buffer(ncclFloat32, COUNT);
  CHECK_OK(ncclAllReduce(data, data, COUNT, ncclFloat32, job.rank ? ncclMax : ncclSum, job.comm, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
}

/* The collectives with settings of their own: before 2.31.2 they are not there; what NCCL refuses is refused. */
static void configured(void)
{
  struct job job = job_start();
  ncclCollConfig_t config = SIM_NCCL_COLL_CONFIG_INITIALIZER, bad = config;
  float *data = buffer(ncclFloat32, COUNT);
  int version;
  CHECK_OK(ncclGetVersion(&version));
  for (size_t i = 0; i < COUNT; i++)
    data[i] = 1;
  if (version < 23102) {
    CHECK_IS(ncclAllReduceConfig(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream, NULL),
             ncclInvalidUsage);
    job_end(&job);
    return;
  }
  CHECK_OK(ncclAllReduceConfig(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream, NULL));
  config.minCTAs = config.maxCTAs = 4;
  config.algSelection = "ring";
  CHECK_OK(ncclAllReduceConfig(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream, &config));
  CHECK_OK(ncclBroadcastConfig(data, data, COUNT, ncclFloat32, 0, job.comm, job.stream, &config));
  CHECK_OK(cudaStreamSynchronize(job.stream));
  compare(data, ncclFloat32, COUNT - 1, (float)(job.size * job.size), "two sums");
  bad.size = 63;
  CHECK_IS(ncclAllReduceConfig(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream, &bad),
           ncclInvalidArgument);
  bad = config;
  bad.magic++;
  CHECK_IS(ncclAllReduceConfig(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream, &bad),
           ncclInvalidArgument);
  bad = config;
  bad.algSelection = "best";
  CHECK_IS(ncclAllReduceConfig(data, data, COUNT, ncclFloat32, ncclSum, job.comm, job.stream, &bad),
           ncclInvalidArgument);
  job_end(&job);
}

int main(int argc, char **argv)
{
  static const struct scenario scenarios[] = {
      {"every-type", every_type},   {"rooted", rooted},   {"groups", groups},
      {"two-streams", two_streams}, {"average", average}, {"premultiplied", premultiplied},
      {"one-process", one_process}, {"graphs", graphs},   {"mismatch", mismatch},
      {"configured", configured},
  };
  return scenario_main(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
