/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that `symmshim bench` and `symmshim tune` share with the ranks that they start (tools/gpu/rank.c): which
 * calls are to be measured, how far that is, and what was measured. A rank gets its descriptor as its first argument.
 */
#ifndef SYMMSHIM_GPU_REGION_H
#define SYMMSHIM_GPU_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "policy/policy.h"
#include "shim/abi/nccl.h"

enum { GPU_MAX_RANKS = 64, GPU_MAX_CASES = 512, GPU_MAX_ROUNDS = 51, GPU_MAX_CHILDREN = 4, GPU_MAX_MESSAGE = 200 };

/* How a call is made. All in one process, so that they are interleaved and a GPU that throttles does so for all. */
enum gpu_way {
  GPU_STOCK, /* by NCCL alone: pncclX, which the shim does not see, on cudaMalloc's memory */
  GPU_SHIM,  /* through the shim */
  GPU_HAND,  /* windows by hand, likewise unseen, with so many CTAs: one way for each child */
  GPU_WAYS = GPU_HAND + GPU_MAX_CHILDREN
};

struct gpu_child {
  int min_ctas, max_ctas;
  bool copy_engine; /* CTAPolicy zero */
};

struct gpu_case {
  enum policy_op op;
  enum policy_dtype dtype;
  enum policy_redop redop;
  uint64_t bytes; /* of the large side */
};

/* The error of a NaN, which is also what no call has written: above all others, and it stays the largest. */
#define GPU_NO_NUMBER 1e30

struct gpu_figures {
  bool measured;
  double us[GPU_MAX_ROUNDS]; /* of one call, on the device; the slowest rank's */
  double host_us;            /* of one call, on rank 0's host: the median */
  double error;              /* largest error against stock's result, relative to the largest element */
  bool sms_known;
  int sms;     /* that NCCL's kernel of this call takes: its channels, each of which is a thread block */
  double busy; /* how many times as long the busy kernel took beside these calls: the median; 0: it did not run */
};

enum gpu_pass {
  GPU_TIME, /* the figures */
  GPU_LOOK  /* no times: NCCL is to log what it launches, which would spoil them */
};

struct gpu_region {
  /* what to do */
  enum gpu_pass pass;
  int nranks, rounds, child_count, case_count;
  uint32_t ways; /* bits by enum gpu_way; stock, which all are held against, is always among them */
  bool unseen;   /* what goes through the shim is in memory that the shim has not allocated */
  bool busy;     /* beside a kernel that keeps all SMs at work */
  struct gpu_child children[GPU_MAX_CHILDREN];
  struct gpu_case cases[GPU_MAX_CASES];
  /* on the way */
  _Atomic uint32_t arrivals; /* at meetings of all ranks, over all of them */
  _Atomic uint32_t done;     /* cases */
  _Atomic uint32_t way;      /* that rank 0 is about; GPU_WAYS: it sets up */
  _Atomic uint32_t failed;   /* a rank gave up, and says why below */
  char message[GPU_MAX_MESSAGE];
  ncclUniqueId ids[GPU_WAYS];
  double shared_us[GPU_MAX_RANKS];
  /* what came of it */
  int nccl_version;
  bool simulation; /* the GPUs are tests/sim's */
  char gpu[128];
  struct gpu_figures figures[GPU_MAX_CASES][GPU_WAYS];
};

#endif
