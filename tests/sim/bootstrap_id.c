/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/bootstrap.h"

/* NCCL's own declaration may be elsewhere, or the same. */
extern ncclResult_t ncclGetUniqueId(ncclUniqueId *id);

static ncclUniqueId id_make(void)
{
  ncclUniqueId id;

  if (ncclGetUniqueId(&id) == ncclSuccess)
    return id;
  perror("ncclGetUniqueId");
  exit(1);
}

ncclUniqueId sim_bootstrap_id(int rank)
{
  static int calls;
  ncclUniqueId id;

  if (sim_bootstrap_size() == 1)
    return id_make();
  if (rank == 0) {
    id = id_make();
    sim_bootstrap_publish("id", calls++, &id, sizeof(id));
  } else {
    sim_bootstrap_await("id", calls++, &id, sizeof(id));
  }
  return id;
}
