/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: a queue each, and a thread that works it off, started with the first work. Nothing joins these
 * threads, so a process can exit while one waits for a rank that never comes.
 */
#include <signal.h>
#include <stdlib.h>

#include "tests/sim/gpu.h"

pthread_mutex_t gpu_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t gpu_cond = PTHREAD_COND_INITIALIZER;

static struct CUstream_st *streams;
static CUstream legacy[GPU_MAX_DEVICES];
static __thread CUstream per_thread[GPU_MAX_DEVICES];

struct gpu_work *gpu_work_create(const struct sim_work *work)
{
  struct gpu_work *new = malloc(sizeof(*new));
  *new = (struct gpu_work){.refs = 1, .work = *work};
  return new;
}

void gpu_work_release(struct gpu_work *work)
{
  if (!work || --work->refs > 0)
    return;
  if (work->work.drop)
    work->work.drop(work->work.arg);
  free(work);
}

struct gpu_op *gpu_op_hold(struct gpu_op *op)
{
  if (op)
    op->refs++;
  return op;
}

void gpu_op_release(struct gpu_op *op)
{
  if (op && --op->refs == 0)
    free(op);
}

void gpu_op_wait(struct gpu_op *op)
{
  gpu_op_hold(op);
  while (op && !op->done)
    pthread_cond_wait(&gpu_cond, &gpu_lock);
  gpu_op_release(op);
}

static void op_need(struct gpu_op *op, struct gpu_op *before)
{
  if (!before || before->done)
    return;
  op->needs = realloc(op->needs, (op->need_count + 1) * sizeof(struct gpu_op *));
  op->needs[op->need_count++] = gpu_op_hold(before);
}

static void op_needs_await(struct gpu_op *op)
{
  for (size_t i = 0; i < op->need_count; i++) {
    gpu_op_wait(op->needs[i]);
    gpu_op_release(op->needs[i]);
  }
  free(op->needs);
  op->needs = NULL;
  op->need_count = 0;
}

static void stream_free(CUstream stream)
{
  gpu_op_release(stream->last);
  free(stream);
}

static void *stream_main(void *arg)
{
  CUstream stream = arg;
  pthread_mutex_lock(&gpu_lock);
  while (stream->head || !stream->closing) {
    struct gpu_op *op = stream->head;
    if (!op) {
      pthread_cond_wait(&gpu_cond, &gpu_lock);
      continue;
    }
    op_needs_await(op);
    if (op->work) {
      pthread_mutex_unlock(&gpu_lock);
      op->work->work.run(op->work->work.arg);
      pthread_mutex_lock(&gpu_lock);
      gpu_work_release(op->work);
      op->work = NULL;
    }
    clock_gettime(CLOCK_MONOTONIC, &op->ended);
    op->done = true;
    stream->head = op->next;
    if (!stream->head)
      stream->tail = NULL;
    gpu_op_release(op);
    pthread_cond_broadcast(&gpu_cond);
  }
  stream_free(stream);
  pthread_mutex_unlock(&gpu_lock);
  return NULL;
}

/* The host program's signal handlers must not run on our thread; faults must. */
void gpu_thread_start(void *(*run)(void *arg), void *arg)
{
  sigset_t block;
  sigset_t before;
  sigfillset(&block);
  sigdelset(&block, SIGSEGV);
  sigdelset(&block, SIGBUS);
  sigdelset(&block, SIGABRT);
  sigdelset(&block, SIGFPE);
  sigdelset(&block, SIGILL);
  pthread_sigmask(SIG_SETMASK, &block, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  if (pthread_create(&thread, &attributes, run, arg) != 0)
    control_die("cannot start a thread of the driver's");
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void stream_start(CUstream stream)
{
  if (!stream->started)
    gpu_thread_start(stream_main, stream);
  stream->started = true;
}

static CUstream stream_new(int device, unsigned int flags)
{
  CUstream stream = calloc(1, sizeof(*stream));
  stream->device = device;
  stream->flags = flags;
  stream->next = streams;
  streams = stream;
  return stream;
}

CUstream gpu_stream_list(void)
{
  return streams;
}

CUstream gpu_stream_find(CUstream handle)
{
  int device = gpu_context_device();
  if (!handle || handle == SIM_STREAM_LEGACY) {
    if (!legacy[device]) {
      legacy[device] = stream_new(device, 0);
      legacy[device]->legacy = true;
    }
    return legacy[device];
  }
  if (handle == SIM_STREAM_PER_THREAD) {
    if (!per_thread[device])
      per_thread[device] = stream_new(device, 0);
    return per_thread[device];
  }
  for (CUstream at = streams; at; at = at->next)
    if (at == handle)
      return at;
  return NULL;
}

/* The legacy stream and the blocking streams of its device wait for each other. */
static void op_need_legacy(struct gpu_op *op, CUstream stream)
{
  if (stream->flags & CU_STREAM_NON_BLOCKING)
    return;
  if (!stream->legacy) {
    if (legacy[stream->device])
      op_need(op, legacy[stream->device]->last);
    return;
  }
  for (CUstream at = streams; at; at = at->next)
    if (at != stream && at->device == stream->device && !(at->flags & CU_STREAM_NON_BLOCKING))
      op_need(op, at->last);
}

struct gpu_op *gpu_stream_enqueue(CUstream stream, struct gpu_work *work, struct sim_chain *chain, struct gpu_op *after)
{
  struct gpu_op *op = calloc(1, sizeof(*op));
  op->refs = 1; /* the queue's */
  op->work = work;
  if (work)
    work->refs++;
  op_need_legacy(op, stream);
  op_need(op, after);
  if (chain) {
    op_need(op, chain->last);
    gpu_op_release(chain->last);
    chain->last = gpu_op_hold(op);
  }
  gpu_op_release(stream->last);
  stream->last = gpu_op_hold(op);
  if (stream->tail)
    stream->tail->next = op;
  else
    stream->head = op;
  stream->tail = op;
  stream_start(stream);
  pthread_cond_broadcast(&gpu_cond);
  return op;
}

CUresult gpu_stream_append(CUstream stream, const struct gpu_node *node)
{
  CUresult result = gpu_capture_check_legacy(stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (stream->capture)
    return gpu_capture_add(stream, node);
  gpu_stream_enqueue(stream, node->work, node->chain, NULL);
  return CUDA_SUCCESS;
}

CUresult gpu_stream_submit(CUstream handle, const struct sim_work *new, struct sim_chain *chain)
{
  pthread_mutex_lock(&gpu_lock);
  struct gpu_work *work = gpu_work_create(new);
  CUstream stream = gpu_stream_find(handle);
  const struct gpu_node node = {.work = work, .chain = chain};
  CUresult result = stream ? gpu_stream_append(stream, &node) : (CUresult)CUDA_ERROR_INVALID_HANDLE;
  gpu_work_release(work);
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

CUresult gpu_stream_create(CUstream *stream, int device, unsigned int flags)
{
  if (flags & ~(unsigned int)CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gpu_lock);
  *stream = stream_new(device, flags);
  pthread_mutex_unlock(&gpu_lock);
  return CUDA_SUCCESS;
}

/* Returns at once; the thread ends when its queue is empty. */
CUresult gpu_stream_destroy(CUstream handle)
{
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&gpu_lock);
  for (CUstream *at = &streams; *at; at = &(*at)->next) {
    CUstream stream = *at;
    if (stream != handle)
      continue;
    result = CUDA_SUCCESS;
    *at = stream->next;
    if (stream->capture) {
      stream->capture->invalid = true;
      if (stream->capture->origin == stream)
        gpu_capture_abandon(stream->capture);
      gpu_capture_release(stream->capture);
      gpu_set_clear(&stream->capture_set);
      free(stream->handles);
      stream->capture = NULL;
    }
    stream->closing = true;
    if (!stream->started)
      stream_free(stream);
    pthread_cond_broadcast(&gpu_cond);
    break;
  }
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

CUresult gpu_stream_synchronize(CUstream handle)
{
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&gpu_lock);
  CUstream stream = gpu_stream_find(handle);
  if (!stream) {
    result = CUDA_ERROR_INVALID_HANDLE;
  } else if (stream->capture) {
    stream->capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  } else {
    result = gpu_capture_check_legacy(stream);
    if (result == CUDA_SUCCESS)
      gpu_op_wait(stream->last);
  }
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

CUresult gpu_stream_query(CUstream handle)
{
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&gpu_lock);
  CUstream stream = gpu_stream_find(handle);
  if (stream && stream->capture) {
    stream->capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  } else if (stream) {
    result = stream->last && !stream->last->done ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
  }
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

/* What was submitted before the call; streams that went meanwhile had to be destroyed by another thread. */
CUresult gpu_stream_device_synchronize(int device)
{
  pthread_mutex_lock(&gpu_lock);
  struct gpu_op **ops = NULL;
  size_t count = 0;
  for (CUstream at = streams; at; at = at->next)
    if (at->device == device && at->last && !at->last->done) {
      ops = realloc(ops, (count + 1) * sizeof(struct gpu_op *));
      ops[count++] = gpu_op_hold(at->last);
    }
  for (size_t i = 0; i < count; i++) {
    gpu_op_wait(ops[i]);
    gpu_op_release(ops[i]);
  }
  pthread_mutex_unlock(&gpu_lock);
  free(ops);
  return CUDA_SUCCESS;
}

struct sim_chain *gpu_chain_create(void)
{
  return calloc(1, sizeof(struct sim_chain));
}

void gpu_chain_wait(struct sim_chain *chain)
{
  pthread_mutex_lock(&gpu_lock);
  gpu_op_wait(chain->last);
  pthread_mutex_unlock(&gpu_lock);
}

void gpu_chain_destroy(struct sim_chain *chain)
{
  pthread_mutex_lock(&gpu_lock);
  gpu_op_release(chain->last);
  pthread_mutex_unlock(&gpu_lock);
  free(chain);
}
