/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL checks in a communicator's configuration (parseCommConfig), and the library's own version. */
#include "tests/sim/config.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_VERSION = 22809, MAX_CTAS = 64 };

int nccl_version(void)
{
  const char *version = getenv("SIM_NCCL_VERSION");
  return version && *version ? atoi(version) : DEFAULT_VERSION;
}

static const ncclConfig_t undefined = SIM_NCCL_CONFIG_INITIALIZER;

static bool bad_choice(int value, int most)
{
  return value != NCCL_CONFIG_UNDEF_INT && (value < 0 || value > most);
}

/*
 * "Undefined" is the smallest integer, and NCCL compares before it fills in defaults: so minCTAs alone is more
 * than maxCTAs and refused, while maxCTAs alone passes.
 */
static bool bad_ctas(const ncclConfig_t *config)
{
  return (config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->minCTAs <= 0) ||
         (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs <= 0) || config->minCTAs > config->maxCTAs;
}

static void defaults(int *value, int otherwise)
{
  if (*value == NCCL_CONFIG_UNDEF_INT)
    *value = otherwise;
}

/* NCCL_COMM_BLOCKING and its like go over the head of what the program says. */
static void environment(int *value, const char *name)
{
  const char *text = getenv(name);
  if (text && *text)
    *value = atoi(text);
}

ncclResult_t config_parse(ncclConfig_t *out, const ncclConfig_t *in)
{
  ncclConfig_t config = undefined;
  if (in) {
    size_t size = in->size < sizeof(config) ? in->size : sizeof(config);
    memcpy(&config, in, size);
    if (size < sizeof(size_t) + sizeof(int) || config.magic != ABI_NCCL_CONFIG_MAGIC)
      return ncclInvalidArgument;
  }
  if (bad_choice(config.blocking, 1) || bad_choice(config.splitShare, 1) || bad_choice(config.collnetEnable, 1) ||
      bad_choice(config.CTAPolicy, 2) || bad_choice(config.shrinkShare, 1) || bad_ctas(&config) ||
      bad_choice(config.cgaClusterSize, 1 << 30) || (config.nvlsCTAs != NCCL_CONFIG_UNDEF_INT && config.nvlsCTAs <= 0))
    return ncclInvalidArgument;
  defaults(&config.blocking, 1);
  defaults(&config.minCTAs, 1);
  defaults(&config.maxCTAs, MAX_CTAS);
  defaults(&config.CTAPolicy, 0);
  defaults(&config.splitShare, 0);
  defaults(&config.shrinkShare, 0);
  environment(&config.blocking, "NCCL_COMM_BLOCKING");
  environment(&config.minCTAs, "NCCL_MIN_CTAS");
  environment(&config.maxCTAs, "NCCL_MAX_CTAS");
  environment(&config.CTAPolicy, "NCCL_CTA_POLICY");
  config.commName = NULL; /* the caller's string may not outlive the call */
  config.netName = NULL;
  *out = config;
  return ncclSuccess;
}
