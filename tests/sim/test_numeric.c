/* SPDX-License-Identifier: Apache-2.0 */
/* The small floating-point formats: every value survives, and what lies between goes to the nearest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "tests/sim/numeric.h"

struct format {
  ncclDataType_t type;
  uint32_t values;
  uint32_t infinity; /* where it has none: the largest value, which larger ones become */
  float largest;
};

static const struct format formats[] = {
    {ncclFloat16, 1 << 16, 0x7c00, 65504},
    {ncclBfloat16, 1 << 16, 0x7f80, 0x1.fep127F},
    {ncclFloat8e4m3, 1 << 8, 0x7e, 448},
    {ncclFloat8e5m2, 1 << 8, 0x7b, 57344},
};

static float load_bits(const struct format *format, uint32_t bits)
{
  uint16_t wide = (uint16_t)bits;
  uint8_t narrow = (uint8_t)bits;
  return numeric_load(format->type, format->values > 256 ? (void *)&wide : &narrow, 0);
}

static uint32_t store_bits(const struct format *format, float value)
{
  uint16_t wide = 0;
  uint8_t narrow = 0;
  numeric_store(format->type, format->values > 256 ? (void *)&wide : &narrow, 0, value);
  return format->values > 256 ? wide : narrow;
}

static void test_every_value(void **state)
{
  (void)state;
  for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++)
    for (uint32_t bits = 0; bits < formats[f].values; bits++) {
      float value = load_bits(&formats[f], bits);
      if (isnan(value))
        assert_true(isnan(load_bits(&formats[f], store_bits(&formats[f], value))));
      else if (!isinf(value) || formats[f].type == ncclFloat16 || formats[f].type == ncclBfloat16)
        assert_int_equal(store_bits(&formats[f], value), bits);
      else /* fp8 saturates */
        assert_int_equal(store_bits(&formats[f], value) & 0x7f, formats[f].infinity);
    }
}

/* Between two neighbours: the half goes to the even one, less to the lower, more to the upper. */
static void test_nearest(void **state)
{
  (void)state;
  for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++)
    for (uint32_t bits = 0; load_bits(&formats[f], bits) < formats[f].largest; bits++) {
      float lower = load_bits(&formats[f], bits);
      float upper = load_bits(&formats[f], bits + 1);
      float half = lower + (upper - lower) / 2;
      assert_int_equal(store_bits(&formats[f], half), bits % 2 ? bits + 1 : bits);
      assert_int_equal(store_bits(&formats[f], nextafterf(half, lower)), bits);
      assert_int_equal(store_bits(&formats[f], nextafterf(half, upper)), bits + 1);
    }
}

static void test_too_large(void **state)
{
  (void)state;
  for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
    const struct format *format = &formats[f];
    uint32_t top = store_bits(format, format->largest);
    float step = format->largest - load_bits(format, top - 1);
    assert_true(load_bits(format, top) == format->largest);
    assert_int_equal(store_bits(format, format->largest + step / 4), top);
    assert_int_equal(store_bits(format, INFINITY), format->infinity);
    assert_int_equal(store_bits(format, -INFINITY), format->infinity | format->values / 2);
  }
  /* Half a step beyond the largest rounds to what would be next. */
  assert_int_equal(store_bits(&formats[0], 65520), 0x7c00);
  assert_int_equal(store_bits(&formats[0], 65519), 0x7bff);
  assert_int_equal(store_bits(&formats[2], 1e9F), 0x7e);
}

static void test_integers(void **state)
{
  (void)state;
  int8_t small[2] = {127, -128};
  const int8_t one[2] = {1, -1};
  numeric_reduce(ncclInt8, ncclSum, small, one, 2);
  assert_int_equal(small[0], -128);
  assert_int_equal(small[1], 127);
  uint64_t large = UINT64_MAX;
  const uint64_t two = 2;
  numeric_reduce(ncclUint64, ncclProd, &large, &two, 1);
  assert_true(large == UINT64_MAX - 1);
  numeric_reduce(ncclUint64, ncclMin, &large, &two, 1);
  assert_true(large == 2);
  int32_t negative = -7;
  numeric_divide(ncclInt32, &negative, 2, 1);
  assert_int_equal(negative, -3);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_value),
      cmocka_unit_test(test_nearest),
      cmocka_unit_test(test_too_large),
      cmocka_unit_test(test_integers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
