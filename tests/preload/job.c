/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job as users have them: it is linked to the CUDA runtime and to NCCL, allocates as a caching allocator does,
 * issues collectives, and looks at every element that they give. It knows nothing of the shim.
 *
 * Exit status: 0 (or what --status says) all right, 1 wrong data, 2 a call failed, 64 not understood.
 */
#include "tests/preload/job.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/check.h"
#include "tests/preload/work.h"

enum { EXTRA_BYTES = 64 << 10 };

struct watched {
  ncclComm_t comm;
  int ms;
};

struct registration {
  void *handle;
  ncclWindow_t window;
};

/* The first segment, as a program does that knows NCCL's registration. */
static void register_segment(const struct options *options, struct worker *worker, struct registration *registration)
{
  struct pool_mark mark;

  if (options->registering == REGISTER_NONE)
    return;
  pool_alloc(&worker->pool, 1);
  mark = (struct pool_mark){{0}};
  pool_back(&worker->pool, &mark);
  if (options->registering == REGISTER_BUFFER)
    NCCL_CHECK(ncclCommRegister(worker->seat->comm, worker->pool.segments[0], worker->pool.segment_bytes,
                                &registration->handle));
  else
    NCCL_CHECK(ncclCommWindowRegister(worker->seat->comm, worker->pool.segments[0], worker->pool.segment_bytes,
                                      &registration->window, NCCL_WIN_COLL_SYMMETRIC));
}

static void deregister_segment(struct worker *worker, const struct registration *registration)
{
  if (registration->handle)
    NCCL_CHECK(ncclCommDeregister(worker->seat->comm, registration->handle));
  if (registration->window)
    NCCL_CHECK(ncclCommWindowDeregister(worker->seat->comm, registration->window));
}

/* On a device of 128 MiB, wants so much at once that nothing may be held back of what was freed. */
static void press(struct worker *worker)
{
  void *most = NULL;

  pool_release(&worker->pool);
  CUDA_CHECK(cudaMalloc(&most, 124UL << 20));
  CUDA_CHECK(cudaFree(most));
}

static void replay(const struct options *options, struct worker *worker, int count, bool *right)
{
  cudaGraph_t graph;
  cudaGraphExec_t exec;

  CUDA_CHECK(cudaStreamBeginCapture(worker->streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
  work_issue(options, worker, 1, count);
  CUDA_CHECK(cudaStreamEndCapture(worker->streams[0], &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < options->capture; round++) {
    work_fill(options, worker, count, round);
    CUDA_CHECK(cudaGraphLaunch(exec, worker->streams[0]));
    *right &= work_check(options, worker, count);
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
}

static bool run_batch(const struct options *options, struct worker *workers, int worker_count, int first, int count)
{
  struct pool_mark marks[MAX_SEATS];
  bool right = true;

  for (int w = 0; w < worker_count; w++) {
    CUDA_CHECK(cudaSetDevice(workers[w].seat->device));
    marks[w] = pool_mark(&workers[w].pool);
    if (options->chain)
      continue;
    work_place(options, &workers[w], first, count);
    work_fill(options, &workers[w], count, 0);
  }
  if (options->chain) {
    right = work_chain(options, &workers[0], first);
  } else if (options->capture > 0 && first > 0) {
    replay(options, &workers[0], count, &right);
  } else {
    work_issue(options, workers, worker_count, count);
    for (int w = 0; w < worker_count; w++) {
      CUDA_CHECK(cudaSetDevice(workers[w].seat->device));
      right &= work_check(options, &workers[w], count);
    }
  }
  if (options->mixed && !options->chain)
    right &= work_mixed(options, &workers[0], &workers[0].placed[0]);
  for (int w = 0; w < worker_count; w++)
    pool_back(&workers[w].pool, &marks[w]);
  return right;
}

/* What a watchdog does about a communicator that has been waiting for too long. */
static void *watch(void *arg)
{
  const struct watched *watched = arg;

  usleep((useconds_t)watched->ms * 1000);
  NCCL_CHECK(ncclCommAbort(watched->comm));
  return NULL;
}

static void start_watch(const struct options *options, ncclComm_t comm)
{
  static struct watched watched;
  pthread_t thread;

  if (options->abort_ms == 0) /* twins come here both at once */
    return;
  watched = (struct watched){comm, options->abort_ms};
  if (pthread_create(&thread, NULL, watch, &watched) != 0)
    job_fail("no thread");
  pthread_detach(thread);
}

static bool run(const struct options *options, struct worker *workers, int worker_count)
{
  bool right = true, half = false;

  for (int first = 0, batches = 0; first < options->calls; first += options->batch) {
    int left = options->calls - first;
    int count = left < options->batch ? left : options->batch;
    if (!half && first >= options->calls / 2) {
      half = true;
      if (options->pressure)
        press(&workers[0]);
      if (options->diverge == DIVERGE_MALLOC && workers[0].seat->rank == 0)
        pool_alloc(&workers[0].pool, EXTRA_BYTES);
    }
    if (batches == 1)
      start_watch(options, workers[0].seat->comm);
    right &= run_batch(options, workers, worker_count, first, count);
    batches++;
    if (options->free_every > 0 && batches % options->free_every == 0)
      pool_release(&workers[0].pool);
  }
  return right;
}

struct twin {
  const struct options *options;
  struct worker *worker;
  bool right;
};

static void *run_twin(void *arg)
{
  struct twin *twin = arg;

  CUDA_CHECK(cudaSetDevice(twin->worker->seat->device));
  twin->right = run(twin->options, twin->worker, 1);
  return NULL;
}

/* Two communicators of one process, each with a thread of its own. */
static bool run_twins(const struct options *options, struct worker *workers)
{
  struct twin twins[2] = {{options, &workers[0], false}, {options, &workers[1], false}};
  pthread_t threads[2];

  for (int i = 0; i < 2; i++)
    if (pthread_create(&threads[i], NULL, run_twin, &twins[i]) != 0)
      job_fail("no thread");
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  return twins[0].right && twins[1].right;
}

static void start(const struct options *options, struct worker *worker, struct seat *seat)
{
  void *never;

  *worker = (struct worker){.seat = seat, .pool.segment_bytes = options->segment_bytes};
  if (options->diverge == DIVERGE_SIZE && seat->rank == seat->nranks - 1)
    worker->pool.segment_bytes *= 2;
  CUDA_CHECK(cudaSetDevice(seat->device));
  for (int i = 0; i < 2; i++)
    CUDA_CHECK(cudaStreamCreateWithFlags(&worker->streams[i], 1));
  if (options->errors && cudaMalloc(&never, (size_t)1 << 50) != cudaErrorMemoryAllocation)
    job_fail("a petabyte was to be had");
}

static void leave_a_child(void)
{
  int status = 0;
  pid_t child = fork();

  if (child == 0)
    exit(0);
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
    job_fail("the child's status is %d", status);
}

int job_main(int argc, char **argv)
{
  static struct worker workers[MAX_SEATS];
  struct registration registration = {0};
  struct seat seats[MAX_SEATS];
  struct options options;
  bool right = true;
  int count;

  options_parse(&options, argc, argv);
  if (options.batch < 1 || options.batch > MAX_BATCH || options.streams < 1 || options.streams > 2)
    job_fail("--batch is 1 to %d, --streams 1 or 2", MAX_BATCH);
  count = comms_make(&options, seats, MAX_SEATS);
  for (int i = 0; i < count; i++)
    start(&options, &workers[i], &seats[i]);
  if (seats[0].comm) {
    register_segment(&options, &workers[0], &registration);
    right = options.derive == DERIVE_TWINS ? run_twins(&options, workers) : run(&options, workers, count);
    deregister_segment(&workers[0], &registration);
  }
  if (options.fork)
    leave_a_child();
  comms_end(&options, seats, count);
  if (options.ending != END_EXIT)
    for (int i = 0; i < count; i++)
      pool_release(&workers[i].pool);
  printf("job: rank %d of %d: %d calls, %s\n", job_rank(), job_size(), seats[0].comm ? options.calls : 0,
         right ? "all right" : "WRONG");
  fflush(stdout);
  return right ? options.status : 1;
}
