/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of NCCL's profiler interface is in use, versions 4 (2.27), 5 (2.28) and 6 (2.29 to 2.30.7). NCCL opens the
 * object that NCCL_PROFILER_PLUGIN names and looks for ncclProfiler_v6, _v5 .. _v1 in it, the newest that it knows
 * first (src/plugin/profiler.cc).
 *
 * Of an event only the head is declared: its type, one byte in version 4 and eight from 5 on, and its parent. Nothing
 * is allocated by NCCL on our behalf, so what comes behind need not be known.
 */
#ifndef SYMMSHIM_ABI_PROFILER_H
#define SYMMSHIM_ABI_PROFILER_H

#include <stdint.h>

#include "shim/abi/nccl.h"

/* Types of event, and bits of the mask that asks for them. The mask's bit of Coll brings Group and the API's too. */
enum {
  ABI_PROFILE_GROUP = 1 << 0, /* a kernel of the ordinary kind is launched; version 4: without a handle of it no Coll */
  ABI_PROFILE_COLL = 1 << 1,  /* a collective in such a kernel */
  ABI_PROFILE_GROUP_API = 1 << 8, /* from version 5: the caller's group */
  ABI_PROFILE_COLL_API = 1 << 9   /* from version 5: the caller's collective, whatever becomes of it */
};

struct abi_profile_event_v4 {
  uint8_t type;
  void *parent;
};

struct abi_profile_event {
  uint64_t type;
  void *parent; /* of Coll: the handle that was given for its API event */
};

typedef void (*abi_profile_log)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

struct abi_profiler_v4 {
  const char *name;
  ncclResult_t (*init)(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int nodes, int nranks,
                       int rank, abi_profile_log log);
  ncclResult_t (*start)(void *context, void **handle, struct abi_profile_event_v4 *event);
  ncclResult_t (*stop)(void *handle);
  ncclResult_t (*record)(void *handle, int state, void *arguments);
  ncclResult_t (*finalize)(void *context);
};

/* Version 6 adds events of copy engines, which are not asked for; else it is version 5. */
struct abi_profiler {
  const char *name;
  ncclResult_t (*init)(void **context, uint64_t comm_hash, int *mask, const char *comm_name, int nodes, int nranks,
                       int rank, abi_profile_log log);
  ncclResult_t (*start)(void *context, void **handle, struct abi_profile_event *event);
  ncclResult_t (*stop)(void *handle);
  ncclResult_t (*record)(void *handle, int state, void *arguments);
  ncclResult_t (*finalize)(void *context);
};

#endif
