/* SPDX-License-Identifier: Apache-2.0 */
/* What `symmshim tune` makes of given figures, and how many SMs a line of NCCL's log names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/cmd_tune.h"
#include "tools/gpu/tuning.h"

enum { MIB = 1 << 20 };
static struct tune tune;

static int begin(void **state)
{
  (void)state;
  memset(&tune, 0, sizeof(tune));
  tune.nranks = 2;
  tune.nccl_version = 22809;
  tune.ctas_count = 4;
  for (int i = 0; i < 4; i++)
    tune.ctas[i] = 8 * (i + 1);
  tune.chosen_ctas = 1;
  tune.max_ctas = 64;
  strcpy(tune.gpu, "Some GPU");
  return 0;
}

static struct tune_figure figure(double us, double spread)
{
  return (struct tune_figure){true, us, spread};
}

/* A case for which stock takes 100 us. */
static struct tune_case *add(enum policy_op op, enum policy_redop redop, enum policy_dtype dtype, uint64_t bytes,
                             double window, double staged)
{
  struct tune_case *it = &tune.cases[tune.case_count++];

  *it = (struct tune_case){.what = {op, dtype, redop, bytes},
                           .stock = figure(100, 1),
                           .window_stock = figure(100, 1),
                           .window = figure(window, 1),
                           .staged_stock = figure(100, 1),
                           .staged = figure(staged, 1)};
  return it;
}

static struct tune_case *add_reduce(enum policy_dtype dtype, uint64_t bytes, double window, double staged)
{
  return add(POLICY_OP_all_reduce, POLICY_REDOP_sum, dtype, bytes, window, staged);
}

static void make_rules(void)
{
  tune_choose_paths(&tune);
  assert_int_equal(tune_make_rules(&tune), 0);
}

static void expect_rule(int index, enum policy_path path, uint64_t min_bytes, uint64_t max_bytes)
{
  assert_true(index < tune.rule_count);
  assert_int_equal(tune.rules[index].path, path);
  assert_int_equal(tune.rules[index].min_bytes, min_bytes);
  assert_int_equal(tune.rules[index].max_bytes, max_bytes);
}

static void test_faster_is_more_than_noise(void **state)
{
  struct tune_figure stock = figure(100, 0), other = figure(97.9, 0);

  (void)state;
  assert_true(tune_is_faster(&stock, &other));
  other.us = 98.1; /* less than 2 % */
  assert_false(tune_is_faster(&stock, &other));
  other = figure(90, 4.9);
  assert_true(tune_is_faster(&stock, &other));
  other.spread = 5.1; /* within twice the spread, its own or stock's */
  assert_false(tune_is_faster(&stock, &other));
  stock.spread = 5.1;
  other.spread = 0;
  assert_false(tune_is_faster(&stock, &other));
  stock.spread = 0;
  other.measured = false;
  assert_false(tune_is_faster(&stock, &other));
}

static void test_path_of_a_case(void **state)
{
  (void)state;
  add_reduce(POLICY_DTYPE_bf16, MIB, 50, 150);
  add_reduce(POLICY_DTYPE_bf16, 2 * MIB, 50, 70);
  add_reduce(POLICY_DTYPE_bf16, 4 * MIB, 99, 70); /* a staged call that lies alike goes by window, which is no gain */
  add_reduce(POLICY_DTYPE_bf16, 8 * MIB, 50, 70)->staged.measured = false;
  add_reduce(POLICY_DTYPE_bf16, 16 * MIB, 50, 70)->window.measured = false;
  tune_choose_paths(&tune);
  assert_int_equal(tune.cases[0].choice, POLICY_PATH_window);
  assert_int_equal(tune.cases[1].choice, POLICY_PATH_staged);
  assert_int_equal(tune.cases[2].choice, POLICY_PATH_plain);
  assert_int_equal(tune.cases[3].choice, POLICY_PATH_window);
  assert_int_equal(tune.cases[4].choice, POLICY_PATH_plain);
}

static void hand(struct tune_case *it, double us8, double us16, double us24, double us32)
{
  it->hand[0] = figure(us8, 0);
  it->hand[1] = figure(us16, 0);
  it->hand[2] = figure(us24, 0);
  it->hand[3] = figure(us32, 0);
}

static void test_ctas_are_the_fewest_that_save_as_much(void **state)
{
  (void)state;
  hand(add_reduce(POLICY_DTYPE_bf16, MIB, 0, 0), 90, 60, 59.5, 59.2);
  hand(add_reduce(POLICY_DTYPE_bf16, 4 * MIB, 0, 0), 110, 70, 69.5, 70);
  assert_int_equal(tune_choose_ctas(&tune), 1);
  tune.cases[1].hand[2].us = 60;
  assert_int_equal(tune_choose_ctas(&tune), 2);
}

static void test_a_long_call_does_not_outweigh_short_ones(void **state)
{
  (void)state;
  for (int i = 0; i < 4; i++)
    hand(add_reduce(POLICY_DTYPE_bf16, MIB << i, 0, 0), 80, 60, 80, 80);
  hand(add_reduce(POLICY_DTYPE_bf16, 128 * MIB, 0, 0), 8000, 8000, 8000, 7000);
  tune.cases[4].stock.us = 10000;
  assert_int_equal(tune_choose_ctas(&tune), 1);
}

static void test_losses_are_left_plain_so_they_do_not_count(void **state)
{
  (void)state;
  hand(add_reduce(POLICY_DTYPE_bf16, MIB, 0, 0), 95, 500, 95, 95);
  hand(add_reduce(POLICY_DTYPE_bf16, 4 * MIB, 0, 0), 95, 50, 95, 95);
  assert_int_equal(tune_choose_ctas(&tune), 1);
}

static void test_no_candidate_is_the_first(void **state)
{
  (void)state;
  hand(add_reduce(POLICY_DTYPE_bf16, MIB, 0, 0), 120, 110, 110, 110);
  assert_int_equal(tune_choose_ctas(&tune), 0);
}

static void test_adjacent_sizes_are_one_rule(void **state)
{
  (void)state;
  add_reduce(POLICY_DTYPE_bf16, MIB, 120, 200);
  add_reduce(POLICY_DTYPE_bf16, 4 * MIB, 50, 200);
  add_reduce(POLICY_DTYPE_bf16, 16 * MIB, 50, 200);
  add_reduce(POLICY_DTYPE_bf16, 64 * MIB, 120, 200);
  add_reduce(POLICY_DTYPE_bf16, 256 * MIB, 50, 200);
  make_rules();
  assert_int_equal(tune.rule_count, 2);
  expect_rule(0, POLICY_PATH_window, 4 * MIB, 16 * MIB);
  expect_rule(1, POLICY_PATH_window, 256 * MIB, UINT64_MAX);
}

static void test_no_gap_between_window_and_staged(void **state)
{
  (void)state;
  add_reduce(POLICY_DTYPE_bf16, MIB, 50, 200);
  add_reduce(POLICY_DTYPE_bf16, 4 * MIB, 50, 60);
  add_reduce(POLICY_DTYPE_bf16, 16 * MIB, 50, 200);
  make_rules();
  assert_int_equal(tune.rule_count, 3);
  expect_rule(0, POLICY_PATH_window, MIB, 4 * MIB - 1);
  expect_rule(1, POLICY_PATH_staged, 4 * MIB, 4 * MIB);
  expect_rule(2, POLICY_PATH_window, 4 * MIB + 1, UINT64_MAX);
}

static void test_kinds_are_parted_and_types_joined(void **state)
{
  (void)state;
  add(POLICY_OP_all_gather, POLICY_REDOP_none, POLICY_DTYPE_bf16, MIB, 50, 200);
  add_reduce(POLICY_DTYPE_bf16, MIB, 50, 200);
  add(POLICY_OP_reduce_scatter, POLICY_REDOP_avg, POLICY_DTYPE_bf16, MIB, 50, 60);
  add_reduce(POLICY_DTYPE_fp32, MIB, 50, 200);
  add(POLICY_OP_reduce_scatter, POLICY_REDOP_avg, POLICY_DTYPE_fp32, MIB, 50, 200);
  make_rules();
  assert_int_equal(tune.rule_count, 4);
  assert_int_equal(tune.rules[0].dtypes, 0);
  assert_int_equal(tune.rules[1].dtypes, 1U << POLICY_DTYPE_bf16 | 1U << POLICY_DTYPE_fp32);
  assert_int_equal(tune.rules[2].dtypes, 1U << POLICY_DTYPE_bf16);
  assert_int_equal(tune.rules[3].dtypes, 1U << POLICY_DTYPE_fp32);
}

/* Side by side, and alike in all but one word. */
static void test_neighbours_of_another_kind(void **state)
{
  (void)state;
  add(POLICY_OP_reduce_scatter, POLICY_REDOP_sum, POLICY_DTYPE_bf16, MIB, 50, 200);
  add(POLICY_OP_reduce_scatter, POLICY_REDOP_avg, POLICY_DTYPE_bf16, MIB, 50, 200);
  add_reduce(POLICY_DTYPE_bf16, MIB, 50, 200);
  add_reduce(POLICY_DTYPE_bf16, 4 * MIB, 50, 200);
  add_reduce(POLICY_DTYPE_fp32, MIB, 120, 200);
  add_reduce(POLICY_DTYPE_fp32, 4 * MIB, 50, 200);
  make_rules();
  assert_int_equal(tune.rule_count, 4);
  expect_rule(2, POLICY_PATH_window, MIB, UINT64_MAX);
  expect_rule(3, POLICY_PATH_window, 4 * MIB, UINT64_MAX);
  assert_int_equal(tune.rules[2].dtypes, 1U << POLICY_DTYPE_bf16);
  assert_int_equal(tune.rules[3].dtypes, 1U << POLICY_DTYPE_fp32);
}

static void test_too_many_rules(void **state)
{
  (void)state;
  for (int i = 0; i < 2 * (POLICY_MAX_RULES + 1); i++)
    add_reduce(POLICY_DTYPE_bf16, (uint64_t)MIB * (uint64_t)(i + 1), i % 2 ? 50 : 120, 200);
  tune_choose_paths(&tune);
  assert_int_equal(tune_make_rules(&tune), -28);
}

/* The file as the shim would read it. */
static struct policy written(void)
{
  struct policy_error error = {0};
  struct policy policy;
  size_t length = 0;
  char *text = NULL;
  FILE *out = open_memstream(&text, &length);

  tune_write(&tune, out);
  fclose(out);
  if (policy_parse(&policy, text, length, &error) < 0)
    fail_msg("line %d: %s\n%s", error.line, error.message, text);
  free(text);
  return policy;
}

static struct policy_decision decide(const struct policy *policy, enum policy_op op, enum policy_redop redop,
                                     uint64_t bytes, int nranks, int nccl)
{
  struct policy_request request = {op, POLICY_DTYPE_bf16, redop, nranks, bytes, nccl};

  return policy_match(policy, &request);
}

static void test_the_file_says_what_was_chosen(void **state)
{
  struct policy policy;
  struct policy_decision decision;

  (void)state;
  add(POLICY_OP_all_gather, POLICY_REDOP_none, POLICY_DTYPE_bf16, MIB, 120, 200);
  add(POLICY_OP_all_gather, POLICY_REDOP_none, POLICY_DTYPE_bf16, 4 * MIB, 50, 200);
  add(POLICY_OP_reduce_scatter, POLICY_REDOP_avg, POLICY_DTYPE_bf16, 4 * MIB, 50, 60);
  make_rules();
  policy = written();
  assert_int_equal(policy.rule_count, 2);
  assert_int_equal(policy.child_min_ctas, 16);
  assert_int_equal(policy.child_max_ctas, 64);
#define PATH(...) decide(&policy, __VA_ARGS__).path
  assert_int_equal(PATH(POLICY_OP_all_gather, POLICY_REDOP_none, 4 * MIB - 1, 2, 22809), POLICY_PATH_plain);
  assert_int_equal(PATH(POLICY_OP_all_gather, POLICY_REDOP_none, 4 * MIB, 2, 22809), POLICY_PATH_window);
  assert_int_equal(PATH(POLICY_OP_all_gather, POLICY_REDOP_none, (uint64_t)4096 * MIB, 2, 22801), POLICY_PATH_window);
  assert_int_equal(PATH(POLICY_OP_all_gather, POLICY_REDOP_none, 4 * MIB, 4, 22809), POLICY_PATH_plain);
  assert_int_equal(PATH(POLICY_OP_all_gather, POLICY_REDOP_none, 4 * MIB, 2, 22902), POLICY_PATH_plain);
  assert_int_equal(PATH(POLICY_OP_reduce_scatter, POLICY_REDOP_sum, 4 * MIB, 2, 22809), POLICY_PATH_plain);
  decision = decide(&policy, POLICY_OP_reduce_scatter, POLICY_REDOP_avg, 4 * MIB, 2, 22809);
  assert_int_equal(decision.path, POLICY_PATH_staged);
  assert_int_equal(decision.rewrite, POLICY_REWRITE_post_scale);
}

static void test_sizes_in_the_file_are_exact(void **state)
{
  struct policy policy;

  (void)state;
  add(POLICY_OP_all_gather, POLICY_REDOP_none, POLICY_DTYPE_bf16, 1536, 50, 200);
  add(POLICY_OP_all_gather, POLICY_REDOP_none, POLICY_DTYPE_bf16, (uint64_t)1536 * MIB, 50, 60);
  make_rules();
  policy = written();
  assert_int_equal(policy.rules[0].min_bytes, 1536);
  assert_int_equal(policy.rules[0].max_bytes, (uint64_t)1536 * MIB - 1);
  assert_int_equal(policy.rules[1].min_bytes, (uint64_t)1536 * MIB);
}

static void test_no_rule_keeps_the_built_in_ones_out(void **state)
{
  struct policy policy;

  (void)state;
  add(POLICY_OP_all_gather, POLICY_REDOP_none, POLICY_DTYPE_bf16, 4 * MIB, 120, 200);
  make_rules();
  policy = written();
  assert_int_equal(PATH(POLICY_OP_all_gather, POLICY_REDOP_none, 8 * MIB, 2, 22809), POLICY_PATH_plain);
}

static void test_channels_in_nccls_log(void **state)
{
  (void)state;
  assert_int_equal(tuning_channels("host:1:2 [0] NCCL INFO AllGather: 2097152 Bytes -> Algo RING proto SIMPLE "
                                   "channel{Lo..Hi}={0..23}\n"),
                   24);
  assert_int_equal(tuning_channels("host:1:2 [0] NCCL INFO AllReduce: 16 Bytes -> Algo RING proto LL "
                                   "channel{Lo..Hi}={3..3}\n"),
                   1);
  assert_int_equal(tuning_channels("host:1:2 [0] NCCL INFO AllGather [Symmetric]: 2097152 Bytes -> Kernel AllGather_ST "
                                   "nchannels 16 nthreads 512 nWorks 1\n"),
                   16);
  assert_int_equal(tuning_channels("host:1:2 [0] NCCL INFO   Algorithm   |  Tree  |  Ring\n"), -1);
  assert_int_equal(tuning_channels("host:1:2 [0] NCCL INFO 24 coll channels, 24 nvls channels\n"), -1);
  assert_int_equal(tuning_channels(""), -1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_faster_is_more_than_noise, begin),
      cmocka_unit_test_setup(test_path_of_a_case, begin),
      cmocka_unit_test_setup(test_ctas_are_the_fewest_that_save_as_much, begin),
      cmocka_unit_test_setup(test_a_long_call_does_not_outweigh_short_ones, begin),
      cmocka_unit_test_setup(test_losses_are_left_plain_so_they_do_not_count, begin),
      cmocka_unit_test_setup(test_no_candidate_is_the_first, begin),
      cmocka_unit_test_setup(test_adjacent_sizes_are_one_rule, begin),
      cmocka_unit_test_setup(test_no_gap_between_window_and_staged, begin),
      cmocka_unit_test_setup(test_kinds_are_parted_and_types_joined, begin),
      cmocka_unit_test_setup(test_neighbours_of_another_kind, begin),
      cmocka_unit_test_setup(test_too_many_rules, begin),
      cmocka_unit_test_setup(test_the_file_says_what_was_chosen, begin),
      cmocka_unit_test_setup(test_sizes_in_the_file_are_exact, begin),
      cmocka_unit_test_setup(test_no_rule_keeps_the_built_in_ones_out, begin),
      cmocka_unit_test_setup(test_channels_in_nccls_log, begin),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
