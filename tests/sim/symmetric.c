/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/symmetric.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/group.h"
#include "tests/sim/numeric.h"

/* Versions from which NCCL behaves otherwise; notes on each in README.md. */
enum {
  VERSION_START_ADDRESS_ONLY = 22800,
  VERSION_NULL_WITHOUT_SUPPORT = 22902,
  VERSION_ONE_SIDE = 22902,
  VERSION_KERNELS_POLL_ABORT = 22900,
  VERSION_NATIVE_AVERAGE = 23003,
  VERSION_RING_FIRST = 23003,
  VERSION_RELAXED_CAPTURE = 23007,
  VERSION_NO_ALL_REDUCE_AVERAGE = 23007, /* the last one of which that is known */
};

#define ALIGNMENT ((size_t)4096)
#define STRIDE_UNIT ((size_t)4 << 30)
#define SPACE_ALIGNMENT ((size_t)2 << 20)

struct symmetric_memory {
  struct symmetric_memory *next;
  CUmemGenericAllocationHandle handle;
  uintptr_t base;
  size_t size;
  size_t offset;
  unsigned int refs;
};

/*
 * One allocation of one rank in the flat range. Outlives the window: only its owner can take its memory out of what
 * NVLS kernels see. But the window's end is the end of this rank's claim to the peers' memory.
 */
struct symmetric_view {
  struct symmetric_view *next;
  const struct symmetric_memory *memory; /* this rank's, with which it was registered */
  uintptr_t base;
  size_t size;
};

struct window {
  struct window *next;
  uintptr_t base;
  size_t size;
  int flags;
  struct symmetric_memory *memory;
  void *registration;
  void *handle; /* a device address */
};

static bool enabled(const char *name)
{
  const char *value = getenv(name);
  return !value || strcmp(value, "0") != 0;
}

bool symmetric_supported(void)
{
  return enabled("NCCL_WIN_ENABLE") && enabled("NCCL_CUMEM_ENABLE");
}

/* What a rank tells the others of its allocation. */
struct segment {
  int pid;
  int fd; /* -1: it cannot be exported */
  size_t offset;
};

static uintptr_t peer_base(ncclComm_t comm, int rank, size_t offset)
{
  return comm->symmetric.flat + (size_t)rank * comm->symmetric.stride + offset;
}

static ncclResult_t flat_reserve(ncclComm_t comm)
{
  struct symmetric *symmetric = &comm->symmetric;
  size_t free;
  size_t total;
  if (symmetric->flat)
    return ncclSuccess;
  GPU->memory_info(comm->device, &free, &total);
  symmetric->stride = (total + STRIDE_UNIT - 1) / STRIDE_UNIT * STRIDE_UNIT;
  CUresult result = GPU->vmm_reserve(&symmetric->flat, symmetric->stride * (size_t)comm->nranks, SPACE_ALIGNMENT, 0);
  return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

/* The first gap that is large enough: the same on all ranks only as long as they do the same in the same order. */
static ncclResult_t space_take(ncclComm_t comm, struct symmetric_memory *memory)
{
  size_t offset = 0;
  struct symmetric_memory **at = &comm->symmetric.memories;
  for (; *at && (*at)->offset - offset < memory->size; at = &(*at)->next)
    offset = (*at)->offset + (*at)->size;
  if (comm->symmetric.stride - offset < memory->size)
    return ncclInternalError;
  memory->offset = offset;
  memory->next = *at;
  *at = memory;
  return ncclSuccess;
}

static void space_give(ncclComm_t comm, struct symmetric_memory *memory)
{
  struct symmetric_memory **at = &comm->symmetric.memories;
  while (*at != memory)
    at = &(*at)->next;
  *at = memory->next;
}

/* Unmaps what a rank has had there before. */
static void view_clear(ncclComm_t comm, uintptr_t base, size_t size)
{
  for (struct symmetric_view **at = &comm->symmetric.views; *at;) {
    struct symmetric_view *view = *at;
    if (view->base + view->size <= base || base + size <= view->base) {
      at = &view->next;
      continue;
    }
    GPU->vmm_unmap(view->base, view->size);
    *at = view->next;
    free(view);
  }
}

static CUresult view_map(ncclComm_t comm, uintptr_t base, size_t size, CUmemGenericAllocationHandle handle)
{
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, comm->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  view_clear(comm, base, size);
  CUresult result = GPU->vmm_map(base, size, 0, handle);
  return result == CUDA_SUCCESS ? GPU->vmm_set_access(base, size, &access, 1) : result;
}

static void view_add(ncclComm_t comm, const struct symmetric_memory *memory, uintptr_t base)
{
  struct symmetric_view *view = malloc(sizeof(*view));
  *view = (struct symmetric_view){.next = comm->symmetric.views, .memory = memory, .base = base, .size = memory->size};
  comm->symmetric.views = view;
}

/* Maps one rank's allocation with this rank's own size, which has to be the peer's too: whole handles only. */
static ncclResult_t peer_map(ncclComm_t comm, const struct symmetric_memory *memory, int rank,
                             const struct segment *segment)
{
  CUmemGenericAllocationHandle handle = memory->handle;
  if (rank != comm->rank) {
    int fd = segment->fd >= 0 ? shared_open_fd(segment->pid, segment->fd) : -1;
    if (fd < 0)
      return ncclUnhandledCudaError;
    CUresult imported = GPU->vmm_import(&handle, fd);
    close(fd);
    if (imported != CUDA_SUCCESS)
      return ncclUnhandledCudaError;
  }
  CUresult result = view_map(comm, peer_base(comm, rank, segment->offset), memory->size, handle);
  if (rank != comm->rank)
    GPU->vmm_release(handle);
  return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

/* NCCL's proxy hands descriptors out whatever the rank itself does, so a failed rank's stays open. */
static void orphan_add(ncclComm_t comm, int fd)
{
  struct symmetric *symmetric = &comm->symmetric;
  symmetric->orphans = realloc(symmetric->orphans, (symmetric->orphan_count + 1) * sizeof(int));
  symmetric->orphans[symmetric->orphan_count++] = fd;
}

/* From 2.30.3 on new memory begins with a gather in the ring. */
static enum shared_links first_links(void)
{
  return nccl_version() >= VERSION_RING_FIRST ? SHARED_RING : SHARED_CONNECT;
}

/* Collective. A rank that fails here leaves at once, and the others wait for it in the second gather. */
static ncclResult_t memory_map_all(ncclComm_t comm, const struct symmetric_memory *memory)
{
  struct segment own = {.pid = getpid(), .fd = -1, .offset = memory->offset};
  struct segment all[SHARED_MAX_RANKS];
  if (GPU->vmm_export(&own.fd, memory->handle) != CUDA_SUCCESS)
    own.fd = -1;
  ncclResult_t result = comm_gather(comm, first_links(), &own, all, sizeof(own));
  for (int r = 0; r < comm->nranks && result == ncclSuccess; r++)
    result = peer_map(comm, memory, r, &all[r]);
  if (result == ncclSuccess)
    result = comm_gather(comm, SHARED_CONNECT, NULL, NULL, 0);
  /* As in NCCL, what was mapped before a failure stays in the way: the next registration there fails too. */
  for (int r = 0; r < comm->nranks && result == ncclSuccess; r++)
    view_add(comm, memory, peer_base(comm, r, all[r].offset));
  if (own.fd >= 0 && result == ncclSuccess)
    close(own.fd);
  else if (own.fd >= 0)
    orphan_add(comm, own.fd);
  return result;
}

/* Takes the reference to the handle. One allocation is mapped once, however many windows it has. */
static ncclResult_t memory_obtain(ncclComm_t comm, CUmemGenericAllocationHandle handle, const struct sim_memory *found,
                                  struct symmetric_memory **out)
{
  for (struct symmetric_memory *at = comm->symmetric.memories; at; at = at->next)
    if (at->handle == handle) {
      GPU->vmm_release(handle);
      at->refs++;
      *out = at;
      return ncclSuccess;
    }
  struct symmetric_memory *memory = calloc(1, sizeof(*memory));
  *memory = (struct symmetric_memory){.handle = handle, .base = found->base, .size = found->size, .refs = 1};
  ncclResult_t result = flat_reserve(comm);
  if (result == ncclSuccess)
    result = space_take(comm, memory);
  if (result == ncclSuccess) {
    result = memory_map_all(comm, memory);
    if (result != ncclSuccess)
      space_give(comm, memory);
  }
  if (result != ncclSuccess) {
    GPU->vmm_release(handle);
    free(memory);
    return result;
  }
  *out = memory;
  return ncclSuccess;
}

/* Does not wait for work that uses the memory: it faults. */
static void memory_drop(ncclComm_t comm, struct symmetric_memory *memory)
{
  if (--memory->refs > 0)
    return;
  view_clear(comm, peer_base(comm, comm->rank, memory->offset), memory->size);
  for (struct symmetric_view *view = comm->symmetric.views; view; view = view->next)
    if (view->memory == memory) {
      GPU->vmm_disown(view->base);
      view->memory = NULL;
    }
  space_give(comm, memory);
  GPU->vmm_release(memory->handle);
  free(memory);
}

/* NCCL allocates device memory here, which breaks a capture; from 2.30.7 on it asks the driver to look away. */
static ncclResult_t capture_survives(void)
{
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool relaxed = nccl_version() >= VERSION_RELAXED_CAPTURE;
  if (relaxed)
    GPU->capture_exchange_mode(&mode);
  CUresult result = GPU->capture_unsafe();
  if (relaxed)
    GPU->capture_exchange_mode(&mode);
  return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

static void window_add(ncclComm_t comm, struct window *window)
{
  struct window **at = &comm->symmetric.windows;
  while (*at && (*at)->base <= window->base)
    at = &(*at)->next;
  window->next = *at;
  *at = window;
}

static ncclResult_t window_make(ncclComm_t comm, uintptr_t base, size_t size, int flags, struct window **out)
{
  struct sim_memory found;
  CUmemGenericAllocationHandle handle;
  struct symmetric_memory *memory;
  if (flags & NCCL_WIN_COLL_SYMMETRIC && !comm->symmetric.started) {
    /* The first window makes the barriers of the symmetric kernels, on all ranks together. */
    ncclResult_t met = comm_gather(comm, first_links(), NULL, NULL, 0);
    if (met != ncclSuccess)
      return met;
    comm->symmetric.started = true;
  }
  if (!GPU->memory_find((void *)base, &found))
    return ncclUnhandledCudaError;
  if ((base - found.base) % ALIGNMENT != 0)
    return ncclInvalidArgument;
  if (GPU->vmm_retain(&handle, (void *)base) != CUDA_SUCCESS)
    return ncclUnhandledCudaError;
  ncclResult_t result = memory_obtain(comm, handle, &found, &memory);
  if (result != ncclSuccess)
    return result;
  result = capture_survives();
  if (result != ncclSuccess) {
    memory_drop(comm, memory);
    return result;
  }
  *out = calloc(1, sizeof(**out));
  **out = (struct window){.base = base, .size = size, .flags = flags, .memory = memory};
  /* From 2.28 on a window is described in device memory, and its handle points there. */
  (*out)->handle = (void *)(peer_base(comm, comm->rank, memory->offset) + (base - found.base));
  window_add(comm, *out);
  return comm_gather(comm, SHARED_CONNECT, NULL, NULL, 0);
}

ncclResult_t symmetric_register(ncclComm_t comm, void *ptr, size_t size, int flags, ncclWindow_t *out)
{
  void *registration = NULL;
  struct window *window = NULL;
  /* Through the exported name, as NCCL does: an interposer sees this call. */
  ncclResult_t result = ncclCommRegister(comm, ptr, size, &registration);
  if (result != ncclSuccess)
    return result;
  if (!symmetric_supported()) {
    *out = registration;
    return ncclSuccess;
  }
  result = window_make(comm, (uintptr_t)ptr, size, flags, &window);
  if (result != ncclSuccess) {
    ncclCommDeregister(comm, registration);
    *out = NULL;
    return result;
  }
  window->registration = registration;
  *out = window->handle;
  return ncclSuccess;
}

ncclResult_t symmetric_deregister(ncclComm_t comm, ncclWindow_t handle)
{
  if (!handle)
    return ncclSuccess;
  if (!symmetric_supported())
    return ncclCommDeregister(comm, handle);
  for (struct window **at = &comm->symmetric.windows; *at; at = &(*at)->next) {
    struct window *window = *at;
    if (window->handle != (void *)handle)
      continue;
    memory_drop(comm, window->memory);
    ncclResult_t result = ncclCommDeregister(comm, window->registration);
    *at = window->next;
    free(window);
    return result;
  }
  control_die("ncclCommWindowDeregister of %p, which is no window of communicator %p", (void *)handle, (void *)comm);
}

void symmetric_finish(ncclComm_t comm)
{
  struct symmetric *symmetric = &comm->symmetric;
  while (symmetric->windows) {
    struct window *window = symmetric->windows;
    symmetric->windows = window->next;
    memory_drop(comm, window->memory);
    free(window->registration);
    free(window);
  }
  for (size_t i = 0; i < symmetric->orphan_count; i++)
    close(symmetric->orphans[i]);
  free(symmetric->orphans);
  if (!symmetric->flat)
    return;
  size_t size = symmetric->stride * (size_t)comm->nranks;
  view_clear(comm, symmetric->flat, size);
  /* A registration that failed half-way has left mappings behind. */
  for (struct sim_memory found; GPU->memory_find_from((void *)symmetric->flat, &found);) {
    if (found.base >= symmetric->flat + size)
      break;
    GPU->vmm_unmap(found.base, found.size);
  }
  GPU->vmm_unreserve(symmetric->flat, size);
  symmetric->flat = 0;
}

/* The decision */

/* By the start address alone from 2.28 on; 2.27 also looks at `count` elements, which is less than all. */
static const struct window *window_find(const struct operation *op, const void *ptr)
{
  size_t bytes = nccl_version() < VERSION_START_ADDRESS_ONLY ? op->count * numeric_size(op->type) : 1;
  uintptr_t base = (uintptr_t)ptr;
  for (const struct window *at = op->comm->symmetric.windows; at; at = at->next)
    if (at->base <= base && base - at->base < at->size && at->size - (base - at->base) >= bytes)
      return at->flags & NCCL_WIN_COLL_SYMMETRIC ? at : NULL;
  return NULL;
}

static size_t window_offset(const struct window *window, const void *ptr)
{
  return window->memory->offset + ((uintptr_t)ptr - window->memory->base);
}

static bool reaches(const struct window *window, size_t offset, size_t bytes)
{
  return window->flags & NCCL_WIN_COLL_SYMMETRIC && offset <= window->size && bytes <= window->size - offset;
}

bool symmetric_holds(ncclComm_t comm, const void *ptr, size_t bytes)
{
  for (const struct window *at = comm->symmetric.windows; at; at = at->next)
    if ((uintptr_t)ptr >= at->base && reaches(at, (uintptr_t)ptr - at->base, bytes))
      return true;
  return false;
}

void *symmetric_peer(ncclComm_t comm, ncclWindow_t handle, int peer, size_t offset, size_t bytes)
{
  for (const struct window *at = comm->symmetric.windows; at; at = at->next)
    if (at->handle == (void *)handle && reaches(at, offset, bytes))
      return (void *)peer_base(comm, peer, window_offset(at, (const void *)(at->base + offset)));
  return NULL;
}

static bool reduction_has_kernel(struct operation *op)
{
  if (numeric_is_integer(op->type) || op->type == ncclFloat64)
    return false;
  op->native_average = op->asked == ncclAvg && nccl_version() >= VERSION_NATIVE_AVERAGE;
  return op->asked == ncclSum || op->native_average;
}

/* A build of NCCL without some kernels, as SIM_NO_KERNEL says. */
static bool kernel_is_missing(const struct operation *op)
{
  const char *missing = getenv("SIM_NO_KERNEL");
  return missing && strstr(missing, operation_name(op->function));
}

bool symmetric_choose(struct operation *op, bool alone)
{
  if (op->config.size > 0 && op->config.algSelection && *op->config.algSelection)
    return op->symmetric = false; /* it names the others */
  if (op->comm->nranks == 1 || kernel_is_missing(op) || (nccl_version() < VERSION_START_ADDRESS_ONLY && !alone))
    return false;
  const struct window *send = window_find(op, op->send);
  const struct window *recv = window_find(op, op->recv);
  bool one_side = nccl_version() >= VERSION_ONE_SIDE;
  switch (op->function) {
  case OPERATION_ALL_GATHER:
    op->symmetric = recv && (send || one_side);
    break;
  case OPERATION_REDUCE_SCATTER:
    op->symmetric = send && (recv || one_side) && reduction_has_kernel(op);
    break;
  case OPERATION_ALL_REDUCE:
    op->symmetric = send && recv && reduction_has_kernel(op);
    if (op->symmetric && op->native_average && nccl_version() <= VERSION_NO_ALL_REDUCE_AVERAGE)
      control_die("ncclAllReduce with ncclAvg on windows: NCCL 2.30.3 to 2.30.7 index their kernel table with -1");
    break;
  case OPERATION_BROADCAST:
  case OPERATION_REDUCE:
  case OPERATION_ALL_TO_ALL:
  case OPERATION_GATHER:
  case OPERATION_SCATTER:
    break;
  }
  if (op->symmetric && send)
    op->send_offset = window_offset(send, op->send);
  if (op->symmetric && recv)
    op->recv_offset = window_offset(recv, op->recv);
  return op->symmetric;
}

/* The work */

/* False: the communicator was aborted, and this version's kernels look at that. */
static bool barrier(ncclComm_t comm)
{
  struct shared_abort abort = {{NULL, NULL}};
  if (nccl_version() >= VERSION_KERNELS_POLL_ABORT)
    abort = comm_abort_flags(comm);
  unsigned int phase = ++comm->symmetric_barrier;
  shared_post(&comm->shared->ranks[comm->rank].symmetric, phase);
  for (int r = 0; r < comm->nranks; r++)
    if (!shared_wait(&comm->shared->ranks[r].symmetric, phase, abort))
      return false;
  return true;
}

static void all_gather(const struct operation *op)
{
  size_t bytes = op->count * numeric_size(op->type);
  for (int r = 0; r < op->comm->nranks; r++) {
    char *there = (char *)peer_base(op->comm, r, op->recv_offset) + (size_t)op->comm->rank * bytes;
    if (there != op->send)
      memmove(there, op->send, bytes);
  }
}

/* Sums `count` elements of every rank's send buffer, from `first` on, beginning with this rank's. */
static void sum_peers(const struct operation *op, void *dst, size_t first, size_t count)
{
  const void *sources[SHARED_MAX_RANKS];
  ncclComm_t comm = op->comm;
  size_t size = numeric_size(op->type);
  for (int i = 0; i < comm->nranks; i++)
    sources[i] = (char *)peer_base(comm, (comm->rank + i) % comm->nranks, op->send_offset) + first * size;
  numeric_sum_wide(op->type, dst, sources, comm->nranks, count, op->native_average);
}

/* Each rank sums a slice and hands it to all; in NCCL too all ranks end with the same bits. */
static void all_reduce(const struct operation *op)
{
  size_t size = numeric_size(op->type);
  size_t n = (size_t)op->comm->nranks;
  size_t slice = (op->count + n - 1) / n;
  size_t first = slice * (size_t)op->comm->rank;
  if (first >= op->count)
    return;
  size_t count = op->count - first < slice ? op->count - first : slice;
  void *sum = malloc(count * size);
  sum_peers(op, sum, first, count);
  for (int r = 0; r < op->comm->nranks; r++)
    memcpy((char *)peer_base(op->comm, r, op->recv_offset) + first * size, sum, count * size);
  free(sum);
}

void symmetric_run(struct operation *op)
{
  if (!barrier(op->comm))
    return;
  if (op->function == OPERATION_ALL_GATHER)
    all_gather(op);
  else if (op->function == OPERATION_REDUCE_SCATTER)
    sum_peers(op, op->recv, (size_t)op->comm->rank * op->count, op->count);
  else
    all_reduce(op);
  barrier(op->comm);
}
