/* SPDX-License-Identifier: Apache-2.0 */
/* Scenes of calls that are captured into graphs. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/preload/scene.h"

enum { KINDS = 4, BIG = 46 << 20, ANY_ERRNO = 4242 };

/* The three ops, and an average. */
static void lay_kinds(struct scene *scene, struct act acts[KINDS])
{
  acts[0] = act_lay(scene, OP_ALL_GATHER);
  acts[1] = act_lay(scene, OP_REDUCE_SCATTER);
  acts[2] = act_lay(scene, OP_ALL_REDUCE);
  acts[3] = act_average(scene);
}

static void warm(struct scene *scene)
{
  struct act act = act_lay(scene, OP_ALL_GATHER);
  act_do(&act);
}

static cudaGraphExec_t capture(struct act *acts, int count, CUstreamCaptureMode mode)
{
  cudaStream_t stream = acts[0].stream;
  cudaGraphExec_t exec;
  cudaGraph_t graph;

  CUDA_CHECK(cudaStreamBeginCapture(stream, mode));
  for (int i = 0; i < count; i++)
    act_issue(&acts[i]);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  return exec;
}

static void replay(cudaGraphExec_t exec, struct act *acts, int count)
{
  for (int i = 0; i < count; i++)
    act_put(&acts[i]);
  CUDA_CHECK(cudaGraphLaunch(exec, acts[0].stream));
  CUDA_CHECK(cudaStreamSynchronize(acts[0].stream));
  for (int i = 0; i < count; i++)
    act_check(&acts[i]);
}

static CUstreamCaptureMode mode_of(const char *word)
{
  return strcmp(word, "relaxed") == 0        ? CU_STREAM_CAPTURE_MODE_RELAXED
         : strcmp(word, "thread_local") == 0 ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                             : CU_STREAM_CAPTURE_MODE_GLOBAL;
}

/* In one mode, outside a group or in one: errno and the last error stay as they are. */
static void modes(void)
{
  struct scene scene = scene_open(false);
  struct act acts[KINDS], broadcast;
  cudaEvent_t fork, join;
  cudaGraphExec_t exec;
  cudaGraph_t graph;
  bool group = strcmp(scene_word(1), "group") == 0;

  warm(&scene);
  lay_kinds(&scene, acts);
  broadcast = act_lay(&scene, ACT_BROADCAST);
  acts[2].stream = group ? scene.streams[1] : scene.streams[0];
  CUDA_CHECK(cudaEventCreate(&fork));
  CUDA_CHECK(cudaEventCreate(&join));
  for (int round = 0; round < 2; round++) {
    if (cudaSetDevice(1000) != cudaErrorInvalidDevice)
      job_fail("there are a thousand devices");
    CUDA_CHECK(cudaStreamBeginCapture(scene.streams[0], mode_of(scene_word(0))));
    CUDA_CHECK(cudaEventRecord(fork, scene.streams[0]));
    CUDA_CHECK(cudaStreamWaitEvent(acts[2].stream, fork, 0));
    errno = ANY_ERRNO;
    if (group)
      NCCL_CHECK(ncclGroupStart());
    for (int i = 0; i < KINDS; i++)
      act_issue(&acts[i]);
    if (group)
      NCCL_CHECK(ncclGroupEnd());
    if (errno != ANY_ERRNO || cudaGetLastError() != cudaErrorInvalidDevice)
      job_fail("errno or the last error is another one");
    CUDA_CHECK(cudaEventRecord(join, acts[2].stream));
    CUDA_CHECK(cudaStreamWaitEvent(scene.streams[0], join, 0));
    if (group)
      act_issue(&broadcast); /* so that the capture ends on the other lane */
    CUDA_CHECK(cudaStreamEndCapture(scene.streams[0], &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    act_put(&broadcast);
    replay(exec, acts, KINDS);
    if (group)
      act_check(&broadcast);
    CUDA_CHECK(cudaGraphDestroy(graph));
    replay(exec, acts, KINDS);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
  }
  scene_close(&scene);
}

/* Nothing is made or registered in a capture; what was captured plain stays right when there are windows later. */
static void first_use(void)
{
  struct scene scene = scene_open(false);
  struct act acts[KINDS];
  cudaGraphExec_t exec;
  bool child = strcmp(scene_word(0), "window") == 0; /* there is a child, but no window yet */

  if (child)
    warm(&scene);
  if (child)
    scene_segment(&scene);
  lay_kinds(&scene, acts);
  exec = capture(acts, KINDS, CU_STREAM_CAPTURE_MODE_GLOBAL);
  replay(exec, acts, KINDS);
  for (int i = 0; i < KINDS; i++)
    act_do(&acts[i]);
  replay(exec, acts, KINDS);
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  exec = capture(acts, KINDS, CU_STREAM_CAPTURE_MODE_GLOBAL);
  replay(exec, acts, KINDS);
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  scene_close(&scene);
}

/*
 * Very many replays of a small graph, and eager calls of both lanes between them on three streams. All of them add to
 * the same number, in the order of issue that NCCL keeps on one communicator.
 */
static void replays(void)
{
  struct scene scene = scene_open(false);
  struct act acts[KINDS], eager, plain;
  cudaGraphExec_t exec;
  int count = scene_number(0);

  warm(&scene);
  lay_kinds(&scene, acts);
  for (int i = 0; i < KINDS; i++)
    acts[i].count = acts[i].kind == OP_REDUCE_SCATTER ? 4 : 8;
  for (int i = 0; i < KINDS; i++) {
    acts[i].send_count = acts[i].kind == OP_REDUCE_SCATTER ? acts[i].count * (size_t)scene.nranks : acts[i].count;
    acts[i].recv_count = acts[i].kind == OP_ALL_GATHER ? acts[i].count * (size_t)scene.nranks : acts[i].count;
  }
  exec = capture(acts, KINDS, CU_STREAM_CAPTURE_MODE_GLOBAL);
  eager = act_lay(&scene, OP_ALL_GATHER);
  scene_loose(&scene);
  plain = act_lay(&scene, OP_ALL_REDUCE);
  eager.count = eager.send_count = plain.count = plain.send_count = plain.recv_count = 8;
  eager.recv_count = eager.count * (size_t)scene.nranks;
  for (int round = 0; round < count; round++) {
    bool look = round % 50 == 0;
    if (look)
      for (int i = 0; i < KINDS; i++)
        act_put(&acts[i]);
    CUDA_CHECK(cudaGraphLaunch(exec, scene.streams[0]));
    if (round % 5 == 2) { /* on the graph's stream, and on others */
      eager.stream = scene.streams[round % 3];
      if (look || round % 15 == 2)
        act_put(&eager);
      act_issue(&eager);
    }
    if (round % 25 == 4) {
      plain.stream = scene.streams[round % 2 + 1];
      act_put(&plain);
      act_issue(&plain);
      act_check(&plain);
    }
    if (round % 15 == 2)
      act_check(&eager);
    for (int i = 0; look && i < KINDS; i++)
      act_check(&acts[i]);
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  scene_close(&scene);
}

/* Wants more than there is while anything is parked or mapped: true if it is to be had all the same. */
static bool press(void)
{
  void *most = NULL;
  cudaError_t result = cudaMalloc(&most, BIG);

  if (result == cudaSuccess)
    CUDA_CHECK(cudaFree(most));
  else
    cudaGetLastError();
  return result == cudaSuccess;
}

/* The driver tells of the end of a graph from a thread of its own, a while later. */
static bool press_for_a_while(void)
{
  bool had = false;

  for (int i = 0; i < 50 && !had; i++) {
    had = press();
    usleep(5000);
  }
  return had;
}

/* What a graph works on stays, though the job has freed it and memory is short; and goes when the graph does. */
static void kept(void)
{
  struct scene scene = scene_open(false);
  bool no_exec = strcmp(scene_word(0), "graph") == 0;
  struct act act;
  cudaGraphExec_t exec = NULL;
  cudaGraph_t graph;
  char *segment;

  warm(&scene);
  segment = scene.segment;
  act = act_lay(&scene, OP_ALL_GATHER);
  CUDA_CHECK(cudaGraphExecDestroy(capture(&act, 1, CU_STREAM_CAPTURE_MODE_GLOBAL))); /* one that is of no account */
  CUDA_CHECK(cudaStreamBeginCapture(scene.streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
  act_issue(&act);
  CUDA_CHECK(cudaStreamEndCapture(scene.streams[0], &graph));
  if (!no_exec) {
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
  }
  if (exec)
    replay(exec, &act, 1);
  CUDA_CHECK(cudaFree(segment));
  if (press())
    job_fail("there is too much memory for this scene, or what the graph works on is gone");
  if (exec)
    CUDA_CHECK(cudaGraphLaunch(exec, scene.streams[0]));
  if (no_exec)
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_CHECK(cudaGraphLaunch(exec, scene.streams[0]));
  CUDA_CHECK(cudaStreamSynchronize(scene.streams[0]));
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  if (no_exec)
    CUDA_CHECK(cudaGraphDestroy(graph));
  if (!press_for_a_while())
    job_fail("what the graph worked on did not come back");
  scene_close(&scene);
}

/* A capture that comes to nothing holds nothing. */
static void abandoned(void)
{
  struct scene scene = scene_open(false);
  struct act act;
  cudaGraph_t graph;
  char *segment;

  warm(&scene);
  segment = scene.segment;
  act = act_lay(&scene, OP_ALL_GATHER);
  for (int round = 0; round < 3; round++) {
    CUDA_CHECK(cudaStreamBeginCapture(scene.streams[round], CU_STREAM_CAPTURE_MODE_RELAXED));
    act.stream = scene.streams[round];
    act_issue(&act);
    if (round == 0 && cudaStreamSynchronize(scene.streams[0]) == cudaSuccess)
      job_fail("waiting for a stream that is captured is no error");
    if (round == 1)
      CUDA_CHECK(cudaStreamDestroy(scene.streams[1]));
    else if ((cudaStreamEndCapture(scene.streams[round], &graph) == cudaSuccess) != (round == 2))
      job_fail("round %d: the capture did not end as it should", round);
    cudaGetLastError();
  }
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaFree(segment));
  if (!press_for_a_while())
    job_fail("what the capture worked on did not come back");
  scene_close(&scene);
}

/* Two streams of one capture, each with a call of one lane: the second reads what the first writes. */
static void two_streams(void)
{
  struct scene scene = scene_open(false);
  struct act first, second;
  cudaEvent_t fork, join;
  cudaGraphExec_t exec;
  cudaGraph_t graph;
  bool job_first = strcmp(scene_word(0), "job_first") == 0;

  warm(&scene);
  CUDA_CHECK(cudaEventCreate(&fork));
  CUDA_CHECK(cudaEventCreate(&join));
  for (int round = 0; round < 2; round++) {
    first = act_lay(&scene, job_first ? ACT_BROADCAST : OP_ALL_GATHER);
    second = act_lay(&scene, job_first ? OP_ALL_GATHER : ACT_BROADCAST);
    second.stream = scene.streams[1];
    CUDA_CHECK(cudaStreamBeginCapture(scene.streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUDA_CHECK(cudaEventRecord(fork, scene.streams[0]));
    CUDA_CHECK(cudaStreamWaitEvent(scene.streams[1], fork, 0));
    act_issue(&first);
    act_issue(&second);
    CUDA_CHECK(cudaEventRecord(join, scene.streams[1]));
    CUDA_CHECK(cudaStreamWaitEvent(scene.streams[0], join, 0));
    CUDA_CHECK(cudaStreamEndCapture(scene.streams[0], &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    act_put(&first);
    act_put(&second);
    CUDA_CHECK(cudaGraphLaunch(exec, scene.streams[0]));
    CUDA_CHECK(cudaStreamSynchronize(scene.streams[0]));
    act_check(&first);
    act_check(&second);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
  }
  scene_close(&scene);
}

/*
 * A graph on one stream, an eager call on another, no event of the job's between them: the second reads what the first
 * writes. `graph_first` or `eager_first`; `child` or `job`: the lane of the graph; `early`: captured before there was a
 * child.
 */
static void against_eager(void)
{
  struct scene scene = scene_open(false);
  bool graph_first = strcmp(scene_word(0), "graph_first") == 0, child = strcmp(scene_word(1), "child") == 0;
  bool early = strcmp(scene_word(2), "early") == 0;
  struct act in_graph, eager, *first, *second;
  void *own_send;
  cudaGraphExec_t exec;

  if (!early)
    warm(&scene);
  in_graph = act_lay(&scene, child ? OP_ALL_GATHER : ACT_BROADCAST);
  eager = act_lay(&scene, child ? ACT_BROADCAST : OP_ALL_GATHER);
  first = graph_first ? &in_graph : &eager;
  second = graph_first ? &eager : &in_graph;
  own_send = second->send;
  second->send = first->recv; /* rank 0's part comes first in both */
  exec = capture(&in_graph, 1, CU_STREAM_CAPTURE_MODE_GLOBAL);
  if (early)
    warm(&scene);
  eager.stream = scene.streams[1];
  for (int round = 0; round < 6; round++) {
    act_put(first);
    second->send = own_send;
    act_put(second);
    second->send = first->recv;
    scene_slow(first->stream);
    if (graph_first)
      CUDA_CHECK(cudaGraphLaunch(exec, scene.streams[0]));
    act_issue(&eager);
    if (!graph_first)
      CUDA_CHECK(cudaGraphLaunch(exec, scene.streams[0]));
    CUDA_CHECK(cudaDeviceSynchronize());
    act_check(first);
    { /* what the second one made of it: every part is rank 0's */
      float *got = malloc(second->recv_count * sizeof(float)), one;
      CUDA_CHECK(cudaMemcpy(got, second->recv, second->recv_count * sizeof(float), 2));
      for (size_t i = 0; i < second->recv_count; i++) {
        data_fill(&first->data, 0, i % second->count, 1, &one);
        scene.wrong |= got[i] != one;
      }
      free(got);
    }
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  scene_close(&scene);
}

/* A graph that has calls of the job's own communicator only; the child is given up before it is replayed. */
static void dropped(void)
{
  struct scene scene = scene_open(false);
  struct act act;
  cudaGraphExec_t exec;
  void *segment;

  warm(&scene);
  segment = scene.segment;
  scene_loose(&scene);
  act = act_lay(&scene, strcmp(scene_word(0), "broadcast") == 0 ? ACT_BROADCAST : OP_ALL_REDUCE);
  exec = capture(&act, 1, CU_STREAM_CAPTURE_MODE_GLOBAL);
  replay(exec, &act, 1);
  CUDA_CHECK(cudaFree(segment));
  press();
  replay(exec, &act, 1);
  act_do(&act);
  replay(exec, &act, 1);
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  scene_close(&scene);
}

struct life {
  cudaGraphExec_t exec;
  bool destroyed;
};

static void *destroy_later(void *arg)
{
  struct life *life = arg;

  usleep(150000);
  __atomic_store_n(&life->destroyed, true, __ATOMIC_SEQ_CST);
  CUDA_CHECK(cudaGraphExecDestroy(life->exec));
  return NULL;
}

/* NCCL waits for graphs when a communicator is destroyed. */
static void outlived(void)
{
  struct scene scene = scene_open(false);
  struct life life = {0};
  pthread_t thread;
  struct act act;

  warm(&scene);
  act = act_lay(&scene, OP_ALL_GATHER);
  life.exec = capture(&act, 1, CU_STREAM_CAPTURE_MODE_GLOBAL);
  replay(life.exec, &act, 1);
  pthread_create(&thread, NULL, destroy_later, &life);
  NCCL_CHECK(ncclCommDestroy(scene.comm));
  if (!__atomic_load_n(&life.destroyed, __ATOMIC_SEQ_CST))
    job_fail("the communicator's end did not wait for the graph");
  pthread_join(thread, NULL);
  scene.comm = NULL;
  scene_close(&scene);
}

const struct scene_entry scenes_graphs[] = {{"modes", modes},
                                            {"first_use", first_use},
                                            {"replays", replays},
                                            {"kept", kept},
                                            {"abandoned", abandoned},
                                            {"two_streams", two_streams},
                                            {"against_eager", against_eager},
                                            {"dropped", dropped},
                                            {"outlived", outlived},
                                            {NULL, NULL}};
