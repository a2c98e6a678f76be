/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of functions that came with later versions of NCCL, and of memory that comes from elsewhere than cudaMalloc.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/preload/scene.h"
#include "tests/sim/bootstrap.h"

enum { KINDS = 3, TAG = 77 };
static const int kinds[KINDS] = {OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE};

/* One call of each kind, and with them the child and its window. */
static void warm(struct scene *scene)
{
  for (int i = 0; i < KINDS; i++) {
    struct act act = act_lay(scene, kinds[i]);
    act_do(&act);
  }
}

/* Settings of one call */

/* A configuration as a program makes it whose headers are of the version with or without the later members. */
struct settings {
  ncclCollConfig_t config;
  char later[64];
};

static void set(struct settings *settings, const char *what)
{
  static int something;
  ncclCollConfig_t *config = &settings->config;

  memset(settings, 0x7f, sizeof(*settings));
  *config = (ncclCollConfig_t)SIM_NCCL_COLL_CONFIG_INITIALIZER;
  if (strcmp(what, "first") == 0) { /* of 2.31: what is behind it is none of it */
    config->size = offsetof(ncclCollConfig_t, launchCompletionEvent);
    memset(&config->launchCompletionEvent, 0x7f, sizeof(config->launchCompletionEvent));
  } else if (strcmp(what, "tag") == 0)
    config->userProfilerTag = TAG;
  else if (strcmp(what, "unforced") == 0)
    config->forceAlgSelection = 0;
  else if (strcmp(what, "no_name") == 0)
    config->algSelection = "";
  else if (strcmp(what, "ctas") == 0)
    config->minCTAs = config->maxCTAs = 4;
  else if (strcmp(what, "nvls_ctas") == 0)
    config->nvlsCTAs = 4;
  else if (strcmp(what, "cluster") == 0)
    config->cgaClusterSize = 2;
  else if (strcmp(what, "cta_policy") == 0)
    config->CTAPolicy = 1;
  else if (strcmp(what, "algorithm") == 0)
    config->algSelection = "ring";
  else if (strcmp(what, "extension") == 0)
    config->ext = (ncclConfigExt_t *)(void *)&something;
  else if (strcmp(what, "event") == 0)
    config->launchCompletionEvent = (CUevent)(void *)&something;
  else if (strcmp(what, "newer") == 0)
    config->size = sizeof(*settings);
  else if (strcmp(what, "magic") == 0)
    config->magic++;
  else if (strcmp(what, "short") == 0)
    config->size = offsetof(ncclCollConfig_t, userProfilerTag);
  else if (strcmp(what, "force") == 0)
    config->forceAlgSelection = 2;
  else if (strcmp(what, "unset") != 0)
    job_fail("no such settings: %s", what);
}

static ncclResult_t configured(struct act *act, const ncclCollConfig_t *config)
{
  ncclDataType_t dtype = act->data.dtype;
  ncclRedOp_t redop = (ncclRedOp_t)act->data.redop;

  act->scene->calls++;
  switch (act->kind) {
  case OP_ALL_GATHER:
    return ncclAllGatherConfig(act->send, act->recv, act->count, dtype, act->comm, act->stream, config);
  case OP_REDUCE_SCATTER:
    return ncclReduceScatterConfig(act->send, act->recv, act->count, dtype, redop, act->comm, act->stream, config);
  case OP_ALL_REDUCE:
    return ncclAllReduceConfig(act->send, act->recv, act->count, dtype, redop, act->comm, act->stream, config);
  default:
    return ncclBroadcastConfig(act->send, act->recv, act->count, dtype, 0, act->comm, act->stream, config);
  }
}

/* Each kind with these settings, and then without any. */
static void settings(void)
{
  struct scene scene = scene_open(false);
  bool none = strcmp(scene_word(0), "none") == 0;
  struct settings made;

  warm(&scene);
  for (int i = 0; i < KINDS; i++) {
    struct act act = act_lay(&scene, kinds[i]);

    act_put(&act);
    if (!none)
      set(&made, scene_word(0));
    NCCL_CHECK(configured(&act, none ? NULL : &made.config));
    memset(&made, 0, sizeof(made)); /* it need only last as long as the call */
    act_check(&act);
  }
  warm(&scene);
  scene_close(&scene);
}

/* What NCCL refuses; the results are said, to be compared with those of a run without the shim. */
static void refused(void)
{
  struct scene scene = scene_open(false);
  struct settings made;

  warm(&scene);
  set(&made, scene_word(0));
  for (int i = 0; i < KINDS; i++) {
    struct act act = act_lay(&scene, kinds[i]);

    act_put(&act);
    printf("result %u\n", configured(&act, &made.config));
    act_untouched(&act);
  }
  warm(&scene);
  scene_close(&scene);
}

/* In a group, where the call is made when the settings are gone. */
static void settings_in_group(void)
{
  struct scene scene = scene_open(false);
  struct act acts[KINDS + 1];
  struct settings made;

  warm(&scene);
  for (int i = 0; i <= KINDS; i++) {
    acts[i] = act_lay(&scene, kinds[i % KINDS]);
    act_put(&acts[i]);
  }
  NCCL_CHECK(ncclGroupStart());
  for (int i = 0; i < KINDS; i++) {
    set(&made, scene_word(0));
    made.config.userProfilerTag = (uint64_t)(TAG + i);
    NCCL_CHECK(configured(&acts[i], &made.config));
    memset(&made, 0, sizeof(made));
  }
  act_issue(&acts[KINDS]);
  NCCL_CHECK(ncclGroupEnd());
  for (int i = 0; i <= KINDS; i++)
    act_check(&acts[i]);
  warm(&scene);
  scene_close(&scene);
}

/* The order between an all-gather, which goes to the child, and what is never moved, without an event between. */

static void pass_along(const struct scene *scene, const char *what, const struct act *act, ncclWindow_t window)
{
  const ncclCollConfig_t made = SIM_NCCL_COLL_CONFIG_INITIALIZER, *config = &made;
  ncclWaitSignalDesc_t desc = {.opCnt = 1, .peer = scene->rank};
  cudaStream_t stream = scene->streams[1];
  const void *send = act->send;
  void *recv = act->recv;
  size_t count = act->count;

  if (strcmp(what, "broadcast") == 0)
    NCCL_CHECK(ncclBroadcastConfig(send, recv, count, ncclFloat32, 0, scene->comm, stream, config));
  else if (strcmp(what, "reduce") == 0)
    NCCL_CHECK(ncclReduceConfig(send, recv, count, ncclFloat32, ncclSum, 0, scene->comm, stream, config));
  else if (strcmp(what, "alltoall") == 0)
    NCCL_CHECK(ncclAlltoAllConfig(recv, act->send, 1, ncclFloat32, scene->comm, stream, config));
  else if (strcmp(what, "gather") == 0)
    NCCL_CHECK(ncclGatherConfig(send, recv, 1, ncclFloat32, 0, scene->comm, stream, config));
  else if (strcmp(what, "scatter") == 0)
    NCCL_CHECK(ncclScatterConfig(send, recv, 1, ncclFloat32, 0, scene->comm, stream, config));
  else if (strcmp(what, "signal") == 0)
    NCCL_CHECK(ncclSignal((scene->rank + 1) % scene->nranks, 0, 0, 0, scene->comm, stream));
  else if (strcmp(what, "put") == 0)
    NCCL_CHECK(ncclPutSignal(act->send, 1, ncclFloat32, (scene->rank + 1) % scene->nranks, window, 0, 0, 0, 0,
                             scene->comm, stream));
  else
    NCCL_CHECK(ncclWaitSignal(1, &desc, scene->comm, stream));
}

static void in_order(void)
{
  struct scene scene = scene_open(false);
  const char *what = scene_word(0);
  struct act gather, other;
  ncclWindow_t window = NULL;
  void *mine = NULL;

  warm(&scene);
  gather = act_lay(&scene, OP_ALL_GATHER);
  act_put(&gather);
  other = act_lay(&scene, ACT_BROADCAST);
  act_put(&other);
  NCCL_CHECK(ncclMemAlloc(&mine, 2 << 20));
  NCCL_CHECK(ncclCommWindowRegister(scene.comm, mine, 2 << 20, &window, NCCL_WIN_COLL_SYMMETRIC));
  if (strcmp(what, "put") == 0)
    other.send = mine;
  if (strcmp(what, "wait") == 0) /* its own, which is there before the all-gather */
    NCCL_CHECK(ncclSignal(scene.rank, 0, 0, 0, scene.comm, scene.streams[2]));
  scene_slow(gather.stream);
  act_issue(&gather);
  pass_along(&scene, what, &other, window);
  act_check_on(&gather, scene.streams[1]);
  CUDA_CHECK(cudaDeviceSynchronize());
  NCCL_CHECK(ncclCommWindowDeregister(scene.comm, window));
  NCCL_CHECK(ncclMemFree(mine));
  scene_close(&scene);
}

/* A communicator and a stream, without memory. */
static struct scene open_bare(ncclConfig_t *config)
{
  struct scene scene = {.rank = job_rank(), .nranks = job_size()};
  int devices = 0;

  CUDA_CHECK(cudaGetDeviceCount(&devices));
  CUDA_CHECK(cudaSetDevice(scene.rank % devices));
  NCCL_CHECK(ncclCommInitRankConfig(&scene.comm, scene.nranks, sim_bootstrap_id(scene.rank), scene.rank, config));
  NCCL_CHECK(ncclCommUserRank(scene.comm, &scene.rank));
  CUDA_CHECK(cudaStreamCreateWithFlags(&scene.streams[0], 1));
  return scene;
}

/* Configurations of a communicator, of which only `size` bytes are the job's */

static void short_config(void)
{
  ncclConfig_t config = SIM_NCCL_CONFIG_INITIALIZER;
  struct scene scene;

  config.size = offsetof(ncclConfig_t, blocking);
  config.blocking = 0;
  config.splitShare = 1;
  scene = open_bare(&config);
  scene_segment(&scene);
  warm(&scene);
  scene.comm = scene_split(&scene); /* the parent's setting decides on what is made of it */
  warm(&scene);
  scene_close(&scene);
}

/* Memory from elsewhere */

/* As PyTorch's expandable segments: the driver's functions, and pieces mapped side by side in a reserved range. */
static void *map_pieces(int device, size_t piece, int count)
{
  CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
  CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
  CUresult (*allow)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
  CUmemAccessDesc desc = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  void *library = dlopen("libcuda.so.1", RTLD_LAZY);
  CUdeviceptr base = 0;

  if (!library)
    job_fail("no driver");
  *(void **)&reserve = dlsym(library, "cuMemAddressReserve");
  *(void **)&create = dlsym(library, "cuMemCreate");
  *(void **)&map = dlsym(library, "cuMemMap");
  *(void **)&allow = dlsym(library, "cuMemSetAccess");
  CUDA_CHECK(reserve(&base, piece * (size_t)count, 0, 0, 0));
  for (int i = 0; i < count; i++) {
    CUmemGenericAllocationHandle handle;

    CUDA_CHECK(create(&handle, piece, &prop, 0));
    CUDA_CHECK(map(base + piece * (size_t)i, piece, 0, handle, 0));
  }
  CUDA_CHECK(allow(base, piece * (size_t)count, &desc, 1));
  return (void *)(uintptr_t)base;
}

/* The same calls, several times, on memory of this kind; and with a word more, on the arena's before. */
static void elsewhere(void)
{
  struct scene scene = open_bare(NULL);
  void *pooled = NULL;
  int device = 0;

  CUDA_CHECK(cudaGetDevice(&device));
  if (strcmp(scene_word(1), "mixed") == 0) {
    scene_segment(&scene);
    warm(&scene);
  }
  if (strcmp(scene_word(0), "mapped") == 0) {
    scene.segment = map_pieces(device, 2 << 20, 2);
  } else {
    CUDA_CHECK(cudaMallocAsync(&pooled, SCENE_SEGMENT, scene.streams[0]));
    scene.segment = pooled;
  }
  scene.used = 0;
  for (int i = 0; i < 4; i++)
    warm(&scene);
  if (pooled)
    CUDA_CHECK(cudaFreeAsync(pooled, scene.streams[0]));
  scene_close(&scene);
}

const struct scene_entry scenes_entries[] = {{"settings", settings},
                                             {"refused", refused},
                                             {"settings_in_group", settings_in_group},
                                             {"in_order", in_order},
                                             {"short_config", short_config},
                                             {"elsewhere", elsewhere},
                                             {NULL, NULL}};
