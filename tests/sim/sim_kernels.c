/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's device code, compiled for the host. A new kernel needs its prototype, a trampoline and a row here.
 */
#include <string.h>

#include "tests/sim/module.h"

#define SCALE_KERNELS(X) X(bf16) X(fp16) X(fp32)

#define SCALE_PROTOTYPE(type)                                                                                          \
  void symmshim_scale_##type(void *to, const void *from, unsigned long long count, float factor);
SCALE_KERNELS(SCALE_PROTOTYPE)

#include "shim/kernels/scale.cu"

#define SCALE_RUN(type)                                                                                                \
  static void run_scale_##type(void *const *params)                                                                    \
  {                                                                                                                    \
    symmshim_scale_##type(*(void **)params[0], *(const void **)params[1], *(unsigned long long *)params[2],            \
                          *(float *)params[3]);                                                                        \
  }
SCALE_KERNELS(SCALE_RUN)

#define SCALE_ROW(type)                                                                                                \
  {"symmshim_scale_" #type,                                                                                            \
   {sizeof(void *), sizeof(const void *), sizeof(unsigned long long), sizeof(float)},                                  \
   run_scale_##type},
static const struct sim_kernel kernels[] = {SCALE_KERNELS(SCALE_ROW)};

const struct sim_kernel *sim_kernel_find(const char *name)
{
  for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
    if (strcmp(kernels[i].name, name) == 0)
      return &kernels[i];
  return NULL;
}
