/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "tools/cmd_tune.h"

/* Of stock's time: less is not told from noise, whatever the spread was; and so much more with more CTAs is not worth
 * the SMs that they take from a job's own kernels. */
static const double LEAST_GAIN = 0.02, NEGLIGIBLE = 0.01;

bool tune_is_faster(const struct tune_figure *stock, const struct tune_figure *other)
{
  double gain = stock->us - other->us, spread = stock->spread > other->spread ? stock->spread : other->spread;

  return stock->measured && other->measured && gain > 2 * spread && gain > LEAST_GAIN * stock->us;
}

/*
 * The part of stock's time that this many CTAs save, were all calls as frequent as gives each the same time: so one
 * large call does not outweigh all small ones. Where it saves nothing the policy says plain, which costs nothing.
 */
static double saved(const struct tune *tune, int candidate)
{
  double sum = 0;

  for (int i = 0; i < tune->case_count; i++) {
    const struct tune_figure *stock = &tune->cases[i].stock, *hand = &tune->cases[i].hand[candidate];
    if (tune_is_faster(stock, hand))
      sum += (stock->us - hand->us) / stock->us;
  }
  return tune->case_count > 0 ? sum / tune->case_count : 0;
}

int tune_choose_ctas(const struct tune *tune)
{
  double most = 0;

  for (int i = 0; i < tune->ctas_count; i++)
    most = saved(tune, i) > most ? saved(tune, i) : most;
  for (int i = 0; i < tune->ctas_count; i++)
    if (saved(tune, i) >= most - NEGLIGIBLE)
      return i;
  return 0;
}

void tune_choose_paths(struct tune *tune)
{
  for (int i = 0; i < tune->case_count; i++) {
    struct tune_case *it = &tune->cases[i];

    it->choice = POLICY_PATH_plain;
    if (tune_is_faster(&it->window_stock, &it->window))
      it->choice = tune_is_faster(&it->staged_stock, &it->staged) ? POLICY_PATH_staged : POLICY_PATH_window;
  }
}

bool tune_ends_kind(const struct tune *tune, int index)
{
  const struct gpu_case *a = &tune->cases[index].what, *b;

  if (index + 1 >= tune->case_count)
    return true;
  b = &tune->cases[index + 1].what;
  return a->op != b->op || a->dtype != b->dtype || a->redop != b->redop;
}

/* Another type's rule that says the same becomes one for both types. */
static bool join(struct tune *tune, const struct tune_rule *rule)
{
  for (int i = 0; i < tune->rule_count; i++) {
    struct tune_rule *old = &tune->rules[i];
    if (old->op != rule->op || old->redop != rule->redop || old->path != rule->path ||
        old->min_bytes != rule->min_bytes || old->max_bytes != rule->max_bytes)
      continue;
    old->dtypes |= rule->dtypes;
    return true;
  }
  return false;
}

/*
 * A choice holds between two sizes for which it was made, and is expected to hold beyond the largest that was measured.
 * Next to plain it ends at the last size for which it was made. Where staged was chosen window was faster too, so
 * between these two it is window.
 */
static uint64_t least_bytes(const struct tune *tune, int first)
{
  const struct tune_case *it = &tune->cases[first], *before = it - 1;

  if (first > 0 && !tune_ends_kind(tune, first - 1) && it->choice == POLICY_PATH_window &&
      before->choice == POLICY_PATH_staged)
    return before->what.bytes + 1;
  return it->what.bytes;
}

static uint64_t most_bytes(const struct tune *tune, int last)
{
  const struct tune_case *it = &tune->cases[last], *after = it + 1;

  if (tune_ends_kind(tune, last))
    return UINT64_MAX;
  if (it->choice == POLICY_PATH_window && after->choice == POLICY_PATH_staged)
    return after->what.bytes - 1;
  return it->what.bytes;
}

/* The cases from `first` to `last` are of one kind and have one choice. */
static int add_rule(struct tune *tune, int first, int last)
{
  const struct gpu_case *what = &tune->cases[first].what;
  struct tune_rule rule = {.op = what->op,
                           .redop = what->redop,
                           /* An all-gather moves bytes, of whatever type. */
                           .dtypes = what->op == POLICY_OP_all_gather ? 0 : 1U << what->dtype,
                           .min_bytes = least_bytes(tune, first),
                           .max_bytes = most_bytes(tune, last),
                           .path = tune->cases[first].choice};

  if (rule.path == POLICY_PATH_plain || join(tune, &rule))
    return 0;
  if (tune->rule_count == POLICY_MAX_RULES)
    return -ENOSPC;
  tune->rules[tune->rule_count++] = rule;
  return 0;
}

int tune_make_rules(struct tune *tune)
{
  int first = 0, rc = 0;

  tune->rule_count = 0;
  for (int i = 0; i < tune->case_count && rc == 0; i++)
    if (tune_ends_kind(tune, i) || tune->cases[i + 1].choice != tune->cases[i].choice) {
      rc = add_rule(tune, first, i);
      first = i + 1;
    }
  return rc;
}
