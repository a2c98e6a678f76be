/* SPDX-License-Identifier: Apache-2.0 */
/* Scenes of calls between ncclGroupStart and ncclGroupEnd. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/preload/scene.h"
#include "tests/sim/bootstrap.h"

enum { KINDS = 3, MANY = 130 };
static const int kinds[KINDS] = {OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE};

/* One call of each kind, and with them the child and its window. */
static void warm(struct scene *scene)
{
  for (int i = 0; i < KINDS; i++) {
    struct act act = act_lay(scene, kinds[i]);
    act_do(&act);
  }
}

static void put_all(struct act *acts, int count)
{
  for (int i = 0; i < count; i++)
    act_put(&acts[i]);
}

static void check_all(struct act *acts, int count)
{
  for (int i = 0; i < count; i++)
    act_check(&acts[i]);
}

static void group(struct act *acts, int count)
{
  NCCL_CHECK(ncclGroupStart());
  for (int i = 0; i < count; i++)
    act_issue(&acts[i]);
  NCCL_CHECK(ncclGroupEnd());
}

/* On whatever comes after a group the shim is to be itself again. */
static void afterwards(struct scene *scene)
{
  struct act act = act_average(scene);
  act_do(&act);
}

/* What else is in the group. */
struct other {
  struct act act;
  ncclComm_t made, hidden;
  void *handle;
  ncclRedOp_t redop;
  bool issued;
};

static void before_mixed(struct scene *scene, struct other *other)
{
  const char *word = scene_word(0);
  float factor = 1.5F;

  if (strcmp(word, "broadcast") == 0 || strcmp(word, "send_recv") == 0) {
    other->act = act_lay(scene, strcmp(word, "broadcast") == 0 ? ACT_BROADCAST : ACT_SEND_RECV);
    other->issued = true;
  } else if (strcmp(word, "int32") == 0) {
    other->act = act_lay(scene, OP_REDUCE_SCATTER);
    other->act.data.dtype = ncclInt32;
    other->issued = true;
  } else if (strcmp(word, "hidden") == 0) {
    int rank;
    NCCL_CHECK(pncclCommInitRank(&other->hidden, scene->nranks, sim_bootstrap_id(scene->rank), scene->rank));
    NCCL_CHECK(ncclCommUserRank(other->hidden, &rank));
    other->act = act_lay(scene, OP_ALL_GATHER);
    other->act.comm = other->hidden;
    other->issued = true;
  } else if (strcmp(word, "redop") == 0) {
    NCCL_CHECK(ncclRedOpCreatePreMulSum(&other->redop, &factor, ncclFloat32, ncclScalarHostImmediate, scene->comm));
  }
  if (other->issued)
    act_put(&other->act);
}

static void in_mixed(struct scene *scene, struct other *other, void *segment)
{
  const char *word = scene_word(0);

  if (other->issued)
    act_issue(&other->act);
  else if (strcmp(word, "register") == 0)
    NCCL_CHECK(ncclCommRegister(scene->comm, segment, SCENE_SEGMENT, &other->handle));
  else if (strcmp(word, "split") == 0)
    NCCL_CHECK(ncclCommSplit(scene->comm, 0, scene->rank, &other->made, NULL));
  else if (strcmp(word, "redop") == 0)
    NCCL_CHECK(ncclRedOpDestroy(other->redop, scene->comm));
}

static void after_mixed(struct scene *scene, struct other *other)
{
  if (other->issued)
    act_check(&other->act);
  if (other->hidden)
    NCCL_CHECK(ncclCommDestroy(other->hidden));
  if (other->handle)
    NCCL_CHECK(ncclCommDeregister(scene->comm, other->handle));
  if (other->made)
    NCCL_CHECK(ncclCommDestroy(other->made));
}

/* Two calls, something else, and a third. */
static void mixed(void)
{
  struct scene scene = scene_open(false);
  struct other other = {0};
  struct act acts[KINDS];
  void *segment = NULL;

  CUDA_CHECK(cudaMalloc(&segment, SCENE_SEGMENT));
  warm(&scene);
  for (int i = 0; i < KINDS; i++)
    acts[i] = act_lay(&scene, kinds[i]);
  put_all(acts, KINDS);
  before_mixed(&scene, &other);
  NCCL_CHECK(ncclGroupStart());
  act_issue(&acts[0]);
  act_issue(&acts[1]);
  in_mixed(&scene, &other, segment);
  act_issue(&acts[2]);
  NCCL_CHECK(ncclGroupEnd());
  check_all(acts, KINDS);
  after_mixed(&scene, &other);
  afterwards(&scene);
  scene_close(&scene);
}

/* A group of so many calls. */
static void many(void)
{
  struct scene scene = scene_open(false);
  static struct act acts[MANY];
  int count = scene_number(0);

  warm(&scene);
  for (int i = 0; i < count; i++) {
    acts[i] = act_lay(&scene, kinds[i % KINDS]);
    acts[i].stream = scene.streams[i % 2];
  }
  put_all(acts, count);
  group(acts, count);
  check_all(acts, count);
  afterwards(&scene);
  scene_close(&scene);
}

/* Rank 0 makes its calls in groups, the others one by one; from the first use on. Some are averages. */
static void apart(void)
{
  enum { COUNT = 6, ROUNDS = 4 };
  struct scene scene = scene_open(false);
  struct act acts[COUNT];

  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < COUNT; i++) {
      acts[i] = i % 2 ? act_average(&scene) : act_lay(&scene, kinds[i / 2]);
      acts[i].stream = scene.streams[i % SCENE_STREAMS];
    }
    put_all(acts, COUNT);
    if (scene.rank == 0)
      group(acts, COUNT);
    for (int i = 0; i < COUNT && scene.rank != 0; i++)
      act_issue(&acts[i]);
    check_all(acts, COUNT);
    if (round == 1)
      scene_segment(&scene); /* new windows, at the end of a group again */
  }
  scene_close(&scene);
}

/* Three communicators over three streams; the ranks name them in different order. */
static void several(void)
{
  enum { COMMS = 3, COUNT = 9, ROUNDS = 3 };
  struct scene scene = scene_open(false);
  ncclComm_t comms[COMMS] = {scene.comm, scene_split(&scene), scene_split(&scene)};
  struct act acts[COUNT];

  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < COUNT; i++) {
      acts[i] = i % 4 == 3 ? act_average(&scene) : act_lay(&scene, kinds[i / COMMS]);
      acts[i].comm = comms[i % COMMS];
      acts[i].stream = scene.streams[i % COMMS];
    }
    put_all(acts, COUNT);
    NCCL_CHECK(ncclGroupStart());
    for (int i = 0; i < COUNT; i++) { /* within a communicator the order is everybody's */
      int of_comm = scene.rank == 0 ? i % COMMS : COMMS - 1 - i % COMMS;
      act_issue(&acts[i / COMMS * COMMS + of_comm]);
    }
    NCCL_CHECK(ncclGroupEnd());
    check_all(acts, COUNT);
  }
  NCCL_CHECK(ncclCommDestroy(comms[1]));
  NCCL_CHECK(ncclCommDestroy(comms[2]));
  scene_close(&scene);
}

static void nested(void)
{
  struct scene scene = scene_open(false);
  struct act acts[KINDS];

  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < KINDS; i++)
      acts[i] = act_lay(&scene, kinds[i]);
    put_all(acts, KINDS);
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclGroupStart());
    act_issue(&acts[0]);
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclGroupEnd());
    act_issue(&acts[1]);
    NCCL_CHECK(ncclGroupEnd());
    act_untouched(&acts[0]);
    act_issue(&acts[2]);
    NCCL_CHECK(ncclGroupEnd());
    check_all(acts, KINDS);
  }
  scene_close(&scene);
}

/* Nothing of the group is done. */
static void simulated(void)
{
  struct scene scene = scene_open(false);
  struct act acts[2];

  warm(&scene);
  for (int i = 0; i < 2; i++)
    acts[i] = act_lay(&scene, kinds[i]);
  put_all(acts, 2);
  NCCL_CHECK(ncclGroupStart());
  act_issue(&acts[0]);
  act_issue(&acts[1]);
  NCCL_CHECK(ncclGroupSimulateEnd(NULL));
  act_untouched(&acts[0]);
  act_untouched(&acts[1]);
  group(acts, 2);
  check_all(acts, 2);
  afterwards(&scene);
  scene_close(&scene);
}

/* What each call says, one after the other. */
static void say(const char *what, ncclResult_t result)
{
  printf("result of %s: %u\n", what, result);
}

/* The end of a group fails, and nothing in it is done. */
static void failing_end(void)
{
  struct scene scene = scene_open(false);
  struct act act = act_lay(&scene, OP_ALL_GATHER);

  warm(&scene);
  act_put(&act);
  NCCL_CHECK(ncclGroupStart());
  say("the call", act_try(&act));
  say("the end", ncclGroupEnd());
  act_untouched(&act);
  ncclGroupEnd(); /* the stand-in's group is still open where its end was made to fail */
  act_untouched(&act);
  afterwards(&scene);
  scene_close(&scene);
}

/* A call with a wrong argument between two others: that one is told of, the end too, and nothing is done. */
static void wrong_argument(void)
{
  struct scene scene = scene_open(false);
  struct act acts[KINDS];
  const char *word = scene_word(0);

  warm(&scene);
  for (int i = 0; i < KINDS; i++)
    acts[i] = act_lay(&scene, kinds[i]);
  put_all(acts, KINDS);
  NCCL_CHECK(ncclGroupStart());
  say("the call before", act_try(&acts[0]));
  if (strcmp(word, "root") == 0)
    say("the wrong call",
        ncclBroadcast(acts[1].send, acts[1].recv, 10, ncclFloat32, scene.nranks, scene.comm, scene.streams[0]));
  else if (strcmp(word, "dtype") == 0)
    say("the wrong call",
        ncclAllGather(acts[1].send, acts[1].recv, 10, (ncclDataType_t)ncclNumTypes, scene.comm, scene.streams[0]));
  else if (strcmp(word, "redop") == 0)
    say("the wrong call",
        ncclReduceScatter(acts[1].send, acts[1].recv, 10, ncclFloat32, (ncclRedOp_t)77, scene.comm, scene.streams[0]));
  else
    say("the wrong call", ncclAllGather(acts[1].send, acts[1].recv, 10, ncclFloat32, NULL, scene.streams[0]));
  say("the call after", act_try(&acts[2]));
  say("the end", ncclGroupEnd());
  act_untouched(&acts[0]);
  act_untouched(&acts[2]);
  afterwards(&scene);
  scene_close(&scene);
}

/* As PyTorch's coalescing manager: memory that is allocated between the start and the first call. */
static void allocated_inside(void)
{
  struct scene scene = scene_open(false);
  struct act acts[KINDS];

  for (int round = 0; round < 3; round++) {
    NCCL_CHECK(ncclGroupStart());
    scene_segment(&scene);
    for (int i = 0; i < KINDS; i++) {
      acts[i] = act_lay(&scene, kinds[i]);
      act_put(&acts[i]);
      act_issue(&acts[i]);
    }
    NCCL_CHECK(ncclGroupEnd());
    check_all(acts, KINDS);
  }
  scene_close(&scene);
}

/* One group, whose second call needs a window of its own, which cannot be had. */
static void new_window_inside(void)
{
  struct scene scene = scene_open(false);
  struct act acts[KINDS];

  warm(&scene);
  for (int i = 0; i < KINDS; i++) {
    if (i == 1)
      scene_segment(&scene);
    acts[i] = act_lay(&scene, kinds[i]);
  }
  put_all(acts, KINDS);
  if (scene.rank == 0 || scene_number(0) == 0)
    group(acts, KINDS);
  else
    for (int i = 0; i < KINDS; i++)
      act_issue(&acts[i]);
  check_all(acts, KINDS);
  afterwards(&scene);
  scene_close(&scene);
}

/* A group with calls of both lanes, each on another stream, of which each reads what the one before it wrote. */
static void lanes(void)
{
  struct scene scene = scene_open(scene_number(0));
  struct act first, second, third;

  warm(&scene);
  for (int round = 0; round < 3; round++) {
    first = act_lay(&scene, OP_ALL_GATHER);
    second = act_lay(&scene, OP_ALL_REDUCE);
    second.recv = (char *)second.recv + scene.rank * 512; /* the ranks' offsets differ: this one is plain */
    scene.used += (size_t)scene.nranks * 512;
    third = act_lay(&scene, OP_ALL_GATHER);
    second.send = first.recv;
    third.send = second.recv;
    second.stream = scene.streams[1];
    third.stream = scene.streams[2];
    act_put(&first);
    second.data.seed = first.data.seed;
    CUDA_CHECK(cudaMemset(second.recv, 0, second.recv_count * sizeof(float)));
    CUDA_CHECK(cudaMemset(third.recv, 0, third.recv_count * sizeof(float)));
    CUDA_CHECK(cudaStreamSynchronize(NULL));
    scene_slow(scene.streams[0]);
    NCCL_CHECK(ncclGroupStart());
    act_issue(&first);
    act_issue(&second);
    act_issue(&third);
    NCCL_CHECK(ncclGroupEnd());
    scene_settle(scene.comm);
    CUDA_CHECK(cudaDeviceSynchronize());
    act_check(&first);
    { /* all ranks reduce the gathered part of rank 0, and then gather that */
      float *got = NULL, input[8];
      size_t bytes = third.recv_count * sizeof(float);
      got = malloc(bytes);
      CUDA_CHECK(cudaMemcpy(got, third.recv, bytes, 2));
      data_fill(&first.data, 0, 0, 8, input);
      for (int r = 0; r < scene.nranks; r++)
        for (int i = 0; i < 8; i++)
          if (got[(size_t)r * third.count + (size_t)i] != input[i] * (float)scene.nranks)
            scene.wrong = true;
      free(got);
    }
  }
  scene_close(&scene);
}

/*
 * A group over two streams is one operation on both of them (NCCL's user guide): it comes behind what is on either, and
 * either may be read behind it. With `plain` one of the calls has a buffer outside every segment.
 */
static void joined(void)
{
  enum { COUNT = 2 };
  struct scene scene = scene_open(false);
  struct act acts[COUNT];
  bool loose = strcmp(scene_word(0), "plain") == 0;

  warm(&scene);
  for (int round = 0; round < 4; round++) {
    int late = round % 2; /* which of them has the slow stream, and is read on the other */
    if (loose && round / 2 == 0)
      scene_loose(&scene);
    acts[0] = act_lay(&scene, OP_ALL_REDUCE);
    if (loose)
      scene_segment(&scene);
    acts[1] = strcmp(scene_word(0), "average") == 0 ? act_average(&scene) : act_lay(&scene, OP_ALL_GATHER);
    acts[1].stream = scene.streams[1];
    put_all(acts, COUNT);
    scene_slow(acts[late].stream);
    group(acts, COUNT);
    act_check_on(&acts[1], acts[0].stream);
    act_check_on(&acts[0], acts[1].stream);
  }
  scene_close(&scene);
}

/* One rank has no window for what only it touches, and so copies alone, in groups over two streams. */
static void copied_alone(void)
{
  enum { COUNT = 2, ROUNDS = 4 };
  struct scene scene = scene_open(false);
  struct act acts[COUNT];
  void *loose = NULL;

  warm(&scene);
  for (int round = 0; round < ROUNDS; round++) {
    acts[0] = act_lay(&scene, OP_ALL_GATHER);
    acts[1] = act_lay(&scene, OP_REDUCE_SCATTER);
    acts[1].stream = scene.streams[1];
    if (!loose)
      CUDA_CHECK(cudaMalloc(&loose, acts[1].recv_count * sizeof(float)));
    if (scene.rank == 1)
      acts[1].recv = loose;
    put_all(acts, COUNT);
    group(acts, COUNT);
    check_all(acts, COUNT);
  }
  scene_close(&scene);
}

static void *abort_it(void *comm)
{
  NCCL_CHECK(ncclCommAbort(comm));
  return NULL;
}

/* A watchdog aborts the communicator between the start of a group and its end, which says so or not; but it ends. */
static void aborted_inside(void)
{
  struct scene scene = scene_open(false);
  struct act acts[2];
  pthread_t thread;

  warm(&scene);
  for (int i = 0; i < 2; i++)
    acts[i] = act_lay(&scene, kinds[i]);
  put_all(acts, 2);
  NCCL_CHECK(ncclGroupStart());
  act_issue(&acts[0]);
  act_issue(&acts[1]);
  pthread_create(&thread, NULL, abort_it, scene.comm);
  usleep(50000);
  ncclGroupEnd();
  pthread_join(thread, NULL);
  scene.comm = NULL;
  scene_close(&scene);
}

const struct scene_entry scenes_groups[] = {{"mixed", mixed},
                                            {"many", many},
                                            {"apart", apart},
                                            {"several", several},
                                            {"nested", nested},
                                            {"simulated", simulated},
                                            {"failing_end", failing_end},
                                            {"wrong_argument", wrong_argument},
                                            {"allocated_inside", allocated_inside},
                                            {"new_window_inside", new_window_inside},
                                            {"lanes", lanes},
                                            {"joined", joined},
                                            {"copied_alone", copied_alone},
                                            {"aborted_inside", aborted_inside},
                                            {NULL, NULL}};
