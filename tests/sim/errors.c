/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of the errors that the stand-ins give. */
#include "tests/sim/gpu.h"

static const struct {
  CUresult code;
  const char *name;
  const char *text;
} errors[] = {
    {CUDA_SUCCESS, "cudaSuccess", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "cudaErrorInitializationError", "initialization error"},
    {CUDA_ERROR_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "cudaErrorDeviceUninitialized", "invalid device context"},
    {CUDA_ERROR_MAP_FAILED, "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"},
    {CUDA_ERROR_INVALID_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "cudaErrorNotReady", "device not ready"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {CUDA_ERROR_NOT_PERMITTED, "cudaErrorNotPermitted", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "cudaErrorStreamCaptureMerge", "two captures would become one"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "cudaErrorStreamCaptureUnmatched",
     "the capture was not begun in this stream"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "cudaErrorStreamCaptureUnjoined",
     "the capture has work that was not joined to its first stream"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "cudaErrorStreamCaptureIsolation",
     "a dependency would cross the boundary of the capture"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "cudaErrorStreamCaptureImplicit",
     "a dependency on the legacy stream would disturb the capture"},
    {CUDA_ERROR_CAPTURED_EVENT, "cudaErrorCapturedEvent", "operation not permitted on an event of a capture"},
};

const char *gpu_error_name(CUresult error)
{
  for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
    if (errors[i].code == error)
      return errors[i].name;
  return "cudaErrorUnknown";
}

const char *gpu_error_text(CUresult error)
{
  for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
    if (errors[i].code == error)
      return errors[i].text;
  return "unknown error";
}
