/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process of a job that starts others: takes memory, so that the shim is awake, runs each argument in a shell, says
 * how that ended, and looks whether the memory is still its own.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/preload/check.h"

int main(int argc, char **argv)
{
  const size_t size = 4 << 20;
  void *memory = NULL;

  CUDA_CHECK(cudaMalloc(&memory, size));
  for (int i = 1; i < argc; i++) {
    int status = system(argv[i]);
    printf("parent: %d ended with %d\n", i, status);
    fflush(stdout);
  }
  CUDA_CHECK(cudaMemset(memory, 1, size));
  CUDA_CHECK(cudaFree(memory));
  return 0;
}
