/* SPDX-License-Identifier: Apache-2.0 */
/* One collective, as it stands in a stream's queue or in a graph. */
#ifndef SYMMSHIM_SIM_OPERATION_H
#define SYMMSHIM_SIM_OPERATION_H

#include "tests/sim/comm.h"

enum operation_function {
  OPERATION_ALL_GATHER,
  OPERATION_REDUCE_SCATTER,
  OPERATION_ALL_REDUCE,
  OPERATION_BROADCAST,
  OPERATION_REDUCE,
  OPERATION_ALL_TO_ALL,
  OPERATION_GATHER,
  OPERATION_SCATTER,
};

struct operation {
  ncclComm_t comm;
  enum operation_function function;
  const void *send;
  void *recv;
  size_t count; /* as in the call */
  ncclDataType_t type;
  ncclRedOp_t op; /* what to do with two elements: sum, prod, max, min */
  bool average;   /* of integers: divide at the end */
  bool scale;     /* multiply each contribution first, by: */
  _Alignas(8) unsigned char scalar[8];
  const void *scalar_pointer; /* read when the operation runs; NULL: the value above */
  int root;
  ncclRedOp_t asked; /* the op of the call */
  CUstream stream;
  ncclCollConfig_t config; /* size 0: none was given */
  void *api_event; /* of the profiler plugin's */
  /* The symmetric path. */
  bool symmetric;
  bool native_average;
  size_t send_offset;
  size_t recv_offset;
};

const char *operation_name(enum operation_function function);

/* Checks the arguments and adds the operation to the open group. */
ncclResult_t operation_add(const struct operation *call);

/* The same as an exported function does it: a group of its own where there is none. */
ncclResult_t operation_enqueue(const struct operation *call);

#endif
