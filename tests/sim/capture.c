/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture and graphs. A capture records work with what it comes after; a graph replays it on one stream in
 * the order in which it was recorded, which is an order that its edges allow.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/gpu.h"

struct CUgraph_st {
  struct gpu_node *nodes;
  size_t count;
};

struct CUgraphExec_st {
  struct gpu_node *nodes;
  size_t count;
};

static struct gpu_capture *captures; /* under way */
static __thread CUstreamCaptureMode thread_mode;

void gpu_set_clear(struct gpu_set *set)
{
  free(set->nodes);
  *set = (struct gpu_set){0};
}

static void set_add(struct gpu_set *set, size_t node)
{
  for (size_t i = 0; i < set->count; i++)
    if (set->nodes[i] == node)
      return;
  set->nodes = realloc(set->nodes, (set->count + 1) * sizeof(*set->nodes));
  set->nodes[set->count++] = node;
}

void gpu_set_join(struct gpu_set *to, const struct gpu_set *from)
{
  for (size_t i = 0; i < from->count; i++)
    set_add(to, from->nodes[i]);
}

void gpu_set_copy(struct gpu_set *to, const struct gpu_set *from)
{
  gpu_set_clear(to);
  gpu_set_join(to, from);
}

static void nodes_free(struct gpu_node *nodes, size_t count)
{
  for (size_t i = 0; i < count; i++) {
    gpu_work_release(nodes[i].work);
    gpu_set_clear(&nodes[i].needs);
  }
  free(nodes);
}

void gpu_capture_hold(struct gpu_capture *capture)
{
  if (capture)
    capture->refs++;
}

void gpu_capture_release(struct gpu_capture *capture)
{
  if (!capture || --capture->refs > 0)
    return;
  for (struct gpu_capture **at = &captures; *at; at = &(*at)->next)
    if (*at == capture) {
      *at = capture->next;
      break;
    }
  nodes_free(capture->nodes, capture->count);
  free(capture);
}

CUresult gpu_capture_add(CUstream stream, struct gpu_work *work, struct sim_chain *chain)
{
  struct gpu_capture *capture = stream->capture;
  if (capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  struct gpu_node node = {.work = work, .chain = chain};
  work->refs++;
  gpu_set_copy(&node.needs, &stream->capture_set);
  capture->nodes = realloc(capture->nodes, (capture->count + 1) * sizeof(node));
  capture->nodes[capture->count] = node;
  gpu_set_clear(&stream->capture_set);
  set_add(&stream->capture_set, capture->count++);
  return CUDA_SUCCESS;
}

CUresult gpu_capture_check_legacy(CUstream stream)
{
  if (!stream->legacy)
    return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (CUstream at = gpu_stream_list(); at; at = at->next)
    if (at->capture && at->device == stream->device && !(at->flags & CU_STREAM_NON_BLOCKING)) {
      at->capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  return result;
}

CUresult gpu_capture_begin(CUstream handle, CUstreamCaptureMode mode)
{
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gpu_lock);
  CUstream stream = gpu_stream_find(handle);
  if (stream && stream->legacy) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  } else if (stream && !stream->capture && mode <= CU_STREAM_CAPTURE_MODE_RELAXED) {
    struct gpu_capture *capture = calloc(1, sizeof(*capture));
    *capture =
        (struct gpu_capture){.refs = 1, .mode = mode, .owner = pthread_self(), .origin = stream, .next = captures};
    captures = capture;
    stream->capture = capture;
    result = CUDA_SUCCESS;
  }
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

/* Whether all work is something that the origin's newest work comes after. */
static bool capture_joined(const struct gpu_capture *capture, const struct gpu_set *last)
{
  bool *reached = calloc(capture->count + 1, sizeof(*reached));
  for (size_t i = 0; i < last->count; i++)
    reached[last->nodes[i]] = true;
  bool all = true;
  for (size_t i = capture->count; i-- > 0;) {
    all &= reached[i];
    for (size_t j = 0; reached[i] && j < capture->nodes[i].needs.count; j++)
      reached[capture->nodes[i].needs.nodes[j]] = true;
  }
  free(reached);
  return all;
}

/* Takes every stream out of the capture; the reference of the caller remains. */
static void capture_dissolve(struct gpu_capture *capture)
{
  for (CUstream at = gpu_stream_list(); at; at = at->next)
    if (at->capture == capture) {
      at->capture = NULL;
      gpu_set_clear(&at->capture_set);
      gpu_capture_release(capture);
    }
  for (struct gpu_capture **at = &captures; *at; at = &(*at)->next)
    if (*at == capture) {
      *at = capture->next;
      break;
    }
  capture->ended = true;
}

CUresult gpu_capture_end(CUstream handle, cudaGraph_t *graph)
{
  CUresult result = CUDA_SUCCESS;
  *graph = NULL;
  pthread_mutex_lock(&gpu_lock);
  CUstream stream = gpu_stream_find(handle);
  struct gpu_capture *capture = stream ? stream->capture : NULL;
  if (!capture) {
    pthread_mutex_unlock(&gpu_lock);
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  gpu_capture_hold(capture);
  if (capture->origin != stream)
    result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  else if (capture->invalid)
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  else if (!capture_joined(capture, &stream->capture_set))
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;

  if (capture->origin == stream)
    capture_dissolve(capture);
  else
    capture->invalid = true;
  if (result == CUDA_SUCCESS) {
    *graph = malloc(sizeof(**graph));
    **graph = (struct CUgraph_st){.nodes = capture->nodes, .count = capture->count};
    capture->nodes = NULL;
    capture->count = 0;
  }
  gpu_capture_release(capture);
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

CUresult gpu_capture_status(CUstream handle, CUstreamCaptureStatus *status)
{
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&gpu_lock);
  CUstream stream = gpu_stream_find(handle);
  if (stream) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (stream->capture)
      *status = stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    result = gpu_capture_check_legacy(stream);
  }
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

CUresult gpu_capture_exchange_mode(CUstreamCaptureMode *mode)
{
  if (*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  CUstreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

/*
 * A call that could spoil a capture: this thread's mode says of which captures it must beware. Global: those of
 * this thread that are not relaxed, and other threads' global ones; thread-local: this thread's alone.
 */
CUresult gpu_capture_unsafe(void)
{
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&gpu_lock);
  for (struct gpu_capture *at = captures; at; at = at->next) {
    bool own = pthread_equal(at->owner, pthread_self());
    bool forbidden = own ? at->mode != CU_STREAM_CAPTURE_MODE_RELAXED && thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED
                         : at->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (forbidden) {
      at->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

CUresult gpu_graph_instantiate(cudaGraphExec_t *exec, cudaGraph_t graph)
{
  pthread_mutex_lock(&gpu_lock);
  cudaGraphExec_t new = malloc(sizeof(*new));
  *new = (struct CUgraphExec_st){.nodes = calloc(graph->count + 1, sizeof(struct gpu_node)), .count = graph->count};
  for (size_t i = 0; i < graph->count; i++) {
    new->nodes[i].work = graph->nodes[i].work;
    new->nodes[i].work->refs++;
    new->nodes[i].chain = graph->nodes[i].chain;
  }
  pthread_mutex_unlock(&gpu_lock);
  *exec = new;
  return CUDA_SUCCESS;
}

CUresult gpu_graph_launch(cudaGraphExec_t exec, CUstream handle)
{
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&gpu_lock);
  CUstream stream = gpu_stream_find(handle);
  if (!stream)
    result = CUDA_ERROR_INVALID_HANDLE;
  for (size_t i = 0; result == CUDA_SUCCESS && i < exec->count; i++)
    result = gpu_stream_append(stream, exec->nodes[i].work, exec->nodes[i].chain);
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

CUresult gpu_graph_destroy(cudaGraph_t graph)
{
  pthread_mutex_lock(&gpu_lock);
  nodes_free(graph->nodes, graph->count);
  pthread_mutex_unlock(&gpu_lock);
  free(graph);
  return CUDA_SUCCESS;
}

CUresult gpu_graph_exec_destroy(cudaGraphExec_t exec)
{
  pthread_mutex_lock(&gpu_lock);
  nodes_free(exec->nodes, exec->count);
  pthread_mutex_unlock(&gpu_lock);
  free(exec);
  return CUDA_SUCCESS;
}
