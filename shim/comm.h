/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of each communicator of the job: a table beside NCCL, keyed by the handle that stays NCCL's own.
 *
 * Owns the records, from init to destroy or abort, and the boards. Of NCCL and CUDA it only asks questions. Looking a
 * record up takes no lock. A record that a thread is inside of stays in memory until that thread leaves, even if
 * another thread aborts the communicator meanwhile.
 */
#ifndef SYMMSHIM_COMM_H
#define SYMMSHIM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/policy.h"
#include "shim/abi/nccl.h"
#include "shim/audit.h"
#include "shim/board.h"
#include "shim/child.h"
#include "shim/reason.h"
#include "shim/redop.h"

enum {
  COMM_SIGNATURES = 256, /* kinds of call of which the last outcome is remembered; a power of two */
  COMM_DEAD = 1 << 29,   /* destroyed or aborted; the last one out clears the record */
  COMM_SPARE = 1 << 30   /* cleared; whoever still looks in finds nothing */
};

struct signature {
  uint64_t key; /* 0: unused */
  enum policy_path path;
  enum reason reason;
  enum observed observed;
  uint64_t since; /* calls with this outcome beside the one that was logged */
};

struct comm {
  uint32_t state; /* threads inside, and COMM_DEAD, COMM_SPARE */

  ncclComm_t handle;
  struct real *real; /* the functions of the copy of NCCL that made it */
  uint64_t id;       /* the same on all ranks; 0 when it cannot be known */
  int rank, nranks, nccl_version;
  bool shares; /* what is split off it shares its resources, its abort flag too */
  bool nonblocking;
  enum reason plain;    /* why every call is plain for good; REASON_none while the board is in use */
  enum reason foreseen; /* in an audit-only run, what `plain` would be, as far as this rank alone can tell */
  struct board *board;
  bool told_late, told_paused; /* that the others came late, and that they are not waited for any more */
  bool sealed;                 /* the board is; a non-blocking init is not complete when it returns */
  struct child child;
  struct redop_table redops;
  uint32_t offspring; /* communicators the job made from this one, which all its ranks count alike */
  bool busy;          /* the child is being used, made or dropped by one thread */

  uint64_t calls;  /* so many were made, or begun, on it; equal on all ranks, as is: */
  uint64_t asking; /* the number of the one that is being brought before them */
  uint64_t last_summary_ns;
  struct tally tallies[POLICY_OP_COUNT];
  struct signature signatures[COMM_SIGNATURES];
};

/*
 * A rank's attendance at a communicator that is about to be made. Begun before the real init, which returns only
 * when all ranks have entered theirs; ended after it.
 */
struct attendance {
  uint64_t id;
  int rank, nranks;         /* as far as known beforehand; 0 ranks: not known */
  int nccl_version;         /* asked once: a rank that failed to hear it later would plan otherwise than the others */
  bool shares, nonblocking; /* as in struct comm */
  enum reason plain, foreseen;
  struct board *board;
};

/*
 * `id` is equal on the communicator's ranks and on no other communicator; 0 when it cannot be known. `plain`: do not
 * attend, and why. `capacity` is at least the number of ranks, `slot` this rank's own place among them.
 */
struct attendance comm_attend(uint64_t id, int capacity, int slot, enum reason plain);

/*
 * The real init returned: makes the record of `handle`, or forgets the attendance when there is no communicator
 * (an error, or a NULL handle as from a split without colour).
 */
void comm_made(struct attendance *attendance, ncclComm_t handle, ncclResult_t result);

/*
 * The record of a handle, which stays until comm_leave(); NULL for a communicator made out of sight. From here on this
 * thread's REAL() is that of the copy of NCCL that made it.
 */
struct comm *comm_enter(ncclComm_t handle);
void comm_leave(struct comm *comm);

/* Turns this thread's REAL() to the copy of NCCL that made the communicator, if that was seen. */
void comm_turn_to(ncclComm_t handle);

/*
 * Before a call: a communicator whose init returned before it was complete is complete now, as NCCL demands of the
 * caller; so it can be known whether its ranks can agree. This thread holds the child.
 */
void comm_settle(struct comm *comm);

/* Whether another thread destroyed or aborted it since this one entered. */
bool comm_is_dead(const struct comm *comm);

/* One thread at a time has the child. False: another has it (or is dropping it). */
bool comm_hold_child(struct comm *comm);
/* The same before a call, whose place in the order must not be lost: waits for the other. False: it was aborted. */
bool comm_wait_child(struct comm *comm);
void comm_release_child(struct comm *comm);

/* An address in the copy of NCCL that made it. */
const void *comm_library(const struct comm *comm);

/* Writes its state to the audit log: ready with REASON_none, else plain for good. */
void comm_tell(const struct comm *comm, enum reason reason, uint64_t setup_ns);

/* Every call is plain from now on; the first reason stays. */
void comm_make_plain(struct comm *comm, enum reason reason, uint64_t setup_ns);

/* Takes the record out of the table and wakes whoever waits on its board. The caller is inside and leaves as usual. */
void comm_remove(struct comm *comm);

/* Visits every communicator, inside each. */
void comm_each(void (*visit)(struct comm *comm, void *data), void *data);

/* Whether it is a child of one of them: what NCCL does on it from a thread of its own looks like the job's doing. */
bool comm_is_child(ncclComm_t handle);

/* Writes the counts of a communicator to the audit log; those of all are written when the process exits. */
void comm_summarize(struct comm *comm);

/* Counts a call, and logs it as the audit level wants; `now` is audit_clock(). */
void comm_account(struct comm *comm, struct audit_call *call, uint64_t now);

/* Mixes bytes into a hash (64-bit FNV-1a with a final avalanche); start with 0. */
uint64_t comm_hash(uint64_t hash, const void *bytes, size_t count);

#endif
