/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak --seed S [--steps N] [--cycles N] ...: see soak.h. run.py starts it.
 *
 * Each cycle ends with nothing left: no communicator, no memory. Then the device's free memory is what it was before
 * the first, and the process has no more descriptors than after the first, and hardly more threads.
 *
 * Exit status: 0 all right, 1 something is wrong, 3 it took longer than --limit.
 */
#include "tests/soak/soak.h"

#include <dirent.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/bootstrap.h"

/* Threads that a library starts once, at some first use; a leak makes more of them in twelve cycles. */
enum { LATE_THREADS = 4 };

static struct {
  uint64_t seed;
  int rank, step, number;
  const char *what;
} progress;

void soak_at(const struct soak *soak, const char *what, int number)
{
  progress.step = soak->step;
  progress.what = what;
  progress.number = number;
}

void soak_fail(const char *format, ...)
{
  char text[700];
  va_list args;

  va_start(args, format);
  vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  fprintf(stderr, "soak: seed %llu, rank %d, step %d: %s\n", (unsigned long long)progress.seed, progress.rank,
          progress.step, text);
  _exit(1);
}

static void on_alarm(int signal)
{
  (void)signal;
  dprintf(STDERR_FILENO, "soak: seed %llu, rank %d, step %d: HANG at: %s (%d)\n", (unsigned long long)progress.seed,
          progress.rank, progress.step, progress.what ? progress.what : "the start", progress.number);
  sleep(1); /* the others say where they are, too */
  _exit(3);
}

static int entries(const char *path)
{
  DIR *opened = opendir(path);
  int count = 0;

  while (opened && readdir(opened) != NULL)
    count++;
  if (opened)
    closedir(opened);
  return count;
}

struct remains {
  size_t memory;
  int descriptors, threads;
};

static struct remains look(void)
{
  struct remains remains = {0};
  size_t total = 0;

  CUDA_CHECK(cudaMemGetInfo(&remains.memory, &total));
  remains.descriptors = entries("/proc/self/fd");
  remains.threads = entries("/proc/self/task");
  return remains;
}

/* Threads that are about to end get a moment. */
static void compare(const struct soak *soak, const struct remains *first, const char *what)
{
  struct remains now = look();

  if (soak->options.keeps)
    return;
  for (int i = 0; i < 200 && now.threads > first->threads + LATE_THREADS; i++) {
    usleep(10000);
    now = look();
  }
  if (now.memory != first->memory)
    soak_fail("LEAK: %zu bytes are free after the end of everything, %zu were %s", now.memory, first->memory, what);
  if (now.descriptors > first->descriptors)
    soak_fail("LEAK: %d descriptors, %d were %s", now.descriptors, first->descriptors, what);
  if (now.threads > first->threads + LATE_THREADS)
    soak_fail("LEAK: %d threads, %d were %s", now.threads, first->threads, what);
}

static void step(struct soak *soak)
{
  static const int weights[] = {60, 16, 8, 6, 4, 1};

  switch (random_weighted(&soak->common, weights, 6)) {
  case 0:
    calls_batch(soak);
    break;
  case 1:
    calls_chain(soak);
    break;
  case 2:
    graph_step(soak);
    break;
  case 3:
    team_make(soak);
    break;
  case 4:
    if (soak->team_count > 1)
      team_end(soak, random_below(&soak->common, soak->team_count));
    break;
  default:
    calls_settle(soak);
    heap_reset(soak);
    break;
  }
  if (random_chance(&soak->own, soak->options.diverge > 0 ? 8 : 0))
    heap_event(soak);
}

static void cycle(struct soak *soak)
{
  char name[32];

  heap_open(soak);
  team_world(soak);
  for (int i = 0; i < soak->options.steps; i++) {
    soak->step++;
    step(soak);
  }
  calls_settle(soak);
  team_end_all(soak);
  heap_close(soak);
  /* Memory that others have mapped comes back when they let it go. */
  snprintf(name, sizeof(name), "cycle%d", soak->barriers++);
  sim_bootstrap_barrier(name);
}

static void nothing(void *unused)
{
  (void)unused;
}

static void start(struct soak *soak)
{
  soak->rank = progress.rank = sim_bootstrap_rank();
  soak->size = sim_bootstrap_size();
  progress.seed = soak->options.seed;
  soak->common.state = random_mix(soak->options.seed);
  soak->own.state = random_mix(soak->options.seed * 64 + (uint64_t)soak->rank + 1);
  signal(SIGALRM, on_alarm);
  alarm((unsigned int)soak->options.limit_s);
  CUDA_CHECK(cudaSetDevice(soak->rank));
  for (int i = 0; i < STREAMS - 1; i++)
    CUDA_CHECK(cudaStreamCreateWithFlags(&soak->streams[i], i == 0 ? 0 : 1));
  /* The simulation starts a stream's thread with its first work. */
  for (int i = 0; i < STREAMS; i++) {
    CUDA_CHECK(cudaLaunchHostFunc(soak->streams[i], nothing, NULL));
    CUDA_CHECK(cudaStreamSynchronize(soak->streams[i]));
  }
  soak->legacy = random_chance(&soak->common, 30);
}

static void number(const char *text, uint64_t *value)
{
  char *end;

  *value = strtoull(text, &end, 10);
  if (*text == '\0' || *end != '\0')
    soak_fail("'%s' is not a number", text);
}

static void parse(struct options *options, int argc, char **argv)
{
  static const struct option known[] = {{"seed", 1, NULL, 's'},  {"steps", 1, NULL, 'n'}, {"cycles", 1, NULL, 'c'},
                                        {"limit", 1, NULL, 'l'}, {"late", 1, NULL, 't'},  {"diverge", 1, NULL, 'd'},
                                        {"whole", 0, NULL, 'w'}, {"keeps", 0, NULL, 'k'}, {"pressure", 0, NULL, 'p'},
                                        {NULL, 0, NULL, 0}};
  uint64_t value = 0;
  int option;

  *options = (struct options){.seed = 1, .steps = 100, .cycles = 2, .limit_s = 60, .late_us = 2000, .diverge = 5};
  while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
    if (optarg)
      number(optarg, &value);
    if (option == 's')
      options->seed = value;
    else if (option == 'n')
      options->steps = (int)value;
    else if (option == 'c')
      options->cycles = (int)value;
    else if (option == 'l')
      options->limit_s = (int)value;
    else if (option == 't')
      options->late_us = (int)value;
    else if (option == 'd')
      options->diverge = (int)value;
    else if (option == 'w')
      options->whole = true;
    else if (option == 'k')
      options->keeps = true;
    else if (option == 'p')
      options->pressure = true;
    else
      exit(64);
  }
}

static void tell(const struct soak *soak)
{
  printf("{\"rank\": %d, \"steps\": %d, \"elements\": %llu, \"graphs\": %llu, \"communicators\": %llu, "
         "\"refusals\": %llu",
         soak->rank, soak->step, (unsigned long long)soak->elements, (unsigned long long)soak->graphs,
         (unsigned long long)soak->teams_made, (unsigned long long)soak->refusals);
  for (int op = 0; op < OP_COUNT; op++)
    printf(", \"%s\": %llu", op_name((enum op)op), (unsigned long long)soak->calls_by_op[op]);
  printf("}\n");
  fflush(stdout);
}

int main(int argc, char **argv)
{
  static struct soak soak;
  struct remains before, first = {0};

  parse(&soak.options, argc, argv);
  start(&soak);
  before = look();
  for (int i = 0; i < soak.options.cycles; i++) {
    struct remains now;
    cycle(&soak);
    if (i == 0)
      first = look();
    now = first;
    now.memory = before.memory;
    compare(&soak, &now, i == 0 ? "before the first cycle" : "after the first cycle");
  }
  tell(&soak);
  return 0;
}
