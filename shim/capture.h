/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread's stream capture mode. Allocations, and questions about events, must not break a capture that another
 * thread has under way (pytorch/pytorch#192524 is what happens otherwise), so the shim makes them in relaxed mode; but
 * the mode is the job's, and is as before afterwards.
 *
 * Owns nothing. Calls the CUDA driver only, which must be loaded.
 */
#ifndef SYMMSHIM_CAPTURE_H
#define SYMMSHIM_CAPTURE_H

#include <stdbool.h>

#include "shim/abi/cuda.h"

/* Returns what capture_restore() is to be given. */
CUstreamCaptureMode capture_relax(void);
void capture_restore(CUstreamCaptureMode before);

/* Whether the job has put this thread into relaxed mode itself. */
bool capture_is_relaxed(void);

#endif
