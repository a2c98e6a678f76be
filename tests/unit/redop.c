/* SPDX-License-Identifier: Apache-2.0 */
/* Which factors of the job's own reduce ops are known, and that no op is taken for another. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "shim/redop.h"

enum { FIRST = ncclNumOps, RANKS = 3 };

static const float one_and_a_half = 1.5F;

static void assert_factor(const struct redop_table *table, ncclRedOp_t op, ncclDataType_t dtype, float wanted)
{
  float factor = NAN;

  assert_true(redop_factor(table, op, dtype, RANKS, &factor));
  assert_true(factor == wanted);
}

static void assert_unknown(const struct redop_table *table, ncclRedOp_t op, ncclDataType_t dtype)
{
  float factor;

  assert_false(redop_factor(table, op, dtype, RANKS, &factor));
}

static void create(struct redop_table *table, ncclRedOp_t op, float value)
{
  redop_created(table, op, &value, ncclFloat32, ncclScalarHostImmediate);
}

static void averages_need_no_table(void **state)
{
  static const ncclRedOp_t others[] = {ncclSum, ncclProd, ncclMax, ncclMin};
  struct redop_table table = {0};
  float factor;

  (void)state;
  for (int nranks = 2; nranks <= 1024; nranks *= 2) {
    assert_true(redop_factor(&table, ncclAvg, ncclBfloat16, nranks, &factor));
    assert_true(factor * (float)nranks == 1);
  }
  assert_factor(&table, ncclAvg, ncclFloat16, 1.0F / 3);
  for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
    assert_unknown(&table, others[i], ncclFloat32);
  assert_unknown(&table, FIRST, ncclFloat32);
}

static void reads_scalars_of_the_host(void **state)
{
  static const struct {
    ncclDataType_t dtype;
    uint32_t bits;
    float value;
  } scalars[] = {
      {ncclFloat32, 0x3fc00000, 1.5F},      {ncclFloat32, 0x80000001, -0x1p-149F},
      {ncclFloat16, 0x3e00, 1.5F},          {ncclFloat16, 0xc000, -2},
      {ncclFloat16, 0x0001, 0x1p-24F},      {ncclFloat16, 0x7bff, 65504},
      {ncclFloat16, 0x3555, 0.333251953F},  {ncclFloat16, 0x7c00, INFINITY},
      {ncclBfloat16, 0x3fc0, 1.5F},         {ncclBfloat16, 0xc000, -2},
      {ncclBfloat16, 0x0001, 0x1p-133F},    {ncclBfloat16, 0x7f80, INFINITY},
      {ncclBfloat16, 0x3eab, 0.333984375F},
  };

  (void)state;
  for (size_t i = 0; i < sizeof(scalars) / sizeof(scalars[0]); i++) {
    struct redop_table table = {0};
    /* As a job may hold it: behind it lies something else. */
    struct {
      uint32_t bits, behind;
    } scalar = {scalars[i].bits | (scalars[i].dtype == ncclFloat32 ? 0 : 0xffff0000U), 0xffffffffU};

    redop_created(&table, FIRST, &scalar, scalars[i].dtype, ncclScalarHostImmediate);
    assert_factor(&table, FIRST, scalars[i].dtype, scalars[i].value);
  }
}

static void keeps_nan(void **state)
{
  struct redop_table table = {0};
  float factor = 0;

  (void)state;
  create(&table, FIRST, NAN);
  assert_true(redop_factor(&table, FIRST, ncclFloat32, RANKS, &factor));
  assert_true(isnan(factor));
}

/* One in device memory must not even be looked at. */
static void knows_no_scalars_of_the_device(void **state)
{
  struct redop_table table = {0};

  (void)state;
  redop_created(&table, FIRST, (const void *)(uintptr_t)16, ncclFloat32, ncclScalarDevice);
  assert_unknown(&table, FIRST, ncclFloat32);
  assert_int_equal(table.count, 0);
}

static void knows_no_other_types(void **state)
{
  static const uint64_t scalar = 0x3ff8000000000000U;
  struct redop_table table = {0};

  (void)state;
  for (int dtype = 0; dtype < ncclNumTypes; dtype++) {
    bool known = dtype == ncclFloat16 || dtype == ncclBfloat16 || dtype == ncclFloat32;
    float factor;

    redop_created(&table, FIRST + (ncclRedOp_t)dtype, &scalar, (ncclDataType_t)dtype, ncclScalarHostImmediate);
    assert_int_equal(redop_factor(&table, FIRST + (ncclRedOp_t)dtype, (ncclDataType_t)dtype, RANKS, &factor), known);
  }
}

/* An op belongs to the type that it was made for; NCCL says so to a job that mixes them. */
static void keeps_types_apart(void **state)
{
  struct redop_table table = {0};

  (void)state;
  redop_created(&table, FIRST, &one_and_a_half, ncclFloat32, ncclScalarHostImmediate);
  assert_factor(&table, FIRST, ncclFloat32, 1.5F);
  assert_unknown(&table, FIRST, ncclFloat16);
  assert_unknown(&table, FIRST, ncclBfloat16);
  assert_unknown(&table, FIRST + 1, ncclFloat32);
}

static void forgets_what_is_destroyed(void **state)
{
  struct redop_table table = {0};

  (void)state;
  for (ncclRedOp_t i = 0; i < 5; i++)
    create(&table, FIRST + i, (float)i);
  redop_destroyed(&table, FIRST + 1);
  redop_destroyed(&table, FIRST + 1); /* gone already */
  redop_destroyed(&table, FIRST + 99);
  redop_destroyed(&table, ncclAvg);
  for (ncclRedOp_t i = 0; i < 5; i++)
    if (i == 1)
      assert_unknown(&table, FIRST + i, ncclFloat32);
    else
      assert_factor(&table, FIRST + i, ncclFloat32, (float)i);
  redop_destroyed(&table, FIRST + 4); /* the last one made */
  redop_destroyed(&table, FIRST);
  assert_factor(&table, FIRST + 2, ncclFloat32, 2);
  assert_factor(&table, FIRST + 3, ncclFloat32, 3);
  assert_int_equal(table.count, 2);
}

/* NCCL gives the number of a destroyed op to the next one, and an op's end may have been out of sight. */
static void takes_a_number_again(void **state)
{
  struct redop_table table = {0};

  (void)state;
  create(&table, FIRST, 2);
  redop_destroyed(&table, FIRST);
  create(&table, FIRST, 3);
  assert_factor(&table, FIRST, ncclFloat32, 3);
  create(&table, FIRST, 4);
  assert_factor(&table, FIRST, ncclFloat32, 4);
  assert_int_equal(table.count, 1);
  redop_created(&table, FIRST, &one_and_a_half, ncclFloat32, ncclScalarDevice);
  assert_unknown(&table, FIRST, ncclFloat32);
}

static void has_room_for_so_many(void **state)
{
  struct redop_table table = {0};

  (void)state;
  for (ncclRedOp_t i = 0; i < REDOP_MAX + 3; i++)
    create(&table, FIRST + i, (float)i);
  assert_int_equal(table.count, REDOP_MAX);
  for (ncclRedOp_t i = 0; i < REDOP_MAX; i++)
    assert_factor(&table, FIRST + i, ncclFloat32, (float)i);
  for (ncclRedOp_t i = REDOP_MAX; i < REDOP_MAX + 3; i++)
    assert_unknown(&table, FIRST + i, ncclFloat32);
  redop_destroyed(&table, FIRST + REDOP_MAX); /* was never in it */
  assert_int_equal(table.count, REDOP_MAX);
  redop_destroyed(&table, FIRST + 7);
  create(&table, FIRST + REDOP_MAX + 1, 0.25F);
  assert_factor(&table, FIRST + REDOP_MAX + 1, ncclFloat32, 0.25F);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(averages_need_no_table),
      cmocka_unit_test(reads_scalars_of_the_host),
      cmocka_unit_test(keeps_nan),
      cmocka_unit_test(knows_no_scalars_of_the_device),
      cmocka_unit_test(knows_no_other_types),
      cmocka_unit_test(keeps_types_apart),
      cmocka_unit_test(forgets_what_is_destroyed),
      cmocka_unit_test(takes_a_number_again),
      cmocka_unit_test(has_room_for_so_many),
  };

  return cmocka_run_group_tests_name("redop", tests, NULL, NULL);
}
