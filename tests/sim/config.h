/* SPDX-License-Identifier: Apache-2.0 */
/* Owns the checks of ncclConfig_t and the version that the library claims to be (SIM_NCCL_VERSION). */
#ifndef SYMMSHIM_SIM_CONFIG_H
#define SYMMSHIM_SIM_CONFIG_H

#include <stdbool.h>

#include "tests/sim/sim_abi.h"

int nccl_version(void);

/* The configuration with NCCL's defaults for all that is not set; `in` may be NULL. */
ncclResult_t config_parse(ncclConfig_t *out, const ncclConfig_t *in);

#endif
