/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank's doing is to the others: memory that it keeps from them or shares, and its going while they wait. */
#include "tests/sim/check.h"

#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define SEGMENT (40 * MIB)

static size_t free_memory(void)
{
  size_t free;
  size_t total;
  CHECK_OK(cudaMemGetInfo(&free, &total));
  return free;
}

static CUresult try_create(int device)
{
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
  CUresult result = cuMemCreate(&handle, SEGMENT, &prop, 0);
  if (result == CUDA_SUCCESS)
    CHECK_OK(cuMemRelease(handle));
  return result;
}

/* SIM_DEVICE_MEMORY=64M. Rank 0 gives its segment up, and has it not back until rank 1 has dropped the window. */
static void memory_held_until(void (*drop)(const struct job *job, ncclWindow_t window))
{
  struct job job = job_start();
  void *segment = segment_create(SEGMENT);
  ncclWindow_t window = window_create(&job, segment, SEGMENT);
  size_t before = free_memory();
  if (job.rank == 0) {
    CHECK_OK(ncclCommWindowDeregister(job.comm, window));
    segment_free(segment, SEGMENT);
    CHECK_IS(free_memory(), before);
    CHECK_IS(try_create(job.rank), CUDA_ERROR_OUT_OF_MEMORY);
  }
  sim_bootstrap_barrier("given up");
  if (job.rank == 1)
    drop(&job, window);
  sim_bootstrap_barrier("dropped");
  if (job.rank == 0) {
    CHECK_OK(try_create(job.rank));
    CHECK_IS(free_memory(), before + SEGMENT);
    CHECK_OK(ncclCommAbort(job.comm));
  }
  sim_bootstrap_barrier("checked"); /* rank 1's end would free the memory too */
}

static void drop_window(const struct job *job, ncclWindow_t window)
{
  CHECK_OK(ncclCommWindowDeregister(job->comm, window));
}

static void drop_communicator(const struct job *job, ncclWindow_t window)
{
  (void)window;
  CHECK_OK(ncclCommDestroy(job->comm));
}

static void memory_held_window(void)
{
  memory_held_until(drop_window);
}

static void memory_held_communicator(void)
{
  memory_held_until(drop_communicator);
}

/* The kernel takes back what a process had that is killed. */
static void memory_held_process(void)
{
  struct job job = job_start();
  void *segment = segment_create(SEGMENT);
  ncclWindow_t window = window_create(&job, segment, SEGMENT);
  if (job.rank == 1) {
    sim_bootstrap_barrier("given up");
    _exit(0);
  }
  CHECK_OK(ncclCommWindowDeregister(job.comm, window));
  segment_free(segment, SEGMENT);
  CHECK_IS(try_create(job.rank), CUDA_ERROR_OUT_OF_MEMORY);
  sim_bootstrap_barrier("given up");
  while (try_create(job.rank) != CUDA_SUCCESS)
    nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
  CHECK_OK(ncclCommAbort(job.comm));
}

static void pause_ms(long ms)
{
  nanosleep(&(struct timespec){.tv_nsec = ms * 1000 * 1000}, NULL);
}

/* How a rank leaves the others waiting. */
enum going { GO_DIE, GO_ABORT, GO_DESTROY };

static void go(const struct job *job, enum going going)
{
  pause_ms(50); /* the others are waiting by then */
  if (going == GO_DIE)
    _exit(0);
  CHECK_OK(going == GO_ABORT ? ncclCommAbort(job->comm) : ncclCommDestroy(job->comm));
  sim_bootstrap_barrier("over");
  exit(0);
}

/* A split goes round the ring, whose sockets tell the neighbours of a rank that is no more. */
static void split_lost(enum going going)
{
  struct job job = job_start();
  ncclComm_t child = NULL;
  if (job.rank == 1)
    go(&job, going);
  CHECK_IS(ncclCommSplit(job.comm, 0, 0, &child, NULL), ncclRemoteError);
  CHECK(child != NULL);
  CHECK_OK(ncclCommAbort(child));
  CHECK_OK(ncclCommAbort(job.comm));
  if (going != GO_DIE)
    sim_bootstrap_barrier("over");
}

static void split_dead(void)
{
  split_lost(GO_DIE);
}

static void split_aborted(void)
{
  split_lost(GO_ABORT);
}

static void split_destroyed(void)
{
  split_lost(GO_DESTROY);
}

static double now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Rank 3 is no neighbour of rank 1, and waits until its own neighbours give up. */
static void split_far(void)
{
  struct job job = job_start();
  ncclComm_t child = NULL;
  double start = now();
  if (job.rank == 1)
    go(&job, GO_DIE);
  CHECK_IS(ncclCommSplit(job.comm, 0, 0, &child, NULL), ncclRemoteError);
  if (job.rank == 3)
    CHECK(now() - start > 0.2);
  else
    pause_ms(300);
  CHECK_OK(ncclCommAbort(job.comm));
}

/* In a registration a rank waits to be called by another, and nothing tells it that this will not happen. */
static void register_lost(enum going going, ncclResult_t result)
{
  struct job job = job_start();
  void *segment = segment_create(SEGMENT);
  ncclWindow_t window = NULL;
  if (job.rank == 1)
    go(&job, going);
  CHECK_IS(ncclCommWindowRegister(job.comm, segment, SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC), result);
  CHECK(window == NULL);
  CHECK_OK(ncclCommAbort(job.comm));
  if (going != GO_DIE)
    sim_bootstrap_barrier("over");
}

static void register_dead(void)
{
  register_lost(GO_DIE, ncclRemoteError);
}

static void register_aborted(void)
{
  register_lost(GO_ABORT, ncclRemoteError);
}

/* But it first calls another itself, whose port may be closed. */
static void register_late(void)
{
  struct job job = job_start();
  void *segment = segment_create(SEGMENT);
  ncclWindow_t window = NULL;
  if (job.rank == 1)
    CHECK_OK(ncclCommAbort(job.comm));
  sim_bootstrap_barrier("gone");
  if (job.rank == 0) {
    CHECK_IS(ncclCommWindowRegister(job.comm, segment, SEGMENT, &window, NCCL_WIN_COLL_SYMMETRIC), ncclRemoteError);
    CHECK_OK(ncclCommAbort(job.comm));
  }
  sim_bootstrap_barrier("over");
}

/* On the device nobody hears of it: the work waits for ever. */
static void work_lost(void)
{
  struct job job = job_start();
  void *data;
  CHECK_OK(cudaMalloc(&data, MIB));
  if (job.rank == 1)
    go(&job, GO_ABORT);
  CHECK_OK(ncclAllReduce(data, data, 4, ncclFloat32, ncclSum, job.comm, job.stream));
  CHECK_OK(cudaStreamSynchronize(job.stream));
}

/* Rank 0's handle, through a file that rank 1 reads. */
static cudaIpcMemHandle_t handle_pass(void *memory)
{
  char path[512];
  cudaIpcMemHandle_t handle;
  snprintf(path, sizeof(path), "%s/handle", getenv("SIM_RUN_DIR"));
  if (memory) {
    FILE *file = fopen(path, "w");
    CHECK_OK(cudaIpcGetMemHandle(&handle, memory));
    CHECK_IS(fwrite(&handle, sizeof(handle), 1, file), 1);
    fclose(file);
  }
  sim_bootstrap_barrier("written");
  if (!memory) {
    FILE *file = fopen(path, "r");
    CHECK_IS(fread(&handle, sizeof(handle), 1, file), 1);
    fclose(file);
  }
  return handle;
}

static int byte_of(const void *ptr)
{
  unsigned char byte;
  CHECK_OK(cudaMemcpy(&byte, ptr, 1, 2));
  return byte;
}

/* Plain memory is one in both processes, from its first export on, with what was in it before. */
static void ipc_plain(void)
{
  bool owner = sim_bootstrap_rank() == 0;
  char *memory = NULL;
  void *again;
  CHECK_OK(cudaMalloc((void **)&memory, MIB + 1));
  CHECK_OK(cudaMemset(memory, 5, MIB + 1));
  cudaIpcMemHandle_t handle = handle_pass(owner ? memory + 512 : NULL);
  if (owner) {
    CHECK_IS(cudaIpcOpenMemHandle(&again, handle, 1), cudaErrorDeviceUninitialized);
  } else {
    CHECK_IS(cudaIpcOpenMemHandle(&again, handle, 0), cudaErrorInvalidValue);
    CHECK_OK(cudaIpcOpenMemHandle((void **)&memory, handle, 1));
    CHECK_OK(cudaIpcOpenMemHandle(&again, handle, 1));
    CHECK(again == memory);
    CHECK_IS(byte_of(memory + MIB), 5);
    CHECK_OK(cudaMemset(memory, 6, MIB + 1));
    CHECK_IS(cudaFree(memory), cudaErrorInvalidValue);
    CHECK_IS(cudaIpcGetMemHandle(&handle, memory), cudaErrorInvalidValue);
    CHECK_OK(cudaIpcCloseMemHandle(memory));
    CHECK_IS(byte_of(memory), 6);
    CHECK_OK(cudaIpcCloseMemHandle(memory));
    CHECK_IS(cudaIpcCloseMemHandle(memory), cudaErrorInvalidValue);
  }
  sim_bootstrap_barrier("closed");
  if (owner) {
    CHECK_IS(byte_of(memory + MIB), 6);
    CHECK_OK(cudaFree(memory));
  }
  sim_bootstrap_barrier("freed");
  if (!owner)
    CHECK_IS(cudaIpcOpenMemHandle(&again, handle, 1), cudaErrorInvalidResourceHandle);
}

int main(int argc, char **argv)
{
  static const struct scenario scenarios[] = {
      {"memory-held-window", memory_held_window},
      {"memory-held-communicator", memory_held_communicator},
      {"memory-held-process", memory_held_process},
      {"split-dead", split_dead},
      {"split-aborted", split_aborted},
      {"split-destroyed", split_destroyed},
      {"split-far", split_far},
      {"register-dead", register_dead},
      {"register-aborted", register_aborted},
      {"register-late", register_late},
      {"work-lost", work_lost},
      {"ipc", ipc_plain},
  };
  return scenario_main(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
