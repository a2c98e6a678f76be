/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps an SM at work and memory alone, as a matrix product would that has its operands at hand. */
#include "shim/kernels/device.h"

/* So many turns; the comparison, never true, keeps the compiler from leaving them out. */
KERNEL symmshim_busy(float *never, u64 turns)
{
  float a = (float)thread_index(), b = a + 1, c = a + 2, d = a + 3;

  for (u64 turn = 0; turn < turns; turn++) {
    a = a * 0.999F + 0.5F;
    b = b * 0.998F + 0.5F;
    c = c * 0.997F + 0.5F;
    d = d * 0.996F + 0.5F;
  }
  if (a + b + c + d < -1.0F)
    *never = a;
}
