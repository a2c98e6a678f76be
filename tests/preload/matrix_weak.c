/* SPDX-License-Identifier: Apache-2.0 */
/* A library that calls what it finds, as with functions of newer versions: a weak reference to all in the table. */
#include <stdio.h>

#include "shim/hooks.h"

#define WEAK_DECLARE(library, name, ret, params, args, missing) extern ret name params __attribute__((weak));
HOOKS(WEAK_DECLARE)

int matrix_weak(void);

int matrix_weak(void)
{
#define WEAK_SAY(library, name, ret, params, args, missing) printf("weak %s: %s\n", #name, name ? "there" : "none");
  HOOKS(WEAK_SAY)
  fflush(stdout);
  return 0;
}
