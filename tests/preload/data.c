/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/preload/data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/preload/check.h"
#include "tests/sim/numeric.h"

static uint64_t mix(uint64_t x)
{
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

/* Small whole numbers for integers, so that no sum or product of a few ranks overflows. */
static float draw(const struct data *data, int rank, size_t at)
{
  uint64_t bits = mix(mix(data->seed * 64 + (uint64_t)rank) ^ at * 0x2545f4914f6cdd1dULL);

  if (numeric_is_integer(data->dtype))
    return (float)(bits % 5);
  return (float)((double)(bits >> 11) / (double)(1ULL << 53) * 8 - 4);
}

void data_fill(const struct data *data, int rank, size_t first, size_t count, void *elements)
{
  for (size_t i = 0; i < count; i++)
    numeric_store(data->dtype, elements, i, draw(data, rank, first + i));
}

void data_factor(ncclDataType_t dtype, void *scalar)
{
  numeric_store(dtype, scalar, 0, DATA_FACTOR);
}

static double load(ncclDataType_t dtype, const void *elements, size_t at)
{
  return dtype == ncclFloat64 ? ((const double *)elements)[at] : (double)numeric_load(dtype, elements, at);
}

/* Half the distance of 1 and the next number; and what the smallest numbers may be off. */
static void precision(ncclDataType_t dtype, double *relative, double *absolute)
{
  int digits = dtype == ncclBfloat16     ? 8
               : dtype == ncclFloat16    ? 11
               : dtype == ncclFloat8e4m3 ? 4
               : dtype == ncclFloat8e5m2 ? 3
               : dtype == ncclFloat64    ? 52
                                         : 24;

  *relative = ldexp(1, -digits);
  *absolute = dtype == ncclFloat8e4m3   ? ldexp(1, -9)
              : dtype == ncclFloat8e5m2 ? ldexp(1, -16)
              : dtype == ncclFloat16    ? ldexp(1, -24)
                                        : ldexp(1, -126);
}

static double combine(int redop, double a, double b)
{
  switch (redop) {
  case ncclProd:
    return a * b;
  case ncclMax:
    return a > b ? a : b;
  case ncclMin:
    return a < b ? a : b;
  default:
    return a + b;
  }
}

/* The right result for one element, and how far off rounding may put it. */
static double wanted(const struct data *data, size_t at, double *slack)
{
  double result = 0, magnitude = 0, factor = 1, relative, absolute;

  if (data->redop == ncclAvg)
    factor = 1.0 / data->nranks;
  else if (data->redop == REDOP_PREMULSUM)
    factor = numeric_is_integer(data->dtype) ? 1 : (double)DATA_FACTOR; /* an integer scalar is 1 */
  for (int rank = 0; rank < data->nranks; rank++) {
    unsigned char stored[8];
    double value;
    data_fill(data, rank, at, 1, stored);
    value = load(data->dtype, stored, 0);
    result = rank == 0 ? value : combine(data->redop, result, value);
    magnitude = rank == 0 ? fabs(value) : combine(data->redop, magnitude, fabs(value));
  }
  *slack = 0;
  if (numeric_is_integer(data->dtype))
    return data->redop == ncclAvg ? floor(result / data->nranks) : result * factor;
  if (data->redop != ncclMax && data->redop != ncclMin) {
    precision(data->dtype, &relative, &absolute);
    *slack = magnitude * factor * relative * (data->nranks + 3) + absolute * (data->nranks + 1);
  }
  return result * factor;
}

bool data_check_reduced(const struct data *data, size_t first, size_t count, const void *result, const char *what)
{
  size_t wrong = 0, example = 0;
  double got, want, slack;

  for (size_t i = 0; i < count; i++) {
    want = wanted(data, first + i, &slack);
    got = load(data->dtype, result, i);
    if (fabs(got - want) <= slack) /* also catches what is not a number */
      continue;
    if (wrong++ == 0)
      example = i;
  }
  if (wrong == 0)
    return true;
  want = wanted(data, first + example, &slack);
  got = load(data->dtype, result, example);
  fprintf(stderr, "job: rank %d: %s: %zu of %zu elements are wrong; the first, %zu, is %g instead of %g\n", job_rank(),
          what, wrong, count, example, got, want);
  return false;
}

bool data_check_copied(const struct data *data, int rank, size_t first, size_t count, const void *result,
                       const char *what)
{
  size_t size = numeric_size(data->dtype), wrong = 0, example = 0;
  const unsigned char *bytes = result;

  for (size_t i = 0; i < count; i++) {
    unsigned char stored[8];
    data_fill(data, rank, first + i, 1, stored);
    if (memcmp(stored, bytes + i * size, size) != 0 && wrong++ == 0)
      example = i;
  }
  if (wrong > 0)
    fprintf(stderr, "job: rank %d: %s: %zu of %zu elements from rank %d are wrong; the first is %zu\n", job_rank(),
            what, wrong, count, rank, example);
  return wrong == 0;
}
