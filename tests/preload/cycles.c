/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes and ends communicators over and over, with a call on each, and says by how much the process grew: descriptors
 * and mappings. Arguments: cycles, and how many of them come before the first look.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/preload/check.h"
#include "tests/preload/comms.h"

enum { COUNT = 4096, BYTES = 4 << 20 };

static int descriptors(void)
{
  DIR *opened = opendir("/proc/self/fd");
  int count = 0;

  while (opened && readdir(opened) != NULL)
    count++;
  if (opened)
    closedir(opened);
  return count;
}

static int mappings(void)
{
  FILE *file = fopen("/proc/self/maps", "r");
  int count = 0;

  for (int c; file && (c = fgetc(file)) != EOF;)
    count += c == '\n';
  if (file)
    fclose(file);
  return count;
}

static void cycle(float *buffer, cudaStream_t stream)
{
  struct options options = {.init = INIT_RANK};
  struct seat seat;
  float *all = buffer + COUNT;

  comms_make(&options, &seat, 1);
  NCCL_CHECK(ncclAllGather(buffer, all, COUNT, ncclFloat32, seat.comm, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  comms_end(&options, &seat, 1);
}

int main(int argc, char **argv)
{
  int cycles = argc > 1 ? atoi(argv[1]) : 0, first = argc > 2 ? atoi(argv[2]) : 0;
  int descriptors_before = 0, mappings_before = 0, descriptors_after, mappings_after;
  cudaStream_t stream;
  void *buffer = NULL;

  CUDA_CHECK(cudaSetDevice(job_rank()));
  CUDA_CHECK(cudaMalloc(&buffer, BYTES));
  CUDA_CHECK(cudaStreamCreate(&stream));
  for (int i = 0; i < cycles; i++) {
    if (i == first) {
      descriptors_before = descriptors();
      mappings_before = mappings();
    }
    cycle(buffer, stream);
  }
  descriptors_after = descriptors();
  mappings_after = mappings();
  printf("cycles: rank %d: descriptors %d, mappings %d\n", job_rank(), descriptors_after - descriptors_before,
         mappings_after - mappings_before);
  return 0;
}
