/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes into a call and what has to come out of it: pseudo-random elements that rank, call and place determine,
 * and the results worked out from them in double precision. Knows the ops, not how they are called.
 */
#ifndef SYMMSHIM_PRELOAD_DATA_H
#define SYMMSHIM_PRELOAD_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/preload/options.h"

/* PreMulSum's factor, in every dtype. */
#define DATA_FACTOR 1.5F

struct data {
  ncclDataType_t dtype;
  int redop;
  int nranks;
  uint64_t seed; /* of the call */
};

/* Elements [first, first + count) of a rank's input, as the dtype has them. */
void data_fill(const struct data *data, int rank, size_t first, size_t count, void *elements);

/* Stores DATA_FACTOR as the dtype has it. */
void data_factor(ncclDataType_t dtype, void *scalar);

/* Result [0, count) of the op is to be elements [first, first + count) of the inputs, reduced. Says what is wrong. */
bool data_check_reduced(const struct data *data, size_t first, size_t count, const void *result, const char *what);

/* Result [0, count) is to be the same elements of one rank, to the last bit. */
bool data_check_copied(const struct data *data, int rank, size_t first, size_t count, const void *result,
                       const char *what);

#endif
