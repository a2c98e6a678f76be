/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/plain.h"

#include <string.h>

#include "tests/sim/numeric.h"

/* Some elements of the operation: `first` and `count` are within what one rank gives or gets. */
struct chunk {
  const struct operation *op;
  size_t size; /* of an element */
  size_t first;
  size_t count;
  unsigned int number;
};

static unsigned char *slot_of(const struct chunk *chunk, int rank)
{
  return shared_slot(chunk->op->comm->shared, chunk->op->comm->nranks, rank, chunk->number);
}

/* Where a rank's part of a buffer of nranks parts has this chunk. */
static size_t part_offset(const struct chunk *chunk, int rank)
{
  return ((size_t)rank * chunk->op->count + chunk->first) * chunk->size;
}

/* Puts elements into this rank's slot, behind `before` others, multiplied where the op says so. */
static void post(const struct chunk *chunk, size_t before, const void *from)
{
  const struct operation *op = chunk->op;
  unsigned char *to = slot_of(chunk, op->comm->rank) + before * chunk->size;
  memcpy(to, from, chunk->count * chunk->size);
  if (op->scale)
    numeric_scale(op->type, to, op->scalar, chunk->count);
}

static void post_parts(const struct chunk *chunk)
{
  for (int r = 0; r < chunk->op->comm->nranks; r++)
    post(chunk, (size_t)r * chunk->count, (const char *)chunk->op->send + part_offset(chunk, r));
}

static void post_whole(const struct chunk *chunk)
{
  post(chunk, 0, (const char *)chunk->op->send + chunk->first * chunk->size);
}

static void take(const struct chunk *chunk, int from, size_t before, void *to)
{
  memmove(to, slot_of(chunk, from) + before * chunk->size, chunk->count * chunk->size);
}

/* The sum of what all ranks posted, in ring order: the rank after `last` begins. */
static void take_reduced(const struct chunk *chunk, int last, size_t before, void *to)
{
  const struct operation *op = chunk->op;
  int n = op->comm->nranks;
  take(chunk, (last + 1) % n, before, to);
  for (int i = 2; i <= n; i++)
    numeric_reduce(op->type, op->op, to, slot_of(chunk, (last + i) % n) + before * chunk->size, chunk->count);
  if (op->average)
    numeric_divide(op->type, to, n, chunk->count);
}

static void chunk_post(const struct chunk *chunk)
{
  const struct operation *op = chunk->op;
  bool root = op->comm->rank == op->root;
  switch (op->function) {
  case OPERATION_ALL_GATHER:
  case OPERATION_ALL_REDUCE:
  case OPERATION_REDUCE:
  case OPERATION_GATHER:
    post_whole(chunk);
    break;
  case OPERATION_REDUCE_SCATTER:
  case OPERATION_ALL_TO_ALL:
    post_parts(chunk);
    break;
  case OPERATION_BROADCAST:
    if (root)
      post_whole(chunk);
    break;
  case OPERATION_SCATTER:
    if (root)
      post_parts(chunk);
    break;
  }
}

static void chunk_take(const struct chunk *chunk)
{
  const struct operation *op = chunk->op;
  int rank = op->comm->rank;
  size_t mine = (size_t)rank * chunk->count;
  char *recv = op->recv;
  char *whole = recv + chunk->first * chunk->size;
  switch (op->function) {
  case OPERATION_GATHER:
    if (rank != op->root)
      break;
    /* fall through */
  case OPERATION_ALL_GATHER:
    for (int r = 0; r < op->comm->nranks; r++)
      take(chunk, r, 0, recv + part_offset(chunk, r));
    break;
  case OPERATION_REDUCE_SCATTER:
    take_reduced(chunk, rank, mine, whole);
    break;
  case OPERATION_REDUCE:
    if (rank == op->root)
      take_reduced(chunk, op->root, 0, whole);
    break;
  case OPERATION_ALL_REDUCE:
    take_reduced(chunk, op->comm->nranks - 1, 0, whole);
    break;
  case OPERATION_BROADCAST:
    take(chunk, op->root, 0, whole);
    break;
  case OPERATION_ALL_TO_ALL:
    for (int r = 0; r < op->comm->nranks; r++)
      take(chunk, r, mine, recv + part_offset(chunk, r));
    break;
  case OPERATION_SCATTER:
    take(chunk, op->root, mine, whole);
    break;
  }
}

/* How many elements of one rank's part fit a slot. */
static size_t chunk_room(const struct operation *op, size_t size)
{
  bool parts = op->function == OPERATION_REDUCE_SCATTER || op->function == OPERATION_ALL_TO_ALL ||
               op->function == OPERATION_SCATTER;
  return SHARED_SLOT_BYTES / size / (parts ? (size_t)op->comm->nranks : 1);
}

/* Two ranks that call different things corrupt or hang NCCL; here the process says so and ends. */
static void signatures_compare(const struct operation *op)
{
  const struct shared *shared = op->comm->shared;
  const struct shared_signature *own = &shared->ranks[op->comm->rank].signatures[op->comm->op % 2];
  for (int r = 0; r < op->comm->nranks; r++)
    if (memcmp(own, &shared->ranks[r].signatures[op->comm->op % 2], sizeof(*own)) != 0)
      control_die("rank %d of communicator %p calls %s where rank %d calls something else", op->comm->rank,
                  (void *)op->comm, operation_name(op->function), r);
}

static void signature_post(const struct operation *op)
{
  struct shared_signature *own = &op->comm->shared->ranks[op->comm->rank].signatures[op->comm->op % 2];
  *own = (struct shared_signature){.function = (uint32_t)op->function,
                                   .type = op->type,
                                   .op = op->asked < ncclNumOps ? op->asked : (uint32_t)ncclNumOps,
                                   .root = (uint32_t)op->root,
                                   .count = op->count};
}

static bool chunk_meet(const struct operation *op, unsigned int posted)
{
  struct shared *shared = op->comm->shared;
  shared_post(&shared->ranks[op->comm->rank].plain, posted);
  for (int r = 0; r < op->comm->nranks; r++)
    if (!shared_wait(&shared->ranks[r].plain, posted, comm_abort_flags(op->comm)))
      return false;
  return true;
}

void plain_run(struct operation *op)
{
  ncclComm_t comm = op->comm;
  struct chunk chunk = {.op = op, .size = numeric_size(op->type)};
  size_t room = chunk_room(op, chunk.size);
  comm->op++;
  signature_post(op);
  while (chunk.first < op->count) {
    chunk.count = op->count - chunk.first < room ? op->count - chunk.first : room;
    chunk.number = comm->chunk++;
    chunk_post(&chunk);
    /* A slot is written again two chunks later: by then all have posted the next, and so have left this one. */
    if (!chunk_meet(op, comm->chunk))
      return;
    if (chunk.first == 0)
      signatures_compare(op);
    chunk_take(&chunk);
    chunk.first += chunk.count;
  }
}
