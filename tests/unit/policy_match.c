/* SPDX-License-Identifier: Apache-2.0 */
/* The matcher, the hash, and the built-in policy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "policy/policy.h"

static struct policy parse(const char *text)
{
  struct policy policy;
  struct policy_error error;

  if (policy_parse(&policy, text, strlen(text), &error) != 0)
    fail_msg("%s -> %d: %s", text, error.line, error.message);
  return policy;
}

static const struct policy_request example = {
    .op = POLICY_OP_reduce_scatter,
    .dtype = POLICY_DTYPE_bf16,
    .redop = POLICY_REDOP_avg,
    .nranks = 4,
    .bytes = 1 << 20,
    .nccl_version = 22809,
};

/* Whether a rule with these match keys takes the request. */
static bool takes(const char *keys, const struct policy_request *request)
{
  char text[256];
  struct policy policy;

  snprintf(text, sizeof(text), "[rule r]\n%s\npath = window\n", keys);
  policy = parse(text);
  return policy_match(&policy, request).path == POLICY_PATH_window;
}

static void without_a_section_all_is_plain(void **state)
{
  struct policy policy = {.rule_count = 0};
  struct policy_decision decision;

  (void)state;
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    policy.ops[op] = (struct policy_action){POLICY_UNSET, POLICY_UNSET};
  decision = policy_match(&policy, &example);
  assert_int_equal(decision.path, POLICY_PATH_plain);
  assert_int_equal(decision.rewrite, POLICY_REWRITE_none);
  assert_int_equal(decision.path_from, POLICY_FROM_DEFAULT);
  assert_int_equal(decision.rewrite_from, POLICY_FROM_DEFAULT);
}

static void the_section_of_the_op_comes_after_the_rules(void **state)
{
  struct policy policy = parse("[reduce_scatter]\npath = window\nrewrite = post_scale\n"
                               "[rule other]\nop = all_gather\npath = plain\n"
                               "[rule last]\nnranks = 8\npath = plain\n");
  struct policy_request request = example;
  struct policy_decision decision = policy_match(&policy, &request);

  (void)state;
  assert_int_equal(decision.path, POLICY_PATH_window);
  assert_int_equal(decision.path_from, POLICY_FROM_OP);
  assert_int_equal(decision.rewrite, POLICY_REWRITE_post_scale);
  assert_int_equal(decision.rewrite_from, POLICY_FROM_OP);
  request.nranks = 8;
  decision = policy_match(&policy, &request);
  assert_int_equal(decision.path, POLICY_PATH_plain);
  assert_int_equal(decision.path_from, 1);
  assert_int_equal(decision.rewrite, POLICY_REWRITE_post_scale);
  assert_int_equal(decision.rewrite_from, POLICY_FROM_OP);
}

static void the_first_rule_that_sets_a_word_wins_for_that_word(void **state)
{
  struct policy policy = parse("[rule a]\nrewrite = post_scale\n[rule b]\npath = window\nrewrite = none\n"
                               "[rule c]\npath = plain\n");
  struct policy_decision decision = policy_match(&policy, &example);

  (void)state;
  assert_int_equal(decision.path, POLICY_PATH_window);
  assert_int_equal(decision.path_from, 1);
  assert_int_equal(decision.rewrite, POLICY_REWRITE_post_scale);
  assert_int_equal(decision.rewrite_from, 0);
}

static void every_match_key_counts(void **state)
{
  (void)state;
  assert_true(takes("", &example));
  assert_true(takes("op = all_gather reduce_scatter", &example));
  assert_false(takes("op = all_gather all_reduce", &example));
  assert_true(takes("dtype = fp32 bf16", &example));
  assert_false(takes("dtype = fp32 fp16", &example));
  assert_true(takes("redop = avg", &example));
  assert_false(takes("redop = sum none", &example));
  /* All keys must fit. */
  assert_true(takes("op = reduce_scatter\ndtype = bf16\nredop = avg\nnranks = 4", &example));
  assert_false(takes("op = reduce_scatter\ndtype = bf16\nredop = avg\nnranks = 5", &example));
}

static void ranges_hold_their_ends(void **state)
{
  struct policy_request request = example;

  (void)state;
  assert_true(takes("nranks = 4", &request) && takes("nranks = 4..", &request) && takes("nranks = ..4", &request));
  assert_false(takes("nranks = 5..", &request) || takes("nranks = ..3", &request) || takes("nranks = 3", &request));
  assert_true(takes("min_bytes = 1M\nmax_bytes = 1M", &request));
  request.bytes--;
  assert_false(takes("min_bytes = 1M", &request));
  request.bytes += 2;
  assert_false(takes("max_bytes = 1M", &request));
  assert_true(takes("nccl = 2.28.9", &request) && takes("nccl = 2.28.0..2.28.99", &request));
  assert_true(takes("nccl = 2.28.9..2.29.0", &request) && takes("nccl = ..2.28.9", &request));
  assert_false(takes("nccl = 2.28.10..", &request) || takes("nccl = ..2.28.8", &request));
  request.bytes = UINT64_MAX;
  assert_true(takes("", &request));
}

static void a_request_outside_the_enumerations_is_plain(void **state)
{
  struct policy_request request = example;

  (void)state;
  request.dtype = (enum policy_dtype)(32 + POLICY_DTYPE_fp64);
  assert_false(takes("dtype = int8, fp64", &request));
  request = example;
  request.op = (enum policy_op)77;
  assert_false(takes("op = all_gather", &request));
}

static void words_and_values_match(void **state)
{
  (void)state;
  for (int i = 0; i < POLICY_OP_COUNT; i++)
    assert_int_equal(policy_op_value(policy_op_word((enum policy_op)i)), i);
  for (int i = 0; i < POLICY_DTYPE_COUNT; i++)
    assert_int_equal(policy_dtype_value(policy_dtype_word((enum policy_dtype)i)), i);
  for (int i = 0; i < POLICY_REDOP_COUNT; i++)
    assert_int_equal(policy_redop_value(policy_redop_word((enum policy_redop)i)), i);
  assert_null(policy_op_word(POLICY_OP_COUNT));
  assert_null(policy_dtype_word((enum policy_dtype) - 1));
  assert_null(policy_path_word(POLICY_PATH_COUNT));
  assert_null(policy_rewrite_word(POLICY_REWRITE_COUNT));
  assert_true(policy_op_value("all_gathe") < 0 && policy_op_value("") < 0 && policy_redop_value("SUM") < 0);
}

static void dtypes_have_their_sizes(void **state)
{
  /* in NCCL's order: int8 uint8 int32 uint32 int64 uint64 fp16 fp32 fp64 bf16 fp8e4m3 fp8e5m2 */
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

  (void)state;
  assert_int_equal(sizeof(sizes) / sizeof(sizes[0]), POLICY_DTYPE_COUNT);
  for (int i = 0; i < POLICY_DTYPE_COUNT; i++)
    assert_int_equal(policy_dtype_size((enum policy_dtype)i), sizes[i]);
  assert_int_equal(policy_dtype_size(POLICY_DTYPE_COUNT), 0);
}

/* Each line is one more setting than the built-in policy; no two of them may have the same hash. */
static void every_setting_changes_the_hash(void **state)
{
  static const char *const texts[] = {
      "",
      "[shim]\nagree_us = 1\n",
      "[shim]\nsetup_ms = 1\n",
      "[shim]\npause_after = 1\n",
      "[shim]\npause_calls = 1\n",
      "[shim]\nmin_nccl = 2.29.0\n",
      "[shim]\nchild_min_ctas = 1\n",
      "[shim]\nchild_max_ctas = 17\n",
      "[shim]\nchild_memory = 1\n",
      "[shim]\nwindow_memory = 1\n",
      "[shim]\nstage_max = 0\n",
      "[shim]\nstage_max = 1\n",
      "[shim]\nrequire_abortable = yes\n",
      "[arena]\nenable = no\n",
      "[arena]\ncallers = *\n",
      "[arena]\ncallers = libfoo\n",
      "[arena]\ncallers = libc10_cuda libfoo\n",
      "[arena]\nmin_bytes = 1\n",
      "[arena]\nmax_bytes = 1M\n",
      "[all_gather]\npath = window\n",
      "[reduce_scatter]\npath = window\n",
      "[reduce_scatter]\npath = staged\n",
      "[reduce_scatter]\nrewrite = post_scale\n",
      "[reduce_scatter]\nrewrite = pre_scale\n",
      "[all_reduce]\npath = window\n",
      "[all_reduce]\nrewrite = none\n",
      "[rule r]\npath = window\n",
      "[rule r]\npath = plain\n",
      "[rule r]\nrewrite = none\n",
      "[rule r]\nrewrite = post_scale\n",
      "[rule r]\nrewrite = pre_scale\n",
      "[rule r]\npath = staged\n",
      "[rule r]\nop = all_gather\npath = window\n",
      "[rule r]\ndtype = int8\npath = window\n",
      "[rule r]\nredop = sum\npath = window\n",
      "[rule r]\nnranks = 2..\npath = window\n",
      "[rule r]\nnranks = ..2\npath = window\n",
      "[rule r]\nmin_bytes = 1\npath = window\n",
      "[rule r]\nmax_bytes = 1\npath = window\n",
      "[rule r]\nnccl = 2.28.0..\npath = window\n",
      "[rule r]\nnccl = ..2.28.0\npath = window\n",
      "[rule r]\npath = window\n[rule s]\npath = window\n",
  };
  enum { COUNT = sizeof(texts) / sizeof(texts[0]) };
  uint64_t hashes[COUNT];

  (void)state;
  for (int i = 0; i < COUNT; i++) {
    hashes[i] = parse(texts[i]).hash;
    for (int j = 0; j < i; j++)
      if (hashes[i] == hashes[j])
        fail_msg("equal hashes:\n%s\n%s", texts[i], texts[j]);
  }
}

static void equal_settings_have_equal_hashes(void **state)
{
  static const char *const pairs[][2] = {
      {"", "[shim]\naudit = call\nwarn_s = 1\n"},
      {"", "[arena]\nparked_max = 1\n"}, /* each rank's own business */
      {"", "[shim]\nstage_max = 256M\nrequire_abortable = no\n"},
      {"", "# comment\n[shim]\nagree_us = 50000\n"},
      {"[shim]\nagree_us = 1\nsetup_ms = 2\n", "[arena]\n[shim]\nsetup_ms = 2\nagree_us = 01\n"},
      {"[arena]\nmin_bytes = 2M\n", "[arena]\nmin_bytes = 2048K\n"},
      {"[arena]\ncallers = a.so b\n", "[arena]\ncallers = b.so.1,a\n"},
      {"[rule r]\npath = window\n", "[rule s]\npath = window\n"},
      {"[rule r]\npath = window\n", "[rule r]\nop = all_gather reduce_scatter all_reduce\npath = window\n"},
      {"[rule r]\nop = all_gather all_reduce\npath = window\n",
       "[rule r]\nop = all_reduce all_gather\npath = window\n"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
    if (parse(pairs[i][0]).hash != parse(pairs[i][1]).hash)
      fail_msg("unequal hashes:\n%s\n%s", pairs[i][0], pairs[i][1]);
}

static void the_built_in_policy_is_the_file(void **state)
{
  struct policy built_in, read;
  struct policy_error error;

  (void)state;
  policy_default(&built_in);
  if (policy_read(&read, DEFAULT_CONF, &error) != 0)
    fail_msg("%d: %s", error.line, error.message);
  assert_true(built_in.rule_count > 0);
  assert_memory_equal(&built_in, &read, sizeof(built_in));
}

static void the_built_in_policy_has_the_documented_values(void **state)
{
  struct policy policy;

  (void)state;
  policy_default(&policy);
  assert_int_equal(policy.agree_us, 50000);
  assert_int_equal(policy.setup_ms, 2000);
  assert_int_equal(policy.pause_after, 3);
  assert_int_equal(policy.pause_calls, 1000);
  assert_int_equal(policy.warn_s, 10);
  assert_int_equal(policy.min_nccl, 22705);
  assert_int_equal(policy.child_min_ctas, 16);
  assert_int_equal(policy.child_max_ctas, 64);
  assert_true(policy.child_memory == (uint64_t)512 << 20);
  assert_true(policy.window_memory == (uint64_t)128 << 20);
  assert_true(policy.stage_max == (uint64_t)256 << 20);
  assert_false(policy.require_abortable);
  assert_int_equal(policy.audit_level, POLICY_AUDIT_change);
  assert_true(policy.arena);
  assert_false(policy.any_caller);
  assert_int_equal(policy.caller_count, 1);
  assert_string_equal(policy.callers[0], "libc10_cuda");
  assert_true(policy.arena_min_bytes == 1 << 20 && policy.arena_max_bytes == 0);
  assert_true(policy.arena_parked_max == (uint64_t)8 << 30);
}

/* Window where it was measured to be faster, and nowhere else. */
static void the_built_in_rules_are_those_measured(void **state)
{
  const struct policy_request measured[] = {
      {POLICY_OP_all_gather, POLICY_DTYPE_bf16, POLICY_REDOP_none, 2, 2 << 20, 22809},
      {POLICY_OP_reduce_scatter, POLICY_DTYPE_bf16, POLICY_REDOP_sum, 2, 2 << 20, 22809},
      {POLICY_OP_reduce_scatter, POLICY_DTYPE_bf16, POLICY_REDOP_avg, 2, 2 << 20, 22809},
      {POLICY_OP_all_reduce, POLICY_DTYPE_bf16, POLICY_REDOP_sum, 2, 2 << 20, 22809},
  };
  struct policy policy;

  (void)state;
  policy_default(&policy);
  for (size_t i = 0; i < sizeof(measured) / sizeof(measured[0]); i++) {
    struct policy_request request = measured[i];

    assert_int_equal(policy_match(&policy, &request).path, POLICY_PATH_window);
    assert_int_equal(policy_match(&policy, &request).rewrite,
                     request.redop == POLICY_REDOP_avg ? POLICY_REWRITE_post_scale : POLICY_REWRITE_none);
    request.bytes = 128 << 20;
    assert_int_equal(policy_match(&policy, &request).path, POLICY_PATH_window);
    request.bytes = (2 << 20) - 1;
    assert_int_equal(policy_match(&policy, &request).path, POLICY_PATH_plain);
    request.bytes = 2 << 20;
    request.nranks = 3;
    assert_int_equal(policy_match(&policy, &request).path, POLICY_PATH_plain);
    request.nranks = 2;
    request.nccl_version = 22900;
    assert_int_equal(policy_match(&policy, &request).path, POLICY_PATH_plain);
    request.nccl_version = 22799;
    assert_int_equal(policy_match(&policy, &request).path, POLICY_PATH_plain);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_a_section_all_is_plain),
      cmocka_unit_test(the_section_of_the_op_comes_after_the_rules),
      cmocka_unit_test(the_first_rule_that_sets_a_word_wins_for_that_word),
      cmocka_unit_test(every_match_key_counts),
      cmocka_unit_test(ranges_hold_their_ends),
      cmocka_unit_test(a_request_outside_the_enumerations_is_plain),
      cmocka_unit_test(words_and_values_match),
      cmocka_unit_test(dtypes_have_their_sizes),
      cmocka_unit_test(every_setting_changes_the_hash),
      cmocka_unit_test(equal_settings_have_equal_hashes),
      cmocka_unit_test(the_built_in_policy_is_the_file),
      cmocka_unit_test(the_built_in_policy_has_the_documented_values),
      cmocka_unit_test(the_built_in_rules_are_those_measured),
  };

  return cmocka_run_group_tests_name("policy.match", tests, NULL, NULL);
}
