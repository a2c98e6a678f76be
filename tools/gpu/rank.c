/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of `symmshim bench` or `symmshim tune`, on GPU number RANK. Usage: rank DESCRIPTOR RANK
 *
 * The same calls are made in several ways in turn, timed by events over many calls back to back; and the result of each
 * way is held against stock NCCL's on the same random data.
 */
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "tools/gpu/rank.h"

enum { MAX_CALLS = 200, BATCH_US = 8000 };

struct gpu_region *region;
int rank;
cudaStream_t stream;
static cudaEvent_t before, after;

void give_up(const char *format, ...)
{
  uint32_t none = 0;
  va_list args;

  va_start(args, format);
  if (atomic_compare_exchange_strong(&region->failed, &none, 1))
    vsnprintf(region->message, sizeof(region->message), format, args);
  va_end(args);
  _exit(1);
}

static double now_us(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

void meet(void)
{
  uint32_t nranks = (uint32_t)region->nranks;
  uint32_t wanted = (atomic_fetch_add(&region->arrivals, 1) / nranks + 1) * nranks;

  while (atomic_load(&region->arrivals) < wanted) {
    if (atomic_load(&region->failed))
      _exit(1);
    sched_yield();
  }
}

ncclResult_t make_call(const struct gpu_case *what, const struct lane *lane)
{
  uint64_t small = what->bytes / (uint64_t)region->nranks / policy_dtype_size(what->dtype);
  ncclDataType_t dtype = (ncclDataType_t)what->dtype;
  ncclRedOp_t op = what->redop == POLICY_REDOP_avg ? ncclAvg : ncclSum;

  if (what->op == POLICY_OP_all_gather)
    return (lane->unseen ? pncclAllGather : ncclAllGather)(lane->send, lane->recv, small, dtype, lane->comm, stream);
  if (what->op == POLICY_OP_reduce_scatter)
    return (lane->unseen ? pncclReduceScatter : ncclReduceScatter)(lane->send, lane->recv, small, dtype, op, lane->comm,
                                                                   stream);
  return (lane->unseen ? pncclAllReduce : ncclAllReduce)(lane->send, lane->recv, small * (uint64_t)region->nranks,
                                                         dtype, op, lane->comm, stream);
}

/* The slowest rank's figure. */
static double slowest(double us)
{
  double most = 0;

  region->shared_us[rank] = us;
  meet();
  for (int i = 0; i < region->nranks; i++)
    most = region->shared_us[i] > most ? region->shared_us[i] : most;
  meet();
  return most;
}

/* What a batch of calls gives. */
struct sample {
  double us, host_us; /* of one call */
  double busy;        /* see busy_end() */
};

/* So many calls back to back. */
static struct sample batch(const struct gpu_case *what, const struct lane *lane, int calls)
{
  struct sample sample;
  float ms = 0;
  double start;

  CUDA(cudaStreamSynchronize(stream));
  meet();
  busy_begin();
  NCCL(make_call(what, lane)); /* the ranks are level behind it */
  CUDA(cudaEventRecord(before, stream));
  start = now_us();
  for (int i = 0; i < calls; i++) {
    NCCL(make_call(what, lane));
    busy_feed();
  }
  sample.host_us = (now_us() - start) / calls;
  CUDA(cudaEventRecord(after, stream));
  while (region->busy && cudaEventQuery(after) == cudaErrorNotReady)
    busy_feed();
  CUDA(cudaEventSynchronize(after));
  CUDA(cudaEventElapsedTime(&ms, before, after));
  sample.us = slowest((double)ms * 1e3 / calls);
  sample.busy = slowest(busy_end(after));
  return sample;
}

static int compare_doubles(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;

  return (x > y) - (x < y);
}

static double median(double *values, int count)
{
  qsort(values, (size_t)count, sizeof(*values), compare_doubles);
  return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static void *allocate(cudaError_t (*allocator)(void **, size_t), uint64_t bytes)
{
  void *ptr = NULL;

  if (allocator(&ptr, bytes) != cudaSuccess)
    give_up("rank %d: no device memory for %llu bytes; give --max-bytes less", rank, (unsigned long long)bytes);
  return ptr;
}

static uint64_t largest_case(void)
{
  uint64_t most = 0;

  for (int i = 0; i < region->case_count; i++)
    most = region->cases[i].bytes > most ? region->cases[i].bytes : most;
  return most;
}

static ncclUniqueId id_of(int way)
{
  if (rank == 0)
    NCCL(ncclGetUniqueId(&region->ids[way]));
  meet();
  return region->ids[way];
}

/* Past the shim, which answers this program's own call of that name. */
static cudaError_t allocate_unseen(void **ptr, size_t bytes)
{
  static cudaError_t (*unseen)(void **, size_t);
  void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  void *found = runtime ? dlsym(runtime, "cudaMalloc") : NULL;

  if (!found)
    give_up("rank %d: libcudart.so.13 is not loaded", rank);
  memcpy(&unseen, &found, sizeof(unseen));
  return unseen(ptr, bytes);
}

static void open_stock(struct lane *lane, uint64_t bytes)
{
  lane->unseen = true;
  lane->send = allocate(allocate_unseen, bytes);
  lane->recv = allocate(allocate_unseen, bytes);
  NCCL(pncclCommInitRank(&lane->comm, region->nranks, id_of(GPU_STOCK), rank));
}

static void open_shim(struct lane *lane, uint64_t bytes)
{
  if (region->unseen) /* that all of it comes from elsewhere is something that the shim would complain about */
    allocate(cudaMalloc, 2 << 20);
  lane->send = allocate(region->unseen ? allocate_unseen : cudaMalloc, bytes);
  lane->recv = allocate(region->unseen ? allocate_unseen : cudaMalloc, bytes);
  NCCL(ncclCommInitRank(&lane->comm, region->nranks, id_of(GPU_SHIM), rank));
}

/* One pair of buffers serves all children. */
static void open_hand(struct lane *lane, int child, const struct lane *first, uint64_t bytes)
{
  const struct gpu_child *wanted = &region->children[child];
  ncclConfig_t config = gpu_config(wanted->min_ctas, wanted->max_ctas, wanted->copy_engine);
  ncclWindow_t window;

  lane->unseen = true;
  /* The shim's arena is as good for windows as ncclMemAlloc. */
  lane->send = child > 0 ? first->send : allocate(cudaMalloc, bytes);
  lane->recv = child > 0 ? first->recv : allocate(cudaMalloc, bytes);
  NCCL(pncclCommInitRankConfig(&lane->comm, region->nranks, id_of(GPU_HAND + child), rank, &config));
  NCCL(pncclCommWindowRegister(lane->comm, lane->send, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
  NCCL(pncclCommWindowRegister(lane->comm, lane->recv, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
}

static void open_lanes(struct lane lanes[])
{
  uint64_t bytes = (largest_case() + (2 << 20) - 1) & ~(uint64_t)((2 << 20) - 1);

  open_stock(&lanes[GPU_STOCK], bytes);
  if (region->ways & 1U << GPU_SHIM)
    open_shim(&lanes[GPU_SHIM], bytes);
  for (int child = 0; child < region->child_count; child++)
    open_hand(&lanes[GPU_HAND + child], child, &lanes[GPU_HAND], bytes);
}

/* Averages have no symmetric kernel before 2.30.3, so by hand they are not measured; copy engines cannot add. */
bool applies(const struct gpu_case *what, int way)
{
  if (!(region->ways & 1U << way))
    return false;
  return way < GPU_HAND || what->op == POLICY_OP_all_gather ||
         (what->redop == POLICY_REDOP_sum && !region->children[way - GPU_HAND].copy_engine);
}

static int calls_for(double us)
{
  double calls = BATCH_US / (us > 1 ? us : 1);

  return calls < 4 ? 4 : calls > MAX_CALLS ? MAX_CALLS : (int)calls;
}

/* Makes windows and warms up, holds the result against stock's, and returns how many calls are a batch. */
static int prepare(int index, struct lane lanes[], int way)
{
  const struct gpu_case *what = &region->cases[index];
  int calls;

  fill(lanes[way].send, send_bytes(what), what->dtype);
  CUDA(cudaMemset(lanes[way].recv, 0xff, recv_bytes(what)));
  CUDA(cudaDeviceSynchronize()); /* neither the host nor a non-blocking stream waits for a memset */
  batch(what, &lanes[way], 3);
  calls = calls_for(batch(what, &lanes[way], 4).us);
  region->figures[index][way].error =
      slowest(way == GPU_STOCK ? 0 : difference(what, lanes[GPU_STOCK].recv, lanes[way].recv));
  return calls;
}

static void be_at(int way)
{
  if (rank == 0)
    atomic_store(&region->way, (uint32_t)way);
}

static void measure(int index, struct lane lanes[], int ways)
{
  const struct gpu_case *what = &region->cases[index];
  double host[GPU_WAYS][GPU_MAX_ROUNDS], busy[GPU_WAYS][GPU_MAX_ROUNDS];
  int calls[GPU_WAYS];

  for (int way = 0; way < ways; way++)
    if (applies(what, way)) {
      be_at(way);
      calls[way] = prepare(index, lanes, way);
    }
  for (int round = 0; round < region->rounds; round++)
    for (int i = 0; i < ways; i++) {
      int way = round % 2 ? ways - 1 - i : i;
      struct sample sample;
      if (!applies(what, way))
        continue;
      be_at(way);
      sample = batch(what, &lanes[way], calls[way]);
      host[way][round] = sample.host_us;
      busy[way][round] = sample.busy;
      if (rank == 0)
        region->figures[index][way].us[round] = sample.us;
    }
  for (int way = 0; way < ways && rank == 0; way++)
    if (applies(what, way)) {
      region->figures[index][way].host_us = median(host[way], region->rounds);
      region->figures[index][way].busy = median(busy[way], region->rounds);
      region->figures[index][way].measured = true;
    }
}

static void measure_all(struct lane lanes[])
{
  for (int i = 0; i < region->case_count; i++) {
    measure(i, lanes, GPU_HAND + region->child_count);
    meet();
    if (rank == 0)
      atomic_fetch_add(&region->done, 1);
  }
}

void *driver_symbol(const char *name)
{
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

  return driver ? dlsym(driver, name) : NULL;
}

static void note_libraries(void)
{
  void *found = driver_symbol("cuDeviceGetName");
  CUresult (*get_name)(char *, int, CUdevice);

  NCCL(ncclGetVersion(&region->nccl_version));
  region->simulation = driver_symbol("sim_is_simulation") != NULL;
  snprintf(region->gpu, sizeof(region->gpu), region->simulation ? "simulated GPU" : "unknown GPU");
  if (!found || region->simulation)
    return;
  memcpy(&get_name, &found, sizeof(get_name));
  get_name(region->gpu, sizeof(region->gpu), rank);
}

int main(int argc, char **argv)
{
  struct lane lanes[GPU_WAYS] = {{0}};

  if (argc != 3)
    return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  rank = atoi(argv[2]);
  region = mmap(NULL, sizeof(*region), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[1]), 0);
  if (region == MAP_FAILED)
    return 1;
  CUDA(cudaSetDevice(rank));
  CUDA(cudaStreamCreateWithFlags(&stream, 1)); /* cudaStreamNonBlocking */
  CUDA(cudaEventCreate(&before));
  CUDA(cudaEventCreate(&after));
  open_lanes(lanes);
  if (region->pass == GPU_TIME)
    busy_open();
  if (rank == 0)
    note_libraries();
  if (region->pass == GPU_LOOK)
    look(lanes);
  else
    measure_all(lanes);
  meet();
  if (lanes[GPU_SHIM].comm)
    ncclCommDestroy(lanes[GPU_SHIM].comm);
  return 0;
}
