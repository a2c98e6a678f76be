/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device code: owns modules, functions and launches. A module is PTX text, and its kernels run as the host
 * functions of the same names that sim_kernels.c compiles from the same source.
 */
#ifndef SYMMSHIM_SIM_MODULE_H
#define SYMMSHIM_SIM_MODULE_H

#include "tests/sim/engine.h"

enum { KERNEL_MAX_PARAMETERS = 8 };

struct sim_kernel {
  const char *name;
  size_t sizes[KERNEL_MAX_PARAMETERS]; /* of the parameters; ends with 0 */
  void (*run)(void *const *params);
};

/* NULL where no host function has the name. */
const struct sim_kernel *sim_kernel_find(const char *name);

CUresult module_load(CUmodule *module, const void *image);
CUresult module_unload(CUmodule module);
CUresult module_function(CUfunction *function, CUmodule module, const char *name);
CUresult module_launch(CUfunction function, unsigned long long threads, CUstream stream, void **params);

#endif
