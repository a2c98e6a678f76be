/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash that ranks compare: FNV-1a over what the settings mean, field by field, so that neither padding nor
 * the words of the file count. Left out on purpose: audit, audit_max, verify and warn_s, which may differ
 * from rank to rank, and the rules' names.
 */
#include "policy/internal.h"

static const uint64_t FNV_OFFSET = 0xcbf29ce484222325;
static const uint64_t FNV_PRIME = 0x100000001b3;

static uint64_t add_byte(uint64_t hash, unsigned char byte)
{
  return (hash ^ byte) * FNV_PRIME;
}

static uint64_t add(uint64_t hash, uint64_t value)
{
  for (int shift = 0; shift < 64; shift += 8)
    hash = add_byte(hash, (unsigned char)(value >> shift));
  return hash;
}

/* No bit and every bit both mean any. */
static uint64_t add_mask(uint64_t hash, uint32_t mask, int count)
{
  return add(hash, mask != 0 ? mask : ((uint32_t)1 << count) - 1);
}

static uint64_t add_action(uint64_t hash, const struct policy_action *action)
{
  hash = add(hash, (uint64_t)(action->path + 1));
  return add(hash, (uint64_t)(action->rewrite + 1));
}

/* A sum, so that the order of the names does not count. No name: any caller. */
static uint64_t add_callers(uint64_t hash, const struct policy *policy)
{
  uint64_t sum = 0;

  for (int i = 0; i < policy->caller_count; i++) {
    uint64_t name = FNV_OFFSET;

    for (const char *c = policy->callers[i]; *c != '\0'; c++)
      name = add_byte(name, (unsigned char)*c);
    sum += name;
  }
  hash = add(hash, (uint64_t)policy->caller_count);
  return add(hash, sum);
}

static uint64_t add_rule(uint64_t hash, const struct policy_rule *rule)
{
  hash = add_mask(hash, rule->ops, POLICY_OP_COUNT);
  hash = add_mask(hash, rule->dtypes, POLICY_DTYPE_COUNT);
  hash = add_mask(hash, rule->redops, POLICY_REDOP_COUNT);
  hash = add(hash, (uint64_t)rule->min_nranks);
  hash = add(hash, (uint64_t)rule->max_nranks);
  hash = add(hash, rule->min_bytes);
  hash = add(hash, rule->max_bytes);
  hash = add(hash, (uint64_t)rule->min_nccl);
  hash = add(hash, (uint64_t)rule->max_nccl);
  return add_action(hash, &rule->action);
}

uint64_t policy_hash(const struct policy *policy)
{
  uint64_t hash = FNV_OFFSET;

  hash = add(hash, policy->agree_us);
  hash = add(hash, policy->setup_ms);
  hash = add(hash, policy->pause_after);
  hash = add(hash, policy->pause_calls);
  hash = add(hash, (uint64_t)policy->min_nccl);
  hash = add(hash, policy->child_min_ctas);
  hash = add(hash, policy->child_max_ctas);
  hash = add(hash, policy->child_memory);
  hash = add(hash, policy->window_memory);
  hash = add(hash, policy->stage_max);
  hash = add(hash, policy->require_abortable);
  hash = add(hash, policy->arena);
  hash = add_callers(hash, policy);
  hash = add(hash, policy->arena_min_bytes);
  hash = add(hash, policy->arena_max_bytes);
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    hash = add_action(hash, &policy->ops[op]);
  hash = add(hash, (uint64_t)policy->rule_count);
  for (int i = 0; i < policy->rule_count; i++)
    hash = add_rule(hash, &policy->rules[i]);
  return hash;
}
