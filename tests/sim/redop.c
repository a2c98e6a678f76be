/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/redop.h"

#include <string.h>

#include "tests/sim/numeric.h"

/* The handle carries its communicator, so that one of another communicator is found out. */
static ncclRedOp_t handle_make(ncclComm_t comm, unsigned int index)
{
  return ncclNumOps + index + (comm->serial % 4096 + 1) * COMM_MAX_REDOPS * 2;
}

static struct redop *handle_find(ncclComm_t comm, ncclRedOp_t op)
{
  unsigned int index = op - handle_make(comm, 0);
  return index < COMM_MAX_REDOPS && comm->redops[index].used ? &comm->redops[index] : NULL;
}

ncclResult_t redop_create(ncclComm_t comm, ncclRedOp_t *op, const void *scalar, ncclDataType_t type,
                          ncclScalarResidence_t residence)
{
  ncclResult_t result = comm_ready(comm);
  if (result != ncclSuccess)
    return result;
  if (numeric_size(type) == 0 || !op || !scalar)
    return ncclInvalidArgument;
  for (unsigned int i = 0; i < COMM_MAX_REDOPS; i++) {
    struct redop *redop = &comm->redops[i];
    if (redop->used)
      continue;
    *redop = (struct redop){.used = true, .type = type, .residence = residence};
    if (residence == ncclScalarHostImmediate)
      memcpy(redop->scalar, scalar, numeric_size(type));
    else
      redop->pointer = scalar;
    *op = handle_make(comm, i);
    return ncclSuccess;
  }
  return ncclInternalError;
}

ncclResult_t redop_destroy(ncclComm_t comm, ncclRedOp_t op)
{
  struct redop *redop = handle_find(comm, op);
  if (!redop)
    return ncclInvalidArgument;
  redop->used = false;
  return ncclSuccess;
}

/* ncclAvg: integers are divided at the end; of the others each contribution is multiplied by 1/n first. */
static void average_resolve(struct operation *op)
{
  op->op = ncclSum;
  op->average = numeric_is_integer(op->type);
  op->scale = !op->average;
  if (op->scale)
    numeric_reciprocal(op->type, op->comm->nranks, op->scalar);
}

ncclResult_t redop_resolve(struct operation *op)
{
  op->op = op->asked;
  if (op->asked == ncclAvg)
    average_resolve(op);
  if (op->asked < ncclNumOps)
    return ncclSuccess;
  const struct redop *redop = handle_find(op->comm, op->asked);
  if (!redop || redop->type != op->type)
    return ncclInvalidArgument;
  op->op = ncclSum;
  op->scale = true;
  memcpy(op->scalar, redop->scalar, sizeof(op->scalar));
  op->scalar_pointer = redop->pointer;
  return ncclSuccess;
}
