/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements are small whole numbers, so that sums are exact in every type, in whatever order they are added. Only an
 * average over three ranks needs a tolerance.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/numeric.h"
#include "tests/soak/soak.h"

enum { FACTOR = 2 };

const char *op_name(enum op op)
{
#define OP_NAME(name, weight) #name,
  static const char *const names[] = {OPS(OP_NAME)};
#undef OP_NAME

  return names[op];
}

static const char *redop_name(int redop)
{
  static const char *const names[] = {"sum", "prod", "max", "min", "avg"};

  return redop == PREMULSUM ? "premulsum" : names[redop];
}

static const char *dtype_name(ncclDataType_t dtype)
{
  static const char *const names[] = {"int8", "uint8", "int32", "uint32", "int64",   "uint64",
                                      "fp16", "fp32",  "fp64",  "bf16",   "fp8e4m3", "fp8e5m2"};

  return names[dtype];
}

/* Values are 1 to this: what `ranks` of them give, and FACTOR times as much, has to be exact. */
static unsigned int most(const struct call *call)
{
  if (call->dtype == ncclFloat8e4m3 || call->dtype == ncclFloat8e5m2)
    return 2;
  if (call->redop == ncclProd)
    return 3;
  return call->dtype == ncclInt8 ? 15 : 31;
}

static double output(const struct call *call, int rank, size_t at);

static inline double drawn(const struct call *call, int rank, size_t at)
{
  uint64_t x = (call->seed + (uint64_t)rank * 0x632be59bd9b4e019ULL + at) * 0x9e3779b97f4a7c15ULL;

  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ULL;
  return 1 + (double)((x >> 40) % most(call));
}

static inline double input(const struct call *call, int rank, size_t at)
{
  return call->source ? output(call->source, rank, at) : drawn(call, rank, at);
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

static double reduced(const struct call *call, size_t at)
{
  double result = input(call, 0, at);

  for (int rank = 1; rank < call->team->size; rank++)
    result = combine(call->redop, result, input(call, rank, at));
  if (call->redop == PREMULSUM)
    return result * FACTOR;
  if (call->redop != ncclAvg)
    return result;
  return numeric_is_integer(call->dtype) ? floor(result / call->team->size) : result / call->team->size;
}

/* What the call leaves in element `at` of a rank's output. */
static double output(const struct call *call, int rank, size_t at)
{
  int n = call->team->size;
  size_t count = call->count;

  switch (call->op) {
  case OP_all_gather:
  case OP_gather:
    return input(call, (int)(at / count), at % count);
  case OP_reduce_scatter:
    return reduced(call, (size_t)rank * count + at);
  case OP_all_reduce:
  case OP_reduce:
    return reduced(call, at);
  case OP_broadcast:
    return input(call, call->root, at);
  case OP_all_to_all:
    return input(call, (int)(at / count), (size_t)rank * count + at % count);
  case OP_scatter:
    return input(call, call->root, (size_t)rank * count + at);
  case OP_send_recv:
    return input(call, (rank + n - 1) % n, at);
  case OP_COUNT:
    break;
  }
  return 0;
}

bool values_has_output(const struct call *call)
{
  return (call->op != OP_reduce && call->op != OP_gather) || call->team->me == call->root;
}

void values_input(const struct call *call, int rank, size_t count, void *elements)
{
  for (size_t i = 0; i < count; i++)
    numeric_store(call->dtype, elements, i, (float)input(call, rank, i));
}

void values_factor(ncclDataType_t dtype, void *scalar)
{
  numeric_store(dtype, scalar, 0, FACTOR);
}

static double load(ncclDataType_t dtype, const void *elements, size_t at)
{
  return dtype == ncclFloat64 ? ((const double *)elements)[at] : (double)numeric_load(dtype, elements, at);
}

/* How far off the right result rounding may put an average over three; as a part of it. */
static double slack_of(const struct call *call)
{
  static const int digits[] = {[ncclFloat16] = 11, [ncclFloat32] = 24,   [ncclFloat64] = 24,
                               [ncclBfloat16] = 8, [ncclFloat8e4m3] = 4, [ncclFloat8e5m2] = 3};
  bool average = false;

  for (const struct call *at = call; at; at = at->source)
    average |= at->redop == ncclAvg && (at->team->size & (at->team->size - 1)) != 0;
  return average && !numeric_is_integer(call->dtype) ? ldexp(call->team->size + 3, -digits[call->dtype]) : 0;
}

_Noreturn static void wrong(const struct call *call, const char *what, size_t at, size_t count, double got, double want)
{
  const char *source = call->source ? op_name(call->source->op) : "nothing";

  soak_fail("WRONG: call %d, %s of %zu %s, %s, root %d, rank %d of %d%s, stream %d, after %s: %s element %zu of %zu is "
            "%g instead of %g",
            call->number, op_name(call->op), call->count, dtype_name(call->dtype), redop_name(call->redop), call->root,
            call->team->me, call->team->size, call->inplace ? ", in place" : "", call->stream, source, what, at, count,
            got, want);
}

static void check_guard(const struct call *call, const unsigned char *bytes, const char *what)
{
  for (size_t i = 0; i < GUARD_BYTES; i++)
    if (bytes[i] != FILL)
      wrong(call, what, i, GUARD_BYTES, bytes[i], FILL);
}

static void check_output(const struct call *call, const unsigned char *bytes)
{
  double slack = slack_of(call);

  for (size_t i = 0; i < call->recv_count; i++) {
    double want = output(call, call->team->me, i), got = load(call->dtype, bytes, i);
    if (!(fabs(got - want) <= fabs(want) * slack))
      wrong(call, "output", i, call->recv_count, got, want);
  }
}

/* Where there is to be no output, none is: what was there before is. */
static void check_untouched(const struct call *call, const unsigned char *bytes)
{
  for (size_t i = 0; i < call->recv_count * numeric_size(call->dtype); i++)
    if (bytes[i] != FILL)
      wrong(call, "untouched byte", i, call->recv_count, bytes[i], FILL);
}

static void check_input(struct soak *soak, const struct call *call)
{
  size_t bytes = call->send_count * numeric_size(call->dtype);
  double slack = slack_of(call);
  char *seen = malloc(bytes + 1);

  if (!seen)
    soak_fail("no host memory");
  CUDA_CHECK(cudaMemcpy(seen, call->send, bytes, DEVICE_TO_HOST));
  for (size_t i = 0; i < call->send_count; i++) {
    double want = load(call->dtype, call->host, i), got = load(call->dtype, seen, i);
    if (!(fabs(got - want) <= fabs(want) * slack))
      wrong(call, "the input, which no call may change,", i, call->send_count, got, want);
  }
  soak->elements += call->send_count;
  free(seen);
}

void values_check(struct soak *soak, const struct call *call)
{
  size_t bytes = call->recv_count * numeric_size(call->dtype);
  size_t guard = call->inplace || call->overwriting ? 0 : GUARD_BYTES;
  unsigned char *seen = malloc(bytes + GUARD_BYTES);

  if (!seen)
    soak_fail("no host memory");
  CUDA_CHECK(cudaMemcpy(seen, call->recv, bytes + guard, DEVICE_TO_HOST));
  if (values_has_output(call))
    check_output(call, seen);
  else if (!call->inplace && !call->overwriting)
    check_untouched(call, seen);
  if (guard > 0)
    check_guard(call, seen + bytes, "after the output, byte");
  soak->elements += call->recv_count;
  free(seen);
  if (!call->inplace && !call->overwritten && call->host)
    check_input(soak, call);
}
