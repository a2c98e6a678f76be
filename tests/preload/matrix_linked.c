/* SPDX-License-Identifier: Apache-2.0 */
/* Is linked to a library that makes all the calls by itself, when it is loaded or unloaded. */
#include "tests/preload/matrix.h"

int main(int argc, char **argv)
{
  (void)argv;
  return argc > 1 ? matrix_main("calls", "linked") : 0;
}
