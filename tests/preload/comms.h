/* SPDX-License-Identifier: Apache-2.0 */
/* Every way to make a communicator and to end it. */
#ifndef SYMMSHIM_PRELOAD_COMMS_H
#define SYMMSHIM_PRELOAD_COMMS_H

#include "tests/preload/options.h"

/* A rank of the job's communicator. A process has one, or, with INIT_ALL, all of them. */
struct seat {
  ncclComm_t comm;   /* the one for the calls; NULL: this process was left out of it */
  ncclComm_t parent; /* from which it was made, or NULL */
  int rank, nranks, device;
  int half; /* with DERIVE_HALVES and DERIVE_TWINS, which of the two communicators this is */
};

/* Makes the communicator; returns the number of seats of this process. */
int comms_make(const struct options *options, struct seat *seats, int room);

/* Waits until a non-blocking communicator has done what it was asked. */
void comms_settle(ncclComm_t comm);

void comms_end(const struct options *options, struct seat *seats, int count);

#endif
