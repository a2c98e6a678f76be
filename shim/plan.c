/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/plan.h"

enum {
  /* ncclCommWindowRegister came with 2.27; before 2.27.5 an all-reduce could write past VMM memory (fixed there). */
  NCCL_FIRST_USABLE = 22705,
  /* Symmetric kernels look at the abort flag from here on (lsa_barrier__funcs.h). */
  NCCL_ABORTABLE = 22900,
  /* Symmetric reduce-scatter takes ncclAvg itself from here on (release notes of 2.30.3). */
  NCCL_NATIVE_AVG = 23003,
};

/* The element types that symmetric reductions have kernels for (sym_kernels.cc, 2.27 to 2.30.7). */
static bool can_reduce(enum policy_dtype dtype)
{
  return dtype == POLICY_DTYPE_fp32 || dtype == POLICY_DTYPE_fp16 || dtype == POLICY_DTYPE_bf16 ||
         dtype == POLICY_DTYPE_fp8e4m3 || dtype == POLICY_DTYPE_fp8e5m2;
}

/*
 * A sum that is scaled afterwards rounds once more than NCCL's average; in bf16 and fp32 it cannot overflow
 * where the average does not come close to it. fp16 can, so it is never scaled afterwards.
 */
static bool can_post_scale(const struct policy_request *request)
{
  return request->op == POLICY_OP_reduce_scatter && request->redop == POLICY_REDOP_avg &&
         (request->dtype == POLICY_DTYPE_bf16 || request->dtype == POLICY_DTYPE_fp32);
}

/* Multiplying each contribution first is what NCCL does with these reduce ops itself. */
static bool can_pre_scale(const struct policy_request *request)
{
  return request->redop == POLICY_REDOP_premulsum ||
         (request->redop == POLICY_REDOP_avg && request->op != POLICY_OP_all_gather);
}

/* The types that the shim's own kernels know. */
static bool can_scale(enum policy_dtype dtype)
{
  return dtype == POLICY_DTYPE_fp16 || dtype == POLICY_DTYPE_bf16 || dtype == POLICY_DTYPE_fp32;
}

static bool has_native_avg(const struct policy_request *request)
{
  return request->op == POLICY_OP_reduce_scatter && request->redop == POLICY_REDOP_avg &&
         request->nccl_version >= NCCL_NATIVE_AVG;
}

/* Why NCCL's symmetric kernels cannot take the call, or REASON_none; sets the rewrite that makes them take it. */
static enum reason unsupported(const struct policy *policy, const struct policy_request *request,
                               const struct policy_decision *wished, enum policy_rewrite *rewrite)
{
  if (request->nranks < 2)
    return REASON_single_rank;
  if (request->nccl_version < NCCL_FIRST_USABLE || request->nccl_version < policy->min_nccl)
    return REASON_nccl_version;
  if (policy->require_abortable && request->nccl_version < NCCL_ABORTABLE)
    return REASON_not_abortable;
  if (request->bytes == 0)
    return REASON_empty;
  if (request->op == POLICY_OP_all_gather)
    return REASON_none;
  if (!can_reduce(request->dtype))
    return request->redop == POLICY_REDOP_premulsum ? REASON_user_redop : REASON_dtype;
  if (request->redop == POLICY_REDOP_sum || has_native_avg(request))
    return REASON_none;
  if ((wished->rewrite == POLICY_REWRITE_post_scale && can_post_scale(request)) ||
      (wished->rewrite == POLICY_REWRITE_pre_scale && wished->path == POLICY_PATH_staged && can_pre_scale(request) &&
       can_scale(request->dtype))) {
    *rewrite = wished->rewrite;
    return REASON_none;
  }
  return request->redop == POLICY_REDOP_premulsum ? REASON_user_redop : REASON_redop;
}

struct plan plan_make(const struct policy *policy, const struct policy_request *request)
{
  struct plan plan = {.path = POLICY_PATH_plain, .rewrite = POLICY_REWRITE_none};

  plan.decision = policy_match(policy, request);
  if (plan.decision.path == POLICY_PATH_staged && policy->stage_max == 0)
    plan.decision.path = POLICY_PATH_window;
  plan.reason = unsupported(policy, request, &plan.decision, &plan.rewrite);
  if (plan.reason == REASON_none && plan.decision.path == POLICY_PATH_plain)
    plan.reason = REASON_policy;
  if (plan.reason == REASON_none)
    plan.path = plan.decision.path;
  else
    plan.rewrite = POLICY_REWRITE_none;
  return plan;
}
