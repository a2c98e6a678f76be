/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the engine share among themselves. Inside libcuda.so.1 the functions of the engine's table
 * carry the prefix gpu_.
 *
 * Two locks: gpu_lock over streams, operations, events and captures (one condition variable, broadcast whenever
 * an operation ends), and memory.c's own over the map of memory. gpu_lock is taken first.
 */
#ifndef SYMMSHIM_SIM_GPU_H
#define SYMMSHIM_SIM_GPU_H

#include <pthread.h>
#include <time.h>

#include "tests/sim/control.h"
#include "tests/sim/engine.h"

#define GPU_DECLARE(result, name, parameters) result gpu_##name parameters;
SIM_ENGINE(GPU_DECLARE)
#undef GPU_DECLARE

enum { GPU_MAX_DEVICES = 16, GPU_VERSION = 13000 };

#define GPU_GRANULARITY ((size_t)2 << 20)

extern pthread_mutex_t gpu_lock;
extern pthread_cond_t gpu_cond;

struct CUctx_st {
  int device;
  bool active;
};

/* Work that streams and graphs share. */
struct gpu_work {
  unsigned int refs;
  struct sim_work work;
};

/* Work in a stream's queue. Whoever wants to know when it has ended holds a reference. */
struct gpu_op {
  unsigned int refs;
  bool done;
  struct timespec ended;
  struct gpu_work *work; /* NULL: nothing but the waiting */
  struct gpu_op **needs;
  size_t need_count;
  struct gpu_op *next;
};

/* Which nodes of a capture something comes after. */
struct gpu_set {
  size_t *nodes;
  size_t count;
};

enum gpu_node_kind { GPU_NODE_WORK, GPU_NODE_RECORD, GPU_NODE_WAIT };

struct gpu_node {
  enum gpu_node_kind kind;
  struct gpu_work *work;
  struct sim_chain *chain;
  CUevent event; /* to record or to wait for, as it is when the graph is launched */
  struct gpu_set needs;
};

/* The user objects that a graph keeps alive. */
struct gpu_objects {
  struct gpu_object_hold *holds;
  size_t count;
};

/* A graph, or one that a capture is still writing: that the capture ends, or destroys. */
struct CUgraph_st {
  struct CUgraph_st *next; /* in the list of all graphs */
  struct gpu_node *nodes;
  size_t count;
  struct gpu_objects objects;
};

struct gpu_capture {
  unsigned int refs;
  uint64_t id;
  CUstreamCaptureMode mode;
  pthread_t owner;
  CUstream origin;
  bool invalid;
  bool ended;
  cudaGraph_t graph;        /* NULL once it has ended */
  struct gpu_capture *next; /* in the list of captures under way */
};

struct CUstream_st {
  struct CUstream_st *next; /* in the list of all streams */
  int device;
  unsigned int flags;
  bool legacy;
  bool closing;
  bool started;
  struct gpu_op *head;
  struct gpu_op *tail;
  struct gpu_op *last; /* the newest operation, ended or not */
  struct gpu_capture *capture;
  struct gpu_set capture_set;
  CUgraphNode *handles; /* of capture_set, as the last query gave them */
};

struct CUevent_st {
  struct CUevent_st *next; /* in the list of all events */
  unsigned int flags;
  struct gpu_op *op; /* NULL: never recorded */
  struct gpu_capture *capture;
  struct gpu_set capture_set;
};

struct sim_chain {
  struct gpu_op *last;
};

/* The functions below are called with gpu_lock held, unless they say otherwise. */

struct gpu_work *gpu_work_create(const struct sim_work *work);
void gpu_work_release(struct gpu_work *work);
struct gpu_op *gpu_op_hold(struct gpu_op *op);
void gpu_op_release(struct gpu_op *op);

/* Finds the stream behind a handle (0, 0x1 and 0x2 included); NULL where it is none. */
CUstream gpu_stream_find(CUstream handle);
CUstream gpu_stream_list(void);

/* Queues work after the stream's earlier work, the chain's and `after`; takes a reference of its own. */
struct gpu_op *gpu_stream_enqueue(CUstream stream, struct gpu_work *work, struct sim_chain *chain,
                                  struct gpu_op *after);
CUresult gpu_stream_append(CUstream stream, const struct gpu_node *node);
/* Starts a thread of the driver's own, which takes none of the host program's signals. */
void gpu_thread_start(void *(*run)(void *arg), void *arg);

/* Sleeps until the operation has ended; NULL has. */
void gpu_op_wait(struct gpu_op *op);

void gpu_set_copy(struct gpu_set *to, const struct gpu_set *from);
void gpu_set_join(struct gpu_set *to, const struct gpu_set *from);
void gpu_set_clear(struct gpu_set *set);
CUresult gpu_capture_add(CUstream stream, const struct gpu_node *node);
void gpu_capture_hold(struct gpu_capture *capture);
void gpu_capture_release(struct gpu_capture *capture);
/* When its first stream goes nobody can end it any more. */
void gpu_capture_abandon(struct gpu_capture *capture);
CUresult gpu_capture_unsafe_locked(void);
/* The legacy stream may not be used while a blocking stream of its device is captured: breaks those captures. */
CUresult gpu_capture_check_legacy(CUstream stream);

cudaGraph_t gpu_graph_new(void);
void gpu_graph_add(cudaGraph_t graph, const struct gpu_node *node, const struct gpu_set *needs);
void gpu_graph_free(cudaGraph_t graph);
cudaGraph_t gpu_graph_find(cudaGraph_t graph);

/* Does what an event's node of a graph says, in a stream that is not captured. */
void gpu_event_replay(CUstream stream, const struct gpu_node *node);

void gpu_objects_add(struct gpu_objects *objects, CUuserObject object, unsigned int count);
bool gpu_objects_remove(struct gpu_objects *objects, CUuserObject object, unsigned int count);
void gpu_objects_copy(struct gpu_objects *to, const struct gpu_objects *from);
void gpu_objects_clear(struct gpu_objects *objects);
/* No lock needed: whether this thread is in the callback of a user object, where no call of CUDA's is allowed. */
bool gpu_object_callback(void);

/* No lock needed: the current context, NULL where this thread has none. */
CUcontext gpu_context_current(void);
void gpu_context_make_current(CUcontext context);
CUcontext gpu_context_primary(int device);
/* CUDA_ERROR_NOT_INITIALIZED before cuInit and in a forked child, CUDA_ERROR_INVALID_CONTEXT without a context. */
CUresult gpu_context_check(bool need_context);
bool gpu_context_is_active(int device);
CUresult gpu_context_push(CUcontext context);
CUresult gpu_context_pop(CUcontext *context);

void gpu_memory_reset(int device); /* memory.c for context.c */

/* memory.c for vmm.c and ipc.c; takes memory.c's lock itself where it does not say otherwise. */
void gpu_memory_lock(void);
void gpu_memory_unlock(void);
size_t gpu_memory_total(void);
void gpu_vmm_sweep(void);                             /* locked: takes back what other processes have let go of */
bool gpu_memory_take(int device, size_t size);        /* locked */
void gpu_memory_give(int device, size_t size);        /* locked */
/* Takes plain memory back without waiting for the device; locks itself. */
void gpu_memory_drop(uintptr_t base);
struct sim_memory *gpu_memory_at(uintptr_t ptr);      /* locked */
struct sim_memory *gpu_memory_next(uintptr_t ptr);    /* locked: the first that ends after ptr */
void gpu_memory_insert(const struct sim_memory *new); /* locked */
void gpu_memory_remove(uintptr_t base);               /* locked */
int gpu_memory_share(uintptr_t base); /* locked: moves plain memory into a file; its descriptor, or -1 */
void *gpu_memory_map_file(int fd, int device, size_t size); /* locked: another process's; NULL if it cannot be */
void gpu_memory_unmap_file(uintptr_t base);                 /* locked */

#endif
