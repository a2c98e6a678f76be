/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/comm.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "shim/forecast.h"
#include "shim/life.h"
#include "shim/log.h"
#include "shim/real.h"
#include "shim/total.h"
#include "shim/verify.h"

enum {
  SLOTS = 4096, /* communicators at a time; a power of two */
  SUMMARY_SECONDS = 60
};

/* An open-addressed table, read without a lock. A slot whose record went keeps its place in the chain (GONE). */
struct slot {
  ncclComm_t handle; /* NULL: the chain ends here */
  struct comm *comm;
};
#define GONE ((ncclComm_t)-1)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* writers; never held across a real call */
static struct slot slots[SLOTS];
static struct comm *spare[SLOTS]; /* records of communicators that are gone; never freed, since a reader may look */
static uint32_t spare_count;
static struct comm unseen; /* stands for all communicators made out of sight; under the lock */

uint64_t comm_hash(uint64_t hash, const void *bytes, size_t count)
{
  const unsigned char *byte = bytes;

  hash ^= 0xcbf29ce484222325ULL;
  for (size_t i = 0; i < count; i++)
    hash = (hash ^ byte[i]) * 0x100000001b3ULL;
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ hash >> 33;
}

static uint32_t slot_of(ncclComm_t handle)
{
  enum { SLOT_SHIFT = 64 - 12 };

  _Static_assert(SLOTS == 1 << 12, "the shift is for another number of slots");
  return (uint32_t)((uintptr_t)handle * 0x9e3779b97f4a7c15ULL >> SLOT_SHIFT);
}

static void insert(struct comm *comm)
{
  uint32_t at = slot_of(comm->handle);

  for (uint32_t i = 0; i < SLOTS; i++, at = (at + 1) & (SLOTS - 1)) {
    struct slot *slot = &slots[at];
    if (slot->handle != NULL && slot->handle != GONE)
      continue;
    __atomic_store_n(&slot->comm, comm, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->handle, comm->handle, __ATOMIC_RELEASE); /* pairs with the acquire in comm_enter() */
    return;
  }
  log_warn_once("more than %d communicators at a time: the rest stay plain", SLOTS);
}

static void erase(const struct comm *comm)
{
  uint32_t at = slot_of(comm->handle);

  while (slots[at].handle != NULL && slots[at].comm != comm)
    at = (at + 1) & (SLOTS - 1);
  if (slots[at].handle == NULL)
    return;
  __atomic_store_n(&slots[at].handle, GONE, __ATOMIC_RELEASE);
  /* At the end of a chain nothing has to be kept in place. */
  while (slots[(at + 1) & (SLOTS - 1)].handle == NULL && slots[at].handle == GONE) {
    __atomic_store_n(&slots[at].handle, NULL, __ATOMIC_RELEASE);
    at = (at - 1) & (SLOTS - 1);
  }
}

static int nccl_version(void)
{
  int version = 0;

  return REAL(ncclGetVersion)(&version) == ncclSuccess ? version : 0;
}

/*
 * What all ranks must have in common to understand each other's ballots and to decide alike. A variable that lets a
 * registration on one rank return before its collective part would leave the others waiting in it.
 */
static uint64_t compatibility(int version)
{
  static const char *const variables[] = {
      "NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE", "NCCL_LOCAL_REGISTER",         "NCCL_P2P_DISABLE",
      "NCCL_P2P_LEVEL",    "NCCL_CTA_POLICY", "NCCL_SYM_GIN_KERNELS_ENABLE", "NCCL_SYM_KERNEL"};
  /* NCCL's first call also puts the settings of nccl.conf into the environment. */
  uint64_t facts[] = {life_policy()->hash, (uint64_t)version};
  uint64_t hash = comm_hash(comm_hash(0, SYMMSHIM_VERSION, sizeof(SYMMSHIM_VERSION)), facts, sizeof(facts));

  for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
    const char *value = getenv(variables[i]);
    hash = value ? comm_hash(hash, value, strlen(value) + 1) : comm_hash(hash, "", 0);
  }
  return hash;
}

/* Once per process: reading a folder costs more than attaching. */
static pthread_once_t swept = PTHREAD_ONCE_INIT;
static void sweep(void)
{
  int removed = board_sweep();

  if (removed > 0)
    log_info("removed %d shared-memory objects that killed processes had left", removed);
}

/* What keeps the ranks from meeting on a board. */
static enum reason obstacle(int capacity, int slot)
{
  if (!REAL_EXISTS(ncclCommWindowRegister) || !REAL_EXISTS(ncclCommSplit))
    return REASON_nccl_version;
  if (capacity > BOARD_MAX_RANKS)
    return REASON_missing_ranks; /* no host holds so many */
  if (slot < 0 || slot >= capacity)
    return REASON_board_failed; /* NCCL will say what is wrong with them */
  if (forecast_is_wanted() && forecast_board() == 0)
    return REASON_board_failed;
  return REASON_none;
}

struct attendance comm_attend(uint64_t id, int capacity, int slot, enum reason plain)
{
  struct attendance attendance = {.id = id, .nccl_version = nccl_version(), .plain = plain};
  struct board_pace pace = {life_policy()->pause_after, life_policy()->pause_calls};
  int error;

  verify_prepare();
  if (attendance.plain == REASON_none && (forecast_is_wanted() || life_passive_reason() == REASON_none))
    attendance.plain = obstacle(capacity, slot);
  if (life_passive_reason() != REASON_none) {
    attendance.foreseen = attendance.plain;
    attendance.plain = life_passive_reason();
  }
  if (attendance.plain != REASON_none)
    return attendance;
  pthread_once(&swept, sweep);
  error = board_attach(&attendance.board, id, (uint32_t)capacity, (uint32_t)slot,
                       compatibility(attendance.nccl_version), pace);
  if (error) {
    log_warn("communicator %016llx: no shared memory to agree through: %s (/dev/shm must be writable and have room)",
             (unsigned long long)id, strerror(-error));
    attendance.plain = REASON_board_failed;
  }
  return attendance;
}

static enum reason fault_reason(enum board_fault fault)
{
  static const enum reason reasons[] = {[BOARD_SOUND] = REASON_none,
                                        [BOARD_MISSING] = REASON_missing_ranks,
                                        [BOARD_SAME_PROCESS] = REASON_same_process,
                                        [BOARD_INCOMPATIBLE] = REASON_shim_differs};

  return reasons[fault];
}

static struct comm *new_record(void)
{
  struct comm *comm = NULL;
  uint32_t spare_state = COMM_SPARE;

  pthread_mutex_lock(&lock);
  if (spare_count > 0)
    comm = spare[--spare_count];
  pthread_mutex_unlock(&lock);
  /* Not while somebody who found it under its old handle is on the way out. */
  if (comm && __atomic_compare_exchange_n(&comm->state, &spare_state, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    return comm;
  return calloc(1, sizeof(*comm));
}

/* With init complete, NCCL knows. */
static enum reason ask_ranks(struct comm *comm)
{
  if (REAL(ncclCommUserRank)(comm->handle, &comm->rank) != ncclSuccess ||
      REAL(ncclCommCount)(comm->handle, &comm->nranks) != ncclSuccess)
    return REASON_board_failed;
  return comm->nranks < 2 ? REASON_single_rank : REASON_none;
}

/* Then, whether the ranks can agree through their board. */
static enum reason seal(struct comm *comm)
{
  enum reason reason = ask_ranks(comm);

  comm->sealed = true;
  if (reason != REASON_none)
    return reason;
  board_name_rank(comm->board, comm->rank);
  return fault_reason(board_seal(comm->board, (uint32_t)comm->nranks));
}

/* The current context is that in which NCCL makes the communicator, and so of its device. */
static void note_context(struct child *child)
{
  const struct driver *driver = real_driver();

  if (!driver || driver->cuCtxGetCurrent(&child->context) != CUDA_SUCCESS || !child->context ||
      driver->cuCtxGetDevice(&child->device) != CUDA_SUCCESS)
    child->context = NULL;
}

void comm_settle(struct comm *comm)
{
  ncclResult_t state = ncclInProgress;
  enum reason reason;

  if (comm->sealed || !comm->board)
    return;
  reason = REAL(ncclCommGetAsyncError)(comm->handle, &state) == ncclSuccess && state == ncclSuccess
               ? seal(comm)
               : REASON_board_failed;
  if (!comm->child.context)
    note_context(&comm->child);
  if (reason != REASON_none)
    comm_make_plain(comm, reason, 0);
}

/* A record under this handle is of a communicator that ended out of our sight. */
static void forget_stale(ncclComm_t handle)
{
  struct real *real = guard.real;
  struct comm *stale = comm_enter(handle);

  if (!stale)
    return;
  comm_remove(stale);
  comm_leave(stale);
  guard.real = real;
}

void comm_made(struct attendance *attendance, ncclComm_t handle, ncclResult_t result)
{
  bool made = (result == ncclSuccess || result == ncclInProgress) && handle;
  struct comm *comm = made ? new_record() : NULL;
  enum reason plain = attendance->plain;

  if (!comm) {
    board_detach(attendance->board);
    return;
  }
  forget_stale(handle);
  comm->handle = handle;
  comm->real = guard.real;
  comm->id = attendance->id;
  comm->shares = attendance->shares;
  comm->nonblocking = attendance->nonblocking;
  comm->rank = attendance->rank;
  comm->nranks = attendance->nranks;
  comm->nccl_version = attendance->nccl_version;
  comm->board = attendance->board;
  comm->foreseen = attendance->foreseen;
  note_context(&comm->child);
  if (plain == REASON_none && result == ncclSuccess)
    plain = seal(comm);
  if (forecast_is_wanted() && comm->foreseen == REASON_none && result == ncclSuccess)
    comm->foreseen = ask_ranks(comm);
  if (plain != REASON_none) {
    board_detach(comm->board);
    comm->board = NULL;
    comm_make_plain(comm, plain, 0);
  }
  pthread_mutex_lock(&lock);
  insert(comm);
  pthread_mutex_unlock(&lock);
}

const void *comm_library(const struct comm *comm)
{
  return comm->real ? (const void *)(uintptr_t)__atomic_load_n(&comm->real->ncclGetVersion, __ATOMIC_RELAXED) : NULL;
}

void comm_tell(const struct comm *comm, enum reason reason, uint64_t setup_ns)
{
  struct audit_comm state = {.comm = comm->id,
                             .rank = comm->rank,
                             .nranks = comm->nranks,
                             .nccl_version = comm->nccl_version,
                             .library = comm_library(comm),
                             .reason = reason,
                             .setup_ns = setup_ns,
                             .watched = forecast_is_wanted()};

  if (state.watched) {
    state.foreseen = life_foreseen_reason() != REASON_none ? life_foreseen_reason() : comm->foreseen;
    state.compatibility = compatibility(comm->nccl_version);
    state.board = forecast_board();
    state.stage_max = life_policy()->stage_max;
  }
  audit_comm(&state);
  total_setup(setup_ns);
}

void comm_make_plain(struct comm *comm, enum reason reason, uint64_t setup_ns)
{
  enum reason none = REASON_none;

  if (forecast_is_wanted() && reason != REASON_audit_only && comm->foreseen == REASON_none)
    __atomic_store_n(&comm->foreseen, reason, __ATOMIC_RELAXED);
  if (!__atomic_compare_exchange_n(&comm->plain, &none, reason, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return;
  comm_tell(comm, reason, setup_ns);
  log_info("rank %d of %d, communicator %016llx stays plain: %s", comm->rank, comm->nranks,
           (unsigned long long)comm->id, reason_meaning(reason));
}

static void recycle(struct comm *comm)
{
  board_detach(comm->board);
  /* Windows of a child that was left behind keep their segments for good: its work may still be at them. */
  pthread_mutex_lock(&lock);
  __atomic_store_n(&comm->handle, NULL, __ATOMIC_RELAXED);
  memset((char *)comm + offsetof(struct comm, id), 0, sizeof(*comm) - offsetof(struct comm, id));
  if (spare_count < SLOTS)
    spare[spare_count++] = comm;
  pthread_mutex_unlock(&lock);
}

struct comm *comm_enter(ncclComm_t handle)
{
  uint32_t at = slot_of(handle);

  if (!handle || handle == GONE)
    return NULL;
  for (uint32_t i = 0; i < SLOTS; i++, at = (at + 1) & (SLOTS - 1)) {
    ncclComm_t found = __atomic_load_n(&slots[at].handle, __ATOMIC_ACQUIRE); /* pairs with insert() */
    struct comm *comm;
    if (found == NULL)
      return NULL;
    if (found != handle)
      continue;
    comm = __atomic_load_n(&slots[at].comm, __ATOMIC_RELAXED);
    /* Between the look and the entry it may have been aborted, even cleared and taken for another. */
    if (!(__atomic_fetch_add(&comm->state, 1, __ATOMIC_ACQ_REL) & (COMM_DEAD | COMM_SPARE)) &&
        __atomic_load_n(&comm->handle, __ATOMIC_RELAXED) == handle) {
      guard.real = comm->real;
      return comm;
    }
    comm_leave(comm);
    return NULL;
  }
  return NULL;
}

void comm_leave(struct comm *comm)
{
  uint32_t left = __atomic_sub_fetch(&comm->state, 1, __ATOMIC_ACQ_REL);

  /* One word for the users and the end, so that exactly one is the last out of a dead record. */
  if (left == COMM_DEAD &&
      __atomic_compare_exchange_n(&comm->state, &left, COMM_SPARE, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    recycle(comm);
}

void comm_turn_to(ncclComm_t handle)
{
  struct comm *comm = comm_enter(handle);

  if (comm)
    comm_leave(comm);
}

bool comm_is_dead(const struct comm *comm)
{
  return __atomic_load_n(&comm->state, __ATOMIC_ACQUIRE) & COMM_DEAD;
}

bool comm_hold_child(struct comm *comm)
{
  return !__atomic_exchange_n(&comm->busy, true, __ATOMIC_ACQUIRE);
}

bool comm_wait_child(struct comm *comm)
{
  while (!comm_hold_child(comm)) {
    if (comm_is_dead(comm))
      return false;
    sched_yield();
  }
  return true;
}

void comm_release_child(struct comm *comm)
{
  __atomic_store_n(&comm->busy, false, __ATOMIC_RELEASE);
}

void comm_summarize(struct comm *comm)
{
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    audit_summary(comm->id, comm->nranks, (enum policy_op)op, &comm->tallies[op]);
}

/* For the last time. */
static void summarize_finally(struct comm *comm, void *data)
{
  (void)data;
  comm_summarize(comm);
  total_add(comm->tallies);
}

void comm_remove(struct comm *comm)
{
  /* First of all: a thread that the cancel below wakes must find it, and not go on to NCCL with the handle. */
  __atomic_fetch_or(&comm->state, COMM_DEAD, __ATOMIC_ACQ_REL);
  if (comm->board)
    board_cancel(comm->board);
  comm_make_plain(comm, REASON_aborted, 0);
  summarize_finally(comm, NULL);
  window_job_forget(comm->handle);
  pthread_mutex_lock(&lock);
  erase(comm);
  pthread_mutex_unlock(&lock);
}

void comm_each(void (*visit)(struct comm *comm, void *data), void *data)
{
  struct real *outer = guard.real;

  for (uint32_t at = 0; at < SLOTS; at++) {
    struct comm *comm = comm_enter(__atomic_load_n(&slots[at].handle, __ATOMIC_ACQUIRE));
    if (!comm)
      continue;
    visit(comm, data);
    comm_leave(comm);
  }
  guard.real = outer;
}

struct search {
  ncclComm_t handle;
  bool found;
};

static void compare_child(struct comm *comm, void *data)
{
  struct search *search = data;

  search->found |= __atomic_load_n(&comm->child.handle, __ATOMIC_ACQUIRE) == search->handle;
}

bool comm_is_child(ncclComm_t handle)
{
  struct search search = {handle, false};

  comm_each(compare_child, &search);
  return search.found;
}

/* Not in a forked child, whose parent's calls these are. */
__attribute__((destructor)) static void summarize_at_exit(void)
{
  if (__atomic_load_n(&life_state, __ATOMIC_ACQUIRE) <= LIFE_OFF)
    return;
  comm_each(summarize_finally, NULL);
  summarize_finally(&unseen, NULL);
  total_tell();
}

/* Whether this kind of call had another outcome when it was last made, or was never made. */
static bool is_change(struct comm *comm, struct audit_call *call)
{
  uint64_t kind = call->request.op | call->request.dtype << 8 | call->request.redop << 16;
  uint64_t key = (call->count * 0x9e3779b97f4a7c15ULL + kind) | 1ULL << 63; /* 0 is an unused entry */
  uint32_t at = (uint32_t)(key * 0xff51afd7ed558ccdULL >> 40) & (COMM_SIGNATURES - 1);

  for (int i = 0; i < COMM_SIGNATURES; i++, at = (at + 1) & (COMM_SIGNATURES - 1)) {
    struct signature *signature = &comm->signatures[at];
    bool known = signature->key == key;
    if (!known && signature->key != 0)
      continue;
    if (known && signature->path == call->path && signature->reason == call->reason &&
        signature->observed == call->observed) {
      signature->since++;
      return false;
    }
    call->since = known ? signature->since : 0;
    *signature = (struct signature){key, call->path, call->reason, call->observed, 0};
    return true;
  }
  return false;
}

static void account(struct comm *comm, struct audit_call *call, uint64_t now)
{
  call->comm = comm->id;
  tally_add(&comm->tallies[call->request.op], call);
  if (!audit_wants(POLICY_AUDIT_summary))
    return;
  if (audit_wants(POLICY_AUDIT_call) || (audit_wants(POLICY_AUDIT_change) && (call->watched || is_change(comm, call))))
    audit_call(call);
  if (comm->last_summary_ns == 0)
    comm->last_summary_ns = now;
  if (now - comm->last_summary_ns < SUMMARY_SECONDS * 1000000000ULL)
    return;
  comm->last_summary_ns = now;
  comm_summarize(comm);
}

void comm_account(struct comm *comm, struct audit_call *call, uint64_t now)
{
  if (comm) {
    account(comm, call, now);
    return;
  }
  pthread_mutex_lock(&lock);
  call->sequence = ++unseen.calls;
  account(&unseen, call, now);
  pthread_mutex_unlock(&lock);
}
