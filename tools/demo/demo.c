/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small job that does what FSDP does: per layer an in-place all-gather of bf16 parameters (forward and backward)
 * and a reduce-scatter of gradients with ncclAvg, on two streams, several layers and steps. It knows nothing of the
 * shim, and checks every element against a reference computed on the host.
 *
 *   symmshim-demo [--ranks N] [--layers N] [--steps N] [--elements N]
 *
 * It starts its own ranks, one process a GPU. Exit status: 0 all right; 1 a wrong element or an error; 2 usage.
 */
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/demo/api.h"

struct shape {
  int ranks, layers, steps;
  size_t elements; /* of a layer, over all ranks */
};

/* What one rank holds on its GPU. */
struct rank {
  int number;
  struct shape shape;
  ncclComm_t comm;
  cudaStream_t gather, reduce;
  uint16_t *full[2];  /* gathered parameters, two layers in turn */
  uint16_t *gradient; /* of a whole layer */
  uint16_t *averaged; /* this rank's part of it */
  uint16_t *host;     /* a whole layer, to compare */
  size_t wrong;
};

static void check(const char *what, unsigned error)
{
  if (error == 0)
    return;
  fprintf(stderr, "demo: %s failed with error %u\n", what, error);
  exit(1);
}
#define CHECK(call) check(#call, (unsigned)(call))

static uint16_t bf16_of(float value)
{
  uint32_t bits;

  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float float_of(uint16_t value)
{
  uint32_t bits = (uint32_t)value << 16;
  float result;

  memcpy(&result, &bits, sizeof(result));
  return result;
}

/* A number in [-1, 1) that depends on all of its arguments. */
static float noise(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
  uint64_t x = a * 0x9e3779b97f4a7c15ULL + b * 0xbf58476d1ce4e5b9ULL + c * 0x94d049bb133111ebULL + d;

  x ^= x >> 31;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 29;
  return (float)((double)(x >> 40) / (double)(1 << 23) - 1.0);
}

static uint16_t parameter(int layer, int step, size_t i)
{
  return bf16_of(noise(1, (uint64_t)layer, (uint64_t)step, i));
}

static uint16_t gradient(int layer, int step, size_t i, int rank)
{
  return bf16_of(noise(2 + (uint64_t)rank, (uint64_t)layer, (uint64_t)step, i));
}

static void *device_buffer(size_t elements)
{
  void *ptr = NULL;

  CHECK(cudaMalloc(&ptr, elements * sizeof(uint16_t)));
  return ptr;
}

static void report_wrong(struct rank *rank, const char *what, int layer, int step, size_t i, double got, double wanted)
{
  if (rank->wrong++ < 4)
    fprintf(stderr, "demo: rank %d, step %d, layer %d: element %zu %s is %g and should be %g\n", rank->number, step,
            layer, i, what, got, wanted);
}

static void gather_layer(struct rank *rank, int layer, int step)
{
  size_t shard = rank->shape.elements / (size_t)rank->shape.ranks, first = shard * (size_t)rank->number;
  uint16_t *full = rank->full[layer % 2];

  for (size_t i = 0; i < shard; i++)
    rank->host[i] = parameter(layer, step, first + i);
  CHECK(cudaMemcpyAsync(full + first, rank->host, shard * 2, cudaMemcpyHostToDevice, rank->gather));
  CHECK(ncclAllGather(full + first, full, shard, ncclBfloat16, rank->comm, rank->gather));
  CHECK(cudaMemcpyAsync(rank->host, full, rank->shape.elements * 2, cudaMemcpyDeviceToHost, rank->gather));
  CHECK(cudaStreamSynchronize(rank->gather));
  for (size_t i = 0; i < rank->shape.elements; i++)
    if (rank->host[i] != parameter(layer, step, i))
      report_wrong(rank, "gathered", layer, step, i, (double)float_of(rank->host[i]),
                   (double)float_of(parameter(layer, step, i)));
}

static void reduce_layer(struct rank *rank, int layer, int step)
{
  int ranks = rank->shape.ranks;
  size_t shard = rank->shape.elements / (size_t)ranks, first = shard * (size_t)rank->number;

  for (size_t i = 0; i < rank->shape.elements; i++)
    rank->host[i] = gradient(layer, step, i, rank->number);
  CHECK(cudaMemcpyAsync(rank->gradient, rank->host, rank->shape.elements * 2, cudaMemcpyHostToDevice, rank->reduce));
  CHECK(ncclReduceScatter(rank->gradient, rank->averaged, shard, ncclBfloat16, ncclAvg, rank->comm, rank->reduce));
  CHECK(cudaMemcpyAsync(rank->host, rank->averaged, shard * 2, cudaMemcpyDeviceToHost, rank->reduce));
  CHECK(cudaStreamSynchronize(rank->reduce));
  for (size_t i = 0; i < shard; i++) {
    double sum = 0, size = 0, got = (double)float_of(rank->host[i]);
    for (int r = 0; r < ranks; r++) {
      double part = (double)float_of(gradient(layer, step, first + i, r));
      sum += part;
      size += fabs(part);
    }
    /* bf16 keeps 8 bits; each of the n roundings may cost half of the last, relative to what was added up */
    if (!(fabs(got - sum / ranks) <= size / ranks * (ranks + 1) / 512))
      report_wrong(rank, "averaged", layer, step, i, got, sum / ranks);
  }
}

static const char *which_gpu(void)
{
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);

  return driver && dlsym(driver, "sim_is_simulation") ? "simulated GPU" : "real GPUs";
}

static int run_rank(int number, const struct shape *shape, int id_in, int id_out)
{
  struct rank rank = {.number = number, .shape = *shape};
  ncclUniqueId id;

  if (number == 0) {
    CHECK(ncclGetUniqueId(&id));
    for (int i = 1; i < shape->ranks; i++)
      CHECK(write(id_out, &id, sizeof(id)) != (ssize_t)sizeof(id));
  } else {
    CHECK(read(id_in, &id, sizeof(id)) != (ssize_t)sizeof(id));
  }
  CHECK(cudaSetDevice(number));
  CHECK(cudaStreamCreate(&rank.gather));
  CHECK(cudaStreamCreate(&rank.reduce));
  rank.full[0] = device_buffer(shape->elements);
  rank.full[1] = device_buffer(shape->elements);
  rank.gradient = device_buffer(shape->elements);
  rank.averaged = device_buffer(shape->elements / (size_t)shape->ranks);
  rank.host = malloc(shape->elements * sizeof(*rank.host));
  CHECK(rank.host == NULL);
  CHECK(ncclCommInitRank(&rank.comm, shape->ranks, id, number));

  for (int step = 0; step < shape->steps; step++) {
    for (int layer = 0; layer < shape->layers; layer++)
      gather_layer(&rank, layer, step);
    for (int layer = shape->layers - 1; layer >= 0; layer--) {
      gather_layer(&rank, layer, step);
      reduce_layer(&rank, layer, step);
    }
    if (number == 0 && isatty(STDERR_FILENO))
      fprintf(stderr, "\rdemo: step %d of %d%s", step + 1, shape->steps, step + 1 == shape->steps ? "\n" : "");
  }
  CHECK(cudaFree(rank.full[0]));
  CHECK(cudaFree(rank.full[1]));
  CHECK(cudaFree(rank.gradient));
  CHECK(cudaFree(rank.averaged));
  CHECK(ncclCommDestroy(rank.comm));
  free(rank.host);
  if (number == 0 && rank.wrong == 0)
    printf("demo: %d ranks on %s, %d layers, %d steps: every element right\n", shape->ranks, which_gpu(), shape->layers,
           shape->steps);
  if (rank.wrong > 0)
    fprintf(stderr, "demo: rank %d: %zu elements are wrong\n", number, rank.wrong);
  return rank.wrong > 0;
}

/* Starts the ranks; when one fails the others, which may wait for it for ever, are ended. */
static int run_ranks(const struct shape *shape)
{
  int id_pipe[2], failed = 0;
  pid_t *children = calloc((size_t)shape->ranks, sizeof(*children));

  if (!children || pipe(id_pipe) != 0) {
    perror("demo");
    return 1;
  }
  for (int i = 0; i < shape->ranks; i++) {
    children[i] = fork();
    if (children[i] == 0) {
      char text[16];
      snprintf(text, sizeof(text), "%d", i);
      setenv("RANK", text, 1);
      setenv("LOCAL_RANK", text, 1);
      exit(run_rank(i, shape, id_pipe[0], id_pipe[1]));
    }
  }
  for (int left = shape->ranks; left > 0; left--) {
    int status = 0;
    wait(&status);
    if (status == 0 || failed)
      continue;
    failed = 1;
    for (int i = 0; i < shape->ranks; i++)
      kill(children[i], SIGTERM);
  }
  free(children);
  return failed;
}

static long number_of(const char *text, long least, long most)
{
  char *end;
  long value;

  errno = 0;
  value = strtol(text, &end, 10);
  if (errno || *text == '\0' || *end != '\0' || value < least || value > most) {
    fprintf(stderr, "demo: '%s' is not a number from %ld to %ld\n", text, least, most);
    exit(2);
  }
  return value;
}

int main(int argc, char **argv)
{
  static const struct option options[] = {
      {"ranks", required_argument, NULL, 'r'}, {"layers", required_argument, NULL, 'l'},
      {"steps", required_argument, NULL, 's'}, {"elements", required_argument, NULL, 'e'},
      {"help", no_argument, NULL, 'h'},        {0}};
  struct shape shape = {.ranks = 2, .layers = 4, .steps = 6, .elements = 1 << 20};
  int option;

  while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
    switch (option) {
    case 'r':
      shape.ranks = (int)number_of(optarg, 1, 64);
      break;
    case 'l':
      shape.layers = (int)number_of(optarg, 1, 1000);
      break;
    case 's':
      shape.steps = (int)number_of(optarg, 1, 1000000);
      break;
    case 'e':
      shape.elements = (size_t)number_of(optarg, 1, 1L << 32);
      break;
    case 'h':
      printf("usage: symmshim-demo [--ranks N] [--layers N] [--steps N] [--elements N]\n"
             "A small FSDP-like job that checks every element; elements are those of one layer, over all ranks.\n");
      return 0;
    default:
      return 2;
    }
  }
  shape.elements = (shape.elements + (size_t)shape.ranks - 1) / (size_t)shape.ranks * (size_t)shape.ranks;
  return run_ranks(&shape);
}
