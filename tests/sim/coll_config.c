/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collectives with settings of their own (ncclCollConfig_t), from 2.31.2 on. What NCCL checks is checked, in its
 * order and before anything of the group is touched (ncclParseCollConfig, 2.31). Of the settings only a selection of
 * algorithms has an effect here: it keeps symmetric kernels away. CTAs and the profiler's tag stand in the record.
 */
#include <string.h>

#include "tests/sim/operation.h"

enum { FIRST_VERSION = 23102, FIRST_SIZE = 64, CTA_POLICY_MOST = 3 };

static ncclResult_t parse(ncclCollConfig_t *to, const ncclCollConfig_t *config)
{
  size_t size = sizeof(*to);
  *to = (ncclCollConfig_t)SIM_NCCL_COLL_CONFIG_INITIALIZER;
  if (nccl_version() < FIRST_VERSION)
    return ncclInvalidUsage; /* it has no such function */
  if (!config) {
    to->size = 0;
    return ncclSuccess;
  }
  if (config->size < FIRST_SIZE || config->magic != ABI_NCCL_CONFIG_MAGIC)
    return ncclInvalidArgument;
  memcpy(to, config, config->size < size ? config->size : size);
  if (to->forceAlgSelection != 0 && to->forceAlgSelection != 1)
    return ncclInvalidArgument;
  if (to->CTAPolicy != NCCL_CONFIG_UNDEF_INT && (to->CTAPolicy < 0 || to->CTAPolicy > CTA_POLICY_MOST))
    return ncclInvalidArgument;
  if (to->algSelection && *to->algSelection && strcmp(to->algSelection, "ring") != 0 && to->forceAlgSelection)
    return ncclInvalidArgument; /* there is no other here */
  return ncclSuccess;
}

static ncclResult_t enqueue(struct operation *call, const ncclCollConfig_t *config)
{
  ncclResult_t result = parse(&call->config, config);
  return result == ncclSuccess ? operation_enqueue(call) : result;
}

ncclResult_t pncclAllGatherConfig(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                                  cudaStream_t stream, const ncclCollConfig_t *config)
{
  struct operation call = {.function = OPERATION_ALL_GATHER,
                           .send = send,
                           .recv = recv,
                           .count = count,
                           .type = type,
                           .comm = comm,
                           .stream = stream};
  return SIM_CALL(ncclAllGatherConfig, enqueue(&call, config), "%p %p count=%zu type=%u comm=%p stream=%p", send, recv,
                  count, type, (void *)comm, (void *)stream);
}

ncclResult_t pncclReduceScatterConfig(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                      ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
  struct operation call = {.function = OPERATION_REDUCE_SCATTER,
                           .send = send,
                           .recv = recv,
                           .count = count,
                           .type = type,
                           .asked = op,
                           .comm = comm,
                           .stream = stream};
  return SIM_CALL(ncclReduceScatterConfig, enqueue(&call, config), "%p %p count=%zu type=%u comm=%p stream=%p", send,
                  recv, count, type, (void *)comm, (void *)stream);
}

ncclResult_t pncclAllReduceConfig(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
  struct operation call = {.function = OPERATION_ALL_REDUCE,
                           .send = send,
                           .recv = recv,
                           .count = count,
                           .type = type,
                           .asked = op,
                           .comm = comm,
                           .stream = stream};
  return SIM_CALL(ncclAllReduceConfig, enqueue(&call, config), "%p %p count=%zu type=%u comm=%p stream=%p", send, recv,
                  count, type, (void *)comm, (void *)stream);
}

ncclResult_t pncclBroadcastConfig(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
  struct operation call = {.function = OPERATION_BROADCAST,
                           .send = send,
                           .recv = recv,
                           .count = count,
                           .type = type,
                           .root = root,
                           .comm = comm,
                           .stream = stream};
  return SIM_CALL(ncclBroadcastConfig, enqueue(&call, config), "%p %p count=%zu type=%u comm=%p stream=%p", send, recv,
                  count, type, (void *)comm, (void *)stream);
}

ncclResult_t pncclReduceConfig(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
  struct operation call = {.function = OPERATION_REDUCE,
                           .send = send,
                           .recv = recv,
                           .count = count,
                           .type = type,
                           .asked = op,
                           .root = root,
                           .comm = comm,
                           .stream = stream};
  return SIM_CALL(ncclReduceConfig, enqueue(&call, config), "%p %p count=%zu type=%u comm=%p stream=%p", send, recv,
                  count, type, (void *)comm, (void *)stream);
}

ncclResult_t pncclAlltoAllConfig(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t *config)
{
  struct operation call = {.function = OPERATION_ALL_TO_ALL,
                           .send = send,
                           .recv = recv,
                           .count = count,
                           .type = type,
                           .comm = comm,
                           .stream = stream};
  return SIM_CALL(ncclAlltoAllConfig, enqueue(&call, config), "%p %p count=%zu type=%u comm=%p stream=%p", send, recv,
                  count, type, (void *)comm, (void *)stream);
}

ncclResult_t pncclGatherConfig(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
  struct operation call = {.function = OPERATION_GATHER,
                           .send = send,
                           .recv = recv,
                           .count = count,
                           .type = type,
                           .root = root,
                           .comm = comm,
                           .stream = stream};
  return SIM_CALL(ncclGatherConfig, enqueue(&call, config), "%p %p count=%zu type=%u comm=%p stream=%p", send, recv,
                  count, type, (void *)comm, (void *)stream);
}

ncclResult_t pncclScatterConfig(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
  struct operation call = {.function = OPERATION_SCATTER,
                           .send = send,
                           .recv = recv,
                           .count = count,
                           .type = type,
                           .root = root,
                           .comm = comm,
                           .stream = stream};
  return SIM_CALL(ncclScatterConfig, enqueue(&call, config), "%p %p count=%zu type=%u comm=%p stream=%p", send, recv,
                  count, type, (void *)comm, (void *)stream);
}

#define ALIAS(name, parameters) __attribute__((weak, alias("pnccl" #name))) ncclResult_t nccl##name parameters;
SIM_NCCL_CONFIG_FUNCTIONS(ALIAS)
#undef ALIAS
