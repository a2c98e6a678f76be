/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/policy.h"

/* An empty mask takes anything. */
static bool in_mask(uint32_t mask, unsigned value)
{
  return mask == 0 || (value < 32 && (mask >> value & 1) != 0);
}

static bool rule_matches(const struct policy_rule *rule, const struct policy_request *request)
{
  return in_mask(rule->ops, request->op) && in_mask(rule->dtypes, request->dtype) &&
         in_mask(rule->redops, request->redop) && request->nranks >= rule->min_nranks &&
         request->nranks <= rule->max_nranks && request->bytes >= rule->min_bytes &&
         request->bytes <= rule->max_bytes && request->nccl_version >= rule->min_nccl &&
         request->nccl_version <= rule->max_nccl;
}

/* Takes from a section each word that no section before it has set. */
static void take(const struct policy_action *action, int from, struct policy_decision *decision)
{
  if (decision->path_from == POLICY_FROM_DEFAULT && action->path != POLICY_UNSET) {
    decision->path = (enum policy_path)action->path;
    decision->path_from = from;
  }
  if (decision->rewrite_from == POLICY_FROM_DEFAULT && action->rewrite != POLICY_UNSET) {
    decision->rewrite = (enum policy_rewrite)action->rewrite;
    decision->rewrite_from = from;
  }
}

struct policy_decision policy_match(const struct policy *policy, const struct policy_request *request)
{
  struct policy_decision decision = {
      .path = POLICY_PATH_plain,
      .rewrite = POLICY_REWRITE_none,
      .path_from = POLICY_FROM_DEFAULT,
      .rewrite_from = POLICY_FROM_DEFAULT,
  };

  for (int i = 0; i < policy->rule_count; i++)
    if (rule_matches(&policy->rules[i], request))
      take(&policy->rules[i].action, i, &decision);
  if ((unsigned)request->op < POLICY_OP_COUNT)
    take(&policy->ops[request->op], POLICY_FROM_OP, &decision);
  return decision;
}
