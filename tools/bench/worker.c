/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a program whose calls cost nothing but what the shim adds. Usage: worker DESCRIPTOR RANK */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "shim/hooks.h"
#include "tools/bench/null.h"
#include "tools/bench/region.h"

enum { SEGMENT = 16 << 20, COUNT = 1 << 18, MAX_SECONDS = 120 };

#define DECLARE(library, name, ret, params, args, missing) ret name params;
HOOKS(DECLARE)

struct worker {
  struct bench_region *region;
  int rank;
  ncclComm_t comm;
  void *send, *recv;
};

static struct worker self;

static double now_ns(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Returns when all ranks are here. */
static void meet(void)
{
  uint32_t nranks = self.region->job.nranks;
  uint32_t arrived = atomic_fetch_add(&self.region->arrivals, 1);
  uint32_t wanted = (arrived / nranks + 1) * nranks;

  while (atomic_load(&self.region->arrivals) < wanted)
    sched_yield();
}

static ncclComm_t make_comm(const struct bench_job *job)
{
  ncclUniqueId id = {{0}};
  ncclComm_t comm;

  if (!job->seen)
    return null_comm((int)job->nranks, self.rank);
  memcpy(&id, &job->key, sizeof(job->key));
  return ncclCommInitRank(&comm, (int)job->nranks, id, self.rank) == ncclSuccess ? comm : NULL;
}

/* The loops are apart, so that nothing but the call is in them. */
static bool make_calls(enum bench_call call, uint32_t count)
{
  unsigned bad = 0;

  switch (call) {
  case BENCH_GROUP:
    for (uint32_t i = 0; i < count; i += 2)
      bad |= ncclGroupStart() | ncclGroupEnd();
    break;
  case BENCH_BROADCAST:
    for (uint32_t i = 0; i < count; i++)
      bad |= ncclBroadcast(self.send, self.recv, COUNT, ncclBfloat16, 0, self.comm, NULL);
    break;
  case BENCH_ALL_REDUCE:
    for (uint32_t i = 0; i < count; i++)
      bad |= ncclAllReduce(self.send, self.recv, COUNT, ncclBfloat16, ncclSum, self.comm, NULL);
    break;
  case BENCH_ALL_GATHER:
    for (uint32_t i = 0; i < count; i++)
      bad |= ncclAllGather(self.send, self.recv, COUNT, ncclBfloat16, self.comm, NULL);
    break;
  }
  return bad == 0;
}

/* At work, as a host that is late is: asleep it would leave its core to the others. */
static void be_late(uint32_t us)
{
  double end = now_ns() + us * 1000.0;

  while (us > 0 && now_ns() < end) {
  }
}

static int compare(const void *a, const void *b)
{
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *values, uint32_t count)
{
  qsort(values, count, sizeof(*values), compare);
  return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* What two looks at the clock find between them when there is nothing. */
static double clock_cost(void)
{
  double costs[BENCH_MAX_CHUNKS];

  for (int i = 0; i < BENCH_MAX_CHUNKS; i++) {
    double start = now_ns();
    costs[i] = now_ns() - start;
  }
  return median(costs, BENCH_MAX_CHUNKS);
}

/* The time of one call, or a negative number when one failed. */
static double measure(const struct bench_job *job)
{
  double times[BENCH_MAX_CHUNKS], cost = clock_cost();
  bool good = true;

  for (uint32_t chunk = 0; chunk < job->chunks; chunk++) {
    double start;
    if (self.rank == 0)
      be_late(job->late_us);
    start = now_ns();
    good &= make_calls(job->call, job->chunk_calls);
    times[chunk] = (now_ns() - start - cost) / job->chunk_calls;
  }
  return good ? median(times, job->chunks) : -1;
}

static int run(void)
{
  const struct bench_job *job = &self.region->job;
  struct bench_rank *result = &self.region->ranks[self.rank];
  uint64_t on_child;

  if (cudaMalloc(&self.send, SEGMENT) != cudaSuccess || cudaMalloc(&self.recv, SEGMENT) != cudaSuccess)
    return 1;
  null_meet = meet;
  self.comm = make_comm(job);
  if (!self.comm)
    return 1;
  /* Warm up: the first call makes the child and the windows. */
  if (!make_calls(job->call, job->chunk_calls + 100))
    return 1;
  meet();
  on_child = null_calls_on_child();
  result->ns = measure(job);
  result->on_child = null_calls_on_child() - on_child;
  meet();
  if (job->seen)
    ncclCommDestroy(self.comm);
  return result->ns < 0;
}

int main(int argc, char **argv)
{
  if (argc != 3) {
    fprintf(stderr, "this program is started by \"symmshim bench\"\n");
    return 2;
  }
  alarm(MAX_SECONDS); /* a rank whose peer died */
  self.rank = atoi(argv[2]);
  self.region = mmap(NULL, sizeof(*self.region), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[1]), 0);
  if (self.region == MAP_FAILED || self.rank < 0 || self.rank >= BENCH_MAX_RANKS)
    return 1;
  return run();
}
