/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of a communicator's life: every way to make one, and every way to end it. */
#include <stdlib.h>
#include <string.h>

#include "shim/child.h"
#include "shim/comm.h"
#include "shim/exports.h"
#include "shim/group.h"
#include "shim/hooks.h"
#include "shim/log.h"
#include "shim/order.h"
#include "shim/real.h"

/* A setting of a configuration. Its variable in the environment overrules it (init.cc, 2.28.9). */
static bool is_set(const char *variable, int value, bool configured)
{
  const char *word = getenv(variable);

  if (word && (strcmp(word, "0") == 0 || strcmp(word, "1") == 0))
    return word[0] - '0' == value;
  return configured;
}

/* NCCL copies as many bytes as the job says there are; what is behind them is not the job's configuration. */
#define HAS(config, member)                                                                                            \
  ((config)->size >= offsetof(ncclConfig_t, member) + sizeof((config)->member) && is_config(config))

static bool is_config(const ncclConfig_t *config)
{
  return config->magic == ABI_NCCL_CONFIG_MAGIC;
}

static bool is_nonblocking(const ncclConfig_t *config)
{
  return is_set("NCCL_COMM_BLOCKING", 0, config && HAS(config, blocking) && config->blocking == 0);
}

/*
 * The parent's setting decides whether what is split off it shares its resources, and with them its abort flag
 * (init.cc, 2.27 to 2.30.7): ending the child would then end the job's communicator.
 */
static bool is_sharing(const ncclConfig_t *config)
{
  return is_set("NCCL_COMM_SPLIT_SHARE_RESOURCES", 1, config && HAS(config, splitShare) && config->splitShare == 1);
}

/* Why a communicator that is about to be made cannot be attended, as this rank alone can tell. */
static enum reason obstacle(const ncclConfig_t *config)
{
  if (group_is_open())
    return REASON_grouped_init;
  return is_sharing(config) ? REASON_shared_resources : REASON_none;
}

/* From an id that the ranks were handed. NCCL_COMM_ID gives every communicator of a job the same one. */
static struct attendance attend_id(const ncclUniqueId *id, int nranks, int rank, const ncclConfig_t *config)
{
  const char *fixed = getenv("NCCL_COMM_ID");
  bool ambiguous = fixed && *fixed;
  uint64_t key = ambiguous ? 0 : comm_hash(0, id, sizeof(*id));
  struct attendance attendance;

  group_mix();
  attendance = comm_attend(key, nranks, rank, ambiguous ? REASON_comm_id_env : obstacle(config));
  attendance.nranks = nranks;
  attendance.rank = rank;
  attendance.shares = is_sharing(config);
  attendance.nonblocking = is_nonblocking(config);
  return attendance;
}

/*
 * From a parent: its id, the number of communicators made from it so far, and `what` (a colour, or who is left out)
 * name the new one. Capacity and slot are the parent's, since the new size is not known yet.
 */
static struct attendance attend_offspring(ncclComm_t parent, const void *what, size_t size, const ncclConfig_t *config)
{
  struct attendance attendance;
  enum reason plain;
  struct comm *comm;
  uint64_t id = 0;

  group_mix();
  comm = comm_enter(parent);
  if (!comm)
    return comm_attend(0, 0, 0, REASON_unknown_comm);
  comm->offspring++;
  plain = comm->id == 0 ? REASON_unknown_comm : obstacle(config);
  /* NCCL writes such a handle when the parent's state says success (init.cc, 2.28.9), which nobody tells the shim. */
  if (plain == REASON_none && comm->nonblocking)
    plain = REASON_nonblocking;
  if (plain == REASON_none && !config && comm->shares)
    plain = REASON_shared_resources;
  if (comm->id != 0)
    id = comm_hash(comm_hash(comm->id, &comm->offspring, sizeof(comm->offspring)), what, size);
  attendance = comm_attend(id, comm->nranks, comm->rank, plain);
  /* Without a configuration the parent's is inherited. */
  attendance.shares = config ? is_sharing(config) : comm->shares;
  attendance.nonblocking = config ? is_nonblocking(config) : comm->nonblocking;
  comm_leave(comm);
  return attendance;
}

static ncclResult_t made(struct attendance *attendance, ncclResult_t result, const ncclComm_t *handle)
{
  if (result == ncclSuccess || result == ncclInProgress)
    exports_tell((const void *)(uintptr_t)REAL(ncclGetVersion), attendance->nccl_version);
  comm_made(attendance, handle ? *handle : NULL, result);
  return result;
}

ncclResult_t hook_ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
  struct attendance attendance = attend_id(&commId, nranks, rank, NULL);

  return made(&attendance, REAL(ncclCommInitRank)(comm, nranks, commId, rank), comm);
}

ncclResult_t hook_ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                         ncclConfig_t *config)
{
  struct attendance attendance = attend_id(&commId, nranks, rank, config);

  return made(&attendance, REAL(ncclCommInitRankConfig)(comm, nranks, commId, rank, config), comm);
}

ncclResult_t hook_ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
                                           ncclConfig_t *config)
{
  struct attendance attendance;

  if (!commIds || nId < 1)
    return REAL(ncclCommInitRankScalable)(newcomm, nranks, myrank, nId, commIds, config);
  attendance = attend_id(&commIds[0], nranks, myrank, config);
  return made(&attendance, REAL(ncclCommInitRankScalable)(newcomm, nranks, myrank, nId, commIds, config), newcomm);
}

ncclResult_t hook_ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
  ncclResult_t result = REAL(ncclCommInitAll)(comm, ndev, devlist);

  for (int i = 0; result == ncclSuccess && i < ndev; i++) {
    struct attendance attendance = comm_attend(0, 0, 0, REASON_same_process);
    attendance.nranks = ndev;
    attendance.rank = i;
    made(&attendance, result, &comm[i]);
  }
  return result;
}

ncclResult_t hook_ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
  struct attendance attendance = attend_offspring(comm, &color, sizeof(color), config);

  if (color == NCCL_SPLIT_NOCOLOR) {
    board_detach(attendance.board);
    attendance.board = NULL;
  }
  return made(&attendance, REAL(ncclCommSplit)(comm, color, key, newcomm, config), newcomm);
}

static int compare_ranks(const void *a, const void *b)
{
  return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* The ranks may list those left out in any order. */
static uint64_t hash_excluded(const int *ranks, int count)
{
  int *sorted = count > 0 && ranks ? malloc((size_t)count * sizeof(*sorted)) : NULL;
  uint64_t hash = 0;

  if (!sorted)
    return 0;
  memcpy(sorted, ranks, (size_t)count * sizeof(*sorted));
  qsort(sorted, (size_t)count, sizeof(*sorted), compare_ranks);
  hash = comm_hash(1, sorted, (size_t)count * sizeof(*sorted));
  free(sorted);
  return hash;
}

ncclResult_t hook_ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                                 ncclConfig_t *config, int shrinkFlags)
{
  uint64_t excluded = hash_excluded(excludeRanksList, excludeRanksCount);
  struct attendance attendance = attend_offspring(comm, &excluded, sizeof(excluded), config);

  return made(&attendance,
              REAL(ncclCommShrink)(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags), newcomm);
}

ncclResult_t hook_ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
                               ncclConfig_t *config)
{
  struct attendance attendance;

  comm_turn_to(comm);
  attendance = comm_attend(0, 0, 0, REASON_grown);
  return made(&attendance, REAL(ncclCommGrow)(comm, nRanks, uniqueId, rank, newcomm, config), newcomm);
}

/* Ends what the shim has on a communicator, before NCCL ends the communicator itself. */
static void retire(ncclComm_t handle, enum reason reason, bool forget)
{
  struct comm *comm;

  group_mix();
  comm = comm_enter(handle);
  if (!comm)
    return;
  comm_make_plain(comm, reason, 0);
  if (comm_wait_child(comm)) {
    child_end(comm, ORDER_FOR_EVER);
    comm_release_child(comm);
  }
  if (forget)
    comm_remove(comm);
  comm_leave(comm);
}

ncclResult_t hook_ncclCommFinalize(ncclComm_t comm)
{
  retire(comm, REASON_aborted, false);
  return REAL(ncclCommFinalize)(comm);
}

ncclResult_t hook_ncclCommDestroy(ncclComm_t comm)
{
  retire(comm, REASON_aborted, true);
  return REAL(ncclCommDestroy)(comm);
}

/*
 * Ends the child after the job's communicator was aborted or revoked. Such a call is there to end waits and must not
 * wait for ours: a child whose work does not end soon is left behind, and so is one that a thread is still inside of.
 */
static void end_child_soon(struct comm *comm)
{
  if (!comm_hold_child(comm))
    return;
  if (!child_end(comm, ORDER_SOON))
    log_info("rank %d of %d, communicator %016llx was aborted while its child communicator was at work: the child is "
             "left as it is",
             comm->rank, comm->nranks, (unsigned long long)comm->id);
  comm_release_child(comm);
}

ncclResult_t hook_ncclCommAbort(ncclComm_t handle)
{
  struct comm *comm = comm_enter(handle);
  ncclResult_t result;

  if (!comm)
    return REAL(ncclCommAbort)(handle);
  comm_remove(comm);
  result = REAL(ncclCommAbort)(handle);
  end_child_soon(comm);
  comm_leave(comm);
  return result;
}

ncclResult_t hook_ncclCommRevoke(ncclComm_t handle, int revokeFlags)
{
  struct comm *comm = comm_enter(handle);
  ncclResult_t result;

  if (!comm)
    return REAL(ncclCommRevoke)(handle, revokeFlags);
  comm_make_plain(comm, REASON_aborted, 0);
  result = REAL(ncclCommRevoke)(handle, revokeFlags);
  end_child_soon(comm);
  comm_leave(comm);
  return result;
}

/* Its memory is to go, and the child's is more of it. A job that resumes the communicator has it plain. */
ncclResult_t hook_ncclCommSuspend(ncclComm_t comm, int flags)
{
  retire(comm, REASON_suspended, false);
  return REAL(ncclCommSuspend)(comm, flags);
}

/*
 * What happens to the child happens to the communicator, as far as the job is concerned. PyTorch's watchdog asks from a
 * thread of its own while another is inside a call.
 */
ncclResult_t hook_ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *asyncError)
{
  struct comm *comm = comm_enter(handle);
  ncclResult_t result = REAL(ncclCommGetAsyncError)(handle, asyncError);

  if (!comm)
    return result;
  if (result == ncclSuccess && *asyncError == ncclSuccess) {
    order_launched(comm);
    *asyncError = child_async_error(comm);
  }
  comm_leave(comm);
  return result;
}
