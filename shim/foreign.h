/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose memory a buffer outside the arena is, as far as that explains why it is there: PyTorch's expandable segments
 * are mapped by the job itself, and cudaMallocAsync's memory belongs to a pool; neither asks cudaMalloc.
 *
 * Owns what was found out, a bounded number of blocks of 2 MiB: the driver is asked once a block, not once a call. A
 * block whose memory changes hands keeps the first answer until it makes room for another; only a word in the log is at
 * stake. Calls the driver only, which is safe in stream captures (seen on driver 580). No lock, no allocation.
 */
#ifndef SYMMSHIM_FOREIGN_H
#define SYMMSHIM_FOREIGN_H

#include "shim/reason.h"

/* job_vmm, job_pool, or not_in_arena for all other memory. Tells people once of each kind. */
enum reason foreign_reason(const void *ptr);

#endif
