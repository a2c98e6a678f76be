/* SPDX-License-Identifier: Apache-2.0 */
/* The policy file's parser: any bytes either void the file and say why, or give a policy that can be asked. */
#include <string.h>

#include "policy/policy.h"
#include "tests/fuzz/fuzz.h"

static bool is_text(const char *text, size_t size)
{
  return memchr(text, '\0', size) != NULL;
}

static void check_error(const struct policy_error *error)
{
  MUST(error->line >= 0);
  MUST(is_text(error->message, sizeof(error->message)));
  MUST(error->message[0] != '\0' && !strchr(error->message, '\n'));
}

static void check_action(const struct policy_action *action)
{
  MUST(action->path >= POLICY_UNSET && action->path < POLICY_PATH_COUNT);
  MUST(action->rewrite >= POLICY_UNSET && action->rewrite < POLICY_REWRITE_COUNT);
}

static void check_policy(const struct policy *policy)
{
  MUST(policy->audit_level < POLICY_AUDIT_COUNT);
  MUST(policy->caller_count >= 0 && policy->caller_count <= POLICY_MAX_CALLERS);
  for (int i = 0; i < policy->caller_count; i++)
    MUST(is_text(policy->callers[i], sizeof(policy->callers[i])));
  for (int i = 0; i < POLICY_OP_COUNT; i++)
    check_action(&policy->ops[i]);
  MUST(policy->rule_count >= 0 && policy->rule_count <= POLICY_MAX_RULES);
  for (int i = 0; i < policy->rule_count; i++) {
    const struct policy_rule *rule = &policy->rules[i];

    MUST(is_text(rule->name, sizeof(rule->name)) && rule->name[0] != '\0');
    MUST(rule->min_nranks <= rule->max_nranks && rule->min_bytes <= rule->max_bytes &&
         rule->min_nccl <= rule->max_nccl);
    check_action(&rule->action);
  }
}

static void check_match(const struct policy *policy)
{
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    for (int version = 22705; version < 23005; version += 104) {
      struct policy_request request = {.op = (enum policy_op)op,
                                       .dtype = POLICY_DTYPE_bf16,
                                       .redop = op == POLICY_OP_all_gather ? POLICY_REDOP_none : POLICY_REDOP_avg,
                                       .nranks = 2,
                                       .bytes = 4 << 20,
                                       .nccl_version = version};
      struct policy_decision decision = policy_match(policy, &request);

      MUST(decision.path < POLICY_PATH_COUNT && decision.rewrite < POLICY_REWRITE_COUNT);
      MUST(decision.path_from >= POLICY_FROM_DEFAULT && decision.path_from < policy->rule_count);
      MUST(decision.rewrite_from >= POLICY_FROM_DEFAULT && decision.rewrite_from < policy->rule_count);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static struct policy policy, before;
  struct policy_error error = {.line = -1};
  int rc;

  memset(&policy, 0x5a, sizeof(policy));
  memcpy(&before, &policy, sizeof(before));
  rc = policy_parse(&policy, (const char *)data, size, &error);
  if (rc < 0) {
    check_error(&error);
    MUST(memcmp(&policy, &before, sizeof(before)) == 0);
  } else {
    check_policy(&policy);
    check_match(&policy);
  }
  return 0;
}
