/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena: device memory that NCCL can share. Per device one huge reserved address range; in it segments, each
 * one VMM allocation (cuMemCreate) mapped whole, as a window wants it.
 *
 * Owns the ranges, the segments and the memory that is parked. Calls the CUDA driver, and the runtime's waits where
 * their failure is to be the job's last error, with no lock held; knows nothing of NCCL. A segment's id is never used
 * twice in a process, so what is known of a freed segment is never taken for a new one at the same address.
 */
#ifndef SYMMSHIM_ARENA_H
#define SYMMSHIM_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shim/abi/cuda.h"

enum { ARENA_PARKED_FIT = 8 /* a parked segment is reused when it is at most 1/8 larger than asked for */ };

struct segment {
  uint64_t id; /* from 1; 0 while the table's entry is free */
  uintptr_t base;
  size_t size; /* bytes mapped: a multiple of the granularity, 2 MiB on the GPUs known so far */
  int device;
  uint32_t windows; /* windows that hold it, and exports under way */
  uint32_t lives;   /* how often the job has got it again after it was parked */
  bool backed;      /* its memory is there, and may be exported; under arena.c's lock */
  bool parked;      /* freed by the job, kept for a window's sake */
  bool retired;     /* parked for good: a slot's memory or a reset device's, never the job's */
  bool unsettled;   /* parked until the device can be waited for, which a capture forbade */
  bool imported;    /* another process's: mapped here, and no part of the arena for anyone else */
  bool refused;     /* as a new window of what only this rank touches; set outside arena.c, by layout.c */
  CUmemGenericAllocationHandle handle;
};

/* Whose memory it is to be: the job's may be a parked segment, which is a window already; a slot's must be none. */
enum arena_kind { ARENA_JOB, ARENA_SLOT };

/*
 * Allocates on the current device. Returns 0; -ENOMEM when the device or the policy's cap is out of memory;
 * another negative errno when the arena cannot serve (no driver, no context, no VMM, tables full).
 */
int arena_alloc(void **ptr, size_t size, size_t max_bytes, enum arena_kind kind);

/*
 * Frees what arena_alloc gave, after waiting for the segment's device as cudaFree does; a segment with windows is
 * parked instead. Returns false when `ptr` is not the base of a live segment: then it is not the arena's business.
 * A failure is the runtime's last error too.
 */
bool arena_free(void *ptr, cudaError_t *result);

/* The same after what is in the stream, which is what cudaFreeAsync has to wait for. */
bool arena_free_in_stream(void *ptr, cudaStream_t stream, cudaError_t *result);

/*
 * Gives back what was freed where its device could not be waited for, if this thread may wait now; as every
 * arena_free() does. Returns whether memory went back.
 */
bool arena_settle_freed(void);

/* The live segment that holds an address, or NULL; read only outside arena.c. Lock-free. */
struct segment *arena_find(const void *ptr);

/* All memory of a device is gone, but for what windows hold, which goes with them, and imports (cudaDeviceReset). */
void arena_forget_device(int device);

/* Lets go of a segment that the shim itself allocated: it stays only as long as a window holds it. Never waits. */
void arena_retire(struct segment *segment);

/* How much of a device is parked: free to the job, since cudaMalloc gives it out again or makes room with it. */
size_t arena_parked_bytes(int device);

/* Whether more than `max` bytes of a device are parked, and would come back if windows were given up. */
bool arena_is_parking_more_than(uint64_t max);

/* A window holds the segment, or no longer does. The last one of a parked segment gives the memory back. */
void arena_pin(struct segment *segment);
void arena_unpin(struct segment *segment);

/* Lets `accessor` read and write all memory of `owner`, present and future (cudaDeviceEnablePeerAccess). */
void arena_grant(int owner, int accessor);

/*
 * Memory of one process's arena in another one (CUDA IPC). An export is a descriptor of the live segment with that id
 * and number of lives, or -ESTALE when the job has freed it, or another negative errno. It may come from any thread.
 * An import maps such a descriptor, which stays the caller's, for the current device and for all that may use the
 * current device's memory; arena_find() never gives it.
 */
int arena_export(uint64_t id, uint32_t lives);
CUresult arena_import(int fd, size_t size, void **ptr);
void arena_unimport(void *ptr);

/* Waits for the work of all devices that the arena has served. */
CUresult arena_settle(void);

/* The current device has memory of whatever kind from now on, so it may reach the arena's of other devices. */
void arena_meet(void);

/* Whether the arena ever gave out memory. */
bool arena_is_used(void);

#endif
