/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda.so.1: the exported functions of captures, graphs and user objects, and copies on streams. */
#include "tests/sim/export.h"

/* As the driver does it: the id is 0 where nothing is captured, and all else is left alone then. */
static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                             const CUgraphNode **dependencies, size_t *count)
{
  struct sim_capture_info info;
  if (!status)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gpu_capture_info(stream, &info);
  if (result != CUDA_SUCCESS)
    return result;
  *status = info.status;
  if (id)
    *id = info.id;
  if (info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    return CUDA_SUCCESS;
  if (graph)
    *graph = info.graph;
  if (dependencies)
    *dependencies = info.dependencies;
  if (count)
    *count = info.count;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count)
{
  return SIM_CALL(cuStreamGetCaptureInfo_v2, IN_CONTEXT(capture_info(stream, status, id, graph, dependencies, count)),
                  "%p", (void *)stream);
}

/* No edge has data here. */
static CUresult capture_info_edges(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
  if (edges && !dependencies)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = capture_info(stream, status, id, graph, dependencies, count);
  if (result == CUDA_SUCCESS && edges && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
    *edges = NULL;
  return result;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
  return SIM_CALL(cuStreamGetCaptureInfo_v3,
                  IN_CONTEXT(capture_info_edges(stream, status, id, graph, dependencies, edges, count)), "%p",
                  (void *)stream);
}

CUresult cuUserObjectCreate(CUuserObject *object, void *data, CUhostFn destroy, unsigned int count, unsigned int flags)
{
  return SIM_CALL(cuUserObjectCreate, READY(gpu_object_create(object, data, destroy, count, flags)),
                  "%p count=%u flags=%u", data, count, flags);
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
  return SIM_CALL(cuUserObjectRetain, READY(gpu_object_retain(object, count)), "%p count=%u", (void *)object, count);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
  return SIM_CALL(cuUserObjectRelease, READY(gpu_object_release(object, count)), "%p count=%u", (void *)object, count);
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
  return SIM_CALL(cuGraphRetainUserObject, READY(gpu_graph_retain_object(graph, object, count, flags)),
                  "%p %p count=%u flags=%u", (void *)graph, (void *)object, count, flags);
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
  return SIM_CALL(cuGraphReleaseUserObject, READY(gpu_graph_release_object(graph, object, count)), "%p %p count=%u",
                  (void *)graph, (void *)object, count);
}

CUresult cuGraphDestroy(CUgraph graph)
{
  return SIM_CALL(cuGraphDestroy, READY(gpu_graph_destroy(graph)), "%p", (void *)graph);
}

CUresult cuGraphExecDestroy(cudaGraphExec_t exec)
{
  return SIM_CALL(cuGraphExecDestroy, READY(gpu_graph_exec_destroy(exec)), "%p", (void *)exec);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t count, CUstream stream)
{
  return SIM_CALL(cuMemcpyAsync, IN_CONTEXT(gpu_copy_submit(P(dst), P(src), count, stream)),
                  "%p %p count=%zu stream=%p", P(dst), P(src), count, (void *)stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t count, CUstream stream)
{
  return SIM_CALL(cuMemcpyDtoDAsync_v2, IN_CONTEXT(gpu_copy_device(P(dst), P(src), count, stream)),
                  "%p %p count=%zu stream=%p", P(dst), P(src), count, (void *)stream);
}
