/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's log of what it launches (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=TUNING). */
#ifndef SYMMSHIM_GPU_TUNING_H
#define SYMMSHIM_GPU_TUNING_H

/*
 * The channels that a line names, each of which is a thread block on an SM of its own; -1 where it names none.
 * Lines as of 2.28.9: enqueue.cc:741 for plain kernels, symmetric_sched.cc:229 for symmetric ones.
 */
int tuning_channels(const char *line);

#endif
