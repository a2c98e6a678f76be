/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's own reduce ops (ncclRedOpCreatePreMulSum) and the factors behind them, as far as those are known: one in
 * device memory is read by NCCL's kernels only.
 *
 * Owns the table, one a communicator and used by one thread at a time as NCCL demands; calls nothing.
 */
#ifndef SYMMSHIM_REDOP_H
#define SYMMSHIM_REDOP_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/policy.h"
#include "shim/abi/nccl.h"

enum { REDOP_MAX = 64 }; /* at a time; the factors of more are not known */

struct redop_table {
  uint32_t count;
  struct redop {
    ncclRedOp_t op;
    ncclDataType_t dtype;
    float factor;
  } ops[REDOP_MAX];
};

/* The op was made, or is gone. */
void redop_created(struct redop_table *table, ncclRedOp_t op, const void *scalar, ncclDataType_t dtype,
                   ncclScalarResidence_t residence);
void redop_destroyed(struct redop_table *table, ncclRedOp_t op);

/* By what a contribution of this type is multiplied: 1/nranks for ncclAvg. False when that is not known. */
bool redop_factor(const struct redop_table *table, ncclRedOp_t op, ncclDataType_t dtype, int nranks, float *factor);

#endif
