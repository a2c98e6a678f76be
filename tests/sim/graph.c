/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs. A graph replays on one stream in the order in which it was recorded, which is an order that its edges
 * allow. What it keeps alive, its instantiations and their launches keep alive too.
 */
#include <limits.h>
#include <stdlib.h>

#include "tests/sim/gpu.h"

/* User objects of an instantiation, which its launches share. */
struct keep {
  unsigned int refs;
  struct gpu_objects objects;
};

struct CUgraphExec_st {
  struct CUgraphExec_st *next; /* in the list of all */
  struct gpu_node *nodes;
  size_t count;
  struct keep *keep;
};

static cudaGraph_t graphs;
static cudaGraphExec_t execs;

static void nodes_free(struct gpu_node *nodes, size_t count)
{
  for (size_t i = 0; i < count; i++) {
    gpu_work_release(nodes[i].work);
    gpu_set_clear(&nodes[i].needs);
  }
  free(nodes);
}

cudaGraph_t gpu_graph_new(void)
{
  cudaGraph_t graph = calloc(1, sizeof(*graph));
  graph->next = graphs;
  graphs = graph;
  return graph;
}

void gpu_graph_add(cudaGraph_t graph, const struct gpu_node *node, const struct gpu_set *needs)
{
  graph->nodes = realloc(graph->nodes, (graph->count + 1) * sizeof(*node));
  struct gpu_node *new = &graph->nodes[graph->count++];
  *new = *node;
  new->needs = (struct gpu_set){0};
  gpu_set_copy(&new->needs, needs);
  if (new->work)
    new->work->refs++;
}

cudaGraph_t gpu_graph_find(cudaGraph_t graph)
{
  cudaGraph_t at = graphs;
  while (at && at != graph)
    at = at->next;
  return at;
}

void gpu_graph_free(cudaGraph_t graph)
{
  if (!graph)
    return;
  cudaGraph_t *at = &graphs;
  while (*at != graph)
    at = &(*at)->next;
  *at = graph->next;
  nodes_free(graph->nodes, graph->count);
  gpu_objects_clear(&graph->objects);
  free(graph);
}

static void keep_release(void *arg)
{
  struct keep *keep = arg;
  if (--keep->refs > 0)
    return;
  gpu_objects_clear(&keep->objects);
  free(keep);
}

static cudaGraphExec_t exec_new(cudaGraph_t graph)
{
  cudaGraphExec_t exec = calloc(1, sizeof(*exec));
  exec->nodes = calloc(graph->count + 1, sizeof(struct gpu_node));
  exec->count = graph->count;
  for (size_t i = 0; i < graph->count; i++) {
    exec->nodes[i] = graph->nodes[i];
    exec->nodes[i].needs = (struct gpu_set){0};
    if (exec->nodes[i].work)
      exec->nodes[i].work->refs++;
  }
  exec->keep = calloc(1, sizeof(*exec->keep));
  exec->keep->refs = 1;
  gpu_objects_copy(&exec->keep->objects, &graph->objects);
  exec->next = execs;
  execs = exec;
  return exec;
}

CUresult gpu_graph_instantiate(cudaGraphExec_t *exec, cudaGraph_t handle)
{
  pthread_mutex_lock(&gpu_lock);
  cudaGraph_t graph = gpu_graph_find(handle);
  if (graph)
    *exec = exec_new(graph);
  pthread_mutex_unlock(&gpu_lock);
  return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static cudaGraphExec_t *exec_find(cudaGraphExec_t exec)
{
  cudaGraphExec_t *at = &execs;
  while (*at && *at != exec)
    at = &(*at)->next;
  return at;
}

static CUresult node_launch(CUstream stream, const struct gpu_node *node)
{
  if (node->kind == GPU_NODE_WORK || stream->capture)
    return gpu_stream_append(stream, node);
  gpu_event_replay(stream, node);
  return CUDA_SUCCESS;
}

static void nothing(void *arg)
{
  (void)arg;
}

/* The last of a launch: holds the user objects until all before it has run. */
static CUresult keep_launch(CUstream stream, struct keep *keep)
{
  if (keep->objects.count == 0)
    return CUDA_SUCCESS;
  keep->refs++;
  struct gpu_work *work = gpu_work_create(&(struct sim_work){.run = nothing, .drop = keep_release, .arg = keep});
  CUresult result = gpu_stream_append(stream, &(struct gpu_node){.work = work});
  gpu_work_release(work);
  return result;
}

CUresult gpu_graph_launch(cudaGraphExec_t handle, CUstream stream_handle)
{
  pthread_mutex_lock(&gpu_lock);
  CUstream stream = gpu_stream_find(stream_handle);
  cudaGraphExec_t exec = *exec_find(handle);
  CUresult result = exec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (!stream)
    result = CUDA_ERROR_INVALID_HANDLE;
  else if (exec)
    result = gpu_capture_check_legacy(stream);
  for (size_t i = 0; result == CUDA_SUCCESS && i < exec->count; i++)
    result = node_launch(stream, &exec->nodes[i]);
  if (result == CUDA_SUCCESS)
    result = keep_launch(stream, exec->keep);
  pthread_mutex_unlock(&gpu_lock);
  return result;
}

CUresult gpu_graph_destroy(cudaGraph_t handle)
{
  pthread_mutex_lock(&gpu_lock);
  cudaGraph_t graph = gpu_graph_find(handle);
  gpu_graph_free(graph);
  pthread_mutex_unlock(&gpu_lock);
  return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpu_graph_exec_destroy(cudaGraphExec_t handle)
{
  pthread_mutex_lock(&gpu_lock);
  cudaGraphExec_t *at = exec_find(handle);
  cudaGraphExec_t exec = *at;
  if (exec) {
    *at = exec->next;
    nodes_free(exec->nodes, exec->count);
    keep_release(exec->keep);
    free(exec);
  }
  pthread_mutex_unlock(&gpu_lock);
  return exec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpu_graph_retain_object(cudaGraph_t handle, CUuserObject object, unsigned int count, unsigned int flags)
{
  if (!object || count == 0 || count > INT_MAX || flags & ~(unsigned int)CU_GRAPH_USER_OBJECT_MOVE)
    return CUDA_ERROR_INVALID_VALUE;
  /* Moved references stay as they are, and are the graph's from here on. */
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))
    gpu_object_retain(object, count);
  pthread_mutex_lock(&gpu_lock);
  cudaGraph_t graph = gpu_graph_find(handle);
  if (graph)
    gpu_objects_add(&graph->objects, object, count);
  pthread_mutex_unlock(&gpu_lock);
  if (!graph && !(flags & CU_GRAPH_USER_OBJECT_MOVE))
    gpu_object_release(object, count);
  return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpu_graph_release_object(cudaGraph_t handle, CUuserObject object, unsigned int count)
{
  pthread_mutex_lock(&gpu_lock);
  cudaGraph_t graph = gpu_graph_find(handle);
  bool held = graph && object && count > 0 && gpu_objects_remove(&graph->objects, object, count);
  pthread_mutex_unlock(&gpu_lock);
  return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
