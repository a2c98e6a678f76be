/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of an NCCL to come. Nobody calls them. */
#include "tests/sim/sim_abi.h"

#define NOVEL(name)                                                                                                    \
  ncclResult_t nccl##name(void);                                                                                       \
  ncclResult_t pnccl##name(void);                                                                                      \
  ncclResult_t pnccl##name(void)                                                                                       \
  {                                                                                                                    \
    return ncclInternalError;                                                                                          \
  }                                                                                                                    \
  __attribute__((weak, alias("pnccl" #name))) ncclResult_t nccl##name(void);

NOVEL(AllGatherV)
