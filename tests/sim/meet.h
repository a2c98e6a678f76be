/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a new communicator find its shared memory: owns the content of ncclUniqueId. As a rule the
 * process that makes an id makes the memory with it, and the others open it through /proc. With NCCL_COMM_ID the
 * id is the same for all, and rank 0 hands the memory out under an abstract socket's name, as often as it is asked.
 */
#ifndef SYMMSHIM_SIM_MEET_H
#define SYMMSHIM_SIM_MEET_H

#include "tests/sim/shared.h"
#include "tests/sim/sim_abi.h"

/* Where shared memory is to be had. */
struct meet_place {
  int pid;
  int fd;
  uint64_t nonce;
};

/* Memory for one communicator, made by this process. */
ncclResult_t meet_create(struct meet_place *place);
/* Every rank has it now; of no effect in a process that did not make it. */
void meet_close(const struct meet_place *place);
/* Maps it, and gives the descriptor by which this rank can be there. */
ncclResult_t meet_attach(const struct meet_place *place, int nranks, struct shared **shared, int *fd);

ncclResult_t meet_id_create(ncclUniqueId *id);
/* Where the ranks of that id meet. */
ncclResult_t meet_id_find(const ncclUniqueId *id, int nranks, int rank, struct meet_place *place);

#endif
