/* SPDX-License-Identifier: Apache-2.0 */
/* Captures as the driver tells of them, what graphs keep alive, and events and copies in them. */
#include "tests/sim/test_cuda.h"

#include <pthread.h>

/* What H200 and driver 580 (CUDA 13.0) gave for the same steps stands in the assertions. */

static atomic_uint destroyed;
static CUresult callback_results[4];
static pthread_t callback_thread;

static void on_destroy(void *event)
{
  CUcontext context;
  size_t sizes[2];
  callback_results[0] = cuCtxGetCurrent(&context);
  callback_results[1] = cuMemGetInfo_v2(&sizes[0], &sizes[1]);
  callback_results[2] = cuEventQuery(event);
  callback_results[3] = cudaDeviceSynchronize();
  callback_thread = pthread_self();
  atomic_fetch_add(&destroyed, 1);
}

static void pause_ms(long ms)
{
  nanosleep(&(struct timespec){.tv_nsec = ms * 1000 * 1000}, NULL);
}

/* The callback comes from a thread, so wait for it; and where it must not come, wait in vain. */
static void destroyed_is(unsigned int count)
{
  for (int i = 0; i < 1000 && atomic_load(&destroyed) < count; i++)
    pause_ms(1);
  pause_ms(20);
  assert_int_equal(atomic_load(&destroyed), count);
}

static CUuserObject object_new(void)
{
  CUuserObject object;
  assert_ok(cuUserObjectCreate(&object, NULL, on_destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  return object;
}

static CUgraph graph_of(CUstream stream)
{
  CUstreamCaptureStatus status;
  CUgraph graph = NULL;
  assert_ok(cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL));
  assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  assert_non_null(graph);
  return graph;
}

static CUstream stream_new(void)
{
  CUstream stream;
  assert_ok(cudaStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

/* A capture that has an object of its own and some work. */
static CUgraph capture_with_object(CUstream stream)
{
  static int word;
  assert_ok(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  assert_ok(cudaMemsetAsync(&word, 0, 0, stream));
  assert_ok(cudaLaunchHostFunc(stream, gate_run, NULL));
  CUgraph graph = graph_of(stream);
  assert_ok(cuGraphRetainUserObject(graph, object_new(), 1, CU_GRAPH_USER_OBJECT_MOVE));
  return graph;
}

static void info_is(CUstream stream, CUstreamCaptureStatus wanted, size_t nodes)
{
  CUstreamCaptureStatus status = 99;
  uint64_t id = 77;
  CUgraph untouched = (CUgraph)&status;
  CUgraph graph = untouched;
  const CUgraphNode *dependencies = NULL;
  size_t count = 99;
  assert_ok(cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &dependencies, &count));
  assert_int_equal(status, wanted);
  bool active = wanted == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  assert_int_equal(id != 0, active);
  assert_int_equal(graph != untouched, active);
  assert_int_equal(count, active ? nodes : 99);
  assert_int_equal(dependencies != NULL && nodes > 0, active && nodes > 0);
}

static void test_capture_info(void **state)
{
  unused(state);
  CUstream stream = stream_new();
  CUstream blocking;
  CUstreamCaptureStatus status;
  uint64_t ids[2];
  cudaGraph_t graph;
  CUgraph before;
  info_is(stream, CU_STREAM_CAPTURE_STATUS_NONE, 0);
  assert_int_equal(cuStreamGetCaptureInfo_v2(stream, NULL, NULL, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
  for (int i = 0; i < 2; i++) {
    assert_ok(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    assert_int_equal(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
    info_is(stream, CU_STREAM_CAPTURE_STATUS_ACTIVE, 0);
    assert_ok(cudaLaunchHostFunc(stream, gate_run, NULL));
    info_is(stream, CU_STREAM_CAPTURE_STATUS_ACTIVE, 1);
    assert_ok(cuStreamGetCaptureInfo_v3(stream, &status, &ids[i], &before, NULL, NULL, NULL));
    assert_ok(cudaStreamEndCapture(stream, &graph));
    assert_ptr_equal(graph, before);
    assert_ok(cuGraphDestroy(graph));
    assert_int_equal(cudaGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
  }
  assert_int_not_equal(ids[0], ids[1]);

  const CUgraphEdgeData *edges;
  assert_int_equal(cuStreamGetCaptureInfo_v3(stream, &status, NULL, NULL, NULL, &edges, NULL),
                   CUDA_ERROR_INVALID_VALUE);

  /* An invalid capture has a status and nothing more. */
  assert_ok(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  info_is(stream, CU_STREAM_CAPTURE_STATUS_INVALIDATED, 0);
  assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);

  /* Asking after the legacy stream fails beside a blocking stream's capture, and does not break it. */
  assert_ok(cudaStreamCreate(&blocking));
  assert_ok(cudaStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  assert_int_equal(cuStreamGetCaptureInfo_v2(NULL, &status, NULL, NULL, NULL, NULL),
                   CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  assert_int_equal(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  assert_ok(cudaStreamEndCapture(blocking, &graph));
  assert_ok(cudaGraphDestroy(graph));
  assert_ok(cudaStreamDestroy(blocking));
  assert_ok(cudaStreamDestroy(stream));
  cudaGetLastError();
}

static void test_object_rules(void **state)
{
  unused(state);
  CUuserObject object;
  CUevent event;
  CUstream stream = stream_new();
  cudaGraph_t graph;
  const unsigned int sync = CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
  assert_ok(cuEventCreate(&event, 0));
  assert_int_equal(cuUserObjectCreate(&object, NULL, on_destroy, 1, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuUserObjectCreate(&object, NULL, on_destroy, 0, sync), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuUserObjectCreate(&object, NULL, NULL, 1, sync), CUDA_ERROR_INVALID_VALUE);

  /* The callback runs in a thread that is not ours, and may not call CUDA. */
  atomic_store(&destroyed, 0);
  assert_ok(cuUserObjectCreate(&object, event, on_destroy, 1, sync));
  assert_ok(cuUserObjectRetain(object, 1));
  assert_int_equal(cuUserObjectRelease(object, 0), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cuUserObjectRelease(object, 1));
  destroyed_is(0);
  assert_ok(cuUserObjectRelease(object, 1));
  destroyed_is(1);
  assert_false(pthread_equal(callback_thread, pthread_self()));
  for (size_t i = 0; i < 4; i++)
    assert_int_equal(callback_results[i], CUDA_ERROR_NOT_PERMITTED);
  assert_ok(cuEventQuery(event));

  /* A graph takes references over, or adds its own. */
  assert_ok(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  object = object_new();
  assert_int_equal(cuGraphRetainUserObject(graph_of(stream), object, 1, 2), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuGraphRetainUserObject(graph_of(stream), object, 0, 0), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cuGraphRetainUserObject(graph_of(stream), object, 1, 0));
  assert_ok(cudaStreamEndCapture(stream, &graph));
  assert_ok(cuGraphReleaseUserObject(graph, object, 1));
  assert_int_equal(cuGraphReleaseUserObject(graph, object, 1), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cudaGraphDestroy(graph));
  destroyed_is(1);
  assert_ok(cuUserObjectRelease(object, 1));
  destroyed_is(2);
  assert_ok(cudaStreamDestroy(stream));
  assert_ok(cuEventDestroy_v2(event));
  cudaGetLastError();
}

/* The graph, its instantiations and their launches keep it: it goes with the last. */
static void test_object_lifetime(void **state)
{
  unused(state);
  CUstream stream = stream_new();
  cudaGraph_t graph;
  cudaGraphExec_t execs[2];
  atomic_store(&destroyed, 0);
  atomic_store(&gate_open, false);
  capture_with_object(stream);
  assert_ok(cudaStreamEndCapture(stream, &graph));
  assert_ok(cudaGraphInstantiate(&execs[0], graph, 0));
  assert_ok(cudaGraphInstantiate(&execs[1], graph, 0));
  assert_ok(cudaGraphDestroy(graph));
  assert_ok(cudaGraphExecDestroy(execs[0]));
  destroyed_is(0);
  assert_ok(cudaGraphLaunch(execs[1], stream));
  assert_ok(cuGraphExecDestroy(execs[1]));
  assert_int_equal(cudaGraphExecDestroy(execs[1]), CUDA_ERROR_INVALID_VALUE);
  destroyed_is(0);
  atomic_store(&gate_open, true);
  assert_ok(cudaStreamSynchronize(stream));
  destroyed_is(1);
  assert_ok(cudaStreamDestroy(stream));
  cudaGetLastError();
}

/* A capture that comes to nothing lets go of it at its end, or with its stream. */
static void test_object_of_broken_capture(void **state)
{
  unused(state);
  CUstream stream = stream_new();
  CUstream side = stream_new();
  cudaEvent_t event;
  cudaGraph_t graph;
  assert_ok(cudaEventCreate(&event));
  atomic_store(&destroyed, 0);

  capture_with_object(stream);
  assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  destroyed_is(0);
  assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  destroyed_is(1);

  capture_with_object(stream);
  assert_ok(cudaEventRecord(event, stream));
  assert_ok(cudaStreamWaitEvent(side, event, 0));
  assert_ok(cudaLaunchHostFunc(side, gate_run, NULL));
  assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
  destroyed_is(2);

  capture_with_object(stream);
  assert_ok(cudaEventRecord(event, stream));
  assert_ok(cudaStreamDestroy(stream));
  destroyed_is(3);
  assert_ok(cudaEventDestroy(event));
  assert_ok(cudaStreamDestroy(side));
  cudaGetLastError();
}

static void test_external_events(void **state)
{
  unused(state);
  CUstream stream = stream_new();
  CUstream other = stream_new();
  CUevent done;
  CUevent before;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  assert_ok(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  assert_ok(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
  assert_int_equal(cuEventRecordWithFlags(done, stream, CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_ILLEGAL_STATE);
  assert_int_equal(cuStreamWaitEvent(stream, done, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_ILLEGAL_STATE);
  assert_int_equal(cuEventRecordWithFlags(done, stream, 2), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuStreamWaitEvent(stream, done, 2), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cuEventRecordWithFlags(done, stream, 0));
  assert_ok(cuEventSynchronize(done));

  /* Captured, they say nothing of the event as it is. */
  assert_ok(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  assert_ok(cuStreamWaitEvent(stream, before, CU_EVENT_WAIT_EXTERNAL));
  assert_ok(cuEventRecordWithFlags(done, stream, CU_EVENT_RECORD_EXTERNAL));
  assert_ok(cuEventQuery(done));
  assert_ok(cuStreamWaitEvent(other, done, 0));
  info_is(other, CU_STREAM_CAPTURE_STATUS_NONE, 0);
  assert_ok(cudaStreamEndCapture(stream, &graph));
  assert_ok(cudaGraphInstantiate(&exec, graph, 0));

  /* Each launch waits for what `before` stands for then, and records `done` anew. */
  for (int i = 0; i < 2; i++) {
    gate_place(other);
    assert_ok(cuEventRecord(before, other));
    assert_ok(cudaGraphLaunch(exec, stream));
    pause_ms(20);
    assert_int_equal(cuEventQuery(done), CUDA_ERROR_NOT_READY);
    assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
    atomic_store(&gate_open, true);
    assert_ok(cuEventSynchronize(done));
    assert_ok(cuEventQuery(before));
  }
  assert_ok(cudaGraphExecDestroy(exec));
  assert_ok(cudaGraphDestroy(graph));
  assert_ok(cuEventDestroy_v2(done));
  assert_ok(cuEventDestroy_v2(before));
  assert_ok(cudaStreamDestroy(stream));
  assert_ok(cudaStreamDestroy(other));
  cudaGetLastError();
}

enum look { LOOK_QUERY, LOOK_SYNCHRONIZE, LOOK_ELAPSED, LOOK_OUTSIDE, LOOK_MERGE };

/* What a call on an event gives during a capture, and whether the capture outlives it. */
static void capture_look(CUstreamCaptureMode mode, enum look look, CUresult result, cudaError_t end)
{
  CUstream stream = stream_new();
  CUstream other = stream_new();
  CUevent event;
  CUevent outside;
  cudaGraph_t graph;
  float ms;
  CUresult got = 0;
  assert_ok(cuEventCreate(&event, 0));
  assert_ok(cuEventCreate(&outside, 0));
  assert_ok(cuEventRecord(outside, other));
  assert_ok(cuStreamSynchronize(other));
  assert_ok(cudaStreamBeginCapture(stream, mode));
  assert_ok(cuEventRecord(event, stream));
  switch (look) {
  case LOOK_QUERY:
    got = cuEventQuery(event);
    break;
  case LOOK_SYNCHRONIZE:
    got = cuEventSynchronize(event);
    break;
  case LOOK_ELAPSED:
    got = cudaEventElapsedTime(&ms, event, event);
    break;
  case LOOK_OUTSIDE:
    got = cuStreamWaitEvent(stream, outside, 0);
    break;
  case LOOK_MERGE:
    assert_ok(cudaStreamBeginCapture(other, mode));
    got = cuStreamWaitEvent(other, event, 0);
    assert_int_equal(cudaStreamEndCapture(other, &graph), end);
    break;
  }
  assert_int_equal(got, result);
  if (end == cudaErrorStreamCaptureInvalidated)
    assert_int_equal(cuEventRecord(event, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  assert_int_equal(cudaStreamEndCapture(stream, &graph), end);
  if (graph)
    assert_ok(cudaGraphDestroy(graph));
  /* The capture has gone; the event stands for nothing, until it is recorded again. */
  assert_int_equal(cuEventQuery(event), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuEventSynchronize(event), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuStreamWaitEvent(other, event, 0), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cuEventRecord(event, other));
  assert_ok(cuEventSynchronize(event));
  assert_ok(cuEventDestroy_v2(event));
  assert_ok(cuEventDestroy_v2(outside));
  assert_ok(cudaStreamDestroy(stream));
  assert_ok(cudaStreamDestroy(other));
  cudaGetLastError();
}

static void test_captured_events(void **state)
{
  unused(state);
  const cudaError_t broken = cudaErrorStreamCaptureInvalidated;
  for (CUstreamCaptureMode mode = 0; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
    capture_look(mode, LOOK_QUERY, CUDA_ERROR_CAPTURED_EVENT, broken);
    capture_look(mode, LOOK_SYNCHRONIZE, CUDA_ERROR_CAPTURED_EVENT, broken);
    capture_look(mode, LOOK_ELAPSED, CUDA_ERROR_CAPTURED_EVENT, cudaSuccess);
    capture_look(mode, LOOK_OUTSIDE, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, broken);
    capture_look(mode, LOOK_MERGE, CUDA_ERROR_STREAM_CAPTURE_MERGE, broken);
  }
}

static void test_copies(void **state)
{
  unused(state);
  CUstream stream = stream_new();
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  unsigned char *data;
  static unsigned char host[MIB];
  assert_ok(cudaMalloc((void **)&data, 2 * MIB));
  CUdeviceptr low = (uintptr_t)data;
  CUdeviceptr high = low + MIB;

  gate_place(stream);
  data[MIB - 1] = 5;
  assert_ok(cuMemcpyDtoDAsync_v2(high, low, MIB, stream));
  assert_int_equal(data[2 * MIB - 1], 0);
  atomic_store(&gate_open, true);
  assert_ok(cudaStreamSynchronize(stream));
  assert_int_equal(data[2 * MIB - 1], 5);
  assert_ok(cuMemcpyAsync((uintptr_t)host, high, MIB, stream));
  assert_int_equal(host[MIB - 1], 5); /* pageable: the call waits */

  assert_int_equal(cuMemcpyDtoDAsync_v2(low, (uintptr_t)host, MIB, stream), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuMemcpyDtoDAsync_v2(0, low, MIB, stream), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuMemcpyDtoDAsync_v2(high, low, MIB + 1, stream), CUDA_ERROR_INVALID_VALUE);
  assert_ok(cuMemcpyDtoDAsync_v2(0, low, 0, stream));

  assert_ok(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  assert_ok(cuMemcpyDtoDAsync_v2(high, low, MIB, stream));
  assert_ok(cuMemcpyAsync(low, high, 1, stream));
  assert_ok(cudaStreamEndCapture(stream, &graph));
  assert_ok(cudaGraphInstantiate(&exec, graph, 0));
  data[0] = 9;
  data[MIB] = 8;
  assert_ok(cudaGraphLaunch(exec, stream));
  assert_ok(cudaStreamSynchronize(stream));
  assert_int_equal(data[0] + data[MIB], 18);
  assert_ok(cudaGraphExecDestroy(exec));
  assert_ok(cudaGraphDestroy(graph));
  assert_ok(cudaFree(data));
  assert_ok(cudaStreamDestroy(stream));
  cudaGetLastError();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_capture_info),    cmocka_unit_test(test_object_rules),
      cmocka_unit_test(test_object_lifetime), cmocka_unit_test(test_object_of_broken_capture),
      cmocka_unit_test(test_external_events), cmocka_unit_test(test_captured_events),
      cmocka_unit_test(test_copies),
  };
  cudaSetDevice(0);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
