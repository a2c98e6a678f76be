/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In an audit-only run: what a real one would have made of a call, as far as this rank alone can tell. What the other
 * ranks' buffers, earlier calls and their windows have to do with it, `symmshim report` plays through with the logs of
 * all ranks; so nothing is shared with them here, and nobody is waited for.
 *
 * Owns nothing. Calls neither CUDA nor NCCL. Changes no file.
 */
#ifndef SYMMSHIM_FORECAST_H
#define SYMMSHIM_FORECAST_H

#include "shim/audit.h"
#include "shim/call.h"
#include "shim/layout.h"
#include "shim/plan.h"

struct comm;

/* Whether calls are only watched. */
bool forecast_is_wanted(void);

/* Where the ranks' board would lie: a number that ranks have in common if they could meet there; 0: it cannot be had.
 */
uint64_t forecast_board(void);

/* `comm`: NULL for one made out of sight. */
struct audit_forecast forecast_call(struct comm *comm, const struct call *call, const struct plan *plan,
                                    struct layout *layout);

#endif
