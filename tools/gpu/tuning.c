/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gpu/tuning.h"

#include <stdio.h>
#include <string.h>

int tuning_channels(const char *line)
{
  const char *range = strstr(line, " Bytes -> Algo "), *kernel = strstr(line, " [Symmetric]: ");
  int low, high, count;

  range = range ? strstr(range, " channel{Lo..Hi}={") : NULL;
  if (range && sscanf(range, " channel{Lo..Hi}={%d..%d}", &low, &high) == 2 && low >= 0 && high >= low)
    return high - low + 1;
  kernel = kernel ? strstr(kernel, " nchannels ") : NULL;
  if (kernel && sscanf(kernel, " nchannels %d", &count) == 1 && count >= 0)
    return count;
  return -1;
}
