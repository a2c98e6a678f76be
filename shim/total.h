/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What became of all of the process's calls, for one line at its end:
 *   all_gather 390/390 symmetric, reduce_scatter 208/210 (2 ranks_differ), setup 0.3 s
 *
 * Owns the sums; lock-free. Calls neither CUDA nor NCCL.
 */
#ifndef SYMMSHIM_TOTAL_H
#define SYMMSHIM_TOTAL_H

#include <stdint.h>

#include "shim/audit.h"

/* All calls of a communicator that has ended, or of one that the process leaves behind; each once. */
void total_add(const struct tally tallies[POLICY_OP_COUNT]);

/* Nanoseconds that a child communicator, or a window, took to be made. */
void total_setup(uint64_t ns);

/* Says it, at level INFO, on rank 0 (log_rank()) or where there are no ranks; nothing if there was no call. */
void total_tell(void);

#endif
