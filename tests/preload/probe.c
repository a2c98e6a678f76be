/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What single calls of the CUDA runtime give, one line each on stdout, so that a run under the shim can be compared
 * with one without. The argument says which calls.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/check.h"

enum { MIB = 1 << 20, LARGE = 4 * MIB, SMALL = 64 << 10, MAX_BLOCKS = 256 };

static void say(const char *what, cudaError_t result)
{
  printf("%s: %u, last %u\n", what, result, cudaGetLastError());
  fflush(stdout);
}

static void probe_free(void)
{
  char *large = NULL, *small = NULL;
  int local = 0;

  say("malloc large", cudaMalloc((void **)&large, LARGE));
  say("malloc small", cudaMalloc((void **)&small, SMALL));
  say("memset large", cudaMemset(large, 1, LARGE));
  say("free interior of large", cudaFree(large + 512));
  say("free interior of small", cudaFree(small + 512));
  say("free of the host's", cudaFree(&local));
  say("free null", cudaFree(NULL));
  say("free large", cudaFree(large));
  say("free large again", cudaFree(large));
  say("free small", cudaFree(small));
  say("free small again", cudaFree(small));
  say("malloc nothing", cudaMalloc((void **)&large, 0));
}

/* Takes blocks until there are no more, as a caching allocator meets its limit. */
static void probe_oom(void)
{
  void *blocks[MAX_BLOCKS], *all = NULL;
  size_t free_bytes = 0, total = 0;
  int count = 0;
  cudaError_t result = cudaSuccess;

  while (count < MAX_BLOCKS && (result = cudaMalloc(&blocks[count], LARGE)) == cudaSuccess)
    count++;
  printf("blocks: %d\n", count);
  say("one more", result);
  say("after it", cudaSuccess);
  say("free one", cudaFree(blocks[--count]));
  say("and take it", cudaMalloc(&blocks[count++], LARGE));
  while (count > 0)
    CUDA_CHECK(cudaFree(blocks[--count]));
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
  printf("free is total: %d\n", free_bytes == total);
  say("take all", cudaMalloc(&all, total));
  say("free all", cudaFree(all));
}

static void probe_ipc(void)
{
  cudaIpcMemHandle_t handle;
  void *large = NULL, *small = NULL;

  CUDA_CHECK(cudaMalloc(&large, LARGE));
  CUDA_CHECK(cudaMalloc(&small, SMALL));
  say("ipc of small", cudaIpcGetMemHandle(&handle, small));
  say("ipc of large", cudaIpcGetMemHandle(&handle, large));
  say("ipc of large again", cudaIpcGetMemHandle(&handle, large));
}

static void *allocate_on(int device)
{
  void *memory = NULL;

  CUDA_CHECK(cudaSetDevice(device));
  CUDA_CHECK(cudaMalloc(&memory, LARGE));
  return memory;
}

static void probe_peer(void)
{
  void *before[2], *after[2];
  char sent[] = "from one device to the other", received[sizeof(sent)];

  for (int i = 0; i < 2; i++)
    before[i] = allocate_on(i);
  for (int i = 0; i < 2; i++) {
    CUDA_CHECK(cudaSetDevice(i));
    say("enable peer", cudaDeviceEnablePeerAccess(1 - i, 0));
    say("enable it again", cudaDeviceEnablePeerAccess(1 - i, 0));
  }
  for (int i = 0; i < 2; i++)
    after[i] = allocate_on(i);
  for (int i = 0; i < 4; i++) {
    void *from = i < 2 ? before[i % 2] : after[i % 2], *to = i < 2 ? after[1 - i % 2] : before[1 - i % 2];
    memset(received, 0, sizeof(received));
    CUDA_CHECK(cudaMemcpy(from, sent, sizeof(sent), 1));
    say("copy to the peer", cudaMemcpyPeer(to, 1 - i % 2, from, i % 2, sizeof(sent)));
    CUDA_CHECK(cudaMemcpy(received, to, sizeof(received), 2));
    printf("received: %d\n", strcmp(sent, received) == 0);
  }
}

/* A copy between devices without peer access goes through the host. */
static void probe_staged(void)
{
  void *memory[2];

  for (int i = 0; i < 2; i++)
    memory[i] = allocate_on(i);
  say("copy to the other device", cudaMemcpyPeer(memory[1], 1, memory[0], 0, LARGE));
}

static void probe_fork(void)
{
  void *memory = NULL;
  int status = 0;
  pid_t child;

  say("malloc", cudaMalloc(&memory, LARGE));
  child = fork();
  if (child == 0) {
    say("malloc in the child", cudaMalloc(&memory, LARGE));
    execl("/bin/true", "true", (char *)NULL);
    _exit(1);
  }
  waitpid(child, &status, 0);
  printf("the child's status: %d\n", status);
  say("free", cudaFree(memory));
}

/* A process that does not use CUDA before it forks: the child may. */
static void probe_fork_early(void)
{
  void *memory = NULL;
  int status = 0;
  pid_t child = fork();

  if (child == 0) {
    say("malloc in the child", cudaMalloc(&memory, LARGE));
    say("free in the child", cudaFree(memory));
    _exit(0);
  }
  waitpid(child, &status, 0);
  printf("the child's status: %d\n", status);
}

static void probe_capture(void)
{
  char *large = NULL;
  cudaStream_t stream;
  cudaGraph_t graph = NULL;

  CUDA_CHECK(cudaMalloc((void **)&large, LARGE));
  CUDA_CHECK(cudaStreamCreate(&stream));
  say("begin", cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  say("free while capturing", cudaFree(large));
  say("end", cudaStreamEndCapture(stream, &graph));
  say("memset", cudaMemset(large, 1, LARGE));
  say("free", cudaFree(large));
}

/* A function that the library does not have, which a program may look for. */
static void probe_absent(void)
{
  union {
    void *object;
    ncclResult_t (*function)(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *made,
                             ncclConfig_t *config);
  } grow = {dlsym(RTLD_DEFAULT, "ncclCommGrow")};
  ncclComm_t made = NULL;

  printf("ncclCommGrow: %d\n", grow.object ? (int)grow.function(NULL, 2, NULL, 0, &made, NULL) : -1);
}

static void *churn(void *unused)
{
  void *blocks[8];

  for (int round = 0; round < 50; round++) {
    for (int i = 0; i < 8; i++)
      CUDA_CHECK(cudaMalloc(&blocks[i], LARGE + (size_t)i * 2 * MIB));
    for (int i = 0; i < 8; i++)
      for (int j = 0; j < i; j++)
        if (blocks[i] == blocks[j])
          job_fail("one block was given out twice");
    for (int i = 0; i < 8; i++)
      CUDA_CHECK(cudaFree(blocks[i]));
  }
  return unused;
}

static void probe_threads(void)
{
  size_t free_bytes = 0, total = 0;
  pthread_t threads[4];

  for (int i = 0; i < 4; i++)
    pthread_create(&threads[i], NULL, churn, NULL);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
  printf("free is total: %d\n", free_bytes == total);
}

int main(int argc, char **argv)
{
  static const struct {
    const char *name;
    void (*function)(void);
  } probes[] = {{"free", probe_free},
                {"oom", probe_oom},
                {"ipc", probe_ipc},
                {"peer", probe_peer},
                {"staged", probe_staged},
                {"fork", probe_fork},
                {"fork-early", probe_fork_early},
                {"threads", probe_threads},
                {"capture", probe_capture},
                {"absent", probe_absent}};

  for (size_t i = 0; argc == 2 && i < sizeof(probes) / sizeof(probes[0]); i++)
    if (strcmp(probes[i].name, argv[1]) == 0) {
      probes[i].function();
      return 0;
    }
  fprintf(stderr, "probe: not understood\n");
  return 64;
}
