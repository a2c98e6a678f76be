/* SPDX-License-Identifier: Apache-2.0 */
/* Scenes of communicators' lives: non-blocking ones, errors in the background, watchdogs, ends in any order. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/preload/scene.h"

enum { KINDS = 4, SUSPEND_MEM = 1 };

static void lay_kinds(struct scene *scene, struct act acts[KINDS])
{
  acts[0] = act_lay(scene, OP_ALL_GATHER);
  acts[1] = act_average(scene);
  acts[2] = act_lay(scene, OP_ALL_REDUCE);
  acts[3] = act_lay(scene, OP_REDUCE_SCATTER);
}

static void do_kinds(struct scene *scene, ncclComm_t comm)
{
  struct act acts[KINDS];

  lay_kinds(scene, acts);
  for (int i = 0; i < KINDS; i++) {
    acts[i].comm = comm;
    act_do(&acts[i]);
  }
}

/* Every result of a non-blocking communicator is success or in progress; it is polled until it has got there. */
static ncclResult_t polled(ncclComm_t comm, ncclResult_t result)
{
  if (result != ncclSuccess && result != ncclInProgress)
    job_fail("the result is %u", result);
  scene_settle(comm);
  return result;
}

/*
 * Non-blocking from init to destroy. Calls of both lanes on different streams, each reading what the one before wrote,
 * without events of the job's.
 */
static void nonblocking(void)
{
  enum { ROUNDS = 4 };
  struct scene scene = scene_open(true);
  struct act gather, broadcast, again;

  do_kinds(&scene, scene.comm);
  for (int round = 0; round < ROUNDS; round++) {
    gather = act_lay(&scene, OP_ALL_GATHER);
    broadcast = act_lay(&scene, ACT_BROADCAST);
    again = act_lay(&scene, OP_ALL_GATHER);
    broadcast.send = gather.recv;
    again.send = broadcast.recv;
    broadcast.stream = scene.streams[1];
    again.stream = scene.streams[2];
    act_put(&gather);
    CUDA_CHECK(cudaMemset(broadcast.recv, 0, broadcast.recv_count * sizeof(float)));
    CUDA_CHECK(cudaMemset(again.recv, 0, again.recv_count * sizeof(float)));
    CUDA_CHECK(cudaStreamSynchronize(NULL));
    scene_slow(gather.stream);
    polled(scene.comm, act_try(&gather));
    polled(scene.comm, act_try(&broadcast));
    polled(scene.comm, act_try(&again));
    CUDA_CHECK(cudaDeviceSynchronize());
    act_check(&gather);
    broadcast.data = again.data = gather.data;
    act_check(&broadcast);
    { /* all parts are rank 0's */
      float *got = malloc(again.recv_count * sizeof(float)), one;
      CUDA_CHECK(cudaMemcpy(got, again.recv, again.recv_count * sizeof(float), 2));
      for (size_t i = 0; i < again.recv_count; i++) {
        data_fill(&gather.data, 0, i % again.count, 1, &one);
        scene.wrong |= got[i] != one;
      }
      free(got);
    }
  }
  if (strcmp(scene_word(0), "finalize") == 0)
    polled(scene.comm, ncclCommFinalize(scene.comm));
  scene_close(&scene);
}

/* A split of a non-blocking communicator is there when the parent says so. */
static void nonblocking_offspring(void)
{
  struct scene scene = scene_open(true);
  ncclComm_t comm = scene_split(&scene);

  do_kinds(&scene, comm);
  do_kinds(&scene, scene.comm);
  NCCL_CHECK(ncclCommDestroy(comm));
  scene_close(&scene);
}

/* What the communicator says after each call, until there is an error: then the job aborts it, as PyTorch does. */
static void background_error(void)
{
  struct scene scene = scene_open(false);
  ncclResult_t state = ncclSuccess;
  struct act act = act_lay(&scene, OP_ALL_GATHER);
  int calls = 0;

  while (state == ncclSuccess && calls < 10) {
    act_put(&act);
    act_issue(&act);
    CUDA_CHECK(cudaStreamSynchronize(act.stream));
    calls++;
    NCCL_CHECK(ncclCommGetAsyncError(scene.comm, &state));
  }
  printf("error: %u after %d calls\n", state, calls);
  NCCL_CHECK(ncclCommAbort(scene.comm));
  scene.comm = NULL;
  scene_close(&scene);
}

struct watchdog {
  ncclComm_t comm;
  int ms;
  bool stop;
  int looks;
};

static void *look_all_the_time(void *arg)
{
  struct watchdog *dog = arg;
  ncclResult_t state;

  while (!__atomic_load_n(&dog->stop, __ATOMIC_ACQUIRE)) {
    NCCL_CHECK(ncclCommGetAsyncError(dog->comm, &state));
    dog->looks++;
    usleep(50);
  }
  return NULL;
}

/* Another thread asks all the time, from before the child is made until after calls of both lanes; also non-blocking.
 */
static void watched(void)
{
  struct scene scene = scene_open(scene_number(0));
  struct watchdog dog = {.comm = scene.comm};
  struct act broadcast = act_lay(&scene, ACT_BROADCAST);
  pthread_t thread;

  pthread_create(&thread, NULL, look_all_the_time, &dog);
  for (int i = 0; i < 20; i++) {
    do_kinds(&scene, scene.comm);
    act_do(&broadcast);
  }
  __atomic_store_n(&dog.stop, true, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  if (dog.looks == 0)
    job_fail("nobody looked");
  scene_close(&scene);
}

/* As that, of several communicators, while memory is short. */
static void watched_out_of_memory(void)
{
  enum { COMMS = 4 };
  struct scene scene = scene_open(false);
  struct watchdog dogs[COMMS];
  pthread_t threads[COMMS];
  struct act act = act_lay(&scene, OP_ALL_GATHER);
  void *most = NULL;

  for (int i = 0; i < COMMS; i++) {
    dogs[i] = (struct watchdog){.comm = i == 0 ? scene.comm : scene_split(&scene)};
    act.comm = dogs[i].comm;
    act_do(&act);
    pthread_create(&threads[i], NULL, look_all_the_time, &dogs[i]);
  }
  usleep(12000);
  if (cudaMalloc(&most, (size_t)1 << 40) == cudaSuccess)
    job_fail("a terabyte was to be had");
  usleep(20000);
  for (int i = COMMS - 1; i >= 0; i--) {
    __atomic_store_n(&dogs[i].stop, true, __ATOMIC_RELEASE);
    pthread_join(threads[i], NULL);
    if (i > 0)
      NCCL_CHECK(ncclCommDestroy(dogs[i].comm));
  }
  scene_close(&scene);
}

static void *abort_later(void *arg)
{
  struct watchdog *dog = arg;
  ncclResult_t state;

  for (int i = 0; i < dog->ms; i++) {
    NCCL_CHECK(ncclCommGetAsyncError(dog->comm, &state));
    usleep(1000);
  }
  NCCL_CHECK(ncclCommAbort(dog->comm));
  return NULL;
}

/* A watchdog aborts while this thread is inside a call, for which another rank never comes. */
static void aborted(void)
{
  struct scene scene = scene_open(false);
  struct watchdog dog = {.comm = scene.comm, .ms = 100};
  struct act act = act_lay(&scene, OP_ALL_GATHER);
  ncclResult_t result;
  pthread_t thread;

  if (strcmp(scene_word(0), "first") != 0)
    act_do(&act);
  act_put(&act);
  if (scene.rank == scene.nranks - 1)
    usleep(1500000); /* the others have given up meanwhile */
  pthread_create(&thread, NULL, abort_later, &dog);
  result = scene.rank == scene.nranks - 1 ? ncclSuccess : act_try(&act);
  pthread_join(thread, NULL);
  printf("result: %s\n", result == ncclSuccess ? "success" : "an error");
  scene.comm = NULL;
  scene_close(&scene);
}

static void suspended(void)
{
  struct scene scene = scene_open(false);

  do_kinds(&scene, scene.comm);
  NCCL_CHECK(ncclCommSuspend(scene.comm, SUSPEND_MEM));
  NCCL_CHECK(ncclCommResume(scene.comm));
  do_kinds(&scene, scene.comm);
  scene_close(&scene);
}

/* Splits that leave ranks out, on some ranks or on all. */
static void no_colour(void)
{
  struct scene scene = scene_open(false);
  ncclComm_t comm = (ncclComm_t)&scene;
  bool last = scene.rank == scene.nranks - 1;

  for (int round = 0; round < 20; round++) {
    NCCL_CHECK(ncclCommSplit(scene.comm, last || round % 2 ? NCCL_SPLIT_NOCOLOR : 3, scene.rank, &comm, NULL));
    if ((comm == NULL) != (last || round % 2))
      job_fail("a communicator is where none should be, or the other way about");
    if (comm)
      NCCL_CHECK(ncclCommDestroy(comm));
  }
  comm = scene_split(&scene);
  do_kinds(&scene, comm);
  do_kinds(&scene, scene.comm);
  NCCL_CHECK(ncclCommDestroy(comm));
  scene_close(&scene);
}

/* Four communicators over the same memory, which end in an order of their own: `parent` first, or `mixed`. */
static void any_order(void)
{
  enum { COMMS = 4 };
  struct scene scene = scene_open(false);
  ncclComm_t comms[COMMS] = {scene.comm, scene_split(&scene), scene_split(&scene), NULL};
  static const int orders[2][COMMS] = {{0, 1, 2, 3}, {2, 0, 3, 1}};
  struct act acts[KINDS];
  int order = strcmp(scene_word(0), "mixed") == 0;

  NCCL_CHECK(ncclCommSplit(comms[1], 0, scene.rank, &comms[3], NULL));
  {
    int rank;
    NCCL_CHECK(ncclCommUserRank(comms[3], &rank));
  }
  lay_kinds(&scene, acts);
  for (int i = 0; i < COMMS; i++) {
    for (int c = i; c < COMMS; c++)
      for (int k = 0; k < KINDS; k++) {
        acts[k].comm = comms[orders[order][c]];
        act_do(&acts[k]);
      }
    if (strcmp(scene_word(1), "exit") == 0 && i == 2)
      break; /* two of them are left to the end of the process */
    NCCL_CHECK(ncclCommDestroy(comms[orders[order][i]]));
  }
  scene.comm = NULL;
  scene_close(&scene);
}

static void *want_too_much(void *unused)
{
  void *most = NULL;

  (void)unused;
  CUDA_CHECK(cudaSetDevice(job_rank()));
  if (cudaMalloc(&most, (size_t)1 << 40) == cudaSuccess)
    job_fail("a terabyte was to be had");
  return NULL;
}

/*
 * One thread is out of memory, so that the child is given up; meanwhile another calls on: what its calls wrote and read
 * stays in order.
 */
static void out_of_memory_aside(void)
{
  struct scene scene = scene_open(false);
  struct act gather, broadcast;
  pthread_t thread;

  do_kinds(&scene, scene.comm);
  gather = act_lay(&scene, OP_ALL_GATHER);
  broadcast = act_lay(&scene, strcmp(scene_word(0), "broadcast") == 0 ? ACT_BROADCAST : OP_ALL_GATHER);
  act_put(&gather);
  broadcast.send = gather.recv;
  broadcast.stream = scene.streams[1];
  scene_slow(scene.streams[0]);
  scene_slow(scene.streams[0]);
  act_issue(&gather);
  pthread_create(&thread, NULL, want_too_much, NULL);
  usleep(30000);
  act_issue(&broadcast);
  CUDA_CHECK(cudaDeviceSynchronize());
  pthread_join(thread, NULL);
  act_check(&gather);
  {
    float *got = malloc(broadcast.recv_count * sizeof(float)), one;
    bool copies = broadcast.kind == ACT_BROADCAST;
    CUDA_CHECK(cudaMemcpy(got, broadcast.recv, broadcast.recv_count * sizeof(float), 2));
    for (size_t i = 0; i < broadcast.recv_count; i++) {
      data_fill(&gather.data, 0, copies ? i : i % broadcast.count, 1, &one);
      scene.wrong |= got[i] != one;
    }
    free(got);
  }
  scene_close(&scene);
}

const struct scene_entry scenes_life[] = {{"nonblocking", nonblocking},
                                          {"nonblocking_offspring", nonblocking_offspring},
                                          {"background_error", background_error},
                                          {"watched", watched},
                                          {"watched_out_of_memory", watched_out_of_memory},
                                          {"aborted", aborted},
                                          {"suspended", suspended},
                                          {"no_colour", no_colour},
                                          {"any_order", any_order},
                                          {"out_of_memory_aside", out_of_memory_aside},
                                          {NULL, NULL}};
