/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profiler plugin that NCCL_PROFILER_PLUGIN names: loaded with the first communicator, unloaded with the last, told
 * of collectives as NCCL does it (src/plugin/profiler.cc). Owns the plugin. Which interface is the newest that is known
 * follows the version: 4 before 2.28, 5 before 2.29, then 6.
 */
#ifndef SYMMSHIM_SIM_PROFILER_H
#define SYMMSHIM_SIM_PROFILER_H

#include "tests/sim/operation.h"

/* Around a communicator's life. */
void profiler_begin(ncclComm_t comm);
void profiler_end(ncclComm_t comm);

/* The call, on its own thread (from version 5 on); returns the handle of its event. */
void *profiler_call(const struct operation *op);

/* An ordinary kernel is launched. There is no such event of a symmetric one. */
void profiler_launch(const struct operation *op);

#endif
