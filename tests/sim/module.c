/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/gpu.h"

/* The place of the running thread in its grid; shim/kernels/device.h declares them. */
extern __thread unsigned sim_thread_index, sim_thread_count;
__thread unsigned sim_thread_index, sim_thread_count;

struct CUmod_st {
  char *ptx;
};

struct launch {
  const struct sim_kernel *kernel;
  unsigned int threads;
  _Alignas(8) unsigned char values[KERNEL_MAX_PARAMETERS][8];
};

CUresult module_load(CUmodule *module, const void *image)
{
  const char *text = image;
  /* Only text is understood here; a cubin begins with ELF's magic. */
  if (strncmp(text, "\177ELF", 4) == 0 || !strstr(text, ".version"))
    return CUDA_ERROR_INVALID_IMAGE;
  CUmodule new = malloc(sizeof(*new));
  new->ptx = strdup(text);
  *module = new;
  return CUDA_SUCCESS;
}

CUresult module_unload(CUmodule module)
{
  free(module->ptx);
  free(module);
  return CUDA_SUCCESS;
}

/* Whether the text has an entry of that name: ".entry name(", with any space between. */
static bool ptx_has_entry(const char *ptx, const char *name)
{
  size_t length = strlen(name);
  for (const char *at = ptx; (at = strstr(at, ".entry")) != NULL;) {
    at += strlen(".entry");
    at += strspn(at, " \t\n");
    if (strncmp(at, name, length) == 0 && at[length + strspn(at + length, " \t\n")] == '(')
      return true;
  }
  return false;
}

CUresult module_function(CUfunction *function, CUmodule module, const char *name)
{
  const struct sim_kernel *kernel = sim_kernel_find(name);
  if (!kernel || !ptx_has_entry(module->ptx, name))
    return CUDA_ERROR_NOT_FOUND;
  *function = (CUfunction)(void *)kernel;
  return CUDA_SUCCESS;
}

static void launch_run(void *arg)
{
  struct launch *launch = arg;
  void *params[KERNEL_MAX_PARAMETERS];
  for (size_t i = 0; i < KERNEL_MAX_PARAMETERS; i++)
    params[i] = launch->values[i];
  sim_thread_count = launch->threads;
  for (unsigned int i = 0; i < launch->threads; i++) {
    sim_thread_index = i;
    launch->kernel->run(params);
  }
}

CUresult module_launch(CUfunction function, unsigned long long threads, CUstream stream, void **params)
{
  if (!function || !params || threads == 0 || threads > ~0U)
    return CUDA_ERROR_INVALID_VALUE;
  struct launch *launch = calloc(1, sizeof(*launch));
  launch->kernel = (const struct sim_kernel *)(void *)function;
  launch->threads = (unsigned int)threads;
  for (size_t i = 0; i < KERNEL_MAX_PARAMETERS && launch->kernel->sizes[i]; i++)
    memcpy(launch->values[i], params[i], launch->kernel->sizes[i]);
  return gpu_stream_submit(stream, &(struct sim_work){.run = launch_run, .drop = free, .arg = launch}, NULL);
}
