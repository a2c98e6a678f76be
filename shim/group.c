/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/group.h"

#include <stdlib.h>

#include "shim/call.h"
#include "shim/collconfig.h"
#include "shim/comm.h"
#include "shim/forecast.h"
#include "shim/guard.h"
#include "shim/order.h"

/* The account of a call that was made, and would have been kept. */
struct held {
  ncclComm_t comm;
  struct audit_call account;
};

struct group {
  int depth, count;
  bool mixed; /* nothing more is kept until the outermost end */
  struct call kept[GROUP_CALLS];
  ncclCollConfig_t configs[GROUP_CALLS]; /* of those that have one */
  int held_count;
  struct held *held; /* GROUP_CALLS of them; NULL while there are none */
};
static __thread struct group group __attribute__((tls_model("initial-exec")));

bool group_is_open(void)
{
  return group.depth > 0;
}

void group_entered(void)
{
  group.depth++;
}

bool group_keep(const struct call *call)
{
  if (group.depth == 0 || group.mixed)
    return false;
  if (group.count == GROUP_CALLS || group.held_count == GROUP_CALLS || !call_may_go_symmetric(call)) {
    group_mix();
    return false;
  }
  if (forecast_is_wanted())
    return false;
  group.kept[group.count] = *call;
  if (call->config) {
    group.configs[group.count] = collconfig_copy(call->config);
    group.kept[group.count].config = &group.configs[group.count];
  }
  group.count++;
  return true;
}

bool group_would_keep(void)
{
  return group.depth > 0 && !group.mixed;
}

bool group_hold(ncclComm_t comm, const struct audit_call *account)
{
  if (!group.held)
    group.held = calloc(GROUP_CALLS, sizeof(*group.held));
  if (!group.held)
    return false;
  group.held[group.held_count++] = (struct held){comm, *account};
  return true;
}

/* Writes the accounts down: as foreseen, or with the reason why all of these calls would be plain. */
static void account_held(enum reason reason)
{
  struct real *real = guard.real;
  struct held *held = group.held;
  int count = group.held_count;

  group.held = NULL;
  group.held_count = 0;
  for (int i = 0; i < count; i++) {
    struct comm *comm = comm_enter(held[i].comm);

    if (reason != REASON_none)
      held[i].account.forecast = (struct audit_forecast){.path = POLICY_PATH_plain, .reason = reason};
    comm_account(comm, &held[i].account, audit_clock());
    if (comm)
      comm_leave(comm);
  }
  free(held);
  guard.real = real;
}

void group_mix(void)
{
  int count = group.count;

  if (group.depth == 0)
    return;
  group.mixed = true;
  group.count = 0;
  account_held(REASON_in_group);
  for (int i = 0; i < count; i++)
    call_make_kept(&group.kept[i]); /* an error stays with NCCL's group, whose end returns it */
}

void group_left(ncclResult_t result)
{
  if (group.depth > 0 && --group.depth > 0)
    return;
  group.mixed = false;
  account_held(REASON_none);
  order_group_left(result);
}

ncclResult_t group_end(ncclResult_t (*end)(void))
{
  bool outermost = group.depth == 1;
  ncclResult_t result = end(), kept_result;
  int count = group.count;

  if (outermost)
    group.count = 0;
  group_left(result);
  if (!outermost || count == 0 || (result != ncclSuccess && result != ncclInProgress))
    return result;
  kept_result = call_make_together(group.kept, count);
  return kept_result == ncclSuccess ? result : kept_result;
}
