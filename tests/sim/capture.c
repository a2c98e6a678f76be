/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: records work with what it comes after, in a graph that becomes the caller's at the end. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/gpu.h"

static struct gpu_capture *captures; /* under way */
static unsigned long long capture_ids;
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
  gpu_graph_free(capture->graph);
  free(capture);
}

CUresult gpu_capture_add(CUstream stream, const struct gpu_node *node)
{
  struct gpu_capture *capture = stream->capture;
  if (capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  gpu_graph_add(capture->graph, node, &stream->capture_set);
  gpu_set_clear(&stream->capture_set);
  set_add(&stream->capture_set, capture->graph->count - 1);
  return CUDA_SUCCESS;
}

/* Queries leave the captures alone, work breaks them. */
static CUresult capture_legacy(CUstream stream, bool breaks)
{
  if (!stream->legacy)
    return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (CUstream at = gpu_stream_list(); at; at = at->next)
    if (at->capture && at->device == stream->device && !(at->flags & CU_STREAM_NON_BLOCKING)) {
      at->capture->invalid |= breaks;
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  return result;
}

CUresult gpu_capture_check_legacy(CUstream stream)
{
  return capture_legacy(stream, true);
}

CUresult gpu_capture_begin(CUstream handle, CUstreamCaptureMode mode)
{
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gpu_lock);
  CUstream stream = gpu_stream_find(handle);
  if (stream && stream->legacy) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  } else if (stream && stream->capture) {
    result = CUDA_ERROR_ILLEGAL_STATE;
  } else if (stream && mode <= CU_STREAM_CAPTURE_MODE_RELAXED) {
    struct gpu_capture *capture = calloc(1, sizeof(*capture));
    *capture = (struct gpu_capture){.refs = 1,
                                    .id = ++capture_ids,
                                    .mode = mode,
                                    .owner = pthread_self(),
                                    .origin = stream,
                                    .graph = gpu_graph_new(),
                                    .next = captures};
    captures = capture;
    stream->capture = capture;
    result = CUDA_SUCCESS;
  }
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

/* Whether all work is something that the origin's newest work comes after. */
static bool graph_joined(const struct CUgraph_st *graph, const struct gpu_set *last)
{
  bool *reached = calloc(graph->count + 1, sizeof(*reached));
  for (size_t i = 0; i < last->count; i++)
    reached[last->nodes[i]] = true;
  bool all = true;
  for (size_t i = graph->count; i-- > 0;) {
    all &= reached[i];
    for (size_t j = 0; reached[i] && j < graph->nodes[i].needs.count; j++)
      reached[graph->nodes[i].needs.nodes[j]] = true;
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
      free(at->handles);
      at->handles = NULL;
      gpu_capture_release(capture);
    }
  for (struct gpu_capture **at = &captures; *at; at = &(*at)->next)
    if (*at == capture) {
      *at = capture->next;
      break;
    }
  capture->ended = true;
}

/* What the capture of a stream that is destroyed has retained goes at once, though events may still name it. */
void gpu_capture_abandon(struct gpu_capture *capture)
{
  gpu_graph_free(capture->graph);
  capture->graph = gpu_graph_new();
  capture->invalid = true;
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
  else if (!graph_joined(capture->graph, &stream->capture_set))
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;

  if (capture->origin == stream) {
    capture_dissolve(capture);
    if (result == CUDA_SUCCESS)
      *graph = capture->graph;
    else
      gpu_graph_free(capture->graph);
    capture->graph = NULL;
  } else {
    capture->invalid = true;
  }
  gpu_capture_release(capture);
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

static CUstreamCaptureStatus capture_state(const struct gpu_capture *capture)
{
  if (!capture)
    return CU_STREAM_CAPTURE_STATUS_NONE;
  return capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult gpu_capture_status(CUstream handle, CUstreamCaptureStatus *status)
{
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&gpu_lock);
  CUstream stream = gpu_stream_find(handle);
  if (stream) {
    *status = capture_state(stream->capture);
    result = capture_legacy(stream, false);
  }
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

/* Names for the nodes that the stream's next one will come after; the stream keeps the array. */
static const CUgraphNode *capture_handles(CUstream stream)
{
  const struct gpu_set *set = &stream->capture_set;
  free(stream->handles);
  stream->handles = malloc((set->count + 1) * sizeof(CUgraphNode));
  for (size_t i = 0; i < set->count; i++)
    stream->handles[i] = (CUgraphNode)(uintptr_t)(stream->capture->id << 32 | (set->nodes[i] + 1));
  return stream->handles;
}

CUresult gpu_capture_info(CUstream handle, struct sim_capture_info *info)
{
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  *info = (struct sim_capture_info){0};
  pthread_mutex_lock(&gpu_lock);
  CUstream stream = gpu_stream_find(handle);
  if (stream)
    result = capture_legacy(stream, false);
  if (result == CUDA_SUCCESS) {
    info->status = capture_state(stream->capture);
    if (info->status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
      info->id = stream->capture->id;
      info->graph = stream->capture->graph;
      info->dependencies = capture_handles(stream);
      info->count = stream->capture_set.count;
    }
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
CUresult gpu_capture_unsafe_locked(void)
{
  CUresult result = CUDA_SUCCESS;
  for (struct gpu_capture *at = captures; at; at = at->next) {
    bool own = pthread_equal(at->owner, pthread_self());
    bool forbidden = own ? at->mode != CU_STREAM_CAPTURE_MODE_RELAXED && thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED
                         : at->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (forbidden) {
      at->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

CUresult gpu_capture_unsafe(void)
{
  pthread_mutex_lock(&gpu_lock);
  CUresult result = gpu_capture_unsafe_locked();
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

/*
 * "It is invalid to synchronize a broader handle which encompasses an active stream capture, such as a device"
 * (programming guide): unlike the above that does not hang on anybody's mode.
 */
CUresult gpu_capture_wait(int device)
{
  pthread_mutex_lock(&gpu_lock);
  CUresult result = gpu_capture_unsafe_locked();
  for (CUstream at = gpu_stream_list(); at; at = at->next)
    if (at->capture && at->device == device) {
      at->capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  pthread_mutex_unlock(&gpu_lock);
  return result;
}
