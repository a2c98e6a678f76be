/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says of every call what it gave, whether errno stayed, and what the last CUDA error is, so that a run under the shim
 * can be compared with one without, line by line. Goes on after a call that fails: it is made once more.
 *
 * MATRIX_PNCCL_INIT, MATRIX_PNCCL_CALLS: communicators are made, or used, by the names for tools. MATRIX_HANDLE: NCCL
 * is called through the handle of the library that the environment names. MATRIX_AT=constructor or destructor: the
 * calls are made there. MATRIX_LEAVE: a collective call that fails ends the process with status 3.
 */
#include "tests/preload/matrix.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/bootstrap.h"
#include "tests/sim/sim_abi.h"

#ifdef MATRIX_PNCCL_INIT
#define ncclCommInitRank pncclCommInitRank
#define ncclCommSplit pncclCommSplit
#define ncclCommDestroy pncclCommDestroy
#endif
#ifdef MATRIX_PNCCL_CALLS
#define ncclAllGather pncclAllGather
#define ncclReduceScatter pncclReduceScatter
#define ncclAllReduce pncclAllReduce
#define ncclBroadcast pncclBroadcast
#define ncclGroupStart pncclGroupStart
#define ncclGroupEnd pncclGroupEnd
#define ncclRedOpCreatePreMulSum pncclRedOpCreatePreMulSum
#define ncclRedOpDestroy pncclRedOpDestroy
#endif
#ifdef MATRIX_HANDLE
static void *through_handle(const char *name)
{
  void *library = dlopen(getenv("MATRIX_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  void *found = library ? dlsym(library, name) : NULL;

  if (!found) {
    dprintf(STDERR_FILENO, "matrix: no %s\n", name);
    _exit(2);
  }
  return found;
}
#define THROUGH(name) ((union { void *object; __typeof__(&(name)) function; }){through_handle(#name)}.function)
#define ncclGetUniqueId THROUGH(ncclGetUniqueId)
#define ncclCommInitRank THROUGH(ncclCommInitRank)
#define ncclCommInitRankConfig THROUGH(ncclCommInitRankConfig)
#define ncclCommGetAsyncError THROUGH(ncclCommGetAsyncError)
#define ncclCommSplit THROUGH(ncclCommSplit)
#define ncclCommDestroy THROUGH(ncclCommDestroy)
#define ncclAllGather THROUGH(ncclAllGather)
#define ncclReduceScatter THROUGH(ncclReduceScatter)
#define ncclAllReduce THROUGH(ncclAllReduce)
#define ncclBroadcast THROUGH(ncclBroadcast)
#define ncclGroupStart THROUGH(ncclGroupStart)
#define ncclGroupEnd THROUGH(ncclGroupEnd)
#define ncclRedOpCreatePreMulSum THROUGH(ncclRedOpCreatePreMulSum)
#define ncclRedOpDestroy THROUGH(ncclRedOpDestroy)
#endif

enum { MIB = 1 << 20, LARGE = 8 * MIB, SMALL = 64 << 10, COUNT = 5003, THREADS = 16, ANY_ERRNO = 4242, FORKS = 12 };
enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };
enum kind { GATHER, SCATTER_AVERAGE, SCATTER_SUM, REDUCE, REDUCE_AVERAGE, REDUCE_MADE, BROADCAST };

/* One run, or one thread of it. */
struct run {
  const char *label;
  int number; /* of the thread, or -1 */
  int rank, size;
  int ids; /* made so far */
  bool leave, wrong, quiet;
  char *large[2]; /* a call's buffers, input and output, in either */
  char *small;
  cudaStream_t streams[2];
};

static void say(const struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct run *run, const char *format, ...)
{
  char line[256];
  va_list args;
  int used = snprintf(line, sizeof(line), "rank %d %s.%d ", run->rank, run->label, run->number);

  if (run->quiet)
    return;
  va_start(args, format);
  used += vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, args);
  va_end(args);
  line[used++] = '\n';
  if (write(STDOUT_FILENO, line, (size_t)used) != used)
    _exit(2);
}

/* What a call gave. True: it failed, and is to be made once more. */
static bool report(struct run *run, const char *name, unsigned result, int errno_after, bool errno_counts, bool together)
{
  unsigned last = cudaGetLastError();

  say(run, "%s: %u%s, last %u", name, result, !errno_counts || errno_after == ANY_ERRNO ? "" : ", errno changed", last);
  if (result != 0 && together && run->leave)
    _exit(3);
  return result != 0;
}

#define STEP(name, errno_counts, together, call)                                                                       \
  for (int step_try = 0; step_try < 2; step_try++) {                                                                   \
    unsigned step_result;                                                                                              \
    errno = ANY_ERRNO;                                                                                                 \
    step_result = (unsigned)(call);                                                                                    \
    if (!report(run, name, step_result, errno, errno_counts, together))                                                \
      break;                                                                                                           \
  }
/* A call that concerns this rank alone; one that all ranks make together; one of which only the result is compared. */
#define LOCAL(name, call) STEP(name, true, false, call)
#define TOGETHER(name, call) STEP(name, true, true, call)
#define SLOW(name, call) STEP(name, false, true, call)
/* A call that is to fail. */
#define REFUSED(name, call)                                                                                            \
  do {                                                                                                                 \
    errno = ANY_ERRNO;                                                                                                 \
    report(run, name, (unsigned)(call), errno, true, false);                                                           \
  } while (0)

/* As sim_bootstrap_id(), but by the name that this program has for ncclGetUniqueId, and for each of its threads. */
static ncclUniqueId shared_id(struct run *run)
{
  char name[128];
  ncclUniqueId id;

  snprintf(name, sizeof(name), "matrix-%s.%d", run->label, run->number);
  if (run->rank == 0) {
    if (ncclGetUniqueId(&id) != ncclSuccess)
      _exit(2);
    if (run->size > 1)
      sim_bootstrap_publish(name, run->ids++, &id, sizeof(id));
    return id;
  }
  sim_bootstrap_await(name, run->ids++, &id, sizeof(id));
  return id;
}

/* Small whole numbers, so that every sum and every average of two is exact. */
static float element(int rank, size_t i)
{
  return (float)((rank + 1) * 2 * (int)(i % 7 + 1));
}

static float wanted(const struct run *run, enum kind kind, size_t i)
{
  float sum = 0;

  if (kind == GATHER)
    return element((int)(i / COUNT), i % COUNT);
  if (kind == BROADCAST)
    return element(0, i);
  if (kind == SCATTER_AVERAGE || kind == SCATTER_SUM)
    i += (size_t)run->rank * COUNT;
  for (int r = 0; r < run->size; r++)
    sum += element(r, i);
  if (kind == SCATTER_AVERAGE || kind == REDUCE_AVERAGE)
    return sum / (float)run->size;
  return kind == REDUCE_MADE ? 2 * sum : sum;
}

static ncclResult_t issue(enum kind kind, const float *in, float *out, ncclRedOp_t made, ncclComm_t comm,
                          cudaStream_t stream)
{
  switch (kind) {
  case GATHER:
    return ncclAllGather(in, out, COUNT, ncclFloat32, comm, stream);
  case SCATTER_AVERAGE:
  case SCATTER_SUM:
    return ncclReduceScatter(in, out, COUNT, ncclFloat32, kind == SCATTER_SUM ? ncclSum : ncclAvg, comm, stream);
  case REDUCE:
    return ncclAllReduce(in, out, COUNT, ncclFloat32, ncclSum, comm, stream);
  case REDUCE_AVERAGE:
    return ncclAllReduce(in, out, COUNT, ncclFloat32, ncclAvg, comm, stream);
  case REDUCE_MADE:
    return ncclAllReduce(in, out, COUNT, ncclFloat32, made, comm, stream);
  case BROADCAST:
    break;
  }
  return ncclBroadcast(in, out, COUNT, ncclFloat32, 0, comm, stream);
}

static void fill(const struct run *run, char *memory, size_t count, cudaStream_t stream)
{
  float *host = malloc(count * sizeof(*host));

  for (size_t i = 0; host && i < count; i++)
    host[i] = element(run->rank, i);
  if (!host || cudaMemcpyAsync(memory, host, count * sizeof(*host), HOST_TO_DEVICE, stream) != cudaSuccess ||
      cudaStreamSynchronize(stream) != cudaSuccess)
    _exit(2);
  free(host);
}

static void look(struct run *run, const char *name, enum kind kind, const char *memory, size_t count)
{
  float *host = malloc(count * sizeof(*host));
  size_t wrong = 0;

  if (!host || cudaMemcpy(host, memory, count * sizeof(*host), DEVICE_TO_HOST) != cudaSuccess)
    _exit(2);
  for (size_t i = 0; i < count; i++)
    wrong += host[i] != wanted(run, kind, i);
  free(host);
  say(run, "%s: %zu elements are wrong", name, wrong);
  run->wrong |= wrong > 0;
}

static size_t wide(const struct run *run)
{
  return (size_t)run->size * COUNT;
}

/* One call: its buffers filled, then what it gave, then every element of its output. */
static void collective_on(struct run *run, const char *name, enum kind kind, ncclRedOp_t made, ncclComm_t comm,
                          char *in, char *out, int lane)
{
  size_t in_count = kind == SCATTER_AVERAGE || kind == SCATTER_SUM ? wide(run) : COUNT;
  size_t out_count = kind == GATHER ? wide(run) : COUNT;
  cudaStream_t stream = run->streams[lane];

  if (!comm || !run->large[0] || !run->large[1])
    return;
  fill(run, in, in_count, stream);
  if (cudaMemsetAsync(out, 0xa5, out_count * sizeof(float), stream) != cudaSuccess)
    _exit(2);
  TOGETHER(name, issue(kind, (float *)in, (float *)out, made, comm, stream));
  if (cudaStreamSynchronize(stream) != cudaSuccess)
    _exit(2);
  look(run, name, kind, out, out_count);
}

static void collective(struct run *run, const char *name, enum kind kind, ncclRedOp_t made, ncclComm_t comm, bool small,
                       int lane)
{
  collective_on(run, name, kind, made, comm, small ? run->small : run->large[0], run->large[1] + (size_t)lane * MIB,
                lane);
}

/* A call in flight on one stream while the next one reads its output on the other, as NCCL's own order allows. */
static void chained(struct run *run, ncclComm_t comm)
{
  char *all = run->large[1], *sum = run->large[1] + 2 * MIB;

  if (!comm || !run->large[0] || !run->large[1])
    return;
  fill(run, run->large[0], COUNT, run->streams[0]);
  TOGETHER("chained all-gather", issue(GATHER, (float *)run->large[0], (float *)all, ncclSum, comm, run->streams[0]));
  TOGETHER("chained broadcast", issue(BROADCAST, (float *)all, (float *)sum, ncclSum, comm, run->streams[1]));
  if (cudaStreamSynchronize(run->streams[1]) != cudaSuccess || cudaStreamSynchronize(run->streams[0]) != cudaSuccess)
    _exit(2);
  look(run, "chained", BROADCAST, sum, COUNT);
}

static void grouped(struct run *run, ncclComm_t comm)
{
  char *out = run->large[1];

  if (!comm || !run->large[0] || !run->large[1])
    return;
  fill(run, run->large[0], wide(run), run->streams[0]);
  LOCAL("group start", ncclGroupStart());
  LOCAL("grouped all-gather",
        issue(GATHER, (float *)run->large[0], (float *)out, ncclSum, comm, run->streams[0]));
  LOCAL("grouped reduce-scatter",
        issue(SCATTER_SUM, (float *)run->large[0], (float *)(out + MIB), ncclSum, comm, run->streams[0]));
  TOGETHER("group end", ncclGroupEnd());
  if (cudaStreamSynchronize(run->streams[0]) != cudaSuccess)
    _exit(2);
  look(run, "grouped all-gather", GATHER, out, wide(run));
  look(run, "grouped reduce-scatter", SCATTER_SUM, out + MIB, COUNT);
}

static void refused(struct run *run)
{
  void *never = NULL;
  ncclComm_t comm = NULL;

  REFUSED("malloc of nothing", cudaMalloc(&never, 0));
  REFUSED("free of an interior", cudaFree(run->large[0] + 512));
  REFUSED("free of the host's", cudaFree(&never));
  REFUSED("free of nothing", cudaFree(NULL));
  REFUSED("all-gather on no communicator", ncclAllGather(run->large[0], run->large[1], 0, ncclFloat32, NULL, NULL));
  REFUSED("split of no communicator", ncclCommSplit(NULL, 0, 0, &comm, NULL));
  REFUSED("end of no communicator", ncclCommDestroy(NULL));
}

static void take(struct run *run)
{
  LOCAL("malloc", cudaMalloc((void **)&run->large[0], LARGE));
  LOCAL("malloc", cudaMalloc((void **)&run->large[1], LARGE));
  LOCAL("malloc small", cudaMalloc((void **)&run->small, SMALL));
  for (int i = 0; i < 2; i++)
    if (cudaStreamCreateWithFlags(&run->streams[i], 1) != cudaSuccess)
      _exit(2);
}

static void give(struct run *run)
{
  for (int i = 0; i < 2; i++) {
    if (run->large[i])
      LOCAL("free", cudaFree(run->large[i]));
    cudaStreamDestroy(run->streams[i]);
  }
  if (run->small)
    LOCAL("free small", cudaFree(run->small));
}

/* What another rank has mapped of it is there again when that has ended its communicators too. */
static void tell_memory(struct run *run, const char *after)
{
  size_t free_bytes = 0, total = 0;
  char name[128];

  snprintf(name, sizeof(name), "matrix-%s-%s", run->label, after);
  sim_bootstrap_barrier(name);
  if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
    _exit(2);
  say(run, "memory left: %zu", total - free_bytes);
}

/* Where all ranks failed each gets a new id; one alone comes back with the old one, for which the others are waiting. */
static ncclComm_t make(struct run *run)
{
  ncclUniqueId id = shared_id(run);
  ncclComm_t comm = NULL;

  errno = ANY_ERRNO;
  if (report(run, "init", ncclCommInitRank(&comm, run->size, id, run->rank), errno, false, false)) {
    if (!run->leave)
      id = shared_id(run);
    report(run, "init", ncclCommInitRank(&comm, run->size, id, run->rank), errno, false, true);
  }
  return comm;
}

static void calls_on(struct run *run, ncclComm_t comm)
{
  collective(run, "all-gather", GATHER, ncclSum, comm, false, 0);
  collective(run, "average", SCATTER_AVERAGE, ncclSum, comm, false, 0);
  collective(run, "all-reduce", REDUCE, ncclSum, comm, false, 1);
  collective(run, "all-reduce of small memory", REDUCE, ncclSum, comm, true, 0);
  collective(run, "broadcast", BROADCAST, ncclSum, comm, false, 1);
  chained(run, comm);
}

/* Everything a job does, on one communicator and on one split off it. */
static void calls(struct run *run)
{
  ncclComm_t comm, half = NULL;
  ncclRedOp_t made = ncclSum;
  float two = 2;
  void *never;

  take(run);
  comm = make(run);
  calls_on(run, comm);
  /* One that failed alone comes back, since the others wait for it. */
  STEP("split", false, false, ncclCommSplit(comm, 0, run->rank, &half, NULL));
  calls_on(run, half);
  LOCAL("make an op", ncclRedOpCreatePreMulSum(&made, &two, ncclFloat32, ncclScalarHostImmediate, comm));
  collective(run, "all-reduce with it", REDUCE_MADE, made, comm, false, 0);
  LOCAL("end the op", ncclRedOpDestroy(made, comm));
  grouped(run, comm);
  refused(run);
  LOCAL("free", cudaFree(run->large[0]));
  LOCAL("malloc", cudaMalloc((void **)&run->large[0], LARGE));
  collective(run, "all-gather", GATHER, ncclSum, comm, false, 0);
  REFUSED("malloc of too much", cudaMalloc(&never, (size_t)1 << 50));
  collective(run, "average", SCATTER_AVERAGE, ncclSum, comm, false, 0);
  if (half)
    SLOW("end of the half", ncclCommDestroy(half));
  if (comm)
    SLOW("end", ncclCommDestroy(comm));
  give(run);
  tell_memory(run, "calls");
}

/* Memory of an input, of an output, or of both that the ranks have in places of their own. */
static void apart(struct run *run, ncclComm_t comm)
{
  char *large = run->large[0];

  collective_on(run, "all-gather of small memory", GATHER, ncclSum, comm, run->small, run->large[1], 0);
  collective_on(run, "all-gather to small memory", GATHER, ncclSum, comm, large, run->small, 1);
  collective_on(run, "scatter to small memory", SCATTER_SUM, ncclSum, comm, large, run->small, 0);
  collective_on(run, "average of all", REDUCE_AVERAGE, ncclSum, comm, large, run->large[1], 1);
}

/* A call and a broadcast of what it gave, captured into a graph that is then launched twice. */
static void captured(struct run *run, ncclComm_t comm)
{
  char *all = run->large[1], *sum = run->large[1] + 2 * MIB;
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;

  if (!comm || !run->large[0] || !run->large[1])
    return;
  if (cudaStreamBeginCapture(run->streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL) != cudaSuccess)
    _exit(2);
  TOGETHER("captured all-gather", issue(GATHER, (float *)run->large[0], (float *)all, ncclSum, comm, run->streams[0]));
  TOGETHER("captured broadcast", issue(BROADCAST, (float *)all, (float *)sum, ncclSum, comm, run->streams[0]));
  if (cudaStreamEndCapture(run->streams[0], &graph) != cudaSuccess ||
      cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
    _exit(2);
  for (int i = 0; i < 2; i++) {
    fill(run, run->large[0], COUNT, run->streams[0]);
    if (cudaGraphLaunch(exec, run->streams[0]) != cudaSuccess || cudaStreamSynchronize(run->streams[0]) != cudaSuccess)
      _exit(2);
    look(run, "captured", BROADCAST, sum, COUNT);
  }
  collective(run, "all-gather after it", GATHER, ncclSum, comm, false, 0);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

/* What came of a call on a communicator that does not wait. */
static ncclResult_t settled(ncclComm_t comm, ncclResult_t result)
{
  while (result == ncclInProgress) {
    nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    if (ncclCommGetAsyncError(comm, &result) != ncclSuccess)
      return ncclInternalError;
  }
  return result;
}

static ncclComm_t make_nonblocking(struct run *run)
{
  ncclConfig_t config = SIM_NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id = shared_id(run);
  ncclComm_t comm = NULL;
  ncclResult_t result;

  config.blocking = 0;
  result = ncclCommInitRankConfig(&comm, run->size, id, run->rank, &config);
  if (report(run, "init", settled(comm, result), ANY_ERRNO, false, false)) {
    if (!run->leave)
      id = shared_id(run);
    result = ncclCommInitRankConfig(&comm, run->size, id, run->rank, &config);
    report(run, "init", settled(comm, result), ANY_ERRNO, false, true);
  }
  return comm;
}

/* A communicator whose calls return before their work is launched. */
static void nonblocking(struct run *run)
{
  char *out = run->large[1];
  ncclComm_t comm = make_nonblocking(run);

  for (int i = 0; i < 2 && comm && run->large[0] && out; i++) {
    fill(run, run->large[0], COUNT, run->streams[0]);
    SLOW("all-gather that does not wait",
         settled(comm, issue(GATHER, (float *)run->large[0], (float *)out, ncclSum, comm, run->streams[0])));
    SLOW("broadcast that does not wait",
         settled(comm, issue(BROADCAST, (float *)out, (float *)(out + 2 * MIB), ncclSum, comm, run->streams[1])));
    if (cudaStreamSynchronize(run->streams[1]) != cudaSuccess || cudaStreamSynchronize(run->streams[0]) != cudaSuccess)
      _exit(2);
    look(run, "all-gather that does not wait", GATHER, out, wide(run));
    look(run, "broadcast that does not wait", BROADCAST, out + 2 * MIB, COUNT);
  }
  if (comm)
    SLOW("end", ncclCommDestroy(comm));
}

/* Everything else that makes the shim call something. */
static void further(struct run *run, int device, int devices)
{
  ncclComm_t comm;

  take(run);
  comm = make(run);
  collective(run, "all-gather", GATHER, ncclSum, comm, false, 0);
  /* NCCL does not mind which device is current. */
  if (cudaSetDevice((device + 1) % devices) != cudaSuccess)
    _exit(2);
  collective(run, "all-gather from elsewhere", GATHER, ncclSum, comm, false, 1);
  if (cudaSetDevice(device) != cudaSuccess)
    _exit(2);
  apart(run, comm);
  captured(run, comm);
  if (comm)
    SLOW("end", ncclCommDestroy(comm));
  nonblocking(run);
  give(run);
  tell_memory(run, "further");
}

struct thread {
  struct run run;
  pthread_barrier_t *barrier;
  int device;
};

static void *thread_main(void *data)
{
  struct thread *thread = data;
  struct run *run = &thread->run;
  ncclComm_t comm;

  pthread_barrier_wait(thread->barrier);
  if (cudaSetDevice(thread->device) != cudaSuccess)
    _exit(2);
  take(run);
  comm = make(run);
  for (int round = 0; round < 2; round++)
    calls_on(run, comm);
  grouped(run, comm);
  SLOW("end", ncclCommDestroy(comm));
  give(run);
  return NULL;
}

static void in_threads(struct run *run, int device)
{
  struct thread threads[THREADS];
  pthread_t ids[THREADS];
  pthread_barrier_t barrier;

  pthread_barrier_init(&barrier, NULL, THREADS);
  for (int i = 0; i < THREADS; i++) {
    threads[i] = (struct thread){*run, &barrier, device};
    threads[i].run.number = i;
    if (pthread_create(&ids[i], NULL, thread_main, &threads[i]) != 0)
      _exit(2);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(ids[i], NULL);
    run->wrong |= threads[i].run.wrong;
  }
}

/* What a process can do that was forked off one that uses CUDA: nothing, and the same nothing every time. */
static void in_child(struct run *run, const char *who)
{
  void *memory = NULL;
  char name[64];

  snprintf(name, sizeof(name), "malloc in the %s", who);
  REFUSED(name, cudaMalloc(&memory, LARGE));
  snprintf(name, sizeof(name), "free in the %s", who);
  REFUSED(name, cudaFree(NULL));
}

static int wait_for(pid_t child)
{
  int status = -1;

  return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

/* A child and a grandchild; the grandchild ends by exec, the child by exit. */
static void fork_family(struct run *run)
{
  pid_t child = fork(), grandchild;

  if (child == 0) {
    in_child(run, "child");
    grandchild = fork();
    if (grandchild == 0) {
      in_child(run, "grandchild");
      execl("/bin/true", "true", (char *)NULL);
      _exit(1);
    }
    exit(wait_for(grandchild) == 0 ? 0 : 1);
  }
  say(run, "status of the child: %d", wait_for(child));
}

static volatile bool stop;

static void *churn(void *unused)
{
  void *memory;

  while (!stop)
    if (cudaMalloc(&memory, LARGE) != cudaSuccess || cudaFree(memory) != cudaSuccess)
      _exit(2);
  return unused;
}

struct busy {
  struct run run;
  ncclComm_t comm;
  int device;
};

static void *keep_calling(void *data)
{
  struct busy *busy = data;

  if (cudaSetDevice(busy->device) != cudaSuccess)
    _exit(2);
  /* The same number on every rank: the forks are over before these calls are. */
  for (int i = 0; i < 40; i++)
    calls_on(&busy->run, busy->comm);
  return NULL;
}

static void forks(struct run *run, int device)
{
  struct busy busy = {.run = *run, .device = device};
  pthread_t caller, churners[3];

  take(&busy.run);
  busy.run.quiet = true;
  busy.comm = make(&busy.run);
  if (pthread_create(&caller, NULL, keep_calling, &busy) != 0)
    _exit(2);
  for (int i = 0; i < 3; i++)
    if (pthread_create(&churners[i], NULL, churn, NULL) != 0)
      _exit(2);
  for (int i = 0; i < FORKS; i++) {
    fork_family(run);
    nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
  }
  stop = true;
  for (int i = 0; i < 3; i++)
    pthread_join(churners[i], NULL);
  pthread_join(caller, NULL);
  run->wrong |= busy.run.wrong;
  busy.run.quiet = false;
  run = &busy.run;
  SLOW("end", ncclCommDestroy(busy.comm));
  give(run);
}

static void *first_call(void *barrier)
{
  void *memory = NULL;

  pthread_barrier_wait(barrier);
  if (cudaMalloc(&memory, LARGE) != cudaSuccess || cudaFree(memory) != cudaSuccess)
    _exit(2);
  return NULL;
}

/* A fork while other threads make the process's very first calls. The child leaves CUDA alone, which is half made. */
static void wakes(struct run *run)
{
  pthread_barrier_t barrier;
  pthread_t threads[4];
  pid_t child;

  pthread_barrier_init(&barrier, NULL, 5);
  for (int i = 0; i < 4; i++)
    if (pthread_create(&threads[i], NULL, first_call, &barrier) != 0)
      _exit(2);
  pthread_barrier_wait(&barrier);
  child = fork();
  if (child == 0) {
    if (ncclGroupStart() != ncclSuccess || ncclAllGather(NULL, NULL, 0, ncclFloat32, NULL, NULL) == ncclSuccess ||
        ncclGroupEnd() == ncclSuccess)
      _exit(2);
    exit(0);
  }
  say(run, "status of the child: %d", wait_for(child));
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
}

int matrix_main(const char *scenario, const char *label)
{
  struct run run = {.label = label, .number = -1, .rank = sim_bootstrap_rank(), .size = sim_bootstrap_size()};
  int devices = 0, device;

  run.leave = getenv("MATRIX_LEAVE") != NULL;
  if (strcmp(scenario, "wake") == 0) {
    wakes(&run);
    return 0;
  }
  if (cudaGetDeviceCount(&devices) != cudaSuccess)
    return 2;
  device = run.rank % devices;
  if (cudaSetDevice(device) != cudaSuccess)
    return 2;
  if (strcmp(scenario, "threads") == 0)
    in_threads(&run, device);
  else if (strcmp(scenario, "fork") == 0)
    forks(&run, device);
  else
    calls(&run);
  if (strcmp(scenario, "all") == 0)
    further(&run, device, devices);
  return run.wrong;
}

/* From a library's constructor or destructor. */
static void run_at(const char *where)
{
  const char *wanted_at = getenv("MATRIX_AT");

  if (wanted_at && strcmp(wanted_at, where) == 0)
    matrix_main("calls", where);
}

__attribute__((constructor)) static void at_load(void)
{
  run_at("constructor");
}

__attribute__((destructor)) static void at_unload(void)
{
  run_at("destructor");
}
