/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the processes that `ranks` starts hand each other an ncclUniqueId: through files in SIM_RUN_DIR. Uses libc
 * and NCCL's ABI only, so it serves on real GPUs as well.
 */
#ifndef SYMMSHIM_SIM_BOOTSTRAP_H
#define SYMMSHIM_SIM_BOOTSTRAP_H

#include "shim/abi/nccl.h"

/* From RANK and WORLD_SIZE; 0 and 1 where they are not set. */
int sim_bootstrap_rank(void);
int sim_bootstrap_size(void);

/*
 * The next id: every rank's n-th call gives the same one, which rank 0 has made. Says what went wrong on stderr
 * and exits with 1 where there is none to be had.
 */
ncclUniqueId sim_bootstrap_id(int rank);

/* Rank by rank, all have called this before any returns. `name` must be new each time. */
void sim_bootstrap_barrier(const char *name);

#endif
