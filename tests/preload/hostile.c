/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job made of the steps on its command line, which it takes one after the other; `R@STEP` is for rank R alone.
 *
 *   comm              makes the next communicator of all ranks, 0 being the first
 *   end:C             ends communicator C
 *   take:X=MIB        cudaMalloc of so many MiB, named by a letter; says so where that fails, and goes on
 *   cached:X=MIB/YZ   as a caching allocator does it: out of memory, it frees what it has (Y, Z) and tries once more
 *   again:X=MIB       cudaMalloc, as often as it takes for X to lie where it was before
 *   give:X            cudaFree
 *   handle:X          says whether cudaIpcGetMemHandle gives the handle that it gave last, whatever X was then
 *   gather:C,X*N      N all-gathers on C from the beginning of X into its second MiB, every element looked at
 *   post:C,X          one, without waiting for it; `see` waits for it and looks
 *   see
 *   send:C,X recv:C,X from rank 0 to rank 1, waited for
 *   meet              waits for all ranks
 *   room              says how many MiB are free
 *   reset             cudaDeviceReset, after which there is no memory
 *   sleep:MS stop:MS  late, or stopped as by SIGSTOP
 *   kill exit:STATUS  the end of this process
 *   fill              leaves /dev/shm no room
 *   plant:WHAT        puts something where the object of the next communicator will be looked for, see plant()
 *
 * Exit status: 0 all right, 1 wrong data, 2 a call failed, 64 not understood.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/preload/check.h"
#include "tests/sim/bootstrap.h"

enum { MIB = 1 << 20, COUNT = 5003, MAX_COMMS = 8, LETTERS = 26, MANY = 1000, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };

static struct {
  char *ptr, *before;
} memory[LETTERS];
static ncclComm_t comms[MAX_COMMS];
static int comm_count, rank, size, meetings;
static cudaStream_t stream, aside; /* for collective calls, and for send and receive */
static uint32_t calls, posted_call;
static char *posted;
static bool wrong, has_next_id;
static ncclUniqueId next_id;

static void refuse(const char *step)
{
  fprintf(stderr, "hostile: %s is not understood\n", step);
  exit(64);
}

static uint32_t element(int from, uint32_t call, uint32_t i)
{
  return (uint32_t)from << 28 ^ call * 2654435761U ^ i;
}

static ncclUniqueId take_id(void)
{
  if (has_next_id) {
    has_next_id = false;
    return next_id;
  }
  return sim_bootstrap_id(rank);
}

static void make_comm(void)
{
  ncclUniqueId id = take_id();
  int own = -1;

  if (comm_count == MAX_COMMS)
    refuse("another communicator");
  NCCL_CHECK(ncclCommInitRank(&comms[comm_count], size, id, rank));
  NCCL_CHECK(ncclCommUserRank(comms[comm_count++], &own));
  if (own != rank)
    job_fail("rank %d in the communicator", own);
}

static char **named(char letter)
{
  if (letter < 'A' || letter > 'Z')
    refuse("memory");
  return &memory[letter - 'A'].ptr;
}

static void give(char letter)
{
  char **ptr = named(letter);

  CUDA_CHECK(cudaFree(*ptr));
  memory[letter - 'A'].before = *ptr;
  *ptr = NULL;
}

static void take(char letter, size_t mib, const char *cached)
{
  cudaError_t error = cudaMalloc((void **)named(letter), mib * MIB);

  if (error == cudaErrorMemoryAllocation && cached) {
    printf("hostile: rank %d: %c once more\n", rank, letter);
    cudaGetLastError();
    while (*cached)
      give(*cached++);
    error = cudaMalloc((void **)named(letter), mib * MIB);
  }
  if (error != cudaSuccess)
    printf("hostile: rank %d: %c: %u, last %u\n", rank, letter, error, cudaGetLastError());
}

static void compare_handle(char letter)
{
  static cudaIpcMemHandle_t last;
  cudaIpcMemHandle_t handle;

  CUDA_CHECK(cudaIpcGetMemHandle(&handle, memory[letter - 'A'].ptr));
  printf("hostile: rank %d: %s handle\n", rank, memcmp(&handle, &last, sizeof(handle)) == 0 ? "same" : "new");
  fflush(stdout);
  last = handle;
}

static void take_again(char letter, size_t mib)
{
  for (int i = 0; i < MANY; i++) {
    CUDA_CHECK(cudaMalloc((void **)named(letter), mib * MIB));
    if (*named(letter) == memory[letter - 'A'].before)
      return;
    CUDA_CHECK(cudaFree(*named(letter)));
  }
  job_fail("%c never lies where it was before", letter);
}

static void post(int comm, char letter)
{
  static uint32_t host[COUNT];

  posted = *named(letter);
  posted_call = calls++;
  for (uint32_t i = 0; i < COUNT; i++)
    host[i] = element(rank, posted_call, i);
  CUDA_CHECK(cudaMemcpy(posted, host, sizeof(host), HOST_TO_DEVICE));
  CUDA_CHECK(cudaMemsetAsync(posted + MIB, 0xa5, sizeof(host) * (size_t)size, stream));
  NCCL_CHECK(ncclAllGather(posted, posted + MIB, COUNT, ncclUint32, comms[comm], stream));
}

static void see(void)
{
  static uint32_t host[COUNT];

  CUDA_CHECK(cudaStreamSynchronize(stream));
  for (int from = 0; from < size; from++) {
    uint32_t differing = 0;
    CUDA_CHECK(cudaMemcpy(host, posted + MIB + sizeof(host) * (size_t)from, sizeof(host), DEVICE_TO_HOST));
    for (uint32_t i = 0; i < COUNT; i++)
      differing += host[i] != element(from, posted_call, i);
    if (differing > 0)
      printf("hostile: rank %d: call %u: %u elements of rank %d are wrong\n", rank, posted_call, differing, from);
    wrong |= differing > 0;
  }
}

static void stop(int ms)
{
  char script[256];

  snprintf(script, sizeof(script),
           "(until grep -q '^State:.T' /proc/%d/status; do sleep 0.02; done; sleep %d.%03d; kill -CONT %d) &",
           (int)getpid(), ms / 1000, ms % 1000, (int)getpid());
  if (system(script) != 0)
    job_fail("no shell");
  raise(SIGSTOP);
}

/* As in shim/comm.c, which names the object by the id of the communicator. */
static uint64_t hash_of(const void *bytes, size_t count)
{
  uint64_t hash = 0xcbf29ce484222325ULL;

  for (size_t i = 0; i < count; i++)
    hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3ULL;
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ hash >> 33;
}

/* What a stranger, or a process that was killed, has left. `target` is a file of the run's folder. */
static void plant(const char *what)
{
  static char bytes[MIB];
  char path[128], target[4096];
  const char *folder = getenv("SIM_RUN_DIR");
  size_t length = strcmp(what, "small") == 0 ? 100 : strcmp(what, "large") == 0 ? MIB : 0;
  int fd;

  snprintf(path, sizeof(path), "/dev/shm/symmshim-%u-%016llx", (unsigned)geteuid(),
           (unsigned long long)hash_of(&next_id, sizeof(next_id)));
  snprintf(target, sizeof(target), "%s/target", folder ? folder : ".");
  if (strcmp(what, "link") == 0 || strcmp(what, "absent_link") == 0) {
    fd = strcmp(what, "link") == 0 ? open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (symlink(target, path) != 0)
      job_fail("no link");
    close(fd);
    return;
  }
  if (strcmp(what, "folder") == 0 || strcmp(what, "fifo") == 0) {
    if (strcmp(what, "folder") == 0 ? mkdir(path, 0700) : mkfifo(path, 0600))
      job_fail("no %s", what);
    return;
  }
  fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (strncmp(what, "stale", 5) == 0 || strncmp(what, "zeros", 5) == 0)
    length = (size_t)atol(what + 5);
  memset(bytes, strncmp(what, "stale", 5) == 0 ? 0xff : 0, sizeof(bytes));
  if (fd < 0 || length > sizeof(bytes) || write(fd, bytes, length) != (ssize_t)length)
    job_fail("nothing was planted");
  if (strcmp(what, "foreign") == 0 && fchown(fd, 12345, 12345) != 0)
    job_fail("no chown");
  if (strcmp(what, "open") == 0 && fchmod(fd, 0666) != 0)
    job_fail("no chmod");
  close(fd);
}

/* Before any rank looks for the object. */
static void plant_for_next(const char *what)
{
  next_id = take_id();
  has_next_id = true;
  if (rank == 0)
    plant(what);
  sim_bootstrap_barrier("planted");
}

static void meet(void)
{
  char name[32];

  snprintf(name, sizeof(name), "meet-%d", meetings++);
  sim_bootstrap_barrier(name);
}

static void room(void)
{
  size_t free_bytes = 0, total = 0;

  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
  printf("hostile: rank %d: %zu free\n", rank, free_bytes / MIB);
}

static void make_streams(void)
{
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, 1));
  CUDA_CHECK(cudaStreamCreateWithFlags(&aside, 1));
}

static void reset(void)
{
  CUDA_CHECK(cudaDeviceReset());
  for (char letter = 'A'; letter <= 'Z'; letter++)
    *named(letter) = NULL;
  make_streams();
}

/* Whatever room /dev/shm has. */
static void fill_up(void)
{
  static const char bytes[4096];
  int fd = open("/dev/shm/full", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

  while (write(fd, bytes, sizeof(bytes)) > 0)
    ;
  close(fd);
}

static void pass(bool sending, int comm, char letter)
{
  if (sending)
    NCCL_CHECK(ncclSend(*named(letter), COUNT, ncclUint32, 1, comms[comm], aside));
  else
    NCCL_CHECK(ncclRecv(*named(letter), COUNT, ncclUint32, 0, comms[comm], aside));
  CUDA_CHECK(cudaStreamSynchronize(aside));
}

static bool take_step(const char *step)
{
  char letter, word[32] = "";
  int comm = 0, number = 0;
  size_t mib;

  if (sscanf(step, "take:%c=%zu", &letter, &mib) == 2) {
    take(letter, mib, NULL);
  } else if (sscanf(step, "cached:%c=%zu/%31s", &letter, &mib, word) == 3) {
    take(letter, mib, word);
  } else if (sscanf(step, "again:%c=%zu", &letter, &mib) == 2) {
    take_again(letter, mib);
  } else if (sscanf(step, "handle:%c", &letter) == 1) {
    compare_handle(letter);
  } else if (sscanf(step, "give:%c", &letter) == 1) {
    give(letter);
  } else if (sscanf(step, "gather:%d,%c*%d", &comm, &letter, &number) >= 2) {
    for (int i = 0; i < (number > 0 ? number : 1); i++) {
      post(comm, letter);
      see();
    }
  } else if (sscanf(step, "post:%d,%c", &comm, &letter) == 2) {
    post(comm, letter);
  } else if (sscanf(step, "send:%d,%c", &comm, &letter) == 2) {
    pass(true, comm, letter);
  } else if (sscanf(step, "recv:%d,%c", &comm, &letter) == 2) {
    pass(false, comm, letter);
  } else if (sscanf(step, "end:%d", &comm) == 1) {
    NCCL_CHECK(ncclCommDestroy(comms[comm]));
    comms[comm] = NULL;
  } else if (sscanf(step, "sleep:%d", &number) == 1) {
    usleep((useconds_t)number * 1000);
  } else if (sscanf(step, "stop:%d", &number) == 1) {
    stop(number);
  } else if (sscanf(step, "exit:%d", &number) == 1) {
    exit(number);
  } else if (sscanf(step, "plant:%31s", word) == 1) {
    plant_for_next(word);
  } else {
    return false;
  }
  return true;
}

static void take_word(const char *step)
{
  if (strcmp(step, "comm") == 0)
    make_comm();
  else if (strcmp(step, "see") == 0)
    see();
  else if (strcmp(step, "meet") == 0)
    meet();
  else if (strcmp(step, "fill") == 0)
    fill_up();
  else if (strcmp(step, "room") == 0)
    room();
  else if (strcmp(step, "reset") == 0)
    reset();
  else if (strcmp(step, "kill") == 0)
    kill(getpid(), SIGKILL);
  else
    refuse(step);
}

int main(int argc, char **argv)
{
  int devices = 0;

  setvbuf(stdout, NULL, _IOLBF, 0);
  rank = job_rank();
  size = job_size();
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  CUDA_CHECK(cudaSetDevice(rank % devices));
  make_streams();
  for (int i = 1; i < argc; i++) {
    const char *at = strchr(argv[i], '@'), *step = at ? at + 1 : argv[i];
    if (at && atoi(argv[i]) != rank)
      continue;
    if (!take_step(step))
      take_word(step);
  }
  for (int i = 0; i < comm_count; i++)
    if (comms[i])
      NCCL_CHECK(ncclCommDestroy(comms[i]));
  for (char letter = 'A'; letter <= 'Z'; letter++)
    if (*named(letter))
      give(letter);
  printf("hostile: rank %d: %s\n", rank, wrong ? "WRONG" : "all right");
  return wrong;
}
