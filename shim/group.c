/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/group.h"

#include "shim/call.h"
#include "shim/order.h"

struct group {
  int depth, count;
  bool mixed; /* nothing more is kept until the outermost end */
  struct call kept[GROUP_CALLS];
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
  if (group.count == GROUP_CALLS || !call_may_go_symmetric(call)) {
    group_mix();
    return false;
  }
  group.kept[group.count++] = *call;
  return true;
}

void group_mix(void)
{
  int count = group.count;

  if (group.depth == 0)
    return;
  group.mixed = true;
  group.count = 0;
  for (int i = 0; i < count; i++)
    call_make_kept(&group.kept[i]); /* an error stays with NCCL's group, whose end returns it */
}

void group_left(ncclResult_t result)
{
  if (group.depth > 0 && --group.depth > 0)
    return;
  group.mixed = false;
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
