/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/redop.h"

#include <string.h>

#include "shim/kernels/device.h"

static bool value_of(const void *scalar, ncclDataType_t dtype, float *value)
{
  u16 half;

  switch (dtype) {
  case ncclFloat32:
    memcpy(value, scalar, sizeof(*value));
    return true;
  case ncclFloat16:
    memcpy(&half, scalar, sizeof(half));
    *value = float_of_fp16(half);
    return true;
  case ncclBfloat16:
    memcpy(&half, scalar, sizeof(half));
    *value = float_of((u32)half << 16);
    return true;
  default:
    return false;
  }
}

static struct redop *find(struct redop_table *table, ncclRedOp_t op)
{
  for (uint32_t i = 0; i < table->count; i++)
    if (table->ops[i].op == op)
      return &table->ops[i];
  return NULL;
}

void redop_created(struct redop_table *table, ncclRedOp_t op, const void *scalar, ncclDataType_t dtype,
                   ncclScalarResidence_t residence)
{
  struct redop redop = {.op = op, .dtype = dtype};

  redop_destroyed(table, op);
  if (residence == ncclScalarHostImmediate && table->count < REDOP_MAX && value_of(scalar, dtype, &redop.factor))
    table->ops[table->count++] = redop;
}

void redop_destroyed(struct redop_table *table, ncclRedOp_t op)
{
  struct redop *redop = find(table, op);

  if (redop)
    *redop = table->ops[--table->count];
}

bool redop_factor(const struct redop_table *table, ncclRedOp_t op, ncclDataType_t dtype, int nranks, float *factor)
{
  const struct redop *redop = find((struct redop_table *)table, op);

  *factor = redop ? redop->factor : 1.0F / (float)nranks;
  return op == ncclAvg || (redop && redop->dtype == dtype);
}
