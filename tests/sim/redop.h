/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction operators: owns the ones that a program makes, and what becomes of ncclAvg. */
#ifndef SYMMSHIM_SIM_REDOP_H
#define SYMMSHIM_SIM_REDOP_H

#include "tests/sim/operation.h"

ncclResult_t redop_create(ncclComm_t comm, ncclRedOp_t *op, const void *scalar, ncclDataType_t type,
                          ncclScalarResidence_t residence);
ncclResult_t redop_destroy(ncclComm_t comm, ncclRedOp_t op);

/* Fills in what the operation has to do for the op that was asked for. */
ncclResult_t redop_resolve(struct operation *op);

#endif
