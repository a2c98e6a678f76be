/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

/* No two communicators of this user may have one name while their ranks attend. */
static uint64_t new_key(void)
{
  static uint64_t count;

  return (uint64_t)getpid() << 32 ^ (uint64_t)bench_now_ns() ^ ++count << 56;
}

/* After one rank failed the others wait for it. */
static bool await_ranks(const pid_t *pids, int count)
{
  bool good = true;

  for (int i = 0; i < count; i++) {
    good &= bench_await(pids[i]);
    for (int j = i + 1; !good && j < count; j++)
      kill(pids[j], SIGKILL);
  }
  return good;
}

/* Where the slowest rank counts; the late one has its own figure. */
static int collect(const struct bench *bench, const struct bench_case *what, double ns[2])
{
  const struct bench_job *job = &what->job;

  ns[0] = 0;
  ns[1] = bench->region->ranks[0].ns;
  for (uint32_t rank = job->late_us > 0 ? 1 : 0; rank < job->nranks; rank++) {
    const struct bench_rank *result = &bench->region->ranks[rank];
    ns[0] = result->ns > ns[0] ? result->ns : ns[0];
    /* A figure of something else than it says would be worse than none. */
    if (result->on_child != (what->goes_symmetric ? (uint64_t)job->chunks * job->chunk_calls : 0)) {
      fprintf(stderr, "symmshim bench: %s: %llu calls of rank %u went symmetric\n", what->name,
              (unsigned long long)result->on_child, rank);
      return -1;
    }
  }
  return 0;
}

static int sample_calls(struct bench *bench, const struct bench_case *what, double ns[2])
{
  pid_t pids[BENCH_MAX_RANKS];
  char fd[16], rank[16];
  int started = 0;

  *bench->region = (struct bench_region){.job = what->job};
  bench->region->job.key = new_key();
  snprintf(fd, sizeof(fd), "%d", bench->region_fd);
  for (uint32_t i = 0; i < what->job.nranks; i++) {
    snprintf(rank, sizeof(rank), "%u", i);
    pids[started] = bench_start(bench, what->shim, "worker", (char *[]){(char *)"worker", fd, rank, NULL});
    if (pids[started] < 0) {
      for (int j = 0; j < started; j++)
        kill(pids[j], SIGKILL);
      await_ranks(pids, started);
      return -1;
    }
    started++;
  }
  return await_ranks(pids, started) ? collect(bench, what, ns) : -1;
}

/* From before the program is started until it has ended. */
static int sample_start(struct bench *bench, const struct bench_case *what, double ns[2])
{
  enum { STARTS = 10 };
  double start = bench_now_ns();

  for (int i = 0; i < STARTS; i++) {
    pid_t pid = bench_start(bench, what->shim, "idle", (char *[]){(char *)"idle", NULL});
    if (pid < 0 || !bench_await(pid))
      return -1;
  }
  ns[0] = (bench_now_ns() - start) / STARTS;
  return 0;
}

static int sample_load(struct bench *bench, const struct bench_case *what, double ns[2])
{
  char fd[16], count[16];
  pid_t pid;

  snprintf(fd, sizeof(fd), "%d", bench->region_fd);
  snprintf(count, sizeof(count), "%d", BENCH_LIBRARIES);
  pid = bench_start(bench, what->shim, "idle", (char *[]){(char *)"idle", fd, bench->folder, count, NULL});
  if (pid < 0 || !bench_await(pid))
    return -1;
  ns[0] = bench->region->ranks[0].ns;
  return 0;
}

/*
 * The number of calls is chosen so that a run of any case takes some ten milliseconds on a few cores. Ranks that are to
 * be level are timed over short stretches: a busy machine takes a rank away for a few of them, not for half.
 */
#define ALONE(kind, is_seen)                                                                                           \
  {                                                                                                                    \
    .call = (kind), .seen = (is_seen), .nranks = 1, .chunks = 50, .chunk_calls = 4000                                  \
  }
#define LEVEL(kind, ranks, stretches, calls)                                                                           \
  {                                                                                                                    \
    .call = (kind), .seen = true, .nranks = (ranks), .chunks = 50, .chunk_calls = (calls)                              \
  }
#define LATE(ranks, us)                                                                                                \
  {                                                                                                                    \
    .call = BENCH_ALL_GATHER, .seen = true, .nranks = (ranks), .chunks = 100, .chunk_calls = 1, .late_us = (us)        \
  }
#define AGREED(ranks, stretches, calls)                                                                                \
  {                                                                                                                    \
    .name = "agreed_" #ranks, .text = "agreed all-gather, " #ranks " ranks", .base = "direct_all_gather",              \
    .shim = BENCH_CHANGE, .sample = sample_calls, .job = LEVEL(BENCH_ALL_GATHER, ranks, stretches, calls),             \
    .goes_symmetric = true                                                                                             \
  }
#define AGREED_LATE(ranks, us)                                                                                         \
  {                                                                                                                    \
    .name = "agreed_" #ranks "_late_" #us, .text = "agreed all-gather, " #ranks " ranks, one " #us " us late",         \
    .shim = BENCH_CHANGE, .sample = sample_calls, .job = LATE(ranks, us), .goes_symmetric = true                       \
  }

struct bench_case bench_cases[] = {
    {.name = "direct_group",
     .text = "direct group start or end",
     .sample = sample_calls,
     .job = ALONE(BENCH_GROUP, false)},
    {.name = "passed_group",
     .text = "passed-through group start or end",
     .base = "direct_group",
     .shim = BENCH_CHANGE,
     .sample = sample_calls,
     .job = ALONE(BENCH_GROUP, false)},
    {.name = "direct_broadcast",
     .text = "direct broadcast",
     .sample = sample_calls,
     .job = ALONE(BENCH_BROADCAST, false)},
    {.name = "passed_broadcast",
     .text = "passed-through broadcast",
     .base = "direct_broadcast",
     .shim = BENCH_CHANGE,
     .sample = sample_calls,
     .job = ALONE(BENCH_BROADCAST, false)},
    {.name = "ordered_broadcast",
     .text = "broadcast kept in order, 2 ranks",
     .base = "direct_broadcast",
     .shim = BENCH_CHANGE,
     .sample = sample_calls,
     .job = LEVEL(BENCH_BROADCAST, 2, 50, 4000)},
    {.name = "direct_all_reduce",
     .text = "direct all-reduce",
     .sample = sample_calls,
     .job = ALONE(BENCH_ALL_REDUCE, false)},
    {.name = "off_all_reduce",
     .text = "all-reduce, shim switched off",
     .base = "direct_all_reduce",
     .shim = BENCH_OFF,
     .sample = sample_calls,
     .job = ALONE(BENCH_ALL_REDUCE, false)},
    {.name = "decided_1",
     .text = "decided all-reduce, plain, 1 rank",
     .base = "direct_all_reduce",
     .shim = BENCH_CHANGE,
     .sample = sample_calls,
     .job = ALONE(BENCH_ALL_REDUCE, true)},
    {.name = "decided_2",
     .text = "decided all-reduce, plain, 2 ranks",
     .base = "direct_all_reduce",
     .shim = BENCH_CHANGE,
     .sample = sample_calls,
     .job = LEVEL(BENCH_ALL_REDUCE, 2, 50, 2000)},
    {.name = "direct_all_gather",
     .text = "direct all-gather",
     .sample = sample_calls,
     .job = ALONE(BENCH_ALL_GATHER, false)},
    AGREED(2, 1000, 20),
    AGREED(4, 100, 10),
    AGREED(8, 100, 5),
    AGREED_LATE(2, 50),
    AGREED_LATE(2, 500),
    AGREED_LATE(4, 50),
    AGREED_LATE(4, 500),
    AGREED_LATE(8, 50),
    AGREED_LATE(8, 500),
    {.name = "audit_call_1",
     .text = "decided all-reduce with an audit line",
     .base = "decided_1",
     .shim = BENCH_CALL,
     .sample = sample_calls,
     .job = {.call = BENCH_ALL_REDUCE, .seen = true, .nranks = 1, .chunks = 50, .chunk_calls = 50}},
    {.name = "startup_without", .text = "a program without CUDA, start to end", .sample = sample_start},
    {.name = "startup",
     .text = "the same under the shim",
     .base = "startup_without",
     .shim = BENCH_CHANGE,
     .sample = sample_start},
    {.name = "load_300_without", .text = "loading 300 libraries", .sample = sample_load},
    {.name = "load_300",
     .text = "the same under the shim",
     .base = "load_300_without",
     .shim = BENCH_CHANGE,
     .sample = sample_load},
};
const int bench_case_count = sizeof(bench_cases) / sizeof(bench_cases[0]);
