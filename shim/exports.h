/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a copy of NCCL is newer than the shim knows: a later version than tests/versions was run on, or functions
 * that the shim has never heard of. A collective that is made through one of those goes past the shim.
 *
 * Owns the names of NCCL's functions that the shim leaves alone. Reads the loaded library's table of symbols; calls
 * nothing of NCCL's or CUDA's, allocates nothing.
 */
#ifndef SYMMSHIM_EXPORTS_H
#define SYMMSHIM_EXPORTS_H

#include <stddef.h>

enum { EXPORTS_NAMED = 8 }; /* so many are named, the rest is counted */

/* Names in the table of symbols of a loaded library; they live as long as it does. */
struct exports {
  const char *names[EXPORTS_NAMED];
  size_t count; /* of all, named or not */
};

/* NCCL's functions in the object that an address lies in, without those that the shim knows. */
struct exports exports_unknown(const void *inside);

/* Tells people and the audit log, once per process, if there is something to tell; `inside` is an address in NCCL. */
void exports_tell(const void *inside, int nccl_version);

#endif
