/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the measuring rank share. rank.c owns it all, and measures. */
#ifndef SYMMSHIM_GPU_RANK_H
#define SYMMSHIM_GPU_RANK_H

#include <stdint.h>

#include "tools/gpu/api.h"
#include "tools/gpu/region.h"

extern struct gpu_region *region;
extern int rank;
extern cudaStream_t stream;

/* A communicator and a pair of buffers for one way. */
struct lane {
  ncclComm_t comm;
  char *send, *recv;
  bool unseen; /* its calls go by pncclX */
};

/* Ends this rank; the first one's message is what the command says. */
void give_up(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#define CUDA(call)                                                                                                     \
  do {                                                                                                                 \
    cudaError_t cuda_result = (call);                                                                                  \
    if (cuda_result != cudaSuccess)                                                                                    \
      give_up("rank %d: %.80s: %s", rank, #call, cudaGetErrorString(cuda_result));                                     \
  } while (0)
#define NCCL(call)                                                                                                     \
  do {                                                                                                                 \
    ncclResult_t nccl_result = (call);                                                                                 \
    if (nccl_result != ncclSuccess)                                                                                    \
      give_up("rank %d: %.80s: %s", rank, #call, ncclGetErrorString(nccl_result));                                     \
  } while (0)

/* Returns when all ranks are here. */
void meet(void);

/* A symbol of the driver, which the runtime has loaded; NULL where there is none. */
void *driver_symbol(const char *name);

/* Whether a way has anything to say on a case. */
bool applies(const struct gpu_case *what, int way);

ncclResult_t make_call(const struct gpu_case *what, const struct lane *lane);

/* rank_data.c: bytes of a call's two sides; random contents; how far a result is from stock's. */
uint64_t send_bytes(const struct gpu_case *what);
uint64_t recv_bytes(const struct gpu_case *what);
void fill(void *device, uint64_t bytes, enum policy_dtype dtype);

/* The largest difference, relative to the largest element of stock's, over the first and the last bytes. */
double difference(const struct gpu_case *what, const char *stock, const char *other);

/* rank_look.c: makes each call and finds in NCCL's log how many SMs it took. */
void look(const struct lane lanes[]);

/*
 * rank_busy.c: a kernel that keeps all SMs at work, over and over from busy_begin() on as long as busy_feed() is called
 * often. busy_end() gives how many times as long one took as alone, up to `last`, which has happened; 0 where that
 * cannot be said. Without --busy, and on the simulation, they do nothing.
 */
void busy_open(void);
void busy_begin(void);
void busy_feed(void);
double busy_end(cudaEvent_t last);

#endif
