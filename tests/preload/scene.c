/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of a job, each a program of its own: `scenes NAME [WORD...]`. They end as the job does.
 *
 * Exit status: 0 all right, 1 wrong data, 2 a call failed, 64 not understood.
 */
#include "tests/preload/scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/bootstrap.h"
#include "tests/sim/numeric.h"

enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, SLOW_US = 60000, RUBBISH = 0xa5, ALIGNMENT = 512, COUNT = 997 };

static char **words;
static int word_count;

const char *scene_word(int at)
{
  return at < word_count ? words[at] : "";
}

int scene_number(int at)
{
  return atoi(scene_word(at));
}

void scene_settle(ncclComm_t comm)
{
  ncclResult_t state = ncclInProgress;

  while (state == ncclInProgress) {
    NCCL_CHECK(ncclCommGetAsyncError(comm, &state));
    usleep(200);
  }
  NCCL_CHECK(state);
}

/* Asked of every communicator, so that the record of calls knows the job's. */
static void look(ncclComm_t comm)
{
  int rank = -1;

  NCCL_CHECK(ncclCommUserRank(comm, &rank));
  if (rank != job_rank())
    job_fail("the rank is %d", rank);
}

struct scene scene_open(bool nonblocking)
{
  ncclConfig_t config = SIM_NCCL_CONFIG_INITIALIZER;
  struct scene scene = {.rank = job_rank(), .nranks = job_size()};
  int devices = 0;

  config.blocking = nonblocking ? 0 : NCCL_CONFIG_UNDEF_INT;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  CUDA_CHECK(cudaSetDevice(scene.rank % devices));
  NCCL_CHECK(ncclCommInitRankConfig(&scene.comm, scene.nranks, sim_bootstrap_id(scene.rank), scene.rank, &config));
  scene_settle(scene.comm);
  look(scene.comm);
  for (int i = 0; i < SCENE_STREAMS; i++)
    CUDA_CHECK(cudaStreamCreateWithFlags(&scene.streams[i], 1));
  scene_segment(&scene);
  return scene;
}

ncclComm_t scene_split(const struct scene *scene)
{
  ncclComm_t comm = NULL;

  NCCL_CHECK(ncclCommSplit(scene->comm, 0, scene->rank, &comm, NULL));
  scene_settle(scene->comm);
  look(comm);
  return comm;
}

void scene_close(struct scene *scene)
{
  if (scene->comm)
    NCCL_CHECK(ncclCommDestroy(scene->comm));
  printf("job: rank %d of %d: %d calls, %s\n", scene->rank, scene->nranks, scene->calls,
         scene->wrong ? "WRONG" : "all right");
  fflush(stdout);
  if (scene->wrong)
    exit(1);
}

void scene_segment(struct scene *scene)
{
  void *made = NULL;

  CUDA_CHECK(cudaMalloc(&made, SCENE_SEGMENT));
  scene->segment = made;
  scene->used = 0;
}

void scene_loose(struct scene *scene)
{
  scene->segment = NULL;
}

static void *take(struct scene *scene, size_t bytes)
{
  void *memory = NULL;

  if (!scene->segment) {
    CUDA_CHECK(cudaMalloc(&memory, bytes));
    return memory;
  }
  memory = scene->segment + scene->used;
  scene->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (scene->used > SCENE_SEGMENT)
    job_fail("the segment is too small for the scene");
  return memory;
}

struct act act_lay(struct scene *scene, int kind)
{
  size_t wide = COUNT * (size_t)scene->nranks;
  struct act act = {.scene = scene, .kind = kind, .count = COUNT, .comm = scene->comm, .stream = scene->streams[0]};

  act.data = (struct data){ncclFloat32, ncclSum, scene->nranks, 0};
  act.send_count = kind == OP_REDUCE_SCATTER ? wide : COUNT;
  act.recv_count = kind == OP_ALL_GATHER ? wide : COUNT;
  act.send = take(scene, act.send_count * sizeof(float));
  act.recv = take(scene, act.recv_count * sizeof(float));
  return act;
}

struct act act_average(struct scene *scene)
{
  struct act act = act_lay(scene, OP_REDUCE_SCATTER);

  act.data.redop = ncclAvg;
  return act;
}

void act_put(struct act *act)
{
  static uint64_t seed;
  size_t size = numeric_size(act->data.dtype);
  void *host = malloc(act->send_count * size);

  if (!host)
    job_fail("no host memory");
  act->data.seed = ++seed;
  data_fill(&act->data, act->scene->rank, 0, act->send_count, host);
  CUDA_CHECK(cudaMemcpy(act->send, host, act->send_count * size, HOST_TO_DEVICE));
  CUDA_CHECK(cudaMemset(act->recv, RUBBISH, act->recv_count * size));
  CUDA_CHECK(cudaStreamSynchronize(NULL));
  free(host);
}

static ncclResult_t send_recv(struct act *act)
{
  int rank = act->scene->rank, nranks = act->scene->nranks;
  ncclResult_t sent, received;

  NCCL_CHECK(ncclGroupStart());
  sent = ncclSend(act->send, act->count, act->data.dtype, (rank + 1) % nranks, act->comm, act->stream);
  received = ncclRecv(act->recv, act->count, act->data.dtype, (rank + nranks - 1) % nranks, act->comm, act->stream);
  NCCL_CHECK(ncclGroupEnd());
  return sent == ncclSuccess ? received : sent;
}

ncclResult_t act_try(struct act *act)
{
  ncclDataType_t dtype = act->data.dtype;
  ncclRedOp_t redop = (ncclRedOp_t)act->data.redop;

  act->scene->calls++;
  switch (act->kind) {
  case OP_ALL_GATHER:
    return ncclAllGather(act->send, act->recv, act->count, dtype, act->comm, act->stream);
  case OP_REDUCE_SCATTER:
    return ncclReduceScatter(act->send, act->recv, act->count, dtype, redop, act->comm, act->stream);
  case OP_ALL_REDUCE:
    return ncclAllReduce(act->send, act->recv, act->count, dtype, redop, act->comm, act->stream);
  case ACT_BROADCAST:
    return ncclBroadcast(act->send, act->recv, act->count, dtype, 0, act->comm, act->stream);
  default:
    return send_recv(act);
  }
}

void act_issue(struct act *act)
{
  NCCL_CHECK(act_try(act));
}

static bool is_right(const struct act *act, const char *result)
{
  int rank = act->scene->rank, nranks = act->scene->nranks;
  size_t bytes = act->count * numeric_size(act->data.dtype);
  bool right = true;
  char what[64];

  snprintf(what, sizeof(what), "kind %d, seed %d", act->kind, (int)act->data.seed);
  if (act->kind == ACT_BROADCAST || act->kind == ACT_SEND_RECV)
    return data_check_copied(&act->data, act->kind == ACT_BROADCAST ? 0 : (rank + nranks - 1) % nranks, 0, act->count,
                             result, what);
  if (act->kind != OP_ALL_GATHER)
    return data_check_reduced(&act->data, act->kind == OP_REDUCE_SCATTER ? (size_t)rank * act->count : 0, act->count,
                              result, what);
  for (int from = 0; from < nranks; from++)
    right &= data_check_copied(&act->data, from, 0, act->count, result + (size_t)from * bytes, what);
  return right;
}

void act_check_on(struct act *act, cudaStream_t stream)
{
  size_t bytes = act->recv_count * numeric_size(act->data.dtype);
  char *result = malloc(bytes);

  if (!result)
    job_fail("no host memory");
  CUDA_CHECK(cudaMemcpyAsync(result, act->recv, bytes, DEVICE_TO_HOST, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  act->scene->wrong |= !is_right(act, result);
  free(result);
}

void act_check(struct act *act)
{
  act_check_on(act, act->stream);
}

void act_untouched(struct act *act)
{
  size_t bytes = act->recv_count * numeric_size(act->data.dtype);
  unsigned char *result = malloc(bytes);

  if (!result)
    job_fail("no host memory");
  CUDA_CHECK(cudaStreamSynchronize(act->stream));
  CUDA_CHECK(cudaMemcpy(result, act->recv, bytes, DEVICE_TO_HOST));
  for (size_t i = 0; i < bytes; i++)
    if (result[i] != RUBBISH)
      job_fail("seed %d: something was done", (int)act->data.seed);
  free(result);
}

void act_do(struct act *act)
{
  act_put(act);
  act_issue(act);
  scene_settle(act->comm);
  act_check(act);
}

static void rest(void *unused)
{
  (void)unused;
  usleep(SLOW_US);
}

void scene_slow(cudaStream_t stream)
{
  CUDA_CHECK(cudaLaunchHostFunc(stream, rest, NULL));
}

static bool play(const struct scene_entry *entries, const char *name)
{
  for (; entries->name; entries++)
    if (strcmp(entries->name, name) == 0) {
      entries->play();
      return true;
    }
  return false;
}

int main(int argc, char **argv)
{
  words = argv + 2;
  word_count = argc > 2 ? argc - 2 : 0;
  if (argc > 1 && (play(scenes_groups, argv[1]) || play(scenes_graphs, argv[1]) || play(scenes_life, argv[1]) || play(scenes_entries, argv[1])))
    return 0;
  fprintf(stderr, "scenes: not understood\n");
  return 64;
}
