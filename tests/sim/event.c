/* SPDX-License-Identifier: Apache-2.0 */
/* Events: a point in a stream's queue, or in a capture. */
#include <stdlib.h>

#include "tests/sim/gpu.h"

static struct CUevent_st *events;

static CUevent event_find(CUevent handle)
{
  for (CUevent at = events; at; at = at->next)
    if (at == handle)
      return at;
  return NULL;
}

static void event_clear(CUevent event)
{
  gpu_op_release(event->op);
  event->op = NULL;
  gpu_capture_release(event->capture);
  event->capture = NULL;
  gpu_set_clear(&event->capture_set);
}

CUresult gpu_event_create(CUevent *event, unsigned int flags)
{
  CUevent new = calloc(1, sizeof(*new));
  new->flags = flags;
  pthread_mutex_lock(&gpu_lock);
  new->next = events;
  events = new;
  pthread_mutex_unlock(&gpu_lock);
  *event = new;
  return CUDA_SUCCESS;
}

CUresult gpu_event_destroy(CUevent handle)
{
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&gpu_lock);
  for (CUevent *at = &events; *at; at = &(*at)->next) {
    if (*at != handle)
      continue;
    *at = handle->next;
    event_clear(handle);
    free(handle);
    result = CUDA_SUCCESS;
    break;
  }
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

/* Inside a capture it becomes a node, and the event itself is recorded when the graph runs. */
static CUresult event_external(CUevent event, CUstream stream, enum gpu_node_kind kind)
{
  return stream->capture ? gpu_capture_add(stream, &(struct gpu_node){.kind = kind, .event = event})
                         : (CUresult)CUDA_ERROR_ILLEGAL_STATE;
}

static void event_mark(CUevent event, CUstream stream)
{
  event_clear(event);
  if (stream->capture) {
    event->capture = stream->capture;
    gpu_capture_hold(event->capture);
    gpu_set_copy(&event->capture_set, &stream->capture_set);
  } else {
    event->op = gpu_op_hold(gpu_stream_enqueue(stream, NULL, NULL, NULL));
  }
}

CUresult gpu_event_record(CUevent handle, CUstream stream_handle, unsigned int flags)
{
  if (flags & ~(unsigned int)CU_EVENT_RECORD_EXTERNAL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&gpu_lock);
  CUevent event = event_find(handle);
  CUstream stream = gpu_stream_find(stream_handle);
  if (event && stream)
    result = gpu_capture_check_legacy(stream);
  if (result == CUDA_SUCCESS && stream->capture && stream->capture->invalid)
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (result == CUDA_SUCCESS && flags & CU_EVENT_RECORD_EXTERNAL)
    result = event_external(event, stream, GPU_NODE_RECORD);
  else if (result == CUDA_SUCCESS)
    event_mark(event, stream);
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

/* A stream that waits for an event of a capture becomes part of that capture. */
static CUresult event_join(CUstream stream, CUevent event)
{
  if (event->capture->ended)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture && stream->capture != event->capture) {
    stream->capture->invalid = true;
    event->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream->legacy) {
    event->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (!stream->capture) {
    stream->capture = event->capture;
    gpu_capture_hold(stream->capture);
  }
  gpu_set_join(&stream->capture_set, &event->capture_set);
  return CUDA_SUCCESS;
}

static CUresult event_wait(CUstream stream, CUevent event)
{
  if (event->capture)
    return event_join(stream, event);
  if (stream->capture) {
    if (!event->op)
      return CUDA_SUCCESS;
    /* An event of the world outside, even one that has happened: the capture cannot depend on it. */
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  CUresult result = gpu_capture_check_legacy(stream);
  if (result == CUDA_SUCCESS && event->op)
    gpu_stream_enqueue(stream, NULL, NULL, event->op);
  return result;
}

CUresult gpu_event_wait(CUstream stream_handle, CUevent handle, unsigned int flags)
{
  if (flags & ~(unsigned int)CU_EVENT_WAIT_EXTERNAL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&gpu_lock);
  CUevent event = event_find(handle);
  CUstream stream = gpu_stream_find(stream_handle);
  if (event && stream)
    result = flags & CU_EVENT_WAIT_EXTERNAL ? event_external(event, stream, GPU_NODE_WAIT) : event_wait(stream, event);
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

void gpu_event_replay(CUstream stream, const struct gpu_node *node)
{
  CUevent event = event_find(node->event);
  if (!event)
    control_die("launch of a graph whose event (%p) was destroyed", (void *)node->event);
  if (node->kind == GPU_NODE_RECORD)
    event_mark(event, stream);
  else if (event->op)
    gpu_stream_enqueue(stream, NULL, NULL, event->op);
}

/* An event recorded in a capture never happens: asking after it breaks the capture, whatever its mode. */
static CUresult event_look(CUevent event)
{
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!event->capture)
    return gpu_capture_unsafe_locked();
  if (event->capture->ended)
    return CUDA_ERROR_INVALID_VALUE;
  event->capture->invalid = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult gpu_event_synchronize(CUevent handle)
{
  pthread_mutex_lock(&gpu_lock);
  CUevent event = event_find(handle);
  CUresult result = event_look(event);
  if (result == CUDA_SUCCESS)
    gpu_op_wait(event->op);
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

CUresult gpu_event_query(CUevent handle)
{
  pthread_mutex_lock(&gpu_lock);
  CUevent event = event_find(handle);
  CUresult result = event_look(event);
  if (result == CUDA_SUCCESS && event->op && !event->op->done)
    result = CUDA_ERROR_NOT_READY;
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

CUresult gpu_event_elapsed(float *ms, CUevent start_handle, CUevent end_handle)
{
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&gpu_lock);
  CUevent start = event_find(start_handle);
  CUevent end = event_find(end_handle);
  if (start && end && (start->capture || end->capture))
    result = CUDA_ERROR_CAPTURED_EVENT;
  else if (start && end && start->op && end->op && !((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)) {
    result = start->op->done && end->op->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    const struct timespec *from = &start->op->ended;
    const struct timespec *to = &end->op->ended;
    *ms = (float)((double)(to->tv_sec - from->tv_sec) * 1e3 + (double)(to->tv_nsec - from->tv_nsec) / 1e6);
  }
  pthread_mutex_unlock(&gpu_lock);
  return result;
}
