/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program without CUDA. Alone it does nothing; with DESCRIPTOR FOLDER COUNT it loads FOLDER/0.so, 1.so ... as an
 * import of Python does, and tells how long that took.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "tools/bench/region.h"

static double now_ns(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int load_all(struct bench_region *region, const char *folder, int count)
{
  char path[4096];
  double start = now_ns();

  for (int i = 0; i < count; i++) {
    snprintf(path, sizeof(path), "%s/%d.so", folder, i);
    if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
  }
  region->ranks[0].ns = now_ns() - start;
  return 0;
}

int main(int argc, char **argv)
{
  struct bench_region *region;

  if (argc != 4)
    return 0;
  region = mmap(NULL, sizeof(*region), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[1]), 0);
  return region == MAP_FAILED ? 1 : load_all(region, argv[2], atoi(argv[3]));
}
