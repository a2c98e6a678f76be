/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: what they are, where their buffers lie, how they are issued. */
#include <stdlib.h>
#include <unistd.h>

#include "tests/sim/numeric.h"
#include "tests/soak/soak.h"

enum { PLACE_BYTES = 600 << 10, TYPICAL_COUNT = 6000, NAP_MS = 12 };

static bool is_reducing(enum op op)
{
  return op == OP_reduce_scatter || op == OP_all_reduce || op == OP_reduce;
}

/* Whose input, whose output has a part for each rank. */
static bool wide_input(enum op op)
{
  return op == OP_reduce_scatter || op == OP_all_to_all || op == OP_scatter;
}

static bool wide_output(enum op op)
{
  return op == OP_all_gather || op == OP_all_to_all || op == OP_gather;
}

static ncclDataType_t draw_dtype(struct random *common)
{
  static const int weights[ncclNumTypes] = {2, 2, 4, 2, 3, 2, 10, 30, 4, 30, 5, 5};

  return (ncclDataType_t)random_weighted(common, weights, ncclNumTypes);
}

static int draw_redop(struct random *common)
{
  static const int redops[] = {ncclSum, ncclAvg, ncclMax, ncclMin, ncclProd, PREMULSUM};
  static const int weights[] = {48, 30, 6, 5, 5, 6};

  return redops[random_weighted(common, weights, 6)];
}

static size_t draw_count(struct random *common, const struct call *call)
{
  bool wide = wide_input(call->op) || wide_output(call->op);
  size_t most = PLACE_BYTES / numeric_size(call->dtype) / (wide ? (size_t)call->team->size : 1);
  int kind = random_below(common, 100);

  if (kind < 2 && !(call->op == OP_send_recv))
    return 0;
  if (kind < 12)
    return 1 + (size_t)random_below(common, 64);
  return 1 + (size_t)random_below(common, kind < 92 ? TYPICAL_COUNT : (int)most);
}

static void set_counts(struct call *call)
{
  size_t n = (size_t)call->team->size;

  call->send_count = call->count * (wide_input(call->op) ? n : 1);
  call->recv_count = call->count * (wide_output(call->op) ? n : 1);
}

struct call *calls_draw(struct soak *soak, struct team *team)
{
#define OP_WEIGHT(name, weight) weight,
  static const int weights[] = {OPS(OP_WEIGHT)};
#undef OP_WEIGHT
  struct random *common = &soak->common;
  struct call *call = calloc(1, sizeof(*call));
  bool inplace;

  if (!call)
    soak_fail("no host memory");
  call->team = team;
  call->op = (enum op)random_weighted(common, weights, OP_COUNT);
  call->dtype = draw_dtype(common);
  call->redop = draw_redop(common);
  if (!is_reducing(call->op))
    call->redop = ncclSum;
  call->count = draw_count(common, call);
  call->root = random_below(common, team->size);
  inplace = random_chance(common, 25);
  call->inplace = inplace && (is_reducing(call->op) || call->op == OP_all_gather || call->op == OP_broadcast);
  call->seed = random_next(common);
  call->number = soak->calls++;
  set_counts(call);
  return call;
}

/* In place, the small side is this rank's part of the large one. */
static void put_in_place(struct call *call)
{
  size_t skip = call->count * (size_t)call->team->me * numeric_size(call->dtype);

  call->send = call->recv = call->send_place;
  if (call->team->me < 0)
    return;
  if (call->op == OP_all_gather)
    call->send += skip;
  else if (call->op == OP_reduce_scatter)
    call->recv += skip;
}

static bool place(struct soak *soak, struct call *call)
{
  size_t size = numeric_size(call->dtype), larger = call->send_count;

  if (call->inplace) {
    if (call->recv_count > larger)
      larger = call->recv_count;
    call->send_place = heap_place(soak, larger * size);
    if (!call->send_place)
      return false;
    put_in_place(call);
    return true;
  }
  call->send = call->source ? call->source->recv : heap_place(soak, call->send_count * size);
  call->recv = call->overwriting ? call->source->send : heap_place(soak, call->recv_count * size);
  return call->send && call->recv;
}

static int place_as_many(struct soak *soak, struct call **calls, int count)
{
  int placed = 0;

  while (placed < count && place(soak, calls[placed]))
    placed++;
  return placed;
}

int calls_place(struct soak *soak, struct call **calls, int count)
{
  int placed = place_as_many(soak, calls, count);

  if (placed == count)
    return placed;
  calls_settle(soak);
  heap_reset(soak);
  placed = place_as_many(soak, calls, count);
  for (int i = placed; i < count; i++)
    calls_free(calls[i]);
  return placed;
}

void calls_free(struct call *call)
{
  free(call->host);
  free(call);
}

static void order(cudaStream_t before, cudaStream_t after)
{
  cudaEvent_t event;

  if (before == after)
    return;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, 2));
  CUDA_CHECK(cudaEventRecord(event, before));
  CUDA_CHECK(cudaStreamWaitEvent(after, event, 0));
  CUDA_CHECK(cudaEventDestroy(event));
}

void calls_fill(struct soak *soak, struct call *call, int stream)
{
  size_t size = numeric_size(call->dtype), bytes = call->send_count * size;
  cudaStream_t copy = soak->streams[stream];
  char *whole = call->inplace && call->op != OP_reduce_scatter ? call->send_place : call->recv;

  free(call->host);
  call->host = malloc(bytes + 1);
  if (!call->host)
    soak_fail("no host memory");
  values_input(call, call->team->me, call->send_count, call->host);
  if (!call->overwriting && !(call->inplace && call->op == OP_reduce_scatter))
    CUDA_CHECK(cudaMemsetAsync(whole, FILL, call->recv_count * size + GUARD_BYTES, copy));
  if (!call->source && bytes > 0)
    CUDA_CHECK(cudaMemcpyAsync(call->send, call->host, bytes, HOST_TO_DEVICE, copy));
}

static ncclResult_t send_recv(const struct call *call, cudaStream_t stream)
{
  int n = call->team->size, me = call->team->me;

  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclSend(call->send, call->count, call->dtype, (me + 1) % n, call->team->comm, stream));
  NCCL_CHECK(ncclRecv(call->recv, call->count, call->dtype, (me + n - 1) % n, call->team->comm, stream));
  return ncclGroupEnd();
}

static ncclResult_t issue(const struct call *call, ncclRedOp_t redop, cudaStream_t stream)
{
  const void *send = call->send;
  void *recv = call->recv;
  size_t count = call->count;
  ncclDataType_t dtype = call->dtype;
  ncclComm_t comm = call->team->comm;

  switch (call->op) {
  case OP_all_gather:
    return ncclAllGather(send, recv, count, dtype, comm, stream);
  case OP_reduce_scatter:
    return ncclReduceScatter(send, recv, count, dtype, redop, comm, stream);
  case OP_all_reduce:
    return ncclAllReduce(send, recv, count, dtype, redop, comm, stream);
  case OP_broadcast:
    return ncclBroadcast(send, recv, count, dtype, call->root, comm, stream);
  case OP_reduce:
    return ncclReduce(send, recv, count, dtype, redop, call->root, comm, stream);
  case OP_all_to_all:
    return ncclAlltoAll(send, recv, count, dtype, comm, stream);
  case OP_gather:
    return ncclGather(send, recv, count, dtype, call->root, comm, stream);
  case OP_scatter:
    return ncclScatter(send, recv, count, dtype, call->root, comm, stream);
  case OP_send_recv:
    return send_recv(call, stream);
  case OP_COUNT:
    break;
  }
  return ncclInternalError;
}

static void nap(void *ms)
{
  usleep((useconds_t)((uintptr_t)ms * 1000));
}

/* What makes this rank late: its stream, or itself. */
static void dawdle(struct soak *soak, cudaStream_t stream)
{
  if (random_chance(&soak->own, 12))
    CUDA_CHECK(cudaLaunchHostFunc(stream, nap, (void *)(uintptr_t)(1 + random_below(&soak->own, NAP_MS))));
  if (random_chance(&soak->own, 6))
    usleep((useconds_t)random_below(&soak->own, soak->options.late_us + 1));
}

void calls_issue(struct soak *soak, struct call *call)
{
  bool made = call->redop == PREMULSUM;
  ncclRedOp_t redop = (ncclRedOp_t)call->redop;
  unsigned char scalar[8];

  soak_at(soak, op_name(call->op), call->number);
  if (made) {
    values_factor(call->dtype, scalar);
    NCCL_CHECK(ncclRedOpCreatePreMulSum(&redop, scalar, call->dtype, ncclScalarHostImmediate, call->team->comm));
  }
  NCCL_CHECK(issue(call, redop, soak->streams[call->stream]));
  if (made)
    NCCL_CHECK(ncclRedOpDestroy(redop, call->team->comm));
  soak->calls_by_op[call->op]++;
}

/* Everything before the call itself. */
static void prepare(struct soak *soak, struct call *call)
{
  int streams = soak->legacy ? STREAMS : STREAMS - 1, copy = random_below(&soak->own, streams);

  call->stream = random_below(&soak->own, streams);
  calls_fill(soak, call, copy);
  order(soak->streams[copy], soak->streams[call->stream]);
  dawdle(soak, soak->streams[call->stream]);
}

void calls_run(struct soak *soak, struct call **calls, int count, bool group)
{
  for (int i = 0; group && i < count; i++)
    if (calls[i]->team->comm)
      prepare(soak, calls[i]);
  if (group)
    NCCL_CHECK(ncclGroupStart());
  for (int i = 0; i < count; i++) {
    bool alone = !group && random_chance(&soak->own, 5);
    if (!calls[i]->team->comm)
      continue;
    if (!group)
      prepare(soak, calls[i]);
    if (alone)
      NCCL_CHECK(ncclGroupStart());
    calls_issue(soak, calls[i]);
    if (alone)
      NCCL_CHECK(ncclGroupEnd());
    if (!group)
      team_settle(calls[i]->team);
  }
  if (group)
    NCCL_CHECK(ncclGroupEnd());
  for (int i = 0; i < count; i++) {
    team_settle(calls[i]->team);
    soak->pending[soak->pending_count++] = calls[i];
  }
  if (soak->pending_count > MAX_PENDING || random_chance(&soak->own, 25))
    calls_settle(soak);
}

void calls_settle(struct soak *soak)
{
  int first = random_below(&soak->own, STREAMS);

  soak_at(soak, "waiting for the streams", soak->pending_count);
  for (int i = 0; i < STREAMS; i++)
    CUDA_CHECK(cudaStreamSynchronize(soak->streams[(first + i) % STREAMS]));
  for (int i = 0; i < soak->pending_count; i++)
    if (soak->pending[i]->team->comm)
      values_check(soak, soak->pending[i]);
  for (int i = 0; i < soak->pending_count; i++)
    calls_free(soak->pending[i]);
  soak->pending_count = 0;
}

/* In one group, all communicators are of the same kind. */
void calls_batch(struct soak *soak)
{
  struct team *first = soak->teams[random_below(&soak->common, soak->team_count)];
  struct call *calls[MAX_BATCH];
  int wanted = 1 + random_below(&soak->common, MAX_BATCH), count = 0;
  bool group = random_chance(&soak->common, 20);

  for (int i = 0; i < wanted; i++) {
    struct team *team = soak->teams[random_below(&soak->common, soak->team_count)];
    if (i == 0 || (group && team->nonblocking != first->nonblocking))
      team = first;
    calls[count++] = calls_draw(soak, team);
  }
  count = calls_place(soak, calls, count);
  calls_run(soak, calls, count, group);
}

static bool adds(const struct call *call)
{
  return is_reducing(call->op) && call->redop != ncclMax && call->redop != ncclMin;
}

/* Shapes a call so that its input is the other's output; false where that cannot be. */
static bool follow(struct call *call, const struct call *source)
{
  size_t room = source->recv_count / (wide_input(call->op) ? (size_t)call->team->size : 1);

  if (source->op == OP_reduce || source->op == OP_gather || room == 0 || (adds(call) && adds(source)))
    return false;
  call->dtype = source->dtype;
  call->redop = call->redop == ncclProd ? (int)ncclSum : call->redop; /* no product of what may be large */
  call->count = call->count % room + 1;
  if (wide_output(call->op) && call->count * numeric_size(call->dtype) * (size_t)call->team->size > PLACE_BYTES)
    return false;
  set_counts(call);
  call->inplace = false;
  call->source = source;
  return true;
}

/*
 * The second call reads what the first one writes, or writes where the first one reads, on whatever stream and
 * without an event between them: NCCL keeps the calls of one communicator in order.
 */
void calls_chain(struct soak *soak)
{
  struct team *team = soak->teams[random_below(&soak->common, soak->team_count)];
  struct call *calls[2] = {calls_draw(soak, team), calls_draw(soak, team)};
  bool overwrite = random_chance(&soak->common, 30);
  int count = 2;

  calls[0]->inplace = false;
  if (!follow(calls[1], calls[0])) {
    calls_free(calls[1]);
    count = 1;
  } else if (overwrite && calls[1]->recv_count <= calls[0]->send_count) {
    calls[0]->overwritten = calls[1]->overwriting = true;
  }
  count = calls_place(soak, calls, count);
  calls_run(soak, calls, count, false);
}
