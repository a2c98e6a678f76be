/* SPDX-License-Identifier: Apache-2.0 */
/* libnccl.so.2, as far as a program of null.h's kind and the shim need it. */
#include "tools/bench/null.h"

#include "shim/hooks.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

struct ncclComm {
  int nranks, rank;
  uint64_t is_child;
};

enum { COMMS = 16 };

static struct ncclComm comms[COMMS];
static int comm_count;
static uint64_t calls_on_child;
static char window; /* the only one: nothing looks behind the handle */

void (*null_meet)(void);

#define DECLARE(library, name, ret, params, args, missing) DECLARE_##library(ret, name, params)
#define DECLARE_NCCL(ret, name, params) ret name params;
#define DECLARE_CUDART(ret, name, params)
HOOKS(DECLARE)
CALLED(DECLARE)

ncclComm_t null_comm(int nranks, int rank)
{
  if (comm_count == COMMS)
    return NULL;
  comms[comm_count] = (struct ncclComm){.nranks = nranks, .rank = rank};
  return &comms[comm_count++];
}

uint64_t null_calls_on_child(void)
{
  return calls_on_child;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
  if (null_meet)
    null_meet();
  *comm = null_comm(nranks, rank);
  return *comm ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
  *newcomm = null_comm(comm->nranks, comm->rank);
  if (!*newcomm)
    return ncclSystemError;
  (*newcomm)->is_child = 1;
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
  *count = comm->nranks;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
  (void)comm;
  *asyncError = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version)
{
  *version = 22809;
  return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)
{
  *win = (ncclWindow_t)(void *)&window;
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream)
{
  calls_on_child += comm->is_child;
  return ncclSuccess;
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
  calls_on_child += comm->is_child;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
  calls_on_child += comm->is_child;
  return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
  calls_on_child += comm->is_child;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
  return ncclSuccess;
}
