/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a communicator: init, split, shrink, destroy, abort. */
#include "tests/sim/comm.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/group.h"
#include "tests/sim/profiler.h"
#include "tests/sim/symmetric.h"

static pthread_once_t engine_once = PTHREAD_ONCE_INIT;
static const struct sim_engine *engine;
static _Atomic(ncclComm_t) comms; /* all there ever were */
static atomic_uint serials;

static void engine_open(void)
{
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  const struct sim_engine *(*get)(void) = NULL;
  if (library)
    *(void **)&get = dlsym(library, "sim_engine");
  if (!get)
    control_die("the libcuda.so.1 that libnccl.so.2 found is not the simulated one");
  engine = get();
}

const struct sim_engine *nccl_engine(void)
{
  pthread_once(&engine_once, engine_open);
  return engine;
}

ncclResult_t comm_check(ncclComm_t comm, const char *function)
{
  if (!comm)
    return ncclInvalidArgument;
  unsigned long long magic = atomic_load(&comm->magic);
  if (magic == COMM_DEAD)
    control_die("use of a dead communicator (%p) in %s", (void *)comm, function);
  return magic == COMM_LIVE ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t comm_state(ncclComm_t comm)
{
  ncclResult_t state = atomic_load(&comm->state);
  return state == ncclSuccess ? atomic_load(&comm->async) : state;
}

/* ncclCommEnsureReady: what is wrong comes back from every later call. */
ncclResult_t comm_ready(ncclComm_t comm)
{
  ncclResult_t state = comm_state(comm);
  if (comm->broken)
    control_die("use of a communicator (%p) whose making failed", (void *)comm);
  bool finalized = comm->finalized && !atomic_load(&comm->revoked);
  return state == ncclInProgress || finalized ? (ncclResult_t)ncclInvalidArgument : state;
}

struct shared_abort comm_abort_flags(ncclComm_t comm)
{
  return (struct shared_abort){{&comm->abort, &comm->interrupt, comm->maker ? &comm->maker->abort : NULL}};
}

static void all_ranks(int *members, int nranks)
{
  for (int r = 0; r < nranks; r++)
    members[r] = r;
}

static ncclResult_t gather_result(enum shared_end end)
{
  static const ncclResult_t results[] = {
      [SHARED_DONE] = ncclSuccess, [SHARED_ABORTED] = ncclInternalError, [SHARED_LOST] = ncclRemoteError};
  return results[end];
}

/* A minute by default: each try is followed by a longer sleep (socket.cc). */
static double connect_patience(void)
{
  const char *count = getenv("NCCL_SOCKET_RETRY_CNT");
  const char *sleep_ms = getenv("NCCL_SOCKET_RETRY_SLEEP_MSEC");
  double tries = count && *count ? atoi(count) : 34;
  return tries * (tries + 1) / 2 * (sleep_ms && *sleep_ms ? atoi(sleep_ms) : 100) / 1e3;
}

ncclResult_t comm_gather(ncclComm_t comm, enum shared_links links, const void *own, void *all, size_t size)
{
  int members[SHARED_MAX_RANKS];
  all_ranks(members, comm->nranks);
  const struct shared_party party = {.shared = comm->shared,
                                     .presence = comm->presence,
                                     .links = links,
                                     .patience = connect_patience(),
                                     .channel = SHARED_ALL,
                                     .count = comm->gathers[SHARED_ALL]++,
                                     .members = members,
                                     .nmembers = comm->nranks,
                                     .rank = comm->rank,
                                     .abort = comm_abort_flags(comm)};
  return gather_result(shared_gather(&party, own, all, size));
}

static ncclComm_t comm_new(int device, const ncclConfig_t *config)
{
  ncclComm_t comm = calloc(1, sizeof(*comm));
  comm->magic = COMM_LIVE;
  comm->serial = atomic_fetch_add(&serials, 1);
  comm->device = device;
  comm->config = *config;
  comm->state = ncclInProgress;
  comm->chain = GPU->chain_create();
  comm->next = atomic_load(&comms);
  while (!atomic_compare_exchange_weak(&comms, &comm->next, comm))
    ;
  return comm;
}

/* What NCCL's own buffers take of the device, where a test asks for that (SIM_COMM_MEMORY). */
static ncclResult_t comm_charge(ncclComm_t comm)
{
  size_t size = control_env_size("SIM_COMM_MEMORY", 0);
  if (GPU->memory_charge(comm->device, size) != CUDA_SUCCESS)
    return ncclUnhandledCudaError;
  comm->charged = size;
  return ncclSuccess;
}

/* Maps the shared memory and waits for all ranks to have done so. */
static ncclResult_t comm_join(ncclComm_t comm, const struct meet_place *place)
{
  ncclResult_t result = meet_attach(place, comm->nranks, &comm->shared, &comm->presence);
  if (result != ncclSuccess)
    return result;
  if (!shared_enter(comm->shared, comm->presence, comm->rank))
    return ncclInvalidArgument;
  int devices[SHARED_MAX_RANKS];
  result = comm_gather(comm, SHARED_RING, &comm->device, devices, sizeof(comm->device));
  if (result != ncclSuccess)
    return result;
  for (int r = 0; r < comm->nranks; r++)
    if (r != comm->rank && devices[r] == comm->device)
      return ncclInvalidUsage; /* "Duplicate GPU detected" */
  return ncclSuccess;
}

/* The end of a task that makes a communicator. Of a non-blocking one the state is told when the whole task has ended. */
static ncclResult_t comm_made(ncclComm_t comm, ncclResult_t result)
{
  if (comm->config.blocking || comm->child)
    atomic_store(&comm->state, result);
  return result;
}

struct init_task {
  struct group_task task;
  ncclUniqueId id;
};

static ncclResult_t init_run(struct group_task *task)
{
  struct init_task *init = (struct init_task *)task;
  struct meet_place place;
  ncclResult_t result = comm_charge(task->comm);
  if (result == ncclSuccess)
    result = meet_id_find(&init->id, task->comm->nranks, task->comm->rank, &place);
  if (result == ncclSuccess) {
    result = comm_join(task->comm, &place);
    meet_close(&place);
  }
  if (result == ncclSuccess)
    profiler_begin(task->comm);
  return comm_made(task->comm, result);
}

ncclResult_t comm_init(ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank, const ncclConfig_t *config)
{
  ncclConfig_t parsed;
  int device;
  if (!out || nranks < 1 || nranks > SHARED_MAX_RANKS || rank < 0 || rank >= nranks)
    return ncclInvalidArgument;
  *out = NULL;
  if (GPU->context_enter(&device) != CUDA_SUCCESS)
    return ncclUnhandledCudaError;
  ncclResult_t result = config_parse(&parsed, config);
  if (result != ncclSuccess)
    return result;
  ncclComm_t comm = comm_new(device, &parsed);
  comm->nranks = nranks;
  comm->rank = rank;
  struct init_task *init = calloc(1, sizeof(*init));
  *init = (struct init_task){.task = {.phase = GROUP_MAKE, .comm = comm, .run = init_run}, .id = *id};
  *out = comm;
  group_start();
  group_add(&init->task);
  result = group_end();
  if (result != ncclSuccess && result != ncclInProgress)
    *out = NULL;
  return result;
}

/* Split and shrink: a new communicator of some ranks, who meet through the old one. */
struct split_task {
  struct group_task task;
  ncclComm_t parent;
  ncclComm_t child; /* NULL: this rank only helps the others */
  ncclComm_t *out;
  enum shared_channel channel;
  int members[SHARED_MAX_RANKS]; /* of the parent: who takes part */
  int nmembers;
  int color;
  int key;
};

struct split_entry {
  int rank;
  int color;
  int key;
};

static ncclResult_t split_gather(struct split_task *split, enum shared_links links, const void *own, void *all,
                                 size_t size)
{
  ncclComm_t parent = split->parent;
  const struct shared_party party = {.shared = parent->shared,
                                     .presence = parent->presence,
                                     .links = links,
                                     .patience = connect_patience(),
                                     .channel = split->channel,
                                     .count = parent->gathers[split->channel]++,
                                     .members = split->members,
                                     .nmembers = split->nmembers,
                                     .rank = parent->rank,
                                     .abort = comm_abort_flags(parent)};
  return gather_result(shared_gather(&party, own, all, size));
}

static int entry_order(const void *a, const void *b)
{
  const struct split_entry *left = a;
  const struct split_entry *right = b;
  if (left->key != right->key)
    return left->key < right->key ? -1 : 1;
  return left->rank - right->rank;
}

/* This rank's place in the child, and the rank in the parent of the child's first. */
static int split_place(struct split_task *split, struct split_entry *entries)
{
  int count = 0;
  for (int i = 0; i < split->nmembers; i++)
    if (entries[i].color == split->color)
      entries[count++] = entries[i];
  qsort(entries, (size_t)count, sizeof(*entries), entry_order);
  split->child->nranks = count;
  for (int i = 0; i < count; i++) {
    if (entries[i].rank == split->parent->rank)
      split->child->rank = i;
  }
  return entries[0].rank;
}

static ncclResult_t split_meet(struct split_task *split)
{
  struct split_entry own = {split->parent->rank, split->color, split->key};
  struct split_entry entries[SHARED_MAX_RANKS];
  struct meet_place places[SHARED_MAX_RANKS];
  struct meet_place mine = {0};
  /* Shrink knows who comes, and does not use the ring. */
  enum shared_links links = split->channel == SHARED_ALL ? SHARED_RING : SHARED_CONNECT;
  ncclResult_t result = split_gather(split, links, &own, entries, sizeof(own));
  if (result != ncclSuccess)
    return result;
  int first = split->child ? split_place(split, entries) : -1;
  result = first == split->parent->rank ? meet_create(&mine) : (ncclResult_t)ncclSuccess;
  ncclResult_t gathered = split_gather(split, SHARED_CONNECT, &mine, places, sizeof(mine));
  if (gathered != ncclSuccess)
    result = gathered;
  for (int i = 0; i < split->nmembers && split->child && result == ncclSuccess; i++)
    if (split->members[i] == first)
      result = comm_join(split->child, &places[i]);
  meet_close(&mine);
  return result;
}

static ncclResult_t split_run(struct group_task *task)
{
  struct split_task *split = (struct split_task *)task;
  ncclResult_t result = split->child ? comm_charge(split->child) : (ncclResult_t)ncclSuccess;
  if (result == ncclSuccess)
    result = split_meet(split);
  if (!split->child)
    return result;
  split->child->broken = result != ncclSuccess;
  if (result == ncclSuccess)
    profiler_begin(split->child);
  split->child->maker = NULL;
  /* The parent's state tells how it went: the child's own is in order from the beginning. */
  comm_made(split->child, ncclSuccess);
  __atomic_store_n(split->out, split->child, __ATOMIC_RELEASE);
  return result;
}

/*
 * The parts of split and shrink that are alike. Whether the parent is blocking decides whether the call waits, not
 * the child's configuration; where it does not, it returns ncclSuccess all the same and *out is NULL until the
 * parent's state is no longer ncclInProgress (NCCL 2.27.7 to 2.30.7). A child that could not be made is in *out too.
 */
static ncclResult_t comm_derive(struct split_task *split, ncclComm_t *out, const ncclConfig_t *config)
{
  ncclConfig_t parsed = split->parent->config;
  ncclResult_t result = config ? config_parse(&parsed, config) : (ncclResult_t)ncclSuccess;
  if (result != ncclSuccess) {
    free(split);
    return result;
  }
  if (split->color != NCCL_SPLIT_NOCOLOR) {
    split->child = comm_new(split->parent->device, &parsed);
    split->child->child = true;
    split->child->maker = split->parent;
  }
  split->out = out;
  split->task.phase = GROUP_MAKE;
  split->task.run = split_run;
  split->task.lane = split->parent;
  split->task.owner = split->parent;
  split->task.comm = split->child ? split->child : split->parent;
  group_start();
  group_add(&split->task);
  result = group_end();
  return result == ncclInProgress ? (ncclResult_t)ncclSuccess : result;
}

ncclResult_t comm_split(ncclComm_t parent, int color, int key, ncclComm_t *out, const ncclConfig_t *config)
{
  if (!out)
    return ncclInvalidArgument;
  *out = NULL;
  ncclResult_t result = comm_ready(parent);
  if (result != ncclSuccess)
    return result;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
    return ncclInvalidArgument;
  struct split_task *split = calloc(1, sizeof(*split));
  split->parent = parent;
  split->channel = SHARED_ALL;
  split->nmembers = parent->nranks;
  all_ranks(split->members, parent->nranks);
  split->color = color;
  split->key = key;
  return comm_derive(split, out, config);
}

/* Ends what runs, and waits for it to end; waits on the host that come later are not concerned. */
static void comm_interrupt(ncclComm_t comm)
{
  atomic_store(&comm->interrupt, true);
  GPU->chain_wait(comm->chain);
  atomic_store(&comm->interrupt, false);
}

ncclResult_t comm_shrink(ncclComm_t parent, const int *exclude, int count, ncclComm_t *out, const ncclConfig_t *config,
                         int flags)
{
  if (!out || !exclude || count <= 0 || count >= parent->nranks)
    return ncclInvalidArgument;
  *out = NULL;
  if (flags & NCCL_SHRINK_ABORT) {
    /* Ends what runs on the parent, whose work is lost; its bootstrap still serves. */
    comm_interrupt(parent);
    atomic_store(&parent->revoked, true);
  } else if (atomic_load(&parent->state) == ncclInProgress) {
    return ncclInvalidArgument;
  }
  struct split_task *split = calloc(1, sizeof(*split));
  split->parent = parent;
  split->channel = SHARED_SHRINK;
  split->key = parent->rank;
  bool self = true;
  for (int r = 0; r < parent->nranks; r++) {
    bool out_of_it = false;
    for (int i = 0; i < count; i++)
      out_of_it |= exclude[i] == r;
    if (!out_of_it)
      split->members[split->nmembers++] = r;
    else if (r == parent->rank)
      self = false;
  }
  if (!self) {
    free(split);
    return ncclInvalidArgument;
  }
  return comm_derive(split, out, config);
}

/* Work that graphs have is waited for too (commDestroySync): its end is the last graph's. */
static void comm_drain(ncclComm_t comm)
{
  unsigned int tries = 0;
  GPU->chain_wait(comm->chain);
  while (atomic_load(&comm->persistent) > 0)
    shared_pause(&tries);
}

/*
 * Frees what it holds, once nobody is inside any more. An abort waits for graphs just as a destroy does; only what
 * was finalized or revoked before does not.
 */
static ncclResult_t comm_bury(ncclComm_t comm)
{
  for (unsigned int tries = 0; atomic_load(&comm->busy) > 0;)
    shared_pause(&tries);
  GPU->chain_wait(comm->chain);
  if (!comm->finalized)
    comm_drain(comm);
  symmetric_finish(comm);
  profiler_end(comm);
  if (comm->shared) {
    close(comm->presence);
    shared_detach(comm->shared, comm->nranks);
  }
  comm->shared = NULL;
  GPU->memory_discharge(comm->device, comm->suspended ? 0 : comm->charged);
  atomic_store(&comm->magic, COMM_DEAD);
  return ncclSuccess;
}

/*
 * With an error pending, or while something is under way, it is refused, and leaves this thread in a group that
 * nobody ends: later calls of the thread do nothing (2.28.9 to 2.30.7). Abort is the way out then.
 */
ncclResult_t comm_destroy(ncclComm_t comm)
{
  ncclResult_t state = comm_state(comm);
  if (state == ncclSuccess)
    return comm_bury(comm);
  group_start();
  return state == ncclInProgress ? (ncclResult_t)ncclInvalidArgument : state;
}

ncclResult_t comm_abort(ncclComm_t comm)
{
  atomic_store(&comm->abort, true);
  return comm_bury(comm);
}

static ncclResult_t finalize_run(struct group_task *task)
{
  comm_drain(task->comm);
  return ncclSuccess;
}

ncclResult_t comm_finalize(ncclComm_t comm)
{
  ncclResult_t result = comm->finalized ? (ncclResult_t)ncclInvalidArgument : comm_ready(comm);
  if (result != ncclSuccess)
    return result;
  struct group_task *task = calloc(1, sizeof(*task));
  *task = (struct group_task){.phase = GROUP_MAKE, .comm = comm, .run = finalize_run};
  group_start();
  group_add(task);
  comm->finalized = true;
  return group_end();
}

/* From then on it can be split, shrunk, destroyed and aborted; it counts as finalized. */
ncclResult_t comm_revoke(ncclComm_t comm)
{
  if (comm->finalized || atomic_load(&comm->revoked))
    return ncclInvalidArgument;
  atomic_store(&comm->revoked, true);
  comm->finalized = true;
  comm_interrupt(comm);
  return ncclSuccess;
}
