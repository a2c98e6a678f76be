/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of the table of memory: each is one case, made of calls that take a pointer from cudaMalloc, and runs in a
 * process of its own, on plain memory or on the arena's. What it says is compared, so a row says nothing that may
 * differ between two runs: no address, and no amount but in units of what it asked for.
 *
 * Works with the simulated runtime and the real one, whichever LD_LIBRARY_PATH brings. Never calls the shim by name.
 */
#ifndef SYMMSHIM_TESTS_MEMORY_TABLE_H
#define SYMMSHIM_TESTS_MEMORY_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/sim/sim_abi.h"

enum { MIB = 1 << 20, LARGE = 4 * MIB, SMALL = 64 << 10, SKIPPED = 77 };

struct row {
  const char *name;
  void (*run)(void);
  int devices;       /* how many it needs; 0 is 1 */
  const char *known; /* why the arena's memory may differ here; NULL: it must not */
};

/* Adds "what=result" to what the row says, with the runtime's last error if there is one, which is cleared. */
void say(const char *what, cudaError_t result);
void say_number(const char *what, long number);

/* LARGE bytes on the current device, of the kind that the row is run with; the process ends if they are not. */
char *take(void);
void use_device(int device);

/* A function that the simulation may lack: then the row is for the real GPU only, and the process ends so. */
void *need(const char *function);

extern const struct row rows_alone[], rows_ordered[], rows_peers[]; /* each ends with a row without a name */

#endif
