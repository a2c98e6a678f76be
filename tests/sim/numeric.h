/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on NCCL's data types. Knows nothing of communicators. */
#ifndef SYMMSHIM_SIM_NUMERIC_H
#define SYMMSHIM_SIM_NUMERIC_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/sim_abi.h"

/* 0 where it is no type. */
size_t numeric_size(ncclDataType_t type);
bool numeric_is_integer(ncclDataType_t type);

/* acc[i] = round(acc[i] op in[i]), op one of sum, prod, max, min: a step of a ring. */
void numeric_reduce(ncclDataType_t type, ncclRedOp_t op, void *acc, const void *in, size_t count);

/* data[i] = round(data[i] * scalar), the scalar being of the same type. */
void numeric_scale(ncclDataType_t type, void *data, const void *scalar, size_t count);

/* The type's nearest value of 1/n (0 for integers when n > 1). */
void numeric_reciprocal(ncclDataType_t type, int n, void *scalar);

/* data[i] /= n, for integers. */
void numeric_divide(ncclDataType_t type, void *data, int n, size_t count);

/*
 * dst[i] = the sum of the sources' i-th elements, added up in wide arithmetic and rounded once, as symmetric kernels
 * do; `divide` by n before that rounding. Floating-point types but fp64 only.
 */
void numeric_sum_wide(ncclDataType_t type, void *dst, const void *const *sources, int n, size_t count, bool divide);

/* Single values, for tests. */
float numeric_load(ncclDataType_t type, const void *data, size_t index);
void numeric_store(ncclDataType_t type, void *data, size_t index, float value);

#endif
