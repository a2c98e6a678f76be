/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that `symmshim bench` shares with the programs it times: what to do, and what it took. They get its
 * descriptor as their first argument.
 */
#ifndef SYMMSHIM_BENCH_REGION_H
#define SYMMSHIM_BENCH_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { BENCH_MAX_RANKS = 8, BENCH_MAX_CHUNKS = 1000 };

enum bench_call { BENCH_GROUP, BENCH_BROADCAST, BENCH_ALL_REDUCE, BENCH_ALL_GATHER };

struct bench_job {
  enum bench_call call;
  bool seen; /* the communicator is made by ncclCommInitRank; else where the shim cannot see it */
  uint32_t nranks;
  uint32_t chunks, chunk_calls; /* a rank's figure is the median over chunks of the time of one call */
  uint32_t late_us;             /* rank 0 comes so much later than the others, to each call */
  uint64_t key;                 /* names the communicator; no two runs have the same */
};

struct bench_rank {
  double ns;         /* of one call */
  uint64_t on_child; /* timed calls that went to a communicator of the shim's */
};

struct bench_region {
  struct bench_job job;
  _Atomic uint32_t arrivals; /* at meetings of all ranks, over all of them */
  struct bench_rank ranks[BENCH_MAX_RANKS];
};

#endif
