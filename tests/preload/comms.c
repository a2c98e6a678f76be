/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/preload/comms.h"

#include <string.h>
#include <unistd.h>

#include "tests/preload/check.h"
#include "tests/sim/bootstrap.h"

void comms_settle(ncclComm_t comm)
{
  ncclResult_t state = ncclInProgress;

  for (;;) {
    NCCL_CHECK(ncclCommGetAsyncError(comm, &state));
    if (state != ncclInProgress)
      break;
    usleep(500);
  }
  NCCL_CHECK(state);
}

static void init_one(const struct options *options, struct seat *seat)
{
  ncclConfig_t config = SIM_NCCL_CONFIG_INITIALIZER;
  ncclUniqueId ids[2];
  int rank = job_rank(), size = job_size();

  ids[0] = sim_bootstrap_id(rank);
  if (options->init == INIT_SCALABLE)
    ids[1] = sim_bootstrap_id(rank);
  switch (options->init) {
  case INIT_SHARED:
    config.splitShare = 1;
    NCCL_CHECK(ncclCommInitRankConfig(&seat->comm, size, ids[0], rank, &config));
    break;
  case INIT_CONFIG:
    NCCL_CHECK(ncclCommInitRankConfig(&seat->comm, size, ids[0], rank, &config));
    break;
  case INIT_SCALABLE:
    NCCL_CHECK(ncclCommInitRankScalable(&seat->comm, size, rank, size > 1 ? 2 : 1, ids, &config));
    break;
  case INIT_GROUPED:
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclCommInitRankConfig(&seat->comm, size, ids[0], rank, &config));
    NCCL_CHECK(ncclGroupEnd());
    break;
  case INIT_NONBLOCKING:
    config.blocking = 0;
    NCCL_CHECK(ncclCommInitRankConfig(&seat->comm, size, ids[0], rank, &config));
    comms_settle(seat->comm);
    break;
  case INIT_HIDDEN: /* by the name for tools, which nobody interposes */
    NCCL_CHECK(pncclCommInitRank(&seat->comm, size, ids[0], rank));
    break;
  case INIT_RANK:
  case INIT_ALL:
  case INIT_COUNT:
    NCCL_CHECK(ncclCommInitRank(&seat->comm, size, ids[0], rank));
    break;
  }
}

/* Makes the communicator of the calls from the first one. */
static void derive(const struct options *options, struct seat *seat)
{
  int last = job_size() - 1;

  if (options->derive == DERIVE_NONE)
    return;
  seat->parent = seat->comm;
  seat->comm = NULL;
  seat->half = options->derive == DERIVE_HALVES ? job_rank() % 2 : 0;
  if (options->derive == DERIVE_TWINS) {
    NCCL_CHECK(ncclCommSplit(seat->parent, 0, job_rank(), &seat[0].comm, NULL));
    NCCL_CHECK(ncclCommSplit(seat->parent, 0, job_rank(), &seat[1].comm, NULL));
    seat[1].half = 1;
    seat[1].device = seat->device;
  } else if (options->derive == DERIVE_SPLIT || options->derive == DERIVE_HALVES)
    NCCL_CHECK(ncclCommSplit(seat->parent, seat->half, job_rank(), &seat->comm, NULL));
  else if (job_rank() != last)
    NCCL_CHECK(ncclCommShrink(seat->parent, &last, 1, &seat->comm, NULL, 0));
}

static void look(struct seat *seat)
{
  if (!seat->comm)
    return;
  NCCL_CHECK(ncclCommUserRank(seat->comm, &seat->rank));
  NCCL_CHECK(ncclCommCount(seat->comm, &seat->nranks));
}

int comms_make(const struct options *options, struct seat *seats, int room)
{
  int count = options->init == INIT_ALL ? options->devices : options->derive == DERIVE_TWINS ? 2 : 1, devices = 0;

  if (count > room)
    job_fail("no more than %d devices", room);
  memset(seats, 0, (size_t)count * sizeof(*seats));
  if (options->init == INIT_ALL) {
    ncclComm_t comms[16] = {NULL};
    NCCL_CHECK(ncclCommInitAll(comms, count, NULL));
    for (int i = 0; i < count; i++)
      seats[i] = (struct seat){.comm = comms[i], .device = i};
  } else {
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    seats[0].device = job_rank() % devices;
    CUDA_CHECK(cudaSetDevice(seats[0].device));
    init_one(options, &seats[0]);
    derive(options, &seats[0]);
  }
  for (int i = 0; i < count; i++)
    look(&seats[i]);
  return count;
}

void comms_end(const struct options *options, struct seat *seats, int count)
{
  if (options->ending == END_EXIT)
    return;
  for (int i = 0; i < count && options->ending == END_FINALIZE; i++)
    if (seats[i].comm) {
      NCCL_CHECK(ncclCommFinalize(seats[i].comm));
      comms_settle(seats[i].comm);
    }
  for (int i = 0; i < count; i++) {
    if (seats[i].comm && options->ending == END_REVOKE)
      NCCL_CHECK(ncclCommRevoke(seats[i].comm, 0));
    if (seats[i].comm && options->ending == END_ABORT)
      NCCL_CHECK(ncclCommAbort(seats[i].comm));
    else if (seats[i].comm)
      NCCL_CHECK(ncclCommDestroy(seats[i].comm));
    if (seats[i].parent)
      NCCL_CHECK(ncclCommDestroy(seats[i].parent));
  }
}
