/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to do with a call: the facts that every rank shares, and the policy, make a plan. A pure function; the
 * ranks' agreement (board.h) then says whether the plan is carried out.
 *
 * Owns the knowledge of what NCCL's symmetric kernels take, by version. Calls neither CUDA nor NCCL.
 */
#ifndef SYMMSHIM_PLAN_H
#define SYMMSHIM_PLAN_H

#include "policy/policy.h"
#include "shim/reason.h"

struct plan {
  enum policy_path path;           /* staged: through slots where it cannot be done on the job's own buffers */
  enum policy_rewrite rewrite;     /* pre_scale: only through slots, where post_scale is done on the way in too */
  enum reason reason;              /* why plain; else REASON_none */
  struct policy_decision decision; /* what the policy said, whether or not NCCL could follow */
};

struct plan plan_make(const struct policy *policy, const struct policy_request *request);

#endif
