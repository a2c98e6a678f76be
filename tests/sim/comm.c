/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a communicator: init, split, shrink, destroy, abort. */
#include "tests/sim/comm.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/group.h"
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

ncclResult_t comm_ready(ncclComm_t comm)
{
  ncclResult_t state = atomic_load(&comm->state);
  if (atomic_load(&comm->revoked))
    return ncclInvalidUsage;
  return state == ncclInProgress || comm->finalized ? (ncclResult_t)ncclInvalidArgument : state;
}

struct shared_abort comm_abort_flags(ncclComm_t comm)
{
  return (struct shared_abort){{&comm->abort, &comm->revoked}};
}

static void all_ranks(int *members, int nranks)
{
  for (int r = 0; r < nranks; r++)
    members[r] = r;
}

bool comm_gather(ncclComm_t comm, const void *own, void *all, size_t size)
{
  int members[SHARED_MAX_RANKS];
  all_ranks(members, comm->nranks);
  return shared_gather(comm->shared, SHARED_ALL, comm->gathers[SHARED_ALL]++, members, comm->nranks, comm->rank, own,
                       all, size, comm_abort_flags(comm));
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
  ncclResult_t result = meet_attach(place, comm->nranks, &comm->shared);
  if (result != ncclSuccess)
    return result;
  if (atomic_exchange(&comm->shared->ranks[comm->rank].claimed, 1U))
    return ncclInvalidArgument;
  int devices[SHARED_MAX_RANKS];
  if (!comm_gather(comm, &comm->device, devices, sizeof(comm->device)))
    return ncclInternalError;
  for (int r = 0; r < comm->nranks; r++)
    if (r != comm->rank && devices[r] == comm->device)
      return ncclInvalidUsage; /* "Duplicate GPU detected" */
  return ncclSuccess;
}

/* The end of a task that makes a communicator. */
static ncclResult_t comm_made(ncclComm_t comm, ncclResult_t result)
{
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

static bool split_gather(struct split_task *split, const void *own, void *all, size_t size)
{
  struct shared_abort abort = {{&split->parent->abort, split->child ? &split->child->abort : NULL}};
  return shared_gather(split->parent->shared, split->channel, split->parent->gathers[split->channel]++, split->members,
                       split->nmembers, split->parent->rank, own, all, size, abort);
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
  for (int i = 0; i < count; i++)
    if (entries[i].rank == split->parent->rank)
      split->child->rank = i;
  return entries[0].rank;
}

static ncclResult_t split_meet(struct split_task *split)
{
  struct split_entry own = {split->parent->rank, split->color, split->key};
  struct split_entry entries[SHARED_MAX_RANKS];
  struct meet_place places[SHARED_MAX_RANKS];
  struct meet_place mine = {0};
  if (!split_gather(split, &own, entries, sizeof(own)))
    return ncclInternalError;
  int first = split->child ? split_place(split, entries) : -1;
  ncclResult_t result = first == split->parent->rank ? meet_create(&mine) : (ncclResult_t)ncclSuccess;
  if (!split_gather(split, &mine, places, sizeof(mine)))
    return ncclInternalError;
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
  return split->child ? comm_made(split->child, result) : result;
}

/* The parts of split and shrink that are alike. */
static ncclResult_t comm_derive(struct split_task *split, ncclComm_t *out, const ncclConfig_t *config)
{
  ncclConfig_t parsed = split->parent->config;
  ncclResult_t result = config ? config_parse(&parsed, config) : (ncclResult_t)ncclSuccess;
  if (result != ncclSuccess) {
    free(split);
    return result;
  }
  if (split->color != NCCL_SPLIT_NOCOLOR)
    split->child = comm_new(split->parent->device, &parsed);
  split->task.phase = GROUP_MAKE;
  split->task.run = split_run;
  split->task.lane = split->parent;
  split->task.comm = split->child ? split->child : split->parent;
  *out = split->child;
  group_start();
  group_add(&split->task);
  result = group_end();
  if (result != ncclSuccess && result != ncclInProgress)
    *out = NULL;
  return result;
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

ncclResult_t comm_shrink(ncclComm_t parent, const int *exclude, int count, ncclComm_t *out, const ncclConfig_t *config,
                         int flags)
{
  if (!out || !exclude || count <= 0 || count >= parent->nranks)
    return ncclInvalidArgument;
  *out = NULL;
  if (flags & NCCL_SHRINK_ABORT) {
    /* Ends what runs on the parent, whose work is lost; its bootstrap still serves. */
    atomic_store(&parent->revoked, true);
    GPU->chain_wait(parent->chain);
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

/* Frees what it holds, once nobody is inside any more. */
static ncclResult_t comm_bury(ncclComm_t comm)
{
  for (unsigned int tries = 0; atomic_load(&comm->busy) > 0;)
    shared_pause(&tries);
  GPU->chain_wait(comm->chain);
  symmetric_finish(comm);
  if (comm->shared)
    shared_detach(comm->shared, comm->nranks);
  comm->shared = NULL;
  GPU->memory_discharge(comm->device, comm->charged);
  atomic_store(&comm->magic, COMM_DEAD);
  return ncclSuccess;
}

ncclResult_t comm_destroy(ncclComm_t comm)
{
  return comm_bury(comm);
}

ncclResult_t comm_abort(ncclComm_t comm)
{
  atomic_store(&comm->abort, true);
  return comm_bury(comm);
}

ncclResult_t comm_revoke(ncclComm_t comm)
{
  atomic_store(&comm->revoked, true);
  return ncclSuccess;
}
