/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated runtime and driver within one process: streams, events, captures, kernels. */
#include "tests/sim/test_cuda.h"

static void test_events_order_streams(void **state)
{
  unused(state);
  cudaStream_t first;
  cudaStream_t second;
  cudaEvent_t event;
  int *data;
  assert_ok(cudaMallocHost((void **)&data, sizeof(int)));
  assert_ok(cudaStreamCreateWithFlags(&first, CU_STREAM_NON_BLOCKING));
  assert_ok(cudaStreamCreateWithFlags(&second, CU_STREAM_NON_BLOCKING));
  assert_ok(cudaEventCreateWithFlags(&event, CU_EVENT_DISABLE_TIMING));
  assert_ok(cudaStreamWaitEvent(second, event, 0)); /* never recorded: nothing to wait for */
  assert_ok(cudaEventQuery(event));

  gate_place(first);
  assert_ok(cudaMemsetAsync(data, 1, sizeof(int), first));
  assert_ok(cudaEventRecord(event, first));
  assert_ok(cudaStreamWaitEvent(second, event, 0));
  assert_ok(cudaMemsetAsync(data, 2, sizeof(int), second));
  assert_int_equal(cudaEventQuery(event), cudaErrorNotReady);
  assert_int_equal(cudaStreamQuery(second), cudaErrorNotReady);
  /* Destroyed with work in it: that still runs. */
  assert_ok(cudaEventDestroy(event));
  assert_ok(cudaStreamDestroy(first));
  atomic_store(&gate_open, true);
  assert_ok(cudaStreamSynchronize(second));
  assert_int_equal(*data, 0x02020202);
  assert_int_equal(cudaStreamSynchronize(first), cudaErrorInvalidResourceHandle);
  assert_ok(cudaStreamDestroy(second));
  assert_ok(cudaFreeHost(data));
  cudaGetLastError();
}

/* The legacy stream waits for blocking streams, and they for it; a non-blocking stream does not care. */
static void test_legacy_stream(void **state)
{
  unused(state);
  cudaStream_t blocking;
  cudaStream_t free_running;
  int *data;
  assert_ok(cudaMallocHost((void **)&data, 2 * sizeof(int)));
  assert_ok(cudaStreamCreate(&blocking));
  assert_ok(cudaStreamCreateWithFlags(&free_running, CU_STREAM_NON_BLOCKING));
  gate_place(blocking);
  assert_ok(cudaMemsetAsync(data, 1, sizeof(int), blocking));
  assert_ok(cudaMemsetAsync(data, 2, sizeof(int), NULL));
  assert_ok(cudaMemsetAsync(data + 1, 3, sizeof(int), free_running));
  assert_ok(cudaStreamSynchronize(free_running));
  assert_int_equal(cudaStreamQuery(SIM_STREAM_LEGACY), cudaErrorNotReady);
  assert_ok(cudaMemsetAsync(data, 4, sizeof(int), blocking));
  atomic_store(&gate_open, true);
  assert_ok(cudaStreamSynchronize(blocking));
  assert_int_equal(*data, 0x04040404);
  assert_ok(cudaMemsetAsync(data, 5, sizeof(int), SIM_STREAM_PER_THREAD));
  assert_ok(cudaStreamSynchronize(SIM_STREAM_PER_THREAD));
  assert_int_equal(*data, 0x05050505);
  assert_ok(cudaStreamDestroy(blocking));
  assert_ok(cudaStreamDestroy(free_running));
  assert_ok(cudaFreeHost(data));
  cudaGetLastError();
}

static void test_capture(void **state)
{
  unused(state);
  cudaStream_t stream;
  cudaStream_t side;
  cudaEvent_t fork_event;
  cudaEvent_t join_event;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUstreamCaptureStatus status;
  unsigned char *data;
  assert_ok(cudaMallocHost((void **)&data, 2));
  assert_ok(cudaStreamCreate(&stream));
  assert_ok(cudaStreamCreate(&side));
  assert_ok(cudaEventCreate(&fork_event));
  assert_ok(cudaEventCreate(&join_event));

  /* Forked and joined; runs at launch, and again. */
  assert_ok(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  assert_ok(cudaMemsetAsync(data, 7, 1, stream));
  assert_ok(cudaEventRecord(fork_event, stream));
  assert_ok(cudaStreamWaitEvent(side, fork_event, 0));
  assert_ok(cudaMemsetAsync(data + 1, 8, 1, side));
  assert_ok(cudaStreamIsCapturing(side, &status));
  assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  assert_ok(cudaEventRecord(join_event, side));
  assert_ok(cudaStreamWaitEvent(stream, join_event, 0));
  assert_ok(cudaStreamEndCapture(stream, &graph));
  assert_ok(cudaStreamIsCapturing(side, &status));
  assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
  assert_ok(cudaGraphInstantiate(&exec, graph, 0));
  assert_ok(cudaGraphDestroy(graph));
  assert_int_equal(data[0], 0);
  for (int i = 0; i < 2; i++) {
    data[0] = data[1] = 0;
    assert_ok(cudaGraphLaunch(exec, stream));
    assert_ok(cudaStreamSynchronize(stream));
    assert_int_equal(data[0] + data[1], 15);
  }
  assert_ok(cudaGraphExecDestroy(exec));

  /* Never joined. */
  assert_ok(cudaStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  assert_ok(cudaEventRecord(fork_event, stream));
  assert_ok(cudaStreamWaitEvent(side, fork_event, 0));
  assert_ok(cudaMemsetAsync(data, 1, 1, side));
  assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
  assert_null(graph);

  assert_ok(cudaEventDestroy(fork_event));
  assert_ok(cudaEventDestroy(join_event));
  assert_ok(cudaStreamDestroy(stream));
  assert_ok(cudaStreamDestroy(side));
  assert_ok(cudaFreeHost(data));
  cudaGetLastError();
}

enum spoiler { SPOIL_MALLOC, SPOIL_FREE, SPOIL_SYNCHRONIZE, SPOIL_QUERY, SPOIL_LEGACY, SPOIL_CREATE };

/* What the call gives inside a capture of that mode, and what becomes of the capture. */
static void capture_spoil(CUstreamCaptureMode mode, CUstreamCaptureMode thread, enum spoiler spoiler,
                          cudaError_t result, cudaError_t end)
{
  cudaStream_t stream;
  cudaEvent_t event;
  cudaGraph_t graph;
  void *before;
  void *data = NULL;
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop = prop_of(0);
  cudaError_t got = cudaSuccess;
  assert_ok(cudaStreamCreate(&stream));
  assert_ok(cudaEventCreate(&event));
  assert_ok(cudaMalloc(&before, MIB));
  assert_ok(cudaThreadExchangeStreamCaptureMode(&thread));
  assert_ok(cudaStreamBeginCapture(stream, mode));
  switch (spoiler) {
  case SPOIL_MALLOC:
    got = cudaMalloc(&data, MIB);
    break;
  case SPOIL_FREE:
    got = cudaFree(before);
    break;
  case SPOIL_SYNCHRONIZE:
    got = cudaStreamSynchronize(stream);
    break;
  case SPOIL_QUERY:
    got = cudaEventQuery(event);
    break;
  case SPOIL_LEGACY:
    got = cudaMemsetAsync(before, 0, MIB, NULL);
    break;
  case SPOIL_CREATE:
    got = cuMemCreate(&handle, PIECE, &prop, 0);
    if (got == CUDA_SUCCESS)
      assert_ok(cuMemRelease(handle));
    break;
  }
  assert_int_equal(got, result);
  assert_int_equal(cudaStreamEndCapture(stream, &graph), end);
  if (graph)
    assert_ok(cudaGraphDestroy(graph));
  assert_ok(cudaThreadExchangeStreamCaptureMode(&thread));
  if (spoiler != SPOIL_FREE || got != cudaSuccess)
    assert_ok(cudaFree(before));
  if (data)
    assert_ok(cudaFree(data));
  assert_ok(cudaEventDestroy(event));
  assert_ok(cudaStreamDestroy(stream));
  cudaGetLastError();
}

static void test_capture_spoilers(void **state)
{
  unused(state);
  const CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL;
  const CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  const cudaError_t forbidden = cudaErrorStreamCaptureUnsupported;
  const cudaError_t broken = cudaErrorStreamCaptureInvalidated;
  capture_spoil(global, global, SPOIL_MALLOC, forbidden, broken);
  capture_spoil(global, relaxed, SPOIL_MALLOC, cudaSuccess, cudaSuccess);
  capture_spoil(relaxed, global, SPOIL_MALLOC, cudaSuccess, cudaSuccess);
  capture_spoil(global, global, SPOIL_FREE, forbidden, broken);
  capture_spoil(global, global, SPOIL_QUERY, forbidden, broken);
  capture_spoil(global, global, SPOIL_SYNCHRONIZE, forbidden, broken);
  capture_spoil(relaxed, relaxed, SPOIL_SYNCHRONIZE, forbidden, broken);
  capture_spoil(relaxed, relaxed, SPOIL_LEGACY, cudaErrorStreamCaptureImplicit, broken);
  capture_spoil(global, global, SPOIL_CREATE, cudaSuccess, cudaSuccess);
}

static void test_kernels(void **state)
{
  unused(state);
  static const char ptx[] = ".version 7.0\n.target sm_80\n.visible .entry symmshim_scale_fp32(\n)\n"
                            ".visible .entry unknown_kernel(\n)\n";
  CUmodule module;
  CUfunction function;
  float *data;
  unsigned long long count = 1003;
  float factor = 0.5F;
  void *params[] = {&data, &data, &count, &factor};
  assert_ok(cudaMalloc((void **)&data, count * sizeof(float)));
  for (unsigned long long i = 0; i < count; i++)
    data[i] = (float)i;
  assert_int_equal(cuModuleLoadData(&module, "no such thing"), CUDA_ERROR_INVALID_IMAGE);
  assert_ok(cuModuleLoadData(&module, ptx));
  assert_int_equal(cuModuleGetFunction(&function, module, "unknown_kernel"), CUDA_ERROR_NOT_FOUND);
  assert_int_equal(cuModuleGetFunction(&function, module, "symmshim_scale_bf16"), CUDA_ERROR_NOT_FOUND);
  assert_int_equal(cuModuleGetFunction(&function, module, "symmshim_scale_fp"), CUDA_ERROR_NOT_FOUND);
  assert_ok(cuModuleGetFunction(&function, module, "symmshim_scale_fp32"));
  gate_place(NULL);
  assert_ok(cuLaunchKernel(function, 3, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
  factor = 100; /* parameters are taken at launch */
  assert_true(data[2] == 2);
  atomic_store(&gate_open, true);
  assert_ok(cudaDeviceSynchronize());
  for (unsigned long long i = 0; i < count; i++)
    assert_true(data[i] == (float)i / 2);
  assert_ok(cuModuleUnload(module));
  assert_ok(cudaFree(data));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_events_order_streams), cmocka_unit_test(test_legacy_stream), cmocka_unit_test(test_capture),
      cmocka_unit_test(test_capture_spoilers),     cmocka_unit_test(test_kernels),
  };
  cudaSetDevice(0);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
