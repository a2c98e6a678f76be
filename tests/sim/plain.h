/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives that need no windows: each rank posts its data in shared memory, chunk by chunk, and takes the
 * others' from there. Nothing looks into a peer's own memory.
 *
 * Sums are rounded after every addition, as on NCCL's ring.
 */
#ifndef SYMMSHIM_SIM_PLAIN_H
#define SYMMSHIM_SIM_PLAIN_H

#include "tests/sim/operation.h"

/* On the stream's thread. Returns early, with the data unfinished, when the communicator is aborted. */
void plain_run(struct operation *op);

#endif
