/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's device code, compiled for the host. A new kernel needs its prototype, a trampoline and a row here.
 */
#include <string.h>

#include "tests/sim/module.h"

void symmshim_scale_bf16(void *data, unsigned long long count, float factor);
void symmshim_scale_fp32(void *data, unsigned long long count, float factor);

#include "shim/kernels/scale.cu"

static void run_scale_bf16(void *const *params)
{
  symmshim_scale_bf16(*(void **)params[0], *(unsigned long long *)params[1], *(float *)params[2]);
}

static void run_scale_fp32(void *const *params)
{
  symmshim_scale_fp32(*(void **)params[0], *(unsigned long long *)params[1], *(float *)params[2]);
}

static const struct sim_kernel kernels[] = {
    {"symmshim_scale_bf16", {sizeof(void *), sizeof(unsigned long long), sizeof(float)}, run_scale_bf16},
    {"symmshim_scale_fp32", {sizeof(void *), sizeof(unsigned long long), sizeof(float)}, run_scale_fp32},
};

const struct sim_kernel *sim_kernel_find(const char *name)
{
  for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
    if (strcmp(kernels[i].name, name) == 0)
      return &kernels[i];
  return NULL;
}
