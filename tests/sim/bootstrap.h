/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the processes that `ranks` starts meet, and hand each other an ncclUniqueId: through files in SIM_RUN_DIR. Uses
 * libc only, and sim_bootstrap_id() NCCL's ABI, so it serves on real GPUs as well. What goes wrong is said on stderr,
 * and the process exits with 1.
 */
#ifndef SYMMSHIM_SIM_BOOTSTRAP_H
#define SYMMSHIM_SIM_BOOTSTRAP_H

#include <stddef.h>

#include "shim/abi/nccl.h"

/* From RANK and WORLD_SIZE; 0 and 1 where they are not set. */
int sim_bootstrap_rank(void);
int sim_bootstrap_size(void);

/* Every pair of a name and an index is published once, whole; those who await it get it. */
void sim_bootstrap_publish(const char *name, int index, const void *data, size_t size);
void sim_bootstrap_await(const char *name, int index, void *data, size_t size);

/* The next id: every rank's n-th call gives the same one, which rank 0 has made. */
ncclUniqueId sim_bootstrap_id(int rank);

/* Rank by rank, all have called this before any returns. `name` must be new each time. */
void sim_bootstrap_barrier(const char *name);

#endif
