/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random program: communicators come and go, memory too, and calls of all kinds are issued, every element of whose
 * results is looked at. It knows nothing of the shim, and is right without it too.
 *
 * Two generators: what `common` draws is the same on all ranks, since NCCL wants the same sequence of calls of every
 * rank of a communicator; what `own` draws may differ. No draw from `common` may depend on anything but `common`.
 *
 * That such a program cannot hang: all ranks issue in one order, and a rank waits only for calls that it has issued.
 */
#ifndef SYMMSHIM_SOAK_H
#define SYMMSHIM_SOAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/sim/sim_abi.h"
#include "tests/soak/random.h"

enum {
  MAX_MEMBERS = 8,
  MAX_TEAMS = 8,
  MAX_BATCH = 6,
  MAX_PENDING = 24,
  SLOTS = 7,
  OWN_SEGMENTS = 6,
  STREAMS = 5, /* the last one is the legacy stream */
  GUARD_BYTES = 64,
  FILL = 0xa5,
  HOST_TO_DEVICE = 1,
  DEVICE_TO_HOST = 2,
  PREMULSUM = 100
};

#define OPS(X)                                                                                                         \
  X(all_gather, 25)                                                                                                    \
  X(reduce_scatter, 25)                                                                                                \
  X(all_reduce, 20)                                                                                                    \
  X(broadcast, 8)                                                                                                      \
  X(reduce, 5)                                                                                                         \
  X(all_to_all, 4)                                                                                                     \
  X(gather, 3)                                                                                                         \
  X(scatter, 3)                                                                                                        \
  X(send_recv, 7)
#define OP_ENUM(name, weight) OP_##name,
enum op { OPS(OP_ENUM) OP_COUNT };
#undef OP_ENUM

/* A communicator. Every rank knows all of them, also those that it is no member of. */
struct team {
  int size;
  int members[MAX_MEMBERS]; /* their ranks in the world, in the communicator's order */
  int me;                   /* this rank's number in it, or -1 */
  ncclComm_t comm;          /* NULL where this rank is no member */
  bool nonblocking, shares;
  bool in_graphs; /* after a revoke NCCL waits for none (init.cc, 2.30), whose last callback then comes too late */
  bool shrunk;    /* another time with another rank left out its ranks would have been called unequally often */
};

struct call {
  enum op op;
  ncclDataType_t dtype;
  int redop;
  size_t count;
  int root;
  bool inplace;
  struct team *team;
  uint64_t seed;
  int number; /* in the program */

  const struct call *source;     /* whose output is the input, or NULL */
  bool overwritten, overwriting; /* the output of the next call goes where this call's input was; and that next one */
  size_t send_count, recv_count; /* elements */
  char *send, *recv, *send_place, *recv_place;
  void *host;
  int stream;
};

struct segment_of_own {
  char *memory;
  size_t size, used;
};

/* Memory that all ranks have alike, as far as `common` goes: `used` is the same everywhere, `memory` is not. */
struct slot {
  char *memory;
  size_t size, used;
};

struct options {
  uint64_t seed;
  int steps, cycles, limit_s, late_us, diverge;
  bool whole;    /* no communicator but those of all ranks, and none made by splitting */
  bool pressure; /* sometimes wants all memory there is */
  bool keeps;    /* what communicators took may stay taken */
};

struct soak {
  struct options options;
  struct random common, own;
  int rank, size;
  int step, calls, barriers;
  cudaStream_t streams[STREAMS];
  bool legacy; /* the legacy stream is used too */
  struct slot slots[SLOTS];
  struct segment_of_own own_segments[OWN_SEGMENTS];
  struct team *teams[MAX_TEAMS];
  int team_count;
  struct call *pending[MAX_PENDING + 2 * MAX_BATCH]; /* issued, not looked at yet */
  int pending_count;
  uint64_t calls_by_op[OP_COUNT], elements, graphs, teams_made, refusals;
};

/* soak.c: what the program is at, for the message when it hangs; and the end with a message. */
void soak_at(const struct soak *soak, const char *what, int number);
_Noreturn void soak_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define CUDA_CHECK(call)                                                                                               \
  do {                                                                                                                 \
    cudaError_t check_error = (call);                                                                                  \
    if (check_error != cudaSuccess)                                                                                    \
      soak_fail("%s:%d: %s gives %u (%s)", __FILE__, __LINE__, #call, check_error, cudaGetErrorString(check_error));   \
  } while (0)

/* ncclInProgress is no error: a non-blocking communicator says so. */
#define NCCL_CHECK(call)                                                                                               \
  do {                                                                                                                 \
    ncclResult_t check_result = (call);                                                                                \
    if (check_result != ncclSuccess && check_result != ncclInProgress)                                                 \
      soak_fail("%s:%d: %s gives %u (%s)", __FILE__, __LINE__, #call, check_result, ncclGetErrorString(check_result)); \
  } while (0)

/* values.c: what goes into a call and what has to come out of it. */
const char *op_name(enum op op);
void values_input(const struct call *call, int rank, size_t count, void *elements);
void values_factor(ncclDataType_t dtype, void *scalar);
/* Looks at all that the call has left behind; ends the program with a message if something is wrong. */
void values_check(struct soak *soak, const struct call *call);
bool values_has_output(const struct call *call);

/* heap.c: the job's memory. */
void heap_open(struct soak *soak);
void heap_close(struct soak *soak);
/* Gives up all places; every pending call was looked at. */
void heap_reset(struct soak *soak);
/* A place of `bytes`, or NULL on all ranks. Its beginning may be another one on each rank. */
char *heap_place(struct soak *soak, size_t bytes);
/* What this rank does for itself: allocates, frees, allocates again. */
void heap_event(struct soak *soak);

/* team.c */
void team_world(struct soak *soak);
void team_make(struct soak *soak);
void team_end(struct soak *soak, int at);
void team_end_all(struct soak *soak);
void team_settle(const struct team *team);

/* calls.c */
struct call *calls_draw(struct soak *soak, struct team *team);
/* Finds memory for all of them; gives up the last ones until they fit, on all ranks alike. */
int calls_place(struct soak *soak, struct call **calls, int count);
void calls_fill(struct soak *soak, struct call *call, int stream);
void calls_issue(struct soak *soak, struct call *call);
void calls_batch(struct soak *soak);
void calls_chain(struct soak *soak);
void calls_free(struct call *call);
/* Waits for all that was issued and looks at it. */
void calls_settle(struct soak *soak);
/* Issues in place of a batch: `count` placed calls, in a group or not. */
void calls_run(struct soak *soak, struct call **calls, int count, bool group);

/* graph.c */
void graph_step(struct soak *soak);

#endif
