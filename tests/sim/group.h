/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclGroupStart and ncclGroupEnd: owns the thread's list of tasks. Every call of NCCL's that does something is a
 * group of its own where the caller has not opened one. At the outermost end communicators are made first, then
 * windows registered, then work launched.
 */
#ifndef SYMMSHIM_SIM_GROUP_H
#define SYMMSHIM_SIM_GROUP_H

#include "tests/sim/comm.h"

enum group_phase { GROUP_MAKE, GROUP_REGISTER, GROUP_LAUNCH, GROUP_PHASES };

/* The head of a task; allocated with malloc, freed by the group. */
struct group_task {
  struct group_task *next;
  enum group_phase phase;
  ncclComm_t comm;
  ncclComm_t owner; /* whose state tells how it went, and who says whether to wait for it; as a rule comm */
  ncclComm_t lane;  /* tasks of one lane and phase run one after the other, other lanes beside them; as a rule comm */
  ncclResult_t (*run)(struct group_task *task);
  /* Sends and receives of one communicator become one piece of work: merges `more` into the task. */
  bool (*merge)(struct group_task *task, struct group_task *more);
  /* Frees what the task holds beside itself; may be NULL. */
  void (*discard)(struct group_task *task);
  CUstream stream; /* of a launch that is one operation on all of its communicator's streams in the group */
  bool launches;   /* there is one */
  /* Set before the tasks run: how many of the group's launches are this communicator's. */
  unsigned int siblings;
};

void group_start(void);
/* Adds the task to the open group. */
void group_add(struct group_task *task);
/* A call failed: so will the group that it was made in. */
void group_fail(ncclResult_t result);
ncclResult_t group_end(void);
/* Ends it without doing what is in it. */
ncclResult_t group_drop(void);
int group_depth(void);
/* Ends the group that a single call is, with the call's own result; gives what the caller hears. */
ncclResult_t group_call_end(ncclComm_t comm, ncclResult_t result);

#endif
