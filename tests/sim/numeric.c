/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/numeric.h"

#include <math.h>
#include <string.h>

static float float_of(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static uint32_t bits_of(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/* A small binary floating-point format without the oddities: where it has no infinities, all ones is NaN. */
struct small_format {
  int exponent_bits;
  int mantissa_bits;
  bool infinities;
};

static const struct small_format fp16 = {5, 10, true};
static const struct small_format e4m3 = {4, 3, false};
static const struct small_format e5m2 = {5, 2, true};

static float small_load(const struct small_format *format, uint32_t bits)
{
  int bias = (1 << (format->exponent_bits - 1)) - 1;
  uint32_t mantissa_mask = (1U << format->mantissa_bits) - 1;
  uint32_t exponent_mask = (1U << format->exponent_bits) - 1;
  uint32_t mantissa = bits & mantissa_mask;
  uint32_t exponent = bits >> format->mantissa_bits & exponent_mask;
  float sign = bits >> (format->mantissa_bits + format->exponent_bits) & 1 ? -1.0F : 1.0F;
  if (exponent == exponent_mask && format->infinities)
    return mantissa ? NAN : sign * INFINITY;
  if (exponent == exponent_mask && mantissa == mantissa_mask)
    return NAN;
  if (exponent == 0)
    return sign * ldexpf((float)mantissa, 1 - bias - format->mantissa_bits);
  return sign * ldexpf((float)(mantissa | (mantissa_mask + 1)), (int)exponent - bias - format->mantissa_bits);
}

/* To nearest, ties to even. Beyond the largest value: infinity for fp16, that value for fp8. */
static uint32_t small_store(const struct small_format *format, float value)
{
  int bias = (1 << (format->exponent_bits - 1)) - 1;
  uint32_t mantissa_mask = (1U << format->mantissa_bits) - 1;
  uint32_t infinity = ((1U << format->exponent_bits) - 1) << format->mantissa_bits;
  uint32_t sign = (bits_of(value) >> 31) << (format->mantissa_bits + format->exponent_bits);
  bool fp8 = format->mantissa_bits < 10;
  uint32_t largest = format->infinities ? infinity - 1 : (infinity | mantissa_mask) - 1;
  if (isnan(value))
    return sign | infinity | mantissa_mask;
  float magnitude = fabsf(value);
  if (magnitude == 0)
    return sign;
  if (isinf(magnitude))
    return sign | (fp8 ? largest : infinity);

  int exponent;
  frexpf(magnitude, &exponent);
  exponent--; /* magnitude = 1.f * 2^exponent */
  if (exponent < 1 - bias)
    exponent = 1 - bias;
  if (exponent > bias + 1)
    return sign | (fp8 ? largest : infinity);
  uint32_t scaled = (uint32_t)lrintf(ldexpf(magnitude, format->mantissa_bits - exponent));
  uint32_t bits = scaled + ((uint32_t)(exponent + bias - 1) << format->mantissa_bits);
  if (bits > largest)
    return sign | (fp8 ? largest : infinity);
  return sign | bits;
}

static uint16_t bf16_store(float value)
{
  uint32_t bits = bits_of(value);
  if (isnan(value))
    return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

size_t numeric_size(ncclDataType_t type)
{
  static const unsigned char sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type < ncclNumTypes ? sizes[type] : 0;
}

bool numeric_is_integer(ncclDataType_t type)
{
  return type <= ncclUint64;
}

/* One element. Inlined where the type is a constant, which is what makes loops over elements bearable. */
static inline __attribute__((always_inline)) float load(ncclDataType_t type, const void *data, size_t index)
{
  switch (type) {
  case ncclFloat16:
    return small_load(&fp16, ((const uint16_t *)data)[index]);
  case ncclBfloat16:
    return float_of((uint32_t)((const uint16_t *)data)[index] << 16);
  case ncclFloat8e4m3:
    return small_load(&e4m3, ((const uint8_t *)data)[index]);
  case ncclFloat8e5m2:
    return small_load(&e5m2, ((const uint8_t *)data)[index]);
  case ncclFloat32:
    return ((const float *)data)[index];
  case ncclFloat64:
    return (float)((const double *)data)[index];
  case ncclInt8:
    return (float)((const int8_t *)data)[index];
  case ncclUint8:
    return (float)((const uint8_t *)data)[index];
  case ncclInt32:
    return (float)((const int32_t *)data)[index];
  case ncclUint32:
    return (float)((const uint32_t *)data)[index];
  case ncclInt64:
    return (float)((const int64_t *)data)[index];
  case ncclUint64:
    return (float)((const uint64_t *)data)[index];
  default:
    return NAN;
  }
}

static inline __attribute__((always_inline)) void store(ncclDataType_t type, void *data, size_t index, float value)
{
  switch (type) {
  case ncclFloat16:
    ((uint16_t *)data)[index] = (uint16_t)small_store(&fp16, value);
    break;
  case ncclBfloat16:
    ((uint16_t *)data)[index] = bf16_store(value);
    break;
  case ncclFloat8e4m3:
    ((uint8_t *)data)[index] = (uint8_t)small_store(&e4m3, value);
    break;
  case ncclFloat8e5m2:
    ((uint8_t *)data)[index] = (uint8_t)small_store(&e5m2, value);
    break;
  case ncclFloat32:
    ((float *)data)[index] = value;
    break;
  case ncclFloat64:
    ((double *)data)[index] = value;
    break;
  case ncclInt8:
    ((int8_t *)data)[index] = (int8_t)value;
    break;
  case ncclUint8:
    ((uint8_t *)data)[index] = (uint8_t)value;
    break;
  case ncclInt32:
    ((int32_t *)data)[index] = (int32_t)value;
    break;
  case ncclUint32:
    ((uint32_t *)data)[index] = (uint32_t)value;
    break;
  case ncclInt64:
    ((int64_t *)data)[index] = (int64_t)value;
    break;
  case ncclUint64:
    ((uint64_t *)data)[index] = (uint64_t)value;
    break;
  default:
    break;
  }
}

float numeric_load(ncclDataType_t type, const void *data, size_t index)
{
  return load(type, data, index);
}

void numeric_store(ncclDataType_t type, void *data, size_t index, float value)
{
  store(type, data, index, value);
}

/* Integers wrap; the detour over uint64_t keeps that defined for the signed ones. */
#define INTEGER_CASE(code, type)                                                                                       \
  case code: {                                                                                                         \
    type *a = acc;                                                                                                     \
    const type *b = in;                                                                                                \
    for (size_t i = 0; i < count; i++)                                                                                 \
      a[i] = op == ncclSum    ? (type)((uint64_t)a[i] + (uint64_t)b[i])                                                \
             : op == ncclProd ? (type)((uint64_t)a[i] * (uint64_t)b[i])                                                \
             : op == ncclMax  ? (a[i] > b[i] ? a[i] : b[i])                                                            \
                              : (a[i] < b[i] ? a[i] : b[i]);                                                            \
    break;                                                                                                             \
  }

static double float_step(ncclRedOp_t op, double a, double b)
{
  switch (op) {
  case ncclSum:
    return a + b;
  case ncclProd:
    return a * b;
  case ncclMax:
    return a > b ? a : b;
  default:
    return a < b ? a : b;
  }
}

#define FLOAT_CASE(code)                                                                                               \
  case code:                                                                                                           \
    for (size_t i = 0; i < count; i++)                                                                                 \
      store(code, acc, i, (float)float_step(op, load(code, acc, i), load(code, in, i)));                               \
    break;

void numeric_reduce(ncclDataType_t type, ncclRedOp_t op, void *acc, const void *in, size_t count)
{
  switch (type) {
    INTEGER_CASE(ncclInt8, int8_t)
    INTEGER_CASE(ncclUint8, uint8_t)
    INTEGER_CASE(ncclInt32, int32_t)
    INTEGER_CASE(ncclUint32, uint32_t)
    INTEGER_CASE(ncclInt64, int64_t)
    INTEGER_CASE(ncclUint64, uint64_t)
  case ncclFloat64:
    for (size_t i = 0; i < count; i++)
      ((double *)acc)[i] = float_step(op, ((double *)acc)[i], ((const double *)in)[i]);
    break;
    /* A double holds the exact product of two floats, and a sum rounded twice from 53 bits to 24 is still right. */
    FLOAT_CASE(ncclFloat32)
    FLOAT_CASE(ncclFloat16)
    FLOAT_CASE(ncclBfloat16)
    FLOAT_CASE(ncclFloat8e4m3)
    FLOAT_CASE(ncclFloat8e5m2)
  default:
    break;
  }
}

#define SCALE_CASE(code, type)                                                                                         \
  case code:                                                                                                           \
    for (size_t i = 0; i < count; i++)                                                                                 \
      ((type *)data)[i] = (type)((uint64_t)((type *)data)[i] * (uint64_t) * (const type *)scalar);                     \
    break;

void numeric_scale(ncclDataType_t type, void *data, const void *scalar, size_t count)
{
  switch (type) {
    SCALE_CASE(ncclInt8, int8_t)
    SCALE_CASE(ncclUint8, uint8_t)
    SCALE_CASE(ncclInt32, int32_t)
    SCALE_CASE(ncclUint32, uint32_t)
    SCALE_CASE(ncclInt64, int64_t)
    SCALE_CASE(ncclUint64, uint64_t)
  case ncclFloat64:
    for (size_t i = 0; i < count; i++)
      ((double *)data)[i] *= *(const double *)scalar;
    break;
  default:
    for (size_t i = 0; i < count; i++)
      store(type, data, i, load(type, data, i) * load(type, scalar, 0));
    break;
  }
}

void numeric_reciprocal(ncclDataType_t type, int n, void *scalar)
{
  if (type == ncclFloat64)
    *(double *)scalar = 1.0 / n;
  else
    numeric_store(type, scalar, 0, (float)(1.0 / n));
}

#define DIVIDE_CASE(code, type)                                                                                        \
  case code:                                                                                                           \
    for (size_t i = 0; i < count; i++)                                                                                 \
      ((type *)data)[i] = (type)(((type *)data)[i] / (type)n);                                                         \
    break;

void numeric_divide(ncclDataType_t type, void *data, int n, size_t count)
{
  switch (type) {
    DIVIDE_CASE(ncclInt8, int8_t)
    DIVIDE_CASE(ncclUint8, uint8_t)
    DIVIDE_CASE(ncclInt32, int32_t)
    DIVIDE_CASE(ncclUint32, uint32_t)
    DIVIDE_CASE(ncclInt64, int64_t)
    DIVIDE_CASE(ncclUint64, uint64_t)
  default:
    break;
  }
}

#define SUM_CASE(code)                                                                                                 \
  case code:                                                                                                           \
    for (size_t i = 0; i < count; i++) {                                                                               \
      float sum = load(code, sources[0], i);                                                                           \
      for (int r = 1; r < n; r++)                                                                                      \
        sum += load(code, sources[r], i);                                                                              \
      store(code, dst, i, divide ? sum / (float)n : sum);                                                              \
    }                                                                                                                  \
    break;

void numeric_sum_wide(ncclDataType_t type, void *dst, const void *const *sources, int n, size_t count, bool divide)
{
  switch (type) {
    SUM_CASE(ncclFloat32)
    SUM_CASE(ncclFloat16)
    SUM_CASE(ncclBfloat16)
    SUM_CASE(ncclFloat8e4m3)
    SUM_CASE(ncclFloat8e5m2)
  default:
    break;
  }
}
