/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libnccl.so.2: the exported functions. As in NCCL each exists twice, pncclX strong and ncclX weak at the same
 * address, and calls between them go through the dynamic linker.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/group.h"
#include "tests/sim/numeric.h"
#include "tests/sim/p2p.h"
#include "tests/sim/redop.h"
#include "tests/sim/symmetric.h"

/* The call, unless the communicator is none; the end of the process where it is dead. */
#define WITH(comm, name, call) (comm_check(comm, #name) != ncclSuccess ? (ncclResult_t)ncclInvalidArgument : (call))

#define P(pointer) ((void *)(pointer))

static ncclResult_t version_get(int *version)
{
  if (!version)
    return ncclInvalidArgument;
  *version = nccl_version();
  return ncclSuccess;
}

ncclResult_t pncclGetVersion(int *version)
{
  return SIM_CALL(ncclGetVersion, version_get(version), "%s", "");
}

ncclResult_t pncclGetUniqueId(ncclUniqueId *id)
{
  return SIM_CALL(ncclGetUniqueId, id ? meet_id_create(id) : (ncclResult_t)ncclInvalidArgument, "%s", "");
}

const char *pncclGetErrorString(ncclResult_t result)
{
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return result < sizeof(texts) / sizeof(texts[0]) ? texts[result] : "unknown result code";
}

const char *pncclGetLastError(ncclComm_t comm)
{
  (void)comm;
  return "";
}

/* Communicators */

ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
  return SIM_CALL(ncclCommInitRank, comm_init(comm, nranks, &id, rank, NULL), "nranks=%d rank=%d", nranks, rank);
}

ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
  return SIM_CALL(ncclCommInitRankConfig, comm_init(comm, nranks, &id, rank, config), "nranks=%d rank=%d", nranks,
                  rank);
}

static ncclResult_t init_scalable(ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids,
                                  ncclConfig_t *config)
{
  if (nids < 1 || nids > nranks || !ids)
    return ncclInvalidArgument;
  return comm_init(comm, nranks, &ids[0], rank, config);
}

ncclResult_t pncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids,
                                       ncclConfig_t *config)
{
  return SIM_CALL(ncclCommInitRankScalable, init_scalable(comm, nranks, rank, nids, ids, config),
                  "nranks=%d rank=%d nids=%d", nranks, rank, nids);
}

static ncclResult_t init_all(ncclComm_t *comms, int ndev, const int *devices)
{
  ncclUniqueId id;
  int before = GPU->context_device();
  if (!comms || ndev < 1)
    return ncclInvalidArgument;
  ncclResult_t result = meet_id_create(&id);
  if (result != ncclSuccess)
    return result;
  group_start();
  for (int i = 0; i < ndev; i++) {
    CUresult set = GPU->context_set_device(devices ? devices[i] : i);
    group_fail(set == CUDA_SUCCESS ? comm_init(&comms[i], ndev, &id, i, NULL) : (ncclResult_t)ncclInvalidArgument);
  }
  result = group_end();
  GPU->context_set_device(before);
  return result;
}

ncclResult_t pncclCommInitAll(ncclComm_t *comms, int ndev, const int *devices)
{
  return SIM_CALL(ncclCommInitAll,
                  GPU->context_init() == CUDA_SUCCESS ? init_all(comms, ndev, devices)
                                                      : (ncclResult_t)ncclUnhandledCudaError,
                  "ndev=%d", ndev);
}

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config)
{
  return SIM_CALL(ncclCommSplit, WITH(comm, ncclCommSplit, comm_split(comm, color, key, child, config)),
                  "comm=%p color=%d key=%d", P(comm), color, key);
}

ncclResult_t pncclCommShrink(ncclComm_t comm, int *exclude, int count, ncclComm_t *child, ncclConfig_t *config,
                             int flags)
{
  return SIM_CALL(ncclCommShrink, WITH(comm, ncclCommShrink, comm_shrink(comm, exclude, count, child, config, flags)),
                  "comm=%p exclude=%d flags=%d", P(comm), count, flags);
}

ncclResult_t pncclCommFinalize(ncclComm_t comm)
{
  return SIM_CALL(ncclCommFinalize, WITH(comm, ncclCommFinalize, comm_finalize(comm)), "comm=%p", P(comm));
}

/* NULL is nothing to destroy. */
ncclResult_t pncclCommDestroy(ncclComm_t comm)
{
  return SIM_CALL(ncclCommDestroy, comm ? WITH(comm, ncclCommDestroy, comm_destroy(comm)) : (ncclResult_t)ncclSuccess,
                  "comm=%p", P(comm));
}

ncclResult_t pncclCommAbort(ncclComm_t comm)
{
  return SIM_CALL(ncclCommAbort, comm ? WITH(comm, ncclCommAbort, comm_abort(comm)) : (ncclResult_t)ncclSuccess,
                  "comm=%p", P(comm));
}

ncclResult_t pncclCommRevoke(ncclComm_t comm, int flags)
{
  return SIM_CALL(ncclCommRevoke,
                  WITH(comm, ncclCommRevoke, flags ? (ncclResult_t)ncclInvalidArgument : comm_revoke(comm)),
                  "comm=%p flags=%d", P(comm), flags);
}

ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags)
{
  return SIM_CALL(ncclCommSuspend, WITH(comm, ncclCommSuspend, comm_suspend(comm, flags)), "comm=%p flags=%d", P(comm),
                  flags);
}

ncclResult_t pncclCommResume(ncclComm_t comm)
{
  return SIM_CALL(ncclCommResume, WITH(comm, ncclCommResume, comm_resume(comm)), "comm=%p", P(comm));
}

static ncclResult_t comm_number(ncclComm_t comm, int value, int *out)
{
  if (!out || atomic_load(&comm->state) == ncclInProgress)
    return ncclInvalidArgument;
  *out = value;
  return ncclSuccess;
}

ncclResult_t pncclCommCount(const ncclComm_t comm, int *count)
{
  return SIM_CALL(ncclCommCount, WITH(comm, ncclCommCount, comm_number(comm, comm->nranks, count)), "comm=%p", P(comm));
}

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank)
{
  return SIM_CALL(ncclCommUserRank, WITH(comm, ncclCommUserRank, comm_number(comm, comm->rank, rank)), "comm=%p",
                  P(comm));
}

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device)
{
  return SIM_CALL(ncclCommCuDevice, WITH(comm, ncclCommCuDevice, comm_number(comm, comm->device, device)), "comm=%p",
                  P(comm));
}

static ncclResult_t async_error(ncclComm_t comm, ncclResult_t *error)
{
  if (!error)
    return ncclInvalidArgument;
  *error = comm_state(comm);
  return ncclSuccess;
}

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
  return SIM_CALL(ncclCommGetAsyncError, WITH(comm, ncclCommGetAsyncError, async_error(comm, error)), "comm=%p",
                  P(comm));
}

/* Registration */

/* A plain registration is of no consequence here; the handle only has to be one. */
static ncclResult_t plain_register(void *ptr, size_t size, void **handle)
{
  if (!ptr || size == 0 || !handle)
    return ncclInvalidArgument;
  *handle = calloc(1, sizeof(uint64_t));
  return ncclSuccess;
}

ncclResult_t pncclCommRegister(const ncclComm_t comm, void *ptr, size_t size, void **handle)
{
  return SIM_CALL(ncclCommRegister, WITH(comm, ncclCommRegister, plain_register(ptr, size, handle)),
                  "comm=%p %p size=%zu", P(comm), ptr, size);
}

static ncclResult_t plain_deregister(void *handle)
{
  free(handle);
  return ncclSuccess;
}

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle)
{
  return SIM_CALL(ncclCommDeregister, WITH(comm, ncclCommDeregister, plain_deregister(handle)), "comm=%p handle=%p",
                  P(comm), handle);
}

struct register_task {
  struct group_task task;
  void *ptr;
  size_t size;
  int flags;
  ncclWindow_t *window;
};

static ncclResult_t register_run(struct group_task *task)
{
  struct register_task *call = (struct register_task *)task;
  return symmetric_register(task->comm, call->ptr, call->size, call->flags, call->window);
}

/*
 * From 2.29.2 on the call checks its arguments and clears *window first, and 2.27 clears it; 2.28 leaves *window
 * alone until the window is made: at the end of the group, or when a non-blocking communicator has got to it.
 */
static ncclResult_t window_register(ncclComm_t comm, void *ptr, size_t size, ncclWindow_t *window, int flags)
{
  bool strict = nccl_version() >= 22902;
  if ((strict || nccl_version() < 22800) && window)
    *window = NULL;
  if (strict && (!window || !ptr || size == 0))
    return ncclInvalidArgument;
  if (!ptr || size == 0 || (strict && !symmetric_supported()))
    return ncclSuccess;
  group_start();
  ncclResult_t result = comm_ready(comm);
  if (result == ncclSuccess) {
    struct register_task *call = calloc(1, sizeof(*call));
    *call = (struct register_task){
        .task = {.phase = GROUP_REGISTER, .comm = comm, .run = register_run},
        .ptr = ptr,
        .size = size,
        .flags = flags,
        .window = window,
    };
    group_add(&call->task);
  }
  group_fail(result);
  ncclResult_t ended = group_end();
  if (result == ncclSuccess && ended != ncclInProgress)
    result = ended;
  return result;
}

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *ptr, size_t size, ncclWindow_t *window, int flags)
{
  return SIM_CALL(ncclCommWindowRegister,
                  WITH(comm, ncclCommWindowRegister, window_register(comm, ptr, size, window, flags)),
                  "comm=%p %p size=%zu flags=%d", P(comm), ptr, size, flags);
}

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
  return SIM_CALL(ncclCommWindowDeregister, WITH(comm, ncclCommWindowDeregister, symmetric_deregister(comm, window)),
                  "comm=%p window=%p", P(comm), P(window));
}

/* Reduction operators */

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                       ncclScalarResidence_t residence, ncclComm_t comm)
{
  return SIM_CALL(ncclRedOpCreatePreMulSum,
                  WITH(comm, ncclRedOpCreatePreMulSum, redop_create(comm, op, scalar, type, residence)),
                  "type=%u residence=%u comm=%p", type, residence, P(comm));
}

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
  return SIM_CALL(ncclRedOpDestroy, WITH(comm, ncclRedOpDestroy, redop_destroy(comm, op)), "op=%u comm=%p", op,
                  P(comm));
}

/* Work */

/*
 * The end of a call that is a group of its own where there is none. What is wrong with the call is from then on wrong
 * with a non-blocking communicator, until something under way on it ends and sets its state anew.
 */
ncclResult_t group_call_end(ncclComm_t comm, ncclResult_t result)
{
  bool state_counts = comm && !comm->config.blocking && !atomic_load(&comm->revoked);
  if (state_counts && result != ncclSuccess)
    atomic_store(&comm->state, result);
  group_fail(result);
  ncclResult_t ended = group_end();
  if (state_counts)
    return comm_state(comm);
  return result == ncclSuccess ? ended : result;
}

ncclResult_t operation_enqueue(const struct operation *call)
{
  ncclResult_t result = comm_check(call->comm, operation_name(call->function));
  group_start();
  if (result == ncclSuccess)
    result = operation_add(call);
  return group_call_end(call->comm, result);
}

ncclResult_t pncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream)
{
  const struct operation call = {.function = OPERATION_ALL_GATHER,
                                 .send = send,
                                 .recv = recv,
                                 .count = count,
                                 .type = type,
                                 .comm = comm,
                                 .stream = stream};
  return SIM_CALL(ncclAllGather, operation_enqueue(&call), "%p %p count=%zu type=%u comm=%p stream=%p", send, recv, count, type,
                  P(comm), P(stream));
}

ncclResult_t pncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream)
{
  const struct operation call = {.function = OPERATION_REDUCE_SCATTER,
                                 .send = send,
                                 .recv = recv,
                                 .count = count,
                                 .type = type,
                                 .asked = op,
                                 .comm = comm,
                                 .stream = stream};
  return SIM_CALL(ncclReduceScatter, operation_enqueue(&call), "%p %p count=%zu type=%u op=%u comm=%p stream=%p", send, recv,
                  count, type, op, P(comm), P(stream));
}

ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream)
{
  const struct operation call = {.function = OPERATION_ALL_REDUCE,
                                 .send = send,
                                 .recv = recv,
                                 .count = count,
                                 .type = type,
                                 .asked = op,
                                 .comm = comm,
                                 .stream = stream};
  return SIM_CALL(ncclAllReduce, operation_enqueue(&call), "%p %p count=%zu type=%u op=%u comm=%p stream=%p", send, recv, count,
                  type, op, P(comm), P(stream));
}

ncclResult_t pncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                            cudaStream_t stream)
{
  const struct operation call = {.function = OPERATION_BROADCAST,
                                 .send = send,
                                 .recv = recv,
                                 .count = count,
                                 .type = type,
                                 .root = root,
                                 .comm = comm,
                                 .stream = stream};
  return SIM_CALL(ncclBroadcast, operation_enqueue(&call), "%p %p count=%zu type=%u root=%d comm=%p stream=%p", send, recv, count,
                  type, root, P(comm), P(stream));
}

/* Through the exported name, as NCCL does: an interposer sees both. */
ncclResult_t pncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)
{
  return SIM_CALL(ncclBcast, ncclBroadcast(buffer, buffer, count, type, root, comm, stream),
                  "%p count=%zu type=%u root=%d comm=%p stream=%p", buffer, count, type, root, P(comm), P(stream));
}

ncclResult_t pncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                         ncclComm_t comm, cudaStream_t stream)
{
  const struct operation call = {.function = OPERATION_REDUCE,
                                 .send = send,
                                 .recv = recv,
                                 .count = count,
                                 .type = type,
                                 .asked = op,
                                 .root = root,
                                 .comm = comm,
                                 .stream = stream};
  return SIM_CALL(ncclReduce, operation_enqueue(&call), "%p %p count=%zu type=%u op=%u root=%d comm=%p stream=%p", send, recv,
                  count, type, op, root, P(comm), P(stream));
}

ncclResult_t pncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
  const struct operation call = {.function = OPERATION_ALL_TO_ALL,
                                 .send = send,
                                 .recv = recv,
                                 .count = count,
                                 .type = type,
                                 .comm = comm,
                                 .stream = stream};
  return SIM_CALL(ncclAlltoAll, operation_enqueue(&call), "%p %p count=%zu type=%u comm=%p stream=%p", send, recv, count, type,
                  P(comm), P(stream));
}

ncclResult_t pncclGather(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream)
{
  const struct operation call = {.function = OPERATION_GATHER,
                                 .send = send,
                                 .recv = recv,
                                 .count = count,
                                 .type = type,
                                 .root = root,
                                 .comm = comm,
                                 .stream = stream};
  return SIM_CALL(ncclGather, operation_enqueue(&call), "%p %p count=%zu type=%u root=%d comm=%p stream=%p", send, recv, count,
                  type, root, P(comm), P(stream));
}

ncclResult_t pncclScatter(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                          cudaStream_t stream)
{
  const struct operation call = {.function = OPERATION_SCATTER,
                                 .send = send,
                                 .recv = recv,
                                 .count = count,
                                 .type = type,
                                 .root = root,
                                 .comm = comm,
                                 .stream = stream};
  return SIM_CALL(ncclScatter, operation_enqueue(&call), "%p %p count=%zu type=%u root=%d comm=%p stream=%p", send, recv, count,
                  type, root, P(comm), P(stream));
}

static ncclResult_t transfer(ncclComm_t comm, bool send, void *data, size_t count, ncclDataType_t type, int peer,
                             cudaStream_t stream)
{
  ncclResult_t result = comm_check(comm, send ? "ncclSend" : "ncclRecv");
  group_start();
  if (result == ncclSuccess)
    result = p2p_add(comm, send, data, count, type, peer, stream);
  return group_call_end(comm, result);
}

ncclResult_t pncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream)
{
  return SIM_CALL(ncclSend, transfer(comm, true, (void *)send, count, type, peer, stream),
                  "%p count=%zu type=%u peer=%d comm=%p stream=%p", send, count, type, peer, P(comm), P(stream));
}

ncclResult_t pncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
  return SIM_CALL(ncclRecv, transfer(comm, false, recv, count, type, peer, stream),
                  "%p count=%zu type=%u peer=%d comm=%p stream=%p", recv, count, type, peer, P(comm), P(stream));
}

static ncclResult_t start(void)
{
  group_start();
  return ncclSuccess;
}

ncclResult_t pncclGroupStart(void)
{
  return SIM_CALL(ncclGroupStart, start(), "%s", "");
}

ncclResult_t pncclGroupEnd(void)
{
  return SIM_CALL(ncclGroupEnd, group_end(), "%s", "");
}

ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *info)
{
  (void)info;
  return SIM_CALL(ncclGroupSimulateEnd, group_drop(), "%s", "");
}

/* Memory */

/* Open to every device, as NCCL's is. */
static CUresult memory_open(uintptr_t base, size_t size)
{
  CUresult result = CUDA_SUCCESS;
  for (int device = 0; device < GPU->context_device_count() && result == CUDA_SUCCESS; device++) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result = GPU->vmm_set_access(base, size, &access, 1);
  }
  return result;
}

static ncclResult_t memory_alloc(void **ptr, size_t size)
{
  const size_t granularity = (size_t)2 << 20;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemGenericAllocationHandle handle;
  uintptr_t base = 0;
  if (!ptr || size == 0)
    return ncclInvalidArgument;
  if (GPU->context_enter(&prop.location.id) != CUDA_SUCCESS)
    return ncclUnhandledCudaError;
  size = (size + granularity - 1) / granularity * granularity;
  if (GPU->vmm_create(&handle, size, &prop) != CUDA_SUCCESS)
    return ncclUnhandledCudaError;
  CUresult result = GPU->vmm_reserve(&base, size, 0, 0);
  if (result == CUDA_SUCCESS)
    result = GPU->vmm_map(base, size, 0, handle);
  if (result == CUDA_SUCCESS)
    result = memory_open(base, size);
  GPU->vmm_release(handle);
  *ptr = (void *)base;
  return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t pncclMemAlloc(void **ptr, size_t size)
{
  return SIM_CALL(ncclMemAlloc, memory_alloc(ptr, size), "size=%zu", size);
}

static ncclResult_t memory_free(void *ptr)
{
  struct sim_memory found;
  if (!ptr || !GPU->memory_find(ptr, &found) || found.base != (uintptr_t)ptr || found.kind != SIM_MEMORY_MAPPED)
    return ncclInvalidArgument;
  GPU->stream_device_synchronize(found.device);
  GPU->vmm_unmap(found.base, found.size);
  GPU->vmm_unreserve(found.base, found.size);
  return ncclSuccess;
}

ncclResult_t pncclMemFree(void *ptr)
{
  return SIM_CALL(ncclMemFree, memory_free(ptr), "%p", ptr);
}

#define ALIAS(name, parameters) __attribute__((weak, alias("pnccl" #name))) ncclResult_t nccl##name parameters;
SIM_NCCL_FUNCTIONS(ALIAS)
#undef ALIAS
__attribute__((weak, alias("pncclGetErrorString"))) const char *ncclGetErrorString(ncclResult_t result);
__attribute__((weak, alias("pncclGetLastError"))) const char *ncclGetLastError(ncclComm_t comm);
