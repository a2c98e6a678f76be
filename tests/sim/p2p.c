/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/p2p.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/group.h"
#include "tests/sim/numeric.h"

struct transfer {
  bool send;
  int peer;
  unsigned char *data;
  size_t bytes;
  size_t moved;
  CUstream stream;
};

struct transfers {
  ncclComm_t comm;
  size_t count;
  struct transfer *items;
};

struct p2p_task {
  struct group_task task;
  struct transfers *transfers;
};

static void transfers_free(void *arg)
{
  struct transfers *transfers = arg;
  if (!transfers)
    return;
  free(transfers->items);
  free(transfers);
}

static size_t chunk_size(size_t left)
{
  return left < SHARED_MAIL_BYTES ? left : SHARED_MAIL_BYTES;
}

/* One chunk, if the mailbox allows. */
static bool transfer_step(ncclComm_t comm, struct transfer *item)
{
  int from = item->send ? comm->rank : item->peer;
  int to = item->send ? item->peer : comm->rank;
  struct shared_mail *mail = shared_mail(comm->shared, comm->nranks, from, to);
  bool full = atomic_load_explicit(&mail->full, memory_order_acquire) != 0;
  if (full == item->send)
    return false;
  size_t size = chunk_size(item->bytes - item->moved);
  if (item->send) {
    memcpy(mail->data, item->data + item->moved, size);
    mail->bytes = (uint32_t)size;
  } else {
    if (mail->bytes != size)
      control_die("rank %d receives %zu bytes from rank %d, which sends another number", to, item->bytes, from);
    memcpy(item->data + item->moved, mail->data, size);
  }
  item->moved += size;
  shared_post(&mail->full, item->send);
  return true;
}

/* Between two ranks, what was issued first goes first. Returns whether anything moved; *left: whether more is to do. */
static bool transfers_step(struct transfers *transfers, struct transfer *items, bool *left)
{
  uint64_t busy[2] = {0, 0};
  bool moved = false;
  *left = false;
  for (size_t i = 0; i < transfers->count; i++) {
    struct transfer *item = &items[i];
    uint64_t bit = 1ULL << item->peer;
    if (item->moved == item->bytes || busy[item->send] & bit)
      continue;
    moved |= transfer_step(transfers->comm, item);
    if (item->moved < item->bytes) {
      busy[item->send] |= bit;
      *left = true;
    }
  }
  return moved;
}

static void transfers_run(void *arg)
{
  struct transfers *transfers = arg;
  ncclComm_t comm = transfers->comm;
  if (comm_check(comm, "work that was still queued, or in a graph") != ncclSuccess)
    return;
  size_t size = transfers->count * sizeof(struct transfer);
  struct transfer *items = memcpy(malloc(size), transfers->items, size);
  bool left = true;
  unsigned int tries = 0;
  while (left && !atomic_load(&comm->abort) && !atomic_load(&comm->interrupt)) {
    if (transfers_step(transfers, items, &left))
      tries = 0;
    else if (left)
      shared_pause(&tries);
  }
  free(items);
}

/* Orders one stream's further work after the other's present work. */
static void stream_follow(CUstream later, CUstream earlier)
{
  CUevent event;
  if (later == earlier || GPU->event_create(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    return;
  GPU->event_record(event, earlier, 0);
  GPU->event_wait(later, event, 0);
  GPU->event_destroy(event);
}

static ncclResult_t p2p_launch(struct group_task *task)
{
  struct p2p_task *p2p = (struct p2p_task *)task;
  struct transfers *transfers = p2p->transfers;
  CUstream stream = transfers->items[0].stream;
  size_t count = transfers->count;
  p2p->transfers = NULL;
  for (size_t i = 1; i < count; i++)
    stream_follow(stream, transfers->items[i].stream);
  control_note("[Plain] SendRecv transfers=%zu comm=%p rank=%d stream=%p", count, (void *)task->comm, task->comm->rank,
               (void *)stream);
  comm_count_launch(task->comm);
  ncclResult_t persisted = comm_persist(task->comm, stream);
  if (persisted != ncclSuccess) {
    transfers_free(transfers);
    return persisted;
  }
  const struct sim_work work = {.run = transfers_run, .drop = transfers_free, .arg = transfers};
  CUstream *others = malloc(count * sizeof(*others));
  for (size_t i = 0; i < count; i++)
    others[i] = transfers->items[i].stream;
  CUresult result = GPU->stream_submit(stream, &work, task->comm->chain);
  for (size_t i = 1; i < count; i++)
    stream_follow(others[i], stream);
  free(others);
  return result == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

static bool p2p_merge(struct group_task *task, struct group_task *more)
{
  struct transfers *into = ((struct p2p_task *)task)->transfers;
  struct transfers *from = ((struct p2p_task *)more)->transfers;
  into->items = realloc(into->items, (into->count + from->count) * sizeof(*into->items));
  memcpy(&into->items[into->count], from->items, from->count * sizeof(*from->items));
  into->count += from->count;
  return true;
}

static void p2p_discard(struct group_task *task)
{
  transfers_free(((struct p2p_task *)task)->transfers);
}

ncclResult_t p2p_add(ncclComm_t comm, bool send, void *data, size_t count, ncclDataType_t type, int peer,
                     CUstream stream)
{
  ncclResult_t result = atomic_load(&comm->revoked) ? (ncclResult_t)ncclInvalidUsage : comm_ready(comm);
  if (result != ncclSuccess)
    return result;
  if (peer < 0 || peer >= comm->nranks || numeric_size(type) == 0)
    return ncclInvalidArgument;
  struct p2p_task *task = calloc(1, sizeof(*task));
  task->task = (struct group_task){
      .phase = GROUP_LAUNCH, .comm = comm, .run = p2p_launch, .merge = p2p_merge, .discard = p2p_discard};
  task->transfers = calloc(1, sizeof(*task->transfers));
  task->transfers->comm = comm;
  task->transfers->count = 1;
  task->transfers->items = calloc(1, sizeof(struct transfer));
  task->transfers->items[0] = (struct transfer){
      .send = send, .peer = peer, .data = data, .bytes = count * numeric_size(type), .stream = stream};
  group_add(&task->task);
  return ncclSuccess;
}
