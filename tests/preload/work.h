/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's calls: where their buffers lie, how they are issued, and what is looked at afterwards. Knows nothing of
 * the shim.
 */
#ifndef SYMMSHIM_PRELOAD_WORK_H
#define SYMMSHIM_PRELOAD_WORK_H

#include "tests/preload/comms.h"
#include "tests/preload/data.h"
#include "tests/preload/options.h"
#include "tests/preload/pool.h"

enum { MAX_BATCH = 64, MAX_SEATS = 16 };

struct placed {
  enum op op;
  int call; /* number in the job, from 0 */
  struct data data;
  void *send, *recv, *host;
  size_t send_count, recv_count; /* elements in each */
  cudaStream_t stream;
};

struct worker {
  struct seat *seat;
  struct pool pool;
  cudaStream_t streams[2];
  struct placed placed[MAX_BATCH];
};

/* Takes memory for calls [first, first + count) of the job. */
void work_place(const struct options *options, struct worker *worker, int first, int count);

/* New input for replay number `round`, and rubbish where the output will be. */
void work_fill(const struct options *options, struct worker *worker, int count, int round);

/* Issues the placed calls, those of all workers of the process side by side. */
void work_issue(const struct options *options, struct worker *workers, int worker_count, int count);

/* Waits for the calls and looks at every element. */
bool work_check(const struct options *options, struct worker *worker, int count);

/* Broadcast, send and receive on the buffers of a call. */
bool work_mixed(const struct options *options, struct worker *worker, const struct placed *placed);

/* An all-gather, and a reduce-scatter of its output on another stream without an event between the two. */
bool work_chain(const struct options *options, struct worker *worker, int call);

#endif
