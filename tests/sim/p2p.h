/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives: those of one group and communicator are one piece of work that moves them all together. */
#ifndef SYMMSHIM_SIM_P2P_H
#define SYMMSHIM_SIM_P2P_H

#include "tests/sim/comm.h"

/* Checks the arguments and adds it to the open group. */
ncclResult_t p2p_add(ncclComm_t comm, bool send, void *data, size_t count, ncclDataType_t type, int peer,
                     CUstream stream);

#endif
