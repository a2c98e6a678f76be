/* SPDX-License-Identifier: Apache-2.0 */
/* What was measured on GPUs, for people (a table), for programs (JSON), and to look at (SVG). */
#ifndef SYMMSHIM_CMD_BENCH_FIGURES_H
#define SYMMSHIM_CMD_BENCH_FIGURES_H

#include <stdio.h>

#include "tools/gpu/region.h"

void gpu_print_table(const struct gpu_region *region, char paths[][40]);
void gpu_print_json(const struct gpu_region *region, char paths[][40]);

/* Ratio to stock and bus bandwidth over the size, one panel for each op, dtype and reduce op. Returns 0 or -errno. */
int gpu_plot(const struct gpu_region *region, const char *file);

#endif
