/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated GPU as the other two stand-ins see it. libcuda.so.1 holds the one engine of a process; the
 * runtime's and NCCL's stand-ins fetch this table with dlsym("sim_engine") and never call the exported cu*
 * functions, because the real ones do not either (so neither the record nor SIM_FAIL sees them do it).
 *
 * All functions return a CUresult unless they return nothing; the codes are the runtime's too.
 */
#ifndef SYMMSHIM_SIM_ENGINE_H
#define SYMMSHIM_SIM_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/sim_abi.h"

/* The order of a communicator's work: what is submitted with a chain runs after all before it on that chain. */
struct sim_chain;

/* A piece of work for a stream. `drop` frees `arg` when no stream and no graph can run it any more. */
struct sim_work {
  void (*run)(void *arg);
  void (*drop)(void *arg);
  void *arg;
};

enum sim_memory_kind { SIM_MEMORY_NONE, SIM_MEMORY_PLAIN, SIM_MEMORY_MAPPED, SIM_MEMORY_HOST, SIM_MEMORY_IPC };

/* One allocation or one mapping. */
struct sim_memory {
  uintptr_t base;
  size_t size;
  enum sim_memory_kind kind;
  int device;
  unsigned int access;                 /* mapped memory: a bit for each device that may use it */
  CUmemGenericAllocationHandle handle; /* mapped memory */
  int file;                            /* plain memory that was exported: its descriptor plus 1, else 0 */
  bool pooled;                         /* plain memory that came from a stream-ordered pool */
};

/* What a stream's capture is; all but the status and the id only where it is active. */
struct sim_capture_info {
  CUstreamCaptureStatus status;
  uint64_t id; /* 0: none */
  CUgraph graph;
  const CUgraphNode *dependencies;
  size_t count;
};

#define SIM_ENGINE(X)                                                                                                  \
  /* context.c */                                                                                                      \
  X(CUresult, context_init, (void))                                                                                    \
  X(int, context_device_count, (void))                                                                                 \
  X(CUresult, context_set_device, (int device))                                                                        \
  X(int, context_device, (void))                                                                                       \
  X(CUresult, context_enter, (int *device)) /* make the current device's primary context current, as the runtime */    \
  X(CUresult, context_peer_set, (int device, int peer, bool enable))                                                   \
  X(CUresult, context_reset, (void)) /* the current device's */                                                        \
  /* memory.c */                                                                                                       \
  X(CUresult, memory_alloc, (int device, size_t size, void **ptr))                                                     \
  X(CUresult, memory_free, (void *ptr))                                                                                \
  X(CUresult, memory_host_alloc, (size_t size, void **ptr))                                                            \
  X(CUresult, memory_host_free, (void *ptr))                                                                           \
  X(CUresult, memory_info, (int device, size_t *free, size_t *total))                                                  \
  X(CUresult, memory_charge, (int device, size_t size)) /* memory that is only counted */                              \
  X(void, memory_discharge, (int device, size_t size))                                                                 \
  X(bool, memory_find, (const void *ptr, struct sim_memory *found))                                                    \
  X(bool, memory_find_from, (const void *ptr, struct sim_memory *found)) /* the first that ends after ptr */           \
  X(CUresult, memory_copy_check, (const void *dst, const void *src, size_t count))                                     \
  /* ipc.c */                                                                                                          \
  X(CUresult, ipc_export, (const void *ptr, cudaIpcMemHandle_t *handle))                                               \
  X(CUresult, ipc_open, (void **ptr, const cudaIpcMemHandle_t *handle, unsigned int flags))                            \
  X(CUresult, ipc_close, (void *ptr))                                                                                  \
  /* pool.c */                                                                                                         \
  X(CUresult, pool_alloc, (int device, size_t size, CUstream stream, void **ptr))                                      \
  X(CUresult, pool_free, (void *ptr, CUstream stream))                                                                 \
  /* vmm.c */                                                                                                          \
  X(CUresult, vmm_reserve, (uintptr_t * base, size_t size, size_t alignment, uintptr_t hint))                          \
  X(CUresult, vmm_unreserve, (uintptr_t base, size_t size))                                                            \
  X(CUresult, vmm_create, (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop))       \
  X(CUresult, vmm_release, (CUmemGenericAllocationHandle handle))                                                      \
  X(CUresult, vmm_retain, (CUmemGenericAllocationHandle * handle, const void *ptr))                                    \
  X(CUresult, vmm_map, (uintptr_t base, size_t size, size_t offset, CUmemGenericAllocationHandle handle))              \
  X(CUresult, vmm_unmap, (uintptr_t base, size_t size))                                                                \
  X(CUresult, vmm_set_access, (uintptr_t base, size_t size, const CUmemAccessDesc *desc, size_t count))                \
  X(CUresult, vmm_export, (int *fd, CUmemGenericAllocationHandle handle))                                              \
  X(CUresult, vmm_import, (CUmemGenericAllocationHandle * handle, int fd))                                             \
  X(void, vmm_disown, (uintptr_t base))                                                                                \
  X(CUresult, vmm_properties, (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle))                       \
  /* stream.c */                                                                                                       \
  X(CUresult, stream_create, (CUstream * stream, int device, unsigned int flags))                                      \
  X(CUresult, stream_destroy, (CUstream stream))                                                                       \
  X(CUresult, stream_synchronize, (CUstream stream))                                                                   \
  X(CUresult, stream_query, (CUstream stream))                                                                         \
  X(CUresult, stream_submit, (CUstream stream, const struct sim_work *work, struct sim_chain *chain))                  \
  X(CUresult, stream_device_synchronize, (int device))                                                                 \
  X(struct sim_chain *, chain_create, (void))                                                                          \
  X(void, chain_wait, (struct sim_chain * chain))                                                                      \
  X(void, chain_destroy, (struct sim_chain * chain))                                                                   \
  /* event.c */                                                                                                        \
  X(CUresult, event_create, (CUevent * event, unsigned int flags))                                                     \
  X(CUresult, event_destroy, (CUevent event))                                                                          \
  X(CUresult, event_record, (CUevent event, CUstream stream, unsigned int flags))                                      \
  X(CUresult, event_wait, (CUstream stream, CUevent event, unsigned int flags))                                        \
  X(CUresult, event_synchronize, (CUevent event))                                                                      \
  X(CUresult, event_query, (CUevent event))                                                                            \
  X(CUresult, event_elapsed, (float *ms, CUevent start, CUevent end))                                                  \
  /* capture.c */                                                                                                      \
  X(CUresult, capture_begin, (CUstream stream, CUstreamCaptureMode mode))                                              \
  X(CUresult, capture_end, (CUstream stream, cudaGraph_t * graph))                                                     \
  X(CUresult, capture_status, (CUstream stream, CUstreamCaptureStatus * status))                                       \
  X(CUresult, capture_exchange_mode, (CUstreamCaptureMode * mode))                                                     \
  X(CUresult, capture_unsafe, (void))     /* an error where a capture forbids such calls; that breaks the capture */   \
  X(CUresult, capture_wait, (int device)) /* the same of a wait for a device: whatever the thread's mode */            \
  X(CUresult, capture_info, (CUstream stream, struct sim_capture_info * info))                                         \
  /* graph.c */                                                                                                        \
  X(CUresult, graph_instantiate, (cudaGraphExec_t * exec, cudaGraph_t graph))                                          \
  X(CUresult, graph_launch, (cudaGraphExec_t exec, CUstream stream))                                                   \
  X(CUresult, graph_destroy, (cudaGraph_t graph))                                                                      \
  X(CUresult, graph_exec_destroy, (cudaGraphExec_t exec))                                                              \
  X(CUresult, graph_retain_object, (cudaGraph_t graph, CUuserObject object, unsigned int count, unsigned int flags))   \
  X(CUresult, graph_release_object, (cudaGraph_t graph, CUuserObject object, unsigned int count))                      \
  /* user_object.c */                                                                                                  \
  X(CUresult, object_create,                                                                                           \
    (CUuserObject * object, void *data, CUhostFn destroy, unsigned int count, unsigned int flags))                     \
  X(CUresult, object_retain, (CUuserObject object, unsigned int count))                                                \
  X(CUresult, object_release, (CUuserObject object, unsigned int count))                                               \
  /* copy.c */                                                                                                         \
  X(CUresult, copy_submit, (void *dst, const void *src, size_t count, CUstream stream))                                \
  X(CUresult, copy_device, (void *dst, const void *src, size_t count, CUstream stream)) /* no pageable memory */       \
  X(CUresult, copy_now, (void *dst, const void *src, size_t count))                                                    \
  X(CUresult, copy_fill, (void *dst, int value, size_t count, CUstream stream))                                        \
  /* errors.c */                                                                                                       \
  X(const char *, error_name, (CUresult error))                                                                        \
  X(const char *, error_text, (CUresult error))

#define SIM_ENGINE_MEMBER(result, name, parameters) result(*name) parameters;
struct sim_engine {
  SIM_ENGINE(SIM_ENGINE_MEMBER)
};
#undef SIM_ENGINE_MEMBER

/* Exported by libcuda.so.1. */
const struct sim_engine *sim_engine(void);

#endif
