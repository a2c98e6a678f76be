/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hands a call to NCCL, on whatever communicator and buffers. Owns nothing; calls NCCL only.
 */
#ifndef SYMMSHIM_ISSUE_H
#define SYMMSHIM_ISSUE_H

#include "shim/call.h"

/* The call with these in place of its own; op, count, type, stream and settings are the call's. */
ncclResult_t issue(const struct call *call, const void *send, void *recv, ncclRedOp_t redop, ncclComm_t comm);

#endif
