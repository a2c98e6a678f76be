/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetric memory: owns the windows of a communicator, and the decision, made by each rank alone, whether a call
 * runs on them.
 *
 * As in NCCL, a rank maps the whole allocation under each window of every peer into one address range, `stride`
 * bytes for each rank, and looks for a peer's data at its own offset. Nothing compares offsets between ranks. A
 * peer's allocation appears where that peer has put it, as in the memory that NVLS kernels see; kernels that load
 * and store see it where this rank would have put it, and so forgive a different order of deregistration.
 */
#ifndef SYMMSHIM_SIM_SYMMETRIC_H
#define SYMMSHIM_SIM_SYMMETRIC_H

#include "tests/sim/comm.h"
#include "tests/sim/operation.h"

/* Collective, as part of a group. On success *out is the window. */
ncclResult_t symmetric_register(ncclComm_t comm, void *ptr, size_t size, int flags, ncclWindow_t *out);
ncclResult_t symmetric_deregister(ncclComm_t comm, ncclWindow_t window);

/* Whether NCCL has windows at all here (NCCL_WIN_ENABLE, NCCL_CUMEM_ENABLE). */
bool symmetric_supported(void);

/* Decides, and fills in the operation's offsets. `alone`: it is the only collective of its group. */
bool symmetric_choose(struct operation *op, bool alone);
/* Carries it out, on the stream's thread. */
void symmetric_run(struct operation *op);

/* Whether memory lies in a symmetric window of the communicator. */
bool symmetric_holds(ncclComm_t comm, const void *ptr, size_t bytes);
/* Where this rank finds a peer's part of a window; NULL: it is none of the communicator's, or has no such bytes. */
void *symmetric_peer(ncclComm_t comm, ncclWindow_t window, int peer, size_t offset, size_t bytes);

/* When the communicator goes. */
void symmetric_finish(ncclComm_t comm);

#endif
