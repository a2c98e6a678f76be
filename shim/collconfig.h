/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings of one call (ncclCollConfig_t, from NCCL 2.31.2): whether they ask for anything. The child has settings
 * of its own, so a rank declines a call that asks for others. NCCL wants the same settings on every rank, but the shim
 * does not lean on it. The profiler's tag asks for nothing, and goes with the call.
 *
 * Pure: reads no more of the job's memory than NCCL does. Calls nothing.
 */
#ifndef SYMMSHIM_COLLCONFIG_H
#define SYMMSHIM_COLLCONFIG_H

#include <stdbool.h>

#include "shim/abi/nccl.h"

/* Whether all is left to NCCL; false too for settings that it refuses, or that are of a later version than is known. */
bool collconfig_is_unset(const ncclCollConfig_t *config);

/* A copy of settings of which collconfig_is_unset() is true; the job's need not outlive its call. */
ncclCollConfig_t collconfig_copy(const ncclCollConfig_t *config);

#endif
