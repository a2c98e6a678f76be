/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated communicator: what libnccl.so.2's files share among themselves.
 *
 * A communicator's structure is never freed, so that any use of it after destroy or abort is found and ends the
 * process.
 */
#ifndef SYMMSHIM_SIM_COMM_H
#define SYMMSHIM_SIM_COMM_H

#include "tests/sim/config.h"
#include "tests/sim/control.h"
#include "tests/sim/engine.h"
#include "tests/sim/meet.h"
#include "tests/sim/shared.h"

#define COMM_LIVE 0x73696d636f6d6d31ULL
#define COMM_DEAD 0x73696d6465616431ULL

struct window;
struct symmetric_memory;
struct symmetric_view;

/* Where symmetric memory lies: offsets are this rank's own doing, and peers are expected to have the same. */
struct symmetric {
  bool started;
  uintptr_t flat; /* nranks times `stride` of address space, one part for each rank */
  size_t stride;
  struct symmetric_memory *memories; /* sorted by offset */
  struct symmetric_view *views;      /* what is mapped of whom */
  struct window *windows;
  int *orphans; /* descriptors of allocations whose registration failed */
  size_t orphan_count;
};

struct redop {
  bool used;
  ncclDataType_t type;
  ncclScalarResidence_t residence;
  _Alignas(8) unsigned char scalar[8];
  const void *pointer;
};

enum { COMM_MAX_REDOPS = 64 };

struct ncclComm {
  atomic_ullong magic;
  struct ncclComm *next;
  unsigned int serial;
  int rank;
  int nranks;
  int device;
  ncclConfig_t config;
  size_t charged;
  bool suspended;
  bool child;       /* of a split or shrink */
  bool broken;      /* its making failed */
  ncclComm_t maker; /* through which it meets its peers, while it is made */
  struct shared *shared;
  int presence; /* the descriptor by which the others know that this rank is there */
  unsigned int gathers[SHARED_CHANNELS];
  atomic_bool abort;
  atomic_bool interrupt; /* ends what waits, and is taken back */
  atomic_bool revoked;
  bool finalized;
  atomic_uint state;      /* of the last thing that was asked of it; see comm_state */
  atomic_uint async;      /* an error that came about in the background */
  atomic_uint persistent; /* how often graphs have it */
  atomic_uint busy;       /* calls and jobs inside, in any thread */
  struct sim_chain *chain;
  unsigned int chunk; /* of plain collectives; the stream's thread only */
  unsigned int op;
  unsigned int symmetric_barrier;
  unsigned int signals[SHARED_MAX_RANKS]; /* of each rank, so many were waited for; the stream's thread only */
  struct symmetric symmetric;
  bool profiled;
  void *profiler; /* the plugin's own */
  struct redop redops[COMM_MAX_REDOPS];
};

/* The engine; NULL where the real libcuda.so.1 answers. */
const struct sim_engine *nccl_engine(void);
#define GPU nccl_engine()

/* ncclInvalidArgument for no communicator; a dead one ends the process. */
ncclResult_t comm_check(ncclComm_t comm, const char *function);
/* As NCCL asks before it works: not in the middle of something, not in error. */
ncclResult_t comm_ready(ncclComm_t comm);
/* What ncclCommGetAsyncError gives. */
ncclResult_t comm_state(ncclComm_t comm);
struct shared_abort comm_abort_flags(ncclComm_t comm);
/* Of all ranks. ncclInternalError: it was aborted, ncclRemoteError: a rank has died, or given the communicator up. */
ncclResult_t comm_gather(ncclComm_t comm, enum shared_links links, const void *own, void *all, size_t size);
/* Counts work that is launched, for errors that a test wants in the background (SIM_ASYNC_ERROR). */
void comm_count_launch(ncclComm_t comm);
/* A graph that is captured in the stream keeps the communicator from its end. */
ncclResult_t comm_persist(ncclComm_t comm, CUstream stream);

ncclResult_t comm_init(ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank, const ncclConfig_t *config);
ncclResult_t comm_split(ncclComm_t parent, int color, int key, ncclComm_t *out, const ncclConfig_t *config);
ncclResult_t comm_shrink(ncclComm_t parent, const int *exclude, int count, ncclComm_t *out, const ncclConfig_t *config,
                         int flags);
ncclResult_t comm_destroy(ncclComm_t comm);
ncclResult_t comm_abort(ncclComm_t comm);
ncclResult_t comm_finalize(ncclComm_t comm);
ncclResult_t comm_revoke(ncclComm_t comm);
ncclResult_t comm_suspend(ncclComm_t comm, int flags);
ncclResult_t comm_resume(ncclComm_t comm);

#endif
