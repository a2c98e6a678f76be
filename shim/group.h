/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL groups. What a job puts between ncclGroupStart and ncclGroupEnd is launched at the end, so calls that may go
 * symmetric are kept here until then and made right after it, in the job's order. A group that holds anything else too
 * is left as it is, since within it NCCL's order, and what runs at the same time, is not the shim's to change.
 *
 * Owns the per-thread list. Calls NCCL only by way of call.h.
 */
#ifndef SYMMSHIM_GROUP_H
#define SYMMSHIM_GROUP_H

#include <stdbool.h>

#include "shim/abi/nccl.h"

struct audit_call;
struct call;

enum { GROUP_CALLS = 64 }; /* kept in one group; one with more is left as it is */

/* This thread has a group open; the shim itself may open one around calls that it makes together. */
bool group_is_open(void);

/* The job's ncclGroupStart succeeded, or the shim opens a group. */
void group_entered(void);

/* Keeps a call for the end of the open group. False: it is to be made now. */
bool group_keep(const struct call *call);

/*
 * In an audit-only run nothing is kept, but whether calls would have been is known at the end of the group only: so it
 * is the accounts of such calls that are held until then. Whether the call that comes next, of which group_keep() was
 * asked, would be kept; and its account (false: there is no memory for it).
 */
bool group_would_keep(void);
bool group_hold(ncclComm_t comm, const struct audit_call *account);

/* Something comes into the open group that cannot be kept: what was kept is made first, and all the rest plain. */
void group_mix(void);

/* Ends the group by `end`, and makes what was kept. Returns the first result that is not success. */
ncclResult_t group_end(ncclResult_t (*end)(void));

/* The group is gone, with this result. */
void group_left(ncclResult_t result);

#endif
