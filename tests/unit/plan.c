/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL's symmetric kernels take, by version, whatever the policy wishes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "shim/plan.h"

/* A policy that wishes for everything. */
static const char greedy[] = "[shim]\nmin_nccl = 2.0.0\n[rule all]\npath = window\nrewrite = post_scale\n";

static struct plan plan_of(const char *text, const struct policy_request *request)
{
  struct policy policy;
  struct policy_error error;

  if (policy_parse(&policy, text, strlen(text), &error) != 0)
    fail_msg("%s -> %d: %s", text, error.line, error.message);
  return plan_make(&policy, request);
}

static const struct policy_request gather = {
    POLICY_OP_all_gather, POLICY_DTYPE_bf16, POLICY_REDOP_none, 2, 4096, 22809};
static const struct policy_request scatter = {
    POLICY_OP_reduce_scatter, POLICY_DTYPE_bf16, POLICY_REDOP_sum, 2, 4096, 22809};

static void assert_plain(struct plan plan, enum reason reason)
{
  assert_string_equal(reason_code(plan.reason), reason_code(reason));
  assert_int_equal(plan.path, POLICY_PATH_plain);
  assert_int_equal(plan.rewrite, POLICY_REWRITE_none);
}

static void assert_window(struct plan plan, enum policy_rewrite rewrite)
{
  assert_int_equal(plan.reason, REASON_none);
  assert_int_equal(plan.path, POLICY_PATH_window);
  assert_int_equal(plan.rewrite, rewrite);
}

static void takes_what_nccl_takes(void **state)
{
  static const enum policy_dtype dtypes[] = {POLICY_DTYPE_fp16, POLICY_DTYPE_fp32, POLICY_DTYPE_bf16,
                                             POLICY_DTYPE_fp8e4m3, POLICY_DTYPE_fp8e5m2};
  struct policy_request request = gather;

  (void)state;
  for (int i = 0; i < POLICY_DTYPE_COUNT; i++) {
    request.dtype = (enum policy_dtype)i;
    assert_window(plan_of(greedy, &request), POLICY_REWRITE_none);
  }
  for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
    request = scatter;
    request.dtype = dtypes[i];
    assert_window(plan_of(greedy, &request), POLICY_REWRITE_none);
    request.op = POLICY_OP_all_reduce;
    assert_window(plan_of(greedy, &request), POLICY_REWRITE_none);
  }
}

static void leaves_single_ranks(void **state)
{
  struct policy_request request = gather;

  (void)state;
  request.nranks = 1;
  assert_plain(plan_of(greedy, &request), REASON_single_rank);
}

static void leaves_old_nccls(void **state)
{
  struct policy_request request = gather;

  (void)state;
  request.nccl_version = 22704;
  assert_plain(plan_of(greedy, &request), REASON_nccl_version);
  request.nccl_version = 22705;
  assert_window(plan_of(greedy, &request), POLICY_REWRITE_none);
  assert_plain(plan_of("[shim]\nmin_nccl = 2.28.10\n[all_gather]\npath = window\n", &gather), REASON_nccl_version);
}

static void leaves_empty_calls(void **state)
{
  struct policy_request request = scatter;

  (void)state;
  request.bytes = 0;
  assert_plain(plan_of(greedy, &request), REASON_empty);
}

static void leaves_dtypes_without_a_kernel(void **state)
{
  static const enum policy_dtype dtypes[] = {POLICY_DTYPE_int8,   POLICY_DTYPE_uint8, POLICY_DTYPE_int32,
                                             POLICY_DTYPE_uint32, POLICY_DTYPE_int64, POLICY_DTYPE_uint64,
                                             POLICY_DTYPE_fp64};
  struct policy_request request = scatter;

  (void)state;
  for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
    request.dtype = dtypes[i];
    assert_plain(plan_of(greedy, &request), REASON_dtype);
  }
}

static void leaves_redops_without_a_kernel(void **state)
{
  static const enum policy_redop redops[] = {POLICY_REDOP_prod, POLICY_REDOP_max, POLICY_REDOP_min};
  struct policy_request request = scatter;

  (void)state;
  for (size_t i = 0; i < sizeof(redops) / sizeof(redops[0]); i++) {
    request.redop = redops[i];
    assert_plain(plan_of(greedy, &request), REASON_redop);
  }
  request.redop = POLICY_REDOP_premulsum;
  assert_plain(plan_of(greedy, &request), REASON_user_redop);
}

static void rewrites_averages_where_asked(void **state)
{
  struct policy_request request = scatter;

  (void)state;
  request.redop = POLICY_REDOP_avg;
  assert_window(plan_of(greedy, &request), POLICY_REWRITE_post_scale);
  request.dtype = POLICY_DTYPE_fp32;
  assert_window(plan_of(greedy, &request), POLICY_REWRITE_post_scale);
  assert_plain(plan_of("[rule all]\npath = window\n", &request), REASON_redop);
}

/* A sum of fp16 may overflow where the average does not. */
static void never_scales_fp16_or_fp8_afterwards(void **state)
{
  static const enum policy_dtype dtypes[] = {POLICY_DTYPE_fp16, POLICY_DTYPE_fp8e4m3, POLICY_DTYPE_fp8e5m2};
  struct policy_request request = scatter;

  (void)state;
  request.redop = POLICY_REDOP_avg;
  for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
    request.dtype = dtypes[i];
    assert_plain(plan_of(greedy, &request), REASON_redop);
  }
}

static void leaves_averages_to_an_nccl_that_has_them(void **state)
{
  struct policy_request request = scatter;

  (void)state;
  request.redop = POLICY_REDOP_avg;
  request.nccl_version = 23002;
  assert_window(plan_of(greedy, &request), POLICY_REWRITE_post_scale);
  request.nccl_version = 23003;
  assert_window(plan_of(greedy, &request), POLICY_REWRITE_none);
  request.dtype = POLICY_DTYPE_fp16;
  assert_window(plan_of(greedy, &request), POLICY_REWRITE_none);
}

static void never_averages_an_all_reduce(void **state)
{
  static const int versions[] = {22809, 23003, 23007, 23100};
  struct policy_request request = scatter;

  (void)state;
  request.op = POLICY_OP_all_reduce;
  request.redop = POLICY_REDOP_avg;
  for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
    request.nccl_version = versions[i];
    assert_plain(plan_of(greedy, &request), REASON_redop);
  }
}

/* A rewrite that does not happen because the path is plain is not told as one. */
static void leaves_what_the_policy_keeps_plain(void **state)
{
  struct policy_request request = scatter;
  struct plan plan;

  (void)state;
  assert_plain(plan_of("[rule all]\npath = plain\n", &gather), REASON_policy);
  request.redop = POLICY_REDOP_avg;
  plan = plan_of("[rule all]\npath = plain\nrewrite = post_scale\n", &request);
  assert_plain(plan, REASON_policy);
  assert_int_equal(plan.decision.rewrite, POLICY_REWRITE_post_scale);
  assert_int_equal(plan.decision.path_from, 0);
}

/* The whole table anew, in the words of symmshim.conf(5). */
struct wish {
  enum policy_path path;
  enum policy_rewrite rewrite;
  bool abortable, slots;
};

static struct policy policy_of(const struct wish *wish)
{
  struct policy policy;
  struct policy_error error;
  char text[256];

  snprintf(text, sizeof(text),
           "[shim]\nmin_nccl = 2.0.0\nrequire_abortable = %s\nstage_max = %s\n[rule all]\npath = %s\nrewrite = %s\n",
           wish->abortable ? "yes" : "no", wish->slots ? "1" : "0", policy_path_word(wish->path),
           policy_rewrite_word(wish->rewrite));
  if (policy_parse(&policy, text, strlen(text), &error) != 0)
    fail_msg("%s -> %d: %s", text, error.line, error.message);
  return policy;
}

static bool is_one_of(int word, const int *words, int count)
{
  for (int i = 0; i < count; i++)
    if (words[i] == word)
      return true;
  return false;
}
#define IS_ONE_OF(word, ...)                                                                                           \
  is_one_of((int)(word), (const int[]){__VA_ARGS__}, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)))

/* Whether this reduction becomes a sum, given where the policy has its calls go. */
static bool is_rewritten(const struct policy_request *request, enum policy_path path, enum policy_rewrite rewrite)
{
  bool average = request->redop == POLICY_REDOP_avg;

  if (rewrite == POLICY_REWRITE_post_scale)
    return average && request->op == POLICY_OP_reduce_scatter &&
           IS_ONE_OF(request->dtype, POLICY_DTYPE_bf16, POLICY_DTYPE_fp32);
  return rewrite == POLICY_REWRITE_pre_scale && path == POLICY_PATH_staged &&
         (average || request->redop == POLICY_REDOP_premulsum) &&
         IS_ONE_OF(request->dtype, POLICY_DTYPE_fp16, POLICY_DTYPE_bf16, POLICY_DTYPE_fp32);
}

static struct plan wanted_plan(const struct policy_request *request, const struct wish *wish)
{
  enum policy_path path = wish->path == POLICY_PATH_staged && !wish->slots ? POLICY_PATH_window : wish->path;
  struct plan plan = {.path = POLICY_PATH_plain, .reason = REASON_none};
  bool premulsum = request->redop == POLICY_REDOP_premulsum, native = request->redop == POLICY_REDOP_sum;
  bool rewritten = is_rewritten(request, path, wish->rewrite);

  native |=
      request->redop == POLICY_REDOP_avg && request->op == POLICY_OP_reduce_scatter && request->nccl_version >= 23003;
  if (request->nccl_version < 22705)
    plan.reason = REASON_nccl_version;
  else if (wish->abortable && request->nccl_version < 22900)
    plan.reason = REASON_not_abortable;
  else if (request->op == POLICY_OP_all_gather)
    plan.reason = REASON_none;
  else if (!IS_ONE_OF(request->dtype, POLICY_DTYPE_fp16, POLICY_DTYPE_bf16, POLICY_DTYPE_fp32, POLICY_DTYPE_fp8e4m3,
                      POLICY_DTYPE_fp8e5m2))
    plan.reason = premulsum ? REASON_user_redop : REASON_dtype;
  else if (!native && !rewritten)
    plan.reason = premulsum ? REASON_user_redop : REASON_redop;
  if (plan.reason == REASON_none && path == POLICY_PATH_plain)
    plan.reason = REASON_policy;
  if (plan.reason != REASON_none)
    return plan;
  plan.path = path;
  if (request->op != POLICY_OP_all_gather && !native)
    plan.rewrite = wish->rewrite;
  return plan;
}

static void compare_plans(const struct policy *policy, const struct policy_request *request, const struct wish *wish)
{
  struct plan plan = plan_make(policy, request), wanted = wanted_plan(request, wish);

  if (plan.path != wanted.path || plan.rewrite != wanted.rewrite || plan.reason != wanted.reason)
    fail_msg("%s of %s, %s, NCCL %d; policy %s, %s%s%s: %s, %s, %s instead of %s, %s, %s", policy_op_word(request->op),
             policy_dtype_word(request->dtype), policy_redop_word(request->redop), request->nccl_version,
             policy_path_word(wish->path), policy_rewrite_word(wish->rewrite), wish->abortable ? ", abortable" : "",
             wish->slots ? "" : ", no slots", policy_path_word(plan.path), policy_rewrite_word(plan.rewrite),
             plan.reason ? reason_code(plan.reason) : "-", policy_path_word(wanted.path),
             policy_rewrite_word(wanted.rewrite), wanted.reason ? reason_code(wanted.reason) : "-");
}

static void compare_all(const struct wish *wish)
{
  static const int versions[] = {22704, 22705, 22809, 22899, 22900, 23002, 23003, 23007};
  struct policy policy = policy_of(wish);

  for (int op = 0; op < POLICY_OP_COUNT; op++)
    for (int redop = 0; redop < POLICY_REDOP_COUNT; redop++)
      for (int dtype = 0; dtype < POLICY_DTYPE_COUNT; dtype++)
        for (size_t v = 0; v < sizeof(versions) / sizeof(versions[0]); v++) {
          struct policy_request request = {
              (enum policy_op)op, (enum policy_dtype)dtype, (enum policy_redop)redop, 2, 4096, versions[v]};
          if ((op == POLICY_OP_all_gather) == (redop == POLICY_REDOP_none))
            compare_plans(&policy, &request, wish);
        }
}

static void plans_everything_as_documented(void **state)
{
  (void)state;
  for (int path = 0; path < POLICY_PATH_COUNT; path++)
    for (int rewrite = 0; rewrite < POLICY_REWRITE_COUNT; rewrite++)
      for (int bits = 0; bits < 4; bits++)
        compare_all(&(struct wish){(enum policy_path)path, (enum policy_rewrite)rewrite, bits & 1, bits >> 1});
}

/* Some of the table by hand, so that the two are not wrong alike. */
static void scales_on_the_way_into_a_slot_only(void **state)
{
  static const char text[] = "[rule all]\npath = staged\nrewrite = pre_scale\n";
  struct policy_request request = scatter;
  struct plan plan;

  (void)state;
  request.redop = POLICY_REDOP_premulsum;
  request.dtype = POLICY_DTYPE_fp16;
  plan = plan_of(text, &request);
  assert_int_equal(plan.path, POLICY_PATH_staged);
  assert_int_equal(plan.rewrite, POLICY_REWRITE_pre_scale);
  request.op = POLICY_OP_all_reduce;
  assert_int_equal(plan_of(text, &request).rewrite, POLICY_REWRITE_pre_scale);
  request.redop = POLICY_REDOP_sum;
  plan = plan_of(text, &request);
  assert_int_equal(plan.path, POLICY_PATH_staged);
  assert_int_equal(plan.rewrite, POLICY_REWRITE_none);
  request.redop = POLICY_REDOP_avg;
  request.dtype = POLICY_DTYPE_fp8e4m3;
  assert_plain(plan_of(text, &request), REASON_redop);
  request.dtype = POLICY_DTYPE_bf16;
  assert_plain(plan_of("[rule all]\npath = window\nrewrite = pre_scale\n", &request), REASON_redop);
  assert_plain(plan_of("[shim]\nstage_max = 0\n[rule all]\npath = staged\nrewrite = pre_scale\n", &request),
               REASON_redop);
  assert_window(plan_of("[shim]\nstage_max = 0\n[rule all]\npath = staged\n", &scatter), POLICY_REWRITE_none);
}

static void leaves_what_cannot_be_aborted(void **state)
{
  static const char text[] = "[shim]\nrequire_abortable = yes\n[rule all]\npath = window\n";
  struct policy_request request = gather;

  (void)state;
  request.nccl_version = 22899;
  assert_plain(plan_of(text, &request), REASON_not_abortable);
  assert_window(plan_of(greedy, &request), POLICY_REWRITE_none);
  request.nccl_version = 22900;
  assert_window(plan_of(text, &request), POLICY_REWRITE_none);
}

static void every_reason_has_its_words(void **state)
{
  (void)state;
  assert_null(reason_code(REASON_none));
  assert_null(reason_meaning(REASON_none));
  assert_null(reason_code(REASON_COUNT));
  for (int i = REASON_none + 1; i < REASON_COUNT; i++) {
    assert_non_null(reason_code((enum reason)i));
    assert_true(strlen(reason_code((enum reason)i)) < 32); /* room in the readers of the log */
    assert_non_null(reason_meaning((enum reason)i));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(takes_what_nccl_takes),
      cmocka_unit_test(leaves_single_ranks),
      cmocka_unit_test(leaves_old_nccls),
      cmocka_unit_test(leaves_empty_calls),
      cmocka_unit_test(leaves_dtypes_without_a_kernel),
      cmocka_unit_test(leaves_redops_without_a_kernel),
      cmocka_unit_test(rewrites_averages_where_asked),
      cmocka_unit_test(never_scales_fp16_or_fp8_afterwards),
      cmocka_unit_test(leaves_averages_to_an_nccl_that_has_them),
      cmocka_unit_test(never_averages_an_all_reduce),
      cmocka_unit_test(leaves_what_the_policy_keeps_plain),
      cmocka_unit_test(plans_everything_as_documented),
      cmocka_unit_test(scales_on_the_way_into_a_slot_only),
      cmocka_unit_test(leaves_what_cannot_be_aborted),
      cmocka_unit_test(every_reason_has_its_words),
  };

  return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
