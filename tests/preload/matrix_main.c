/* SPDX-License-Identifier: Apache-2.0 */
/* The assertion program, linked directly. Argument: the scenario. */
#include "tests/preload/matrix.h"

int main(int argc, char **argv)
{
  return argc > 1 ? matrix_main(argv[1], "main") : 0;
}
