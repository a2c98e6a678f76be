/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of few calls, each with its buffers where the command line wants them on each rank; every element is looked at.
 * The arguments are steps, taken in turn:
 *
 *   OP[,KEY=VALUE...]   a call: all_gather, reduce_scatter or all_reduce
 *       send=, recv=    SEGMENT@OFFSET, in bytes; loose, an allocation of its own; or inplace, in the other one
 *       count= dtype= redop= stream=
 *       reads=          1: the input is the output of the call before, as it is: a reduce-scatter's of an all-gather,
 * or an all-gather's of an all-reduce factor=         of premulsum; with device=1 it lies in device memory sync waits,
 * looks at the results of the calls since the last time, and frees what was loose group, end          around calls
 *   rest=STREAM         the stream stands still for a while
 *   wait=MILLISECONDS   the rank itself does
 *   size=BYTES          of the segments that are made from now on
 *   free=SEGMENT        frees a segment, which is made anew when it is named again
 *   take=BYTES          allocates so much, and frees it again
 *   again, split, abort another communicator in place of that in use, which is destroyed, or aborted
 *   memory              says how much device memory is free
 *   repeat=TIMES        does the steps behind it so often
 *
 * A value may be a list A/B/..., of which rank 0 takes the first; the last is for all others. "-" leaves the step out.
 * Exit status as of the job.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/preload/check.h"
#include "tests/preload/comms.h"
#include "tests/preload/data.h"
#include "tests/sim/numeric.h"

enum {
  MAX_SEGMENTS = 16,
  MAX_PENDING = 256,
  MAX_RANKS = 8,
  STREAMS = 4,
  VALUE_ROOM = 64,
  HOST_TO_DEVICE = 1,
  DEVICE_TO_HOST = 2,
  REST_US = 30000,
  RUBBISH = 0xa5
};

struct step {
  enum op op;
  size_t count;
  struct data data;
  double factors[MAX_RANKS];
  void *send, *recv, *host, *loose[2], *scalar;
  size_t send_count, recv_count;
  cudaStream_t stream;
  ncclRedOp_t redop;
  bool made;                 /* the redop is the job's own */
  const struct step *source; /* whose output this one reads */
};

static struct seat seat;
static cudaStream_t streams[STREAMS];
static char *segments[MAX_SEGMENTS];
static size_t segment_bytes = 8 << 20;
static struct step pending[MAX_PENDING];
static int pending_count;
static uint64_t calls;
static double squares; /* of how far off the reductions' elements are */
static bool right = true;

/* The rank's own of a list. */
static const char *own(const char *list, int rank, char value[VALUE_ROOM])
{
  for (const char *slash = strchr(list, '/'); rank > 0 && slash; slash = strchr(list, '/'), rank--)
    list = slash + 1;
  snprintf(value, VALUE_ROOM, "%.*s", (int)strcspn(list, "/"), list);
  return value;
}

/* What stands behind KEY= among a call's words, or `otherwise`. */
static const char *value_of(const char *words, const char *key, const char *otherwise, int rank, char value[VALUE_ROOM])
{
  size_t length = strlen(key);
  char list[2 * VALUE_ROOM];

  for (const char *word = strchr(words, ','); word; word = strchr(word + 1, ','))
    if (strncmp(word + 1, key, length) == 0 && word[length + 1] == '=') {
      word += length + 2;
      snprintf(list, sizeof(list), "%.*s", (int)strcspn(word, ","), word);
      return own(list, rank, value);
    }
  return own(otherwise, rank, value);
}

static char *segment(int number)
{
  void *made = NULL;

  if (number < 0 || number >= MAX_SEGMENTS)
    job_fail("there is no segment %d", number);
  if (!segments[number]) {
    CUDA_CHECK(cudaMalloc(&made, segment_bytes));
    segments[number] = made;
  }
  return segments[number];
}

static void *place(const char *where, size_t bytes, void **loose)
{
  int number;
  size_t offset;

  if (strcmp(where, "loose") == 0) {
    CUDA_CHECK(cudaMalloc(loose, bytes));
    return *loose;
  }
  if (strcmp(where, "inplace") == 0)
    return NULL;
  if (sscanf(where, "%d@%zu", &number, &offset) != 2)
    job_fail("%s is no place", where);
  return segment(number) + offset;
}

static void place_both(struct step *step, const char *words)
{
  size_t size = numeric_size(step->data.dtype), mine = (size_t)seat.rank * step->count * size;
  char value[VALUE_ROOM];

  step->send_count = step->op == OP_REDUCE_SCATTER ? step->count * (size_t)seat.nranks : step->count;
  step->recv_count = step->op == OP_ALL_GATHER ? step->count * (size_t)seat.nranks : step->count;
  step->send = place(value_of(words, "send", "0@0", seat.rank, value), step->send_count * size, &step->loose[0]);
  step->recv = place(value_of(words, "recv", "1@0", seat.rank, value), step->recv_count * size, &step->loose[1]);
  if (!step->send)
    step->send = (char *)step->recv + (step->op == OP_ALL_GATHER ? mine : 0);
  if (!step->recv)
    step->recv = (char *)step->send + (step->op == OP_REDUCE_SCATTER ? mine : 0);
}

static void fill(struct step *step)
{
  size_t size = numeric_size(step->data.dtype);

  step->data.seed = 0x57a9e000 + ++calls;
  step->host = malloc(step->send_count * size);
  if (!step->host)
    job_fail("no host memory");
  data_fill(&step->data, seat.rank, 0, step->send_count, step->host);
  if (step->source) /* and other streams wait for nothing: what comes too late is seen */
    return;
  CUDA_CHECK(cudaMemsetAsync(step->recv, RUBBISH, step->recv_count * size, step->stream));
  CUDA_CHECK(cudaMemcpyAsync(step->send, step->host, step->send_count * size, HOST_TO_DEVICE, step->stream));
}

static void make_redop(struct step *step, const char *words)
{
  bool device;
  unsigned char scalar[8];
  char value[VALUE_ROOM];

  device = atoi(value_of(words, "device", "0", seat.rank, value)) != 0;
  numeric_store(step->data.dtype, scalar, 0, (float)step->factors[seat.rank]);
  if (device) {
    CUDA_CHECK(cudaMalloc(&step->scalar, sizeof(scalar)));
    CUDA_CHECK(cudaMemcpy(step->scalar, scalar, sizeof(scalar), HOST_TO_DEVICE));
  }
  NCCL_CHECK(ncclRedOpCreatePreMulSum(&step->redop, device ? step->scalar : scalar, step->data.dtype,
                                      device ? ncclScalarDevice : ncclScalarHostImmediate, seat.comm));
  step->made = true;
}

/* By what each rank's contribution is multiplied. */
static void set_factors(struct step *step, const char *words)
{
  unsigned char scalar[8];
  char value[VALUE_ROOM];

  for (int rank = 0; rank < seat.nranks; rank++) {
    numeric_store(step->data.dtype, scalar, 0, (float)atof(value_of(words, "factor", "1.5", rank, value)));
    step->factors[rank] = step->data.redop == REDOP_PREMULSUM ? (double)numeric_load(step->data.dtype, scalar, 0)
                          : step->data.redop == ncclAvg       ? 1.0 / seat.nranks
                                                              : 1;
  }
}

static int find_word(const char *const *words, int count, const char *word)
{
  for (int i = 0; i < count; i++)
    if (strcmp(words[i], word) == 0)
      return i;
  job_fail("%s is not understood", word);
}

static void issue(struct step *step)
{
  switch (step->op) {
  case OP_ALL_GATHER:
    NCCL_CHECK(ncclAllGather(step->send, step->recv, step->count, step->data.dtype, seat.comm, step->stream));
    break;
  case OP_REDUCE_SCATTER:
    NCCL_CHECK(
        ncclReduceScatter(step->send, step->recv, step->count, step->data.dtype, step->redop, seat.comm, step->stream));
    break;
  case OP_ALL_REDUCE:
  case OP_COUNT:
    NCCL_CHECK(
        ncclAllReduce(step->send, step->recv, step->count, step->data.dtype, step->redop, seat.comm, step->stream));
    break;
  }
}

static void call(enum op op, const char *words)
{
  static const char *const dtypes[ncclNumTypes] = {"int8", "uint8", "int32", "uint32", "int64",   "uint64",
                                                   "fp16", "fp32",  "fp64",  "bf16",   "fp8e4m3", "fp8e5m2"};
  static const char *const redops[] = {"sum", "prod", "max", "min", "avg", "premulsum"};
  struct step *step = &pending[pending_count++];
  char value[VALUE_ROOM];

  if (pending_count == MAX_PENDING)
    job_fail("too many calls without a sync");
  *step = (struct step){.op = op};
  step->count = strtoul(value_of(words, "count", "1000", seat.rank, value), NULL, 10);
  step->data.dtype = (ncclDataType_t)find_word(dtypes, ncclNumTypes, value_of(words, "dtype", "fp32", 0, value));
  step->data.redop = find_word(redops, 6, value_of(words, "redop", "sum", 0, value));
  step->data.redop = step->data.redop == 5 ? REDOP_PREMULSUM : step->data.redop;
  step->data.nranks = seat.nranks;
  step->stream = streams[atoi(value_of(words, "stream", "0", seat.rank, value)) % STREAMS];
  step->redop = (ncclRedOp_t)step->data.redop;
  if (atoi(value_of(words, "reads", "0", 0, value)) != 0)
    step->source = step - 1;
  set_factors(step, words);
  place_both(step, words);
  fill(step);
  if (step->data.redop == REDOP_PREMULSUM)
    make_redop(step, words);
  issue(step);
}

/* Distance of 1 and the next number, halved, and the least number. */
static void precision(ncclDataType_t dtype, double *relative, double *absolute)
{
  int digits = dtype == ncclBfloat16     ? 8
               : dtype == ncclFloat16    ? 11
               : dtype == ncclFloat8e4m3 ? 4
               : dtype == ncclFloat8e5m2 ? 3
                                         : 24;

  *relative = ldexp(1, -digits);
  *absolute = dtype == ncclFloat8e4m3   ? ldexp(1, -9)
              : dtype == ncclFloat8e5m2 ? ldexp(1, -16)
              : dtype == ncclFloat16    ? ldexp(1, -24)
                                        : ldexp(1, -126);
}

static size_t count_wrong(const struct step *step, const void *got)
{
  size_t first = step->op == OP_REDUCE_SCATTER ? (size_t)seat.rank * step->count : 0, wrong = 0;
  double relative, absolute;

  precision(step->data.dtype, &relative, &absolute);
  for (size_t i = 0; i < step->count; i++) {
    double want = 0, magnitude = 0, off;

    for (int rank = 0; rank < seat.nranks; rank++) {
      unsigned char stored[8];
      double term;
      if (step->source)
        data_fill(&step->source->data, seat.rank, i, 1, stored);
      else
        data_fill(&step->data, rank, first + i, 1, stored);
      term = step->factors[rank] * (double)numeric_load(step->data.dtype, stored, 0);
      want += term;
      magnitude += fabs(term);
    }
    off = (double)numeric_load(step->data.dtype, got, i) - want;
    squares += off * off;
    wrong += !(fabs(off) <= magnitude * relative * (seat.nranks + 3) + absolute * (seat.nranks + 1));
  }
  return wrong;
}

/* Every rank gathers what all have alike. */
static bool is_repeated(const struct step *step, const char *got)
{
  size_t bytes = step->count * numeric_size(step->data.dtype);
  char *one = malloc(bytes);
  bool same = true;

  if (!one)
    job_fail("no host memory");
  CUDA_CHECK(cudaMemcpy(one, step->source->recv, bytes, DEVICE_TO_HOST));
  for (int rank = 0; rank < seat.nranks; rank++)
    same &= memcmp(one, got + (size_t)rank * bytes, bytes) == 0;
  if (!same)
    fprintf(stderr, "job: rank %d: what was gathered is not what was reduced\n", job_rank());
  free(one);
  return same;
}

static void look(const struct step *step)
{
  size_t size = numeric_size(step->data.dtype), wrong;
  char *got = malloc(step->recv_count * size);

  if (!got)
    job_fail("no host memory");
  CUDA_CHECK(cudaMemcpy(got, step->recv, step->recv_count * size, DEVICE_TO_HOST));
  if (step->source && step->op == OP_ALL_GATHER)
    right &= is_repeated(step, got);
  for (int rank = 0; rank < seat.nranks && step->op == OP_ALL_GATHER && !step->source; rank++)
    right &=
        data_check_copied(&step->data, rank, 0, step->count, got + (size_t)rank * step->count * size, "all-gather");
  wrong = step->op == OP_ALL_GATHER ? 0 : count_wrong(step, got);
  if (wrong > 0)
    fprintf(stderr, "job: rank %d: call %llu: %zu of %zu elements are wrong\n", job_rank(),
            (unsigned long long)(step->data.seed & 0xfff), wrong, step->count);
  right &= wrong == 0;
  free(got);
}

static void settle(void)
{
  for (int i = 0; i < STREAMS; i++)
    CUDA_CHECK(cudaStreamSynchronize(streams[i]));
  for (int i = 0; i < pending_count; i++) {
    struct step *step = &pending[i];

    look(step);
    if (step->made)
      NCCL_CHECK(ncclRedOpDestroy(step->redop, seat.comm));
    free(step->host);
    for (int side = 0; side < 2; side++)
      if (step->loose[side])
        CUDA_CHECK(cudaFree(step->loose[side]));
    if (step->scalar)
      CUDA_CHECK(cudaFree(step->scalar));
  }
  pending_count = 0;
}

static void make_comm(void)
{
  static const struct options options = {.init = INIT_RANK};

  comms_make(&options, &seat, 1);
}

static void split(void)
{
  ncclComm_t parent = seat.comm;

  NCCL_CHECK(ncclCommSplit(parent, 0, seat.rank, &seat.comm, NULL));
  NCCL_CHECK(ncclCommDestroy(parent));
}

static void rest(void *unused)
{
  (void)unused;
  usleep(REST_US);
}

/* Once the other ranks have let go of it too: so it is waited for what was free before. */
static void say_memory(void)
{
  enum { TRIES = 200, PAUSE_US = 5000 };
  static size_t most;
  size_t free_bytes = 0, total;

  for (int i = 0; i < TRIES && (i == 0 || free_bytes < most); i++) {
    if (i > 0)
      usleep(PAUSE_US);
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
  }
  most = free_bytes > most ? free_bytes : most;
  printf("memory: rank %d: %zu\n", job_rank(), free_bytes);
  fflush(stdout); /* whole lines, since all ranks write there */
}

static void take(size_t bytes)
{
  void *taken = NULL;

  CUDA_CHECK(cudaMalloc(&taken, bytes));
  CUDA_CHECK(cudaFree(taken));
}

static void free_segment(int number)
{
  CUDA_CHECK(cudaFree(segments[number]));
  segments[number] = NULL;
}

/* A step with one number. */
static void do_number(const char *word, long number)
{
  if (strncmp(word, "rest=", 5) == 0)
    CUDA_CHECK(cudaLaunchHostFunc(streams[number % STREAMS], rest, NULL));
  else if (strncmp(word, "wait=", 5) == 0)
    usleep((useconds_t)number * 1000);
  else if (strncmp(word, "size=", 5) == 0)
    segment_bytes = (size_t)number;
  else if (strncmp(word, "free=", 5) == 0)
    free_segment((int)number % MAX_SEGMENTS);
  else if (strncmp(word, "take=", 5) == 0)
    take((size_t)number);
  else
    job_fail("%s is not understood", word);
}

static void do_word(const char *word)
{
  if (strcmp(word, "sync") == 0) {
    settle();
  } else if (strcmp(word, "group") == 0) {
    NCCL_CHECK(ncclGroupStart());
  } else if (strcmp(word, "end") == 0) {
    NCCL_CHECK(ncclGroupEnd());
  } else if (strcmp(word, "again") == 0) {
    NCCL_CHECK(ncclCommDestroy(seat.comm));
    make_comm();
  } else if (strcmp(word, "split") == 0) {
    split();
  } else if (strcmp(word, "abort") == 0) {
    NCCL_CHECK(ncclCommAbort(seat.comm));
    make_comm();
  } else if (strcmp(word, "memory") == 0) {
    say_memory();
  } else {
    job_fail("%s is not understood", word);
  }
}

static void do_step(const char *word)
{
  static const char *const ops[OP_COUNT] = {"all_gather", "reduce_scatter", "all_reduce"};
  char value[VALUE_ROOM];

  for (int op = 0; op < OP_COUNT; op++)
    if (strncmp(word, ops[op], strlen(ops[op])) == 0) {
      call((enum op)op, word);
      return;
    }
  if (!strchr(word, '='))
    do_word(word);
  else if (strcmp(own(strchr(word, '=') + 1, seat.rank, value), "-") != 0)
    do_number(word, atol(value));
}

int main(int argc, char **argv)
{
  long times = 1;
  int from = argc;

  CUDA_CHECK(cudaSetDevice(job_rank()));
  make_comm();
  for (int i = 0; i < STREAMS; i++)
    CUDA_CHECK(cudaStreamCreateWithFlags(&streams[i], 1));
  for (int i = 1; i < argc; i++)
    if (strncmp(argv[i], "repeat=", 7) == 0) {
      times = atol(argv[i] + 7);
      from = i;
    }
  for (int i = 1; i < from; i++)
    do_step(argv[i]);
  for (long time = 0; time < times; time++)
    for (int i = from + 1; i < argc; i++)
      do_step(argv[i]);
  settle();
  NCCL_CHECK(ncclCommDestroy(seat.comm));
  for (int i = 0; i < MAX_SEGMENTS; i++)
    if (segments[i])
      free_segment(i);
  printf("job: rank %d of %d: %llu calls, %s\n", job_rank(), job_size(), (unsigned long long)calls,
         right ? "all right" : "WRONG");
  printf("error: rank %d: %.17g\n", job_rank(), squares);
  return right ? 0 : 1;
}
