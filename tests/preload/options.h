/* SPDX-License-Identifier: Apache-2.0 */
/* What a job is asked to do: its command line. Knows neither CUDA nor NCCL beyond the numbers of their words. */
#ifndef SYMMSHIM_PRELOAD_OPTIONS_H
#define SYMMSHIM_PRELOAD_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/sim/sim_abi.h"

enum op { OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE, OP_COUNT };

/* How the allocators of the ranks differ. */
enum divergence {
  DIVERGE_NONE,
  DIVERGE_OFFSET, /* the last rank has something before the buffers of every second call */
  DIVERGE_SIZE,   /* the last rank's segments are larger */
  DIVERGE_MALLOC, /* rank 0 makes further tensors half-way */
  DIVERGE_PLAIN,  /* the last rank's buffers are small allocations of their own */
  DIVERGE_WINDOW, /* from the fifth call on, the last rank takes the other of two segments, at the same offset */
  DIVERGE_BATCH,  /* activations of another size on each rank before each reduce-scatter or all-reduce */
  DIVERGE_COUNT
};

enum init {
  INIT_RANK,
  INIT_CONFIG,
  INIT_SCALABLE,
  INIT_GROUPED,
  INIT_NONBLOCKING,
  INIT_SHARED,
  INIT_HIDDEN,
  INIT_ALL,
  INIT_COUNT
};
enum derive { DERIVE_NONE, DERIVE_SPLIT, DERIVE_HALVES, DERIVE_TWINS, DERIVE_SHRINK, DERIVE_COUNT };
enum ending { END_DESTROY, END_FINALIZE, END_ABORT, END_REVOKE, END_EXIT, END_COUNT };
enum registering { REGISTER_NONE, REGISTER_BUFFER, REGISTER_WINDOW, REGISTER_COUNT };

enum { MAX_OPS = 8, REDOP_PREMULSUM = 100 };

struct options {
  enum op ops[MAX_OPS]; /* taken in turn */
  int op_count;
  ncclDataType_t dtype;
  int redop; /* ncclSum ..., or REDOP_PREMULSUM */
  size_t count;
  int calls;
  int batch; /* calls between two looks at the results */
  bool inplace;
  bool apart; /* input and output in different segments */
  bool fork;  /* in the end, a child that leaves by exit() */
  int streams;
  enum divergence diverge;
  enum init init;
  enum derive derive;
  enum ending ending;
  enum registering registering;
  bool group;      /* every batch after the first */
  int capture;     /* replays of each batch after the first, which is not captured */
  int free_every;  /* batches after which all segments are freed */
  bool mixed;      /* broadcast, send and receive on the same buffers in between */
  bool chain;      /* each reduce-scatter reads the all-gather's output on another stream, without an event */
  bool small_recv; /* reduce-scatter outputs are small allocations of their own, on every rank */
  bool pressure;   /* half-way, free everything and want nearly all of the device */
  bool elsewhere;  /* another device is current when the first call is made */
  int abort_ms;    /* another thread aborts the communicator so long after the first batch */
  bool errors;     /* errno and the last CUDA error are to stay as they are */
  int late_rank, late_first, late_last, late_ms;
  int kill_rank, kill_call;
  int devices; /* of INIT_ALL */
  int status;  /* the job's own exit status when all went well */
  size_t segment_bytes;
};

/* Fills in what the command line says; exits with 64 when it cannot be understood. */
void options_parse(struct options *options, int argc, char **argv);

const char *op_name(enum op op);

#endif
