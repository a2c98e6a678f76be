/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/capture.h"

#include "shim/real.h"

/* Once more where it fails: what stays behind otherwise would be the shim's mode in the job's thread, or no relief. */
static bool exchange(CUstreamCaptureMode *mode)
{
  const struct driver *driver = real_driver();
  CUstreamCaptureMode wanted = *mode;

  if (driver->cuThreadExchangeStreamCaptureMode(mode) == CUDA_SUCCESS)
    return true;
  *mode = wanted;
  return driver->cuThreadExchangeStreamCaptureMode(mode) == CUDA_SUCCESS;
}

CUstreamCaptureMode capture_relax(void)
{
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

  /* Where it cannot be changed it need not be put back, and "put back" to global mode would be a change. */
  return exchange(&mode) ? mode : CU_STREAM_CAPTURE_MODE_RELAXED;
}

void capture_restore(CUstreamCaptureMode before)
{
  if (before != CU_STREAM_CAPTURE_MODE_RELAXED) /* else it is so still */
    exchange(&before);
}

bool capture_is_relaxed(void)
{
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

  if (!exchange(&mode))
    return false;
  capture_restore(mode);
  return mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}
