/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/collconfig.h"

#include <string.h>

enum {
  FIRST_SIZE = offsetof(ncclCollConfig_t, launchCompletionEvent), /* of 2.31; NCCL takes nothing smaller */
  KNOWN_SIZE = sizeof(ncclCollConfig_t)
};

static bool is_unset(int value)
{
  return value == NCCL_CONFIG_UNDEF_INT;
}

/* Whether it is a configuration at all, and has no member that is not known here. */
static bool is_known(const ncclCollConfig_t *config)
{
  return config->size >= FIRST_SIZE && config->size <= KNOWN_SIZE && config->magic == ABI_NCCL_CONFIG_MAGIC;
}

ncclCollConfig_t collconfig_copy(const ncclCollConfig_t *config)
{
  ncclCollConfig_t copy = {0};

  memcpy(&copy, config, config->size < KNOWN_SIZE ? config->size : KNOWN_SIZE);
  return copy;
}

bool collconfig_is_unset(const ncclCollConfig_t *config)
{
  ncclCollConfig_t known;

  if (!is_known(config))
    return false;
  known = collconfig_copy(config);
  return !known.ext && is_unset(known.minCTAs) && is_unset(known.maxCTAs) && is_unset(known.nvlsCTAs) &&
         is_unset(known.cgaClusterSize) && (!known.algSelection || !*known.algSelection) &&
         (known.forceAlgSelection == 0 || known.forceAlgSelection == 1) && is_unset(known.CTAPolicy) &&
         !known.launchCompletionEvent;
}
