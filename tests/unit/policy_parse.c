/* SPDX-License-Identifier: Apache-2.0 */
/* The policy file: what is taken, what is refused, and that a refused file changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy/policy.h"

/* A file that must be refused: at which line, and what the message must hold. */
struct bad {
  const char *text;
  int line;
  const char *fragment;
};

#define BYTES_10 "0123456789"
#define BYTES_10_ZEROS "0000000000"
#define BYTES_100 BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10

static const struct bad bad_lines[] = {
    {"[shim]\n agree_us = 1\n", 2, "starts with a blank"},
    {"[shim]\n\tagree_us = 1\n", 2, "starts with a blank"},
    {"[shim]\nagree_us = 1\n  2\n", 3, "starts with a blank"},
    {" # indented comment\n", 1, "starts with a blank"},
    {"# " BYTES_100 BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10 "012345678\n", 1,
     "longer than 190 bytes"},
    {"[shim]\nagree_us\n", 2, "'agree_us' is not 'key = value'"},
    {"[shim]\nagree_us: 1\n", 2, "use '='"},
    {"[shim]\n= 1\n", 2, "no key before the '='"},
    {"[shim]\nagree_us =\n", 2, "'agree_us' has no value"},
    {"[shim]\nagree_us = 1 ; why\n", 2, "a comment must have a line of its own"},
    {"[shim]\nagree_us = 1 # why\n", 2, "a comment must have a line of its own"},
    {"[shim]\nagree_us = 1\t#why\n", 2, "a comment must have a line of its own"},
    {"[shim]\nagree_us = \xc3\xa4\n", 2, "not plain ASCII"},
    {"[shim]\nagree_us = 1\x01\n", 2, "not plain ASCII"},
    {"[shim]\nagree_us = 1\x7f\n", 2, "not plain ASCII"},
    {"[shim]\ragree_us = 1\n", 1, "not plain ASCII"},
};

static const struct bad bad_sections[] = {
    {"agree_us = 1\n[shim]\n", 1, "before the first section"},
    {"[shim\n", 1, "no ']'"},
    {"[shim] # why\n", 1, "nothing may follow the ']'"},
    {"[]\n", 1, "unknown section []"},
    {"[Shim]\n", 1, "unknown section [Shim]; known sections: [shim], [arena]"},
    {"[all_to_all]\n", 1, "unknown section [all_to_all]"},
    {"[shim]\n[arena]\n[shim]\n", 3, "there is a [shim] above already"},
    {"[all_gather]\n[all_gather]\n", 2, "there is a [all_gather] above already"},
    {"[rule]\npath = plain\n", 1, "unknown section [rule]"},
    {"[rule ]\npath = plain\n", 1, "'' is no name for a rule"},
    {"[rule A]\npath = plain\n", 1, "'A' is no name for a rule"},
    {"[rule a b]\npath = plain\n", 1, "'a b' is no name for a rule"},
    {"[rule " BYTES_10 BYTES_10 BYTES_10 "01]\npath = plain\n", 1, "no name for a rule: 1 to 31"},
    {"[rule a]\npath = plain\n[rule a]\npath = window\n", 3, "there is a [rule a] above already"},
    {"[rule a]\nop = all_gather\n", 1, "[rule a] does nothing"},
    {"[rule a]\n[rule b]\npath = plain\n", 1, "[rule a] does nothing"},
};

static const struct bad bad_keys[] = {
    {"[shim]\nagre_us = 1\n", 2, "unknown key 'agre_us' in [shim]; known keys: agree_us, setup_ms, pause_after, "},
    {"[shim]\nagre_us = 1\n", 2,
     "child_min_ctas, child_max_ctas, child_memory, window_memory, stage_max, require_abortable, audit"},
    {"[shim]\nAGREE_US = 1\n", 2, "unknown key 'AGREE_US'"},
    {"[shim]\nparked_max = 1\n", 2, "unknown key 'parked_max' in [shim]"},
    {"[arena]\nstage_max = 1\n", 2, "unknown key 'stage_max' in [arena]"},
    {"[rule a]\npath = staged\nrequire_abortable = yes\n", 3, "unknown key 'require_abortable' in [rule a]"},
    {"[shim]\nstage_max = 1\nstage_max = 1\n", 3, "'stage_max' is in [shim] twice"},
    {"[shim]\npath = plain\n", 2, "unknown key 'path' in [shim]"},
    {"[arena]\nagree_us = 1\n", 2,
     "unknown key 'agree_us' in [arena]; known keys: enable, callers, min_bytes, max_bytes, parked_max"},
    {"[all_gather]\nop = all_gather\n", 2, "unknown key 'op' in [all_gather]; known keys: path, rewrite"},
    {"[rule a]\nagree_us = 1\n", 2, "unknown key 'agree_us' in [rule a]; known keys: op, dtype, redop, nranks, "},
    {"[shim]\nagree_us = 1\nagree_us = 1\n", 3, "'agree_us' is in [shim] twice"},
    {"[rule a]\npath = plain\npath = plain\n", 3, "'path' is in [rule a] twice"},
};

static const struct bad bad_values[] = {
    {"[shim]\nagree_us = -1\n", 2, "agree_us must be a whole number from 0 to 10000000, not '-1'"},
    {"[shim]\nagree_us = +1\n", 2, "agree_us must be"},
    {"[shim]\nagree_us = 1.5\n", 2, "agree_us must be"},
    {"[shim]\nagree_us = 0x10\n", 2, "agree_us must be"},
    {"[shim]\nagree_us = 1 2\n", 2, "agree_us must be"},
    {"[shim]\nagree_us = 10000001\n", 2, "agree_us must be"},
    {"[shim]\nagree_us = 99999999999999999999999\n", 2, "agree_us must be"},
    {"[shim]\nagree_us = 4294967297\n", 2, "agree_us must be"},
    {"[shim]\nsetup_ms = 0\n", 2, "setup_ms must be a whole number from 1 to 600000"},
    {"[shim]\nsetup_ms = 600001\n", 2, "setup_ms must be"},
    {"[shim]\npause_after = 1001\n", 2, "pause_after must be a whole number from 0 to 1000"},
    {"[shim]\npause_calls = 0\n", 2, "pause_calls must be a whole number from 1 to 1000000"},
    {"[shim]\npause_calls = 1000001\n", 2, "pause_calls must be"},
    {"[shim]\nwarn_s = 86401\n", 2, "warn_s must be a whole number from 0 to 86400"},
    {"[shim]\nmin_nccl = 2.28\n", 2, "min_nccl must be a version such as 2.28.9, not '2.28'"},
    {"[shim]\nmin_nccl = 2.28.9.1\n", 2, "min_nccl must be"},
    {"[shim]\nmin_nccl = 2.28.100\n", 2, "min_nccl must be"},
    {"[shim]\nmin_nccl = 22809\n", 2, "min_nccl must be"},
    {"[shim]\nchild_min_ctas = 0\n", 2, "child_min_ctas must be a whole number from 1 to 64"},
    {"[shim]\nchild_max_ctas = 65\n", 2, "child_max_ctas must be a whole number from 1 to 64"},
    {"[shim]\n\nchild_min_ctas = 33\nchild_max_ctas = 32\n", 1, "child_min_ctas (33) is above child_max_ctas (32)"},
    {"[shim]\nchild_max_ctas = 8\n[arena]\n", 1, "child_min_ctas (16) is above child_max_ctas (8)"},
    {"[shim]\nchild_memory = 1T\n", 2, "child_memory must be a number of bytes"},
    {"[shim]\nchild_memory = 1m\n", 2, "child_memory must be a number of bytes"},
    {"[shim]\nchild_memory = 1MB\n", 2, "child_memory must be a number of bytes"},
    {"[shim]\nchild_memory = 1 M\n", 2, "child_memory must be a number of bytes"},
    {"[shim]\nchild_memory = 17179869184G\n", 2, "child_memory is too large"},
    {"[shim]\nchild_memory = 18446744073709551616\n", 2, "child_memory is too large"},
    {"[shim]\nstage_max = -1\n", 2, "stage_max must be a number of bytes"},
    {"[shim]\nstage_max = 256MB\n", 2, "stage_max must be a number of bytes"},
    {"[shim]\nstage_max = 17179869184G\n", 2, "stage_max is too large"},
    {"[shim]\nrequire_abortable = 1\n", 2, "require_abortable must be yes or no, not '1'"},
    {"[shim]\nverify = yes\n", 2, "verify must be on or off, not 'yes'"},
    {"[shim]\naudit_max = big\n", 2, "audit_max must be a number of bytes"},
    {"[shim]\naudit = all\n", 2, "unknown audit level 'all'; known: summary, change, call"},
    {"[arena]\nenable = true\n", 2, "enable must be yes or no, not 'true'"},
    {"[arena]\ncallers = ,\n", 2, "callers has no word in its list"},
    {"[arena]\ncallers = * libtorch\n", 2, "'*' must stand alone"},
    {"[arena]\ncallers = libtorch *\n", 2, "'*' must stand alone"},
    {"[arena]\ncallers = /usr/lib/libtorch.so\n", 2, "base names such as libc10_cuda.so, not the path '/usr/lib/"},
    {"[arena]\ncallers = .so\n", 2, "1 to 63 bytes"},
    {"[arena]\ncallers = " BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10 BYTES_10 "0123\n", 2, "1 to 63 bytes"},
    {"[arena]\ncallers = a b c d e f g h i\n", 2, "at most 8 names"},
    {"[arena]\nparked_max = none\n", 2, "parked_max must be a number of bytes"},
    {"[arena]\nparked_max = 18446744073709551616\n", 2, "parked_max is too large"},
    {"[arena]\nmin_bytes = 2M\nmax_bytes = 1M\n", 1, "[arena]: min_bytes is above max_bytes"},
    {"[all_gather]\npath = windows\n", 2, "unknown path 'windows'; known: plain, window, staged"},
    {"[all_gather]\npath = Staged\n", 2, "unknown path 'Staged'"},
    {"[all_gather]\nrewrite = pre-scale\n", 2, "unknown rewrite 'pre-scale'"},
    {"[all_gather]\nrewrite = scale\n", 2, "unknown rewrite 'scale'; known: none, post_scale, pre_scale"},
    {"[rule a]\nop = all_gather all_to_all\n", 2, "unknown op 'all_to_all'; known: all_gather, reduce_scatter, "},
    {"[rule a]\nop = ,\n", 2, "op has no word in its list"},
    {"[rule a]\ndtype = float\n", 2, "unknown dtype 'float'; known: int8, uint8, "},
    {"[rule a]\nredop = mean\n", 2, "unknown redop 'mean'; known: sum, prod, "},
    {"[rule a]\nnranks = 0\n", 2, "nranks must be a value or a range such as 8, 2..8, 2.. or ..8, not '0'"},
    {"[rule a]\nnranks = ..\n", 2, "nranks must be"},
    {"[rule a]\nnranks = 2...8\n", 2, "nranks must be"},
    {"[rule a]\nnranks = 2 .. 8\n", 2, "nranks must be"},
    {"[rule a]\nnranks = 2-8\n", 2, "nranks must be"},
    {"[rule a]\nnranks = 8..2\n", 2, "nranks: the range '8..2' ends before it begins"},
    {"[rule a]\nnranks = 99999999999\n", 2, "nranks must be"},
    {"[rule a]\nnranks = " BYTES_10_ZEROS BYTES_10_ZEROS BYTES_10_ZEROS "12..\n", 2, "nranks must be"},
    {"[rule a]\nnccl = 2.28\n", 2, "nccl must be a value or a range such as 2.28.9, 2.28.3..2.29.99 or 2.28.3.., not"},
    {"[rule a]\nnccl = 2.29.0..2.28.9\n", 2, "nccl: the range '2.29.0..2.28.9' ends before it begins"},
    {"[rule a]\nmin_bytes = 2M\nmax_bytes = 2097151\npath = plain\n", 1, "[rule a]: min_bytes is above max_bytes"},
};

static void refuse_all(const struct bad *bad, size_t count)
{
  for (size_t i = 0; i < count; i++) {
    struct policy policy, untouched;
    struct policy_error error;

    memset(&policy, 0x5a, sizeof(policy));
    memset(&untouched, 0x5a, sizeof(untouched));
    memset(&error, 0, sizeof(error));
    if (policy_parse(&policy, bad[i].text, strlen(bad[i].text), &error) != -EINVAL)
      fail_msg("taken: %s", bad[i].text);
    if (error.line != bad[i].line || !strstr(error.message, bad[i].fragment))
      fail_msg("%s -> %d: %s, not %d: %s", bad[i].text, error.line, error.message, bad[i].line, bad[i].fragment);
    assert_null(strchr(error.message, '\n'));
    assert_true(strlen(error.message) < sizeof(error.message) - 1);
    assert_memory_equal(&policy, &untouched, sizeof(policy));
  }
}

#define REFUSE_ALL(table) refuse_all(table, sizeof(table) / sizeof((table)[0]))

static void refuses_bad_lines(void **state)
{
  (void)state;
  REFUSE_ALL(bad_lines);
}

static void refuses_bad_sections(void **state)
{
  (void)state;
  REFUSE_ALL(bad_sections);
}

static void refuses_bad_keys(void **state)
{
  (void)state;
  REFUSE_ALL(bad_keys);
}

static void refuses_bad_values(void **state)
{
  (void)state;
  REFUSE_ALL(bad_values);
}

static struct policy parse(const char *text)
{
  struct policy policy;
  struct policy_error error;

  if (policy_parse(&policy, text, strlen(text), &error) != 0)
    fail_msg("%s -> %d: %s", text, error.line, error.message);
  return policy;
}

/* The first error counts, and a good half of a file does not come through. */
static void one_error_voids_the_whole_file(void **state)
{
  static const char text[] = "[shim]\nagree_us = 5\nsetup_ms = x\nwarn_s = y\n[nonsense]\n";
  struct policy policy;
  struct policy_error error;

  (void)state;
  policy_default(&policy);
  assert_int_equal(policy_parse(&policy, text, strlen(text), &error), -EINVAL);
  assert_int_equal(error.line, 3);
  assert_non_null(strstr(error.message, "setup_ms"));
  assert_int_equal(policy.agree_us, 50000);
}

static void refuses_nul_bytes(void **state)
{
  static const char in_value[] = "[shim]\nagree_us = 5\0 junk\n", in_comment[] = "# a\0b\n";
  struct policy policy;
  struct policy_error error;

  (void)state;
  assert_int_equal(policy_parse(&policy, in_value, sizeof(in_value) - 1, &error), -EINVAL);
  assert_int_equal(error.line, 2);
  assert_non_null(strstr(error.message, "NUL"));
  assert_int_equal(policy_parse(&policy, in_comment, sizeof(in_comment) - 1, &error), -EINVAL);
  assert_int_equal(error.line, 1);
}

static void refuses_long_messages_whole(void **state)
{
  struct policy policy;
  struct policy_error error;
  char text[256];

  (void)state;
  /* Even a key as long as a line can be leaves room for the list of known ones. */
  snprintf(text, sizeof(text), "[shim]\n%0180d = 1\n", 0);
  assert_int_equal(policy_parse(&policy, text, strlen(text), &error), -EINVAL);
  assert_non_null(strstr(error.message, "require_abortable, audit"));
}

static void takes_an_empty_file(void **state)
{
  struct policy built_in, policy = parse("");

  (void)state;
  policy_default(&built_in);
  assert_true(policy.hash == built_in.hash);
  policy = parse("\n# nothing\n; at all\n   \n\n[shim]");
  assert_true(policy.hash == built_in.hash);
}

static void takes_every_key_of_shim(void **state)
{
  struct policy policy = parse("[shim]\nagree_us = 0\nsetup_ms=600000\npause_after = 1000\npause_calls = 1000000\n"
                               "warn_s = 86400\nmin_nccl = 2.29.2\nchild_min_ctas = 1\nchild_max_ctas = 1\n"
                               "child_memory = 3G\nwindow_memory = 5M\nstage_max = 7M\nrequire_abortable = yes\n"
                               "audit = call\naudit_max = 9M\nverify = on\n");

  (void)state;
  assert_int_equal(policy.agree_us, 0);
  assert_int_equal(policy.setup_ms, 600000);
  assert_int_equal(policy.pause_after, 1000);
  assert_int_equal(policy.pause_calls, 1000000);
  assert_int_equal(policy.warn_s, 86400);
  assert_int_equal(policy.min_nccl, 22902);
  assert_int_equal(policy.child_min_ctas, 1);
  assert_int_equal(policy.child_max_ctas, 1);
  assert_true(policy.child_memory == (uint64_t)3 << 30);
  assert_true(policy.window_memory == (uint64_t)5 << 20);
  assert_true(policy.stage_max == (uint64_t)7 << 20);
  assert_true(policy.require_abortable);
  assert_int_equal(policy.audit_level, POLICY_AUDIT_call);
  assert_true(policy.audit_max == (uint64_t)9 << 20);
  assert_true(policy.verify);
}

static void takes_every_key_of_arena(void **state)
{
  struct policy policy = parse("[arena]\nenable = no\ncallers = libtorch_cuda.so.2, libfoo ,bar\nmin_bytes = 4096\n"
                               "max_bytes = 40G\nparked_max = 3K\n");

  (void)state;
  assert_false(policy.arena);
  assert_false(policy.any_caller);
  assert_int_equal(policy.caller_count, 3);
  assert_string_equal(policy.callers[0], "libtorch_cuda");
  assert_string_equal(policy.callers[1], "libfoo");
  assert_string_equal(policy.callers[2], "bar");
  assert_true(policy.arena_min_bytes == 4096);
  assert_true(policy.arena_max_bytes == (uint64_t)40 << 30);
  assert_true(policy.arena_parked_max == (uint64_t)3 << 10);
  assert_true(parse("[arena]\ncallers = *\n").any_caller);
}

static void takes_the_sections_of_ops(void **state)
{
  struct policy policy = parse("[all_gather]\npath = window\n[reduce_scatter]\nrewrite = post_scale\n");

  (void)state;
  assert_int_equal(policy.ops[POLICY_OP_all_gather].path, POLICY_PATH_window);
  assert_int_equal(policy.ops[POLICY_OP_reduce_scatter].path, POLICY_PATH_plain);
  assert_int_equal(policy.ops[POLICY_OP_reduce_scatter].rewrite, POLICY_REWRITE_post_scale);
  assert_int_equal(policy.ops[POLICY_OP_all_reduce].path, POLICY_PATH_plain);
}

static void takes_every_path_and_rewrite(void **state)
{
  struct policy policy = parse("[all_gather]\npath = plain\n[reduce_scatter]\npath = window\nrewrite = pre_scale\n"
                               "[all_reduce]\npath = staged\nrewrite = none\n");

  (void)state;
  assert_int_equal(policy.ops[POLICY_OP_all_gather].path, POLICY_PATH_plain);
  assert_int_equal(policy.ops[POLICY_OP_reduce_scatter].path, POLICY_PATH_window);
  assert_int_equal(policy.ops[POLICY_OP_reduce_scatter].rewrite, POLICY_REWRITE_pre_scale);
  assert_int_equal(policy.ops[POLICY_OP_all_reduce].path, POLICY_PATH_staged);
  assert_int_equal(policy.ops[POLICY_OP_all_reduce].rewrite, POLICY_REWRITE_none);
  assert_string_equal(policy_path_word(POLICY_PATH_staged), "staged");
  assert_string_equal(policy_rewrite_word(POLICY_REWRITE_pre_scale), "pre_scale");
}

/* 0 stands for no slots, and for no cap. */
static void takes_zero_for_none(void **state)
{
  struct policy policy = parse("[shim]\nstage_max = 0\nrequire_abortable = no\n[arena]\nparked_max = 0\n");

  (void)state;
  assert_true(policy.stage_max == 0 && policy.arena_parked_max == 0);
  assert_false(policy.require_abortable);
}

static void takes_every_key_of_a_rule(void **state)
{
  struct policy policy = parse("[rule all-keys_1]\nop = all_gather, all_reduce\ndtype = bf16 fp32\nredop = sum,avg\n"
                               "nranks = 2..8\nmin_bytes = 1K\nmax_bytes = 1M\nnccl = 2.28.3..2.29.99\npath = window\n"
                               "rewrite = post_scale\n");
  const struct policy_rule *rule = &policy.rules[0];

  (void)state;
  assert_int_equal(policy.rule_count, 1);
  assert_string_equal(rule->name, "all-keys_1");
  assert_int_equal(rule->ops, 1 << POLICY_OP_all_gather | 1 << POLICY_OP_all_reduce);
  assert_int_equal(rule->dtypes, 1 << POLICY_DTYPE_bf16 | 1 << POLICY_DTYPE_fp32);
  assert_int_equal(rule->redops, 1 << POLICY_REDOP_sum | 1 << POLICY_REDOP_avg);
  assert_int_equal(rule->min_nranks, 2);
  assert_int_equal(rule->max_nranks, 8);
  assert_true(rule->min_bytes == 1024 && rule->max_bytes == 1 << 20);
  assert_int_equal(rule->min_nccl, 22803);
  assert_int_equal(rule->max_nccl, 22999);
  assert_int_equal(rule->action.path, POLICY_PATH_window);
  assert_int_equal(rule->action.rewrite, POLICY_REWRITE_post_scale);
}

static void takes_open_ranges(void **state)
{
  struct policy policy = parse("[rule a]\npath = plain\n[rule b]\nnranks = 4\nnccl = 2.28.9\npath = plain\n"
                               "[rule c]\nnranks = 3..\nnccl = ..2.29.0\npath = plain\n");

  (void)state;
  assert_int_equal(policy.rules[0].ops, 0);
  assert_int_equal(policy.rules[0].action.rewrite, POLICY_UNSET);
  assert_true(policy.rules[0].min_nranks <= 1 && policy.rules[0].max_nranks == INT_MAX);
  assert_true(policy.rules[0].min_bytes == 0 && policy.rules[0].max_bytes == UINT64_MAX);
  assert_true(policy.rules[1].min_nranks == 4 && policy.rules[1].max_nranks == 4);
  assert_true(policy.rules[1].min_nccl == 22809 && policy.rules[1].max_nccl == 22809);
  assert_true(policy.rules[2].min_nranks == 3 && policy.rules[2].max_nranks == INT_MAX);
  assert_true(policy.rules[2].min_nccl <= 0 && policy.rules[2].max_nccl == 22900);
}

static void own_rules_replace_the_built_in_ones(void **state)
{
  struct policy built_in, policy = parse("[shim]\nagree_us = 1\n");

  (void)state;
  policy_default(&built_in);
  assert_true(built_in.rule_count > 0);
  assert_int_equal(policy.rule_count, built_in.rule_count);
  policy = parse("[rule mine]\npath = plain\n");
  assert_int_equal(policy.rule_count, 1);
  assert_string_equal(policy.rules[0].name, "mine");
}

static void takes_as_many_rules_as_there_is_room_for(void **state)
{
  char text[65 * 40] = "";
  struct policy policy;
  struct policy_error error;

  (void)state;
  for (int i = 0; i < POLICY_MAX_RULES; i++)
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "[rule r%d]\npath = plain\n", i);
  policy = parse(text);
  assert_int_equal(policy.rule_count, POLICY_MAX_RULES);
  strcat(text, "[rule more]\npath = plain\n");
  assert_int_equal(policy_parse(&policy, text, strlen(text), &error), -EINVAL);
  assert_int_equal(error.line, 2 * POLICY_MAX_RULES + 1);
  assert_non_null(strstr(error.message, "more than 64 rules"));
}

static void takes_what_editors_of_other_systems_write(void **state)
{
  (void)state;
  assert_int_equal(parse("\xef\xbb\xbf[shim]\r\nagree_us = 7\r\n\r\n[arena]\r\nenable = no").agree_us, 7);
  assert_false(parse("\xef\xbb\xbf[shim]\r\nagree_us = 7\r\n\r\n[arena]\r\nenable = no").arena);
  assert_int_equal(parse("# f\xc3\xbcnf\n[shim]  \nagree_us\t=\t5  \n").agree_us, 5);
}

static void takes_lines_of_190_bytes(void **state)
{
  char text[256];

  (void)state;
  snprintf(text, sizeof(text), "[shim]\nagree_us = %0179d\nwarn_s = 4", 3);
  assert_int_equal(strcspn(text + 7, "\n"), 190);
  assert_int_equal(parse(text).agree_us, 3);
  assert_int_equal(parse(text).warn_s, 4);
}

static void parses_bytes(void **state)
{
  uint64_t bytes = 0;

  (void)state;
  assert_int_equal(policy_parse_bytes("0", &bytes), 0);
  assert_true(bytes == 0);
  assert_int_equal(policy_parse_bytes("64K", &bytes), 0);
  assert_true(bytes == 65536);
  assert_int_equal(policy_parse_bytes("17179869183G", &bytes), 0);
  assert_true(bytes == UINT64_MAX - (((uint64_t)1 << 30) - 1));
  assert_int_equal(policy_parse_bytes("17179869184G", &bytes), -ERANGE);
  assert_int_equal(policy_parse_bytes("18446744073709551616", &bytes), -ERANGE);
  assert_int_equal(policy_parse_bytes("", &bytes), -EINVAL);
  assert_int_equal(policy_parse_bytes(" 1", &bytes), -EINVAL);
  assert_int_equal(policy_parse_bytes("M", &bytes), -EINVAL);
  assert_int_equal(policy_parse_bytes("1KK", &bytes), -EINVAL);
  assert_true(bytes == UINT64_MAX - (((uint64_t)1 << 30) - 1));
}

static void parses_versions(void **state)
{
  int version = 0;

  (void)state;
  assert_int_equal(policy_parse_nccl("2.28.9", &version), 0);
  assert_int_equal(version, 22809);
  assert_int_equal(policy_parse_nccl("2.8.4", &version), 0);
  assert_int_equal(version, 2804);
  assert_int_equal(policy_parse_nccl("2.9.6", &version), 0);
  assert_int_equal(version, 20906);
  assert_int_equal(policy_parse_nccl("3.0.0", &version), 0);
  assert_int_equal(version, 30000);
  assert_int_equal(policy_parse_nccl("2..9", &version), -EINVAL);
  assert_int_equal(policy_parse_nccl("2.28.", &version), -EINVAL);
  assert_int_equal(policy_parse_nccl("2.100.0", &version), -ERANGE);
  assert_int_equal(policy_parse_nccl("2.99999999999999999999.0", &version), -ERANGE);
}

/* A folder for the files of a test. */
static int make_folder(void **state)
{
  char *folder = strdup("/tmp/policy_parse.XXXXXX");

  *state = folder;
  return folder && mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
  char path[128];

  snprintf(path, sizeof(path), "%s/file", (char *)*state);
  unlink(path);
  rmdir(*state);
  free(*state);
  return 0;
}

/* The path of the folder's one file, which gets `size` bytes that begin with `text`, then newlines. */
static const char *write_file(void **state, const char *text, size_t size)
{
  static char path[128];
  FILE *file;

  snprintf(path, sizeof(path), "%s/file", (char *)*state);
  file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  for (size_t i = strlen(text); i < size; i++)
    putc('\n', file);
  assert_int_equal(fclose(file), 0);
  return path;
}

static void reads_files(void **state)
{
  const char *path = write_file(state, "[shim]\nagree_us = 9\n", POLICY_MAX_FILE);
  struct policy policy;
  struct policy_error error;

  assert_int_equal(policy_read(&policy, path, &error), 0);
  assert_int_equal(policy.agree_us, 9);
}

static void refuses_files_that_are_too_large(void **state)
{
  const char *path = write_file(state, "[shim]\nagree_us = 9\n", POLICY_MAX_FILE + 1);
  struct policy policy;
  struct policy_error error;

  assert_int_equal(policy_read(&policy, path, &error), -EINVAL);
  assert_int_equal(error.line, 0);
  assert_non_null(strstr(error.message, "larger than 65536 bytes"));
}

static void refuses_what_is_no_regular_file(void **state)
{
  char path[128];
  struct policy policy;
  struct policy_error error;

  assert_int_equal(policy_read(&policy, "/dev/zero", &error), -EINVAL);
  assert_non_null(strstr(error.message, "not a regular file"));
  assert_int_equal(policy_read(&policy, *state, &error), -EINVAL);
  snprintf(path, sizeof(path), "%s/file", (char *)*state);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(policy_read(&policy, path, &error), -EINVAL); /* at once, without a writer */
  assert_int_equal(unlink(path), 0);
  assert_int_equal(policy_read(&policy, path, &error), -ENOENT);
  assert_int_equal(error.line, 0);
  assert_non_null(strstr(error.message, "cannot be opened: No such file"));
}

static void leaves_no_descriptor_open(void **state)
{
  const char *path = write_file(state, "[shim]\nbad\n", 0);
  struct policy policy;
  struct policy_error error;
  int before = open("/dev/null", O_RDONLY | O_CLOEXEC), after;

  close(before);
  assert_int_equal(policy_read(&policy, path, &error), -EINVAL);
  after = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(after);
  assert_int_equal(before, after);
}

static void finds_the_file_in_force(void **state)
{
  char path[256], expected[256], cut[256];
  int system = access("/etc/symmshim.conf", F_OK) == 0;

  setenv("SYMMSHIM_POLICY", "/nowhere/named", 1);
  setenv("HOME", *state, 1);
  assert_int_equal(policy_find(path, sizeof(path)), 1);
  assert_string_equal(path, "/nowhere/named");
  assert_int_equal(policy_find(path, 5), 1);
  assert_string_equal(path, "/now");

  /* An empty variable is an unset one. */
  setenv("SYMMSHIM_POLICY", "", 1);
  assert_int_equal(policy_find(path, sizeof(path)), system);

  unsetenv("SYMMSHIM_POLICY");
  snprintf(expected, sizeof(expected), "%s/.config", (char *)*state);
  assert_int_equal(mkdir(expected, 0700), 0);
  snprintf(expected, sizeof(expected), "%s/.config/symmshim", (char *)*state);
  assert_int_equal(mkdir(expected, 0700), 0);
  assert_int_equal(policy_find(path, sizeof(path)), system);
  snprintf(expected, sizeof(expected), "%s/.config/symmshim/symmshim.conf", (char *)*state);
  fclose(fopen(expected, "w"));
  assert_int_equal(policy_find(path, sizeof(path)), 1);
  assert_string_equal(path, expected);
  /* A path that does not fit is absent, even where its beginning names a file. */
  snprintf(cut, sizeof(cut), "%.*s", (int)strlen(expected) - 1, expected);
  fclose(fopen(cut, "w"));
  assert_int_equal(policy_find(path, strlen(expected)), system);
  unlink(cut);
  unsetenv("HOME");
  assert_int_equal(policy_find(path, sizeof(path)), system);

  unlink(expected);
  *strrchr(expected, '/') = '\0';
  rmdir(expected);
  *strrchr(expected, '/') = '\0';
  rmdir(expected);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refuses_bad_lines),
      cmocka_unit_test(refuses_bad_sections),
      cmocka_unit_test(refuses_bad_keys),
      cmocka_unit_test(refuses_bad_values),
      cmocka_unit_test(one_error_voids_the_whole_file),
      cmocka_unit_test(refuses_nul_bytes),
      cmocka_unit_test(refuses_long_messages_whole),
      cmocka_unit_test(takes_an_empty_file),
      cmocka_unit_test(takes_every_key_of_shim),
      cmocka_unit_test(takes_every_key_of_arena),
      cmocka_unit_test(takes_the_sections_of_ops),
      cmocka_unit_test(takes_every_path_and_rewrite),
      cmocka_unit_test(takes_zero_for_none),
      cmocka_unit_test(takes_every_key_of_a_rule),
      cmocka_unit_test(takes_open_ranges),
      cmocka_unit_test(own_rules_replace_the_built_in_ones),
      cmocka_unit_test(takes_as_many_rules_as_there_is_room_for),
      cmocka_unit_test(takes_what_editors_of_other_systems_write),
      cmocka_unit_test(takes_lines_of_190_bytes),
      cmocka_unit_test(parses_bytes),
      cmocka_unit_test(parses_versions),
      cmocka_unit_test_setup_teardown(reads_files, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(refuses_files_that_are_too_large, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(refuses_what_is_no_regular_file, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(leaves_no_descriptor_open, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(finds_the_file_in_force, make_folder, remove_folder),
  };

  return cmocka_run_group_tests_name("policy.parse", tests, NULL, NULL);
}
