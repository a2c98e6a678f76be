/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job that closes descriptors which it did not open, as programs do that become daemons, and lets a file of its own
 * have their numbers.
 *
 * Usage: descriptors [FILE]. It calls a collective before and after, on a communicator of one rank.
 * descriptors --limit BYTES: it makes many calls with so many bytes as the most that a file may have.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/preload/check.h"
#include "tests/sim/sim_abi.h"

enum { FIRST = 3, LAST = 1023, COUNT = 1 << 10, LIMITED_CALLS = 50 };

static void call(ncclComm_t comm, void *buffer)
{
  NCCL_CHECK(ncclAllReduce(buffer, buffer, COUNT, ncclFloat32, ncclSum, comm, NULL));
  CUDA_CHECK(cudaDeviceSynchronize());
}

/* Those of files in the working directory's own file system that can be written: the log's, not the simulation's. */
static int close_logs(int file)
{
  struct stat here, status;
  int closed = 0;

  if (stat(".", &here) != 0)
    return 0;
  for (int fd = FIRST; fd <= LAST; fd++) {
    int flags = fcntl(fd, F_GETFL);

    if (fd == file || flags < 0 || (flags & O_ACCMODE) != O_WRONLY || fstat(fd, &status) != 0 ||
        !S_ISREG(status.st_mode))
      continue;
    closed += file < 0 ? close(fd) == 0 : dup2(file, fd) == fd;
  }
  return closed;
}

static void make_limited_calls(ncclComm_t comm, void *buffer, const char *bytes)
{
  rlim_t limit = strtoul(bytes, NULL, 10);

  if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit}) != 0)
    return;
  for (int i = 0; i < LIMITED_CALLS; i++)
    call(comm, buffer);
  printf("descriptors: limited\n");
}

int main(int argc, char **argv)
{
  bool limited = argc > 2 && strcmp(argv[1], "--limit") == 0;
  int file = argc > 1 && !limited ? open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600) : -1, device = 0;
  struct stat status;
  ncclComm_t comm;
  void *buffer;

  CUDA_CHECK(cudaMalloc(&buffer, COUNT * sizeof(float)));
  NCCL_CHECK(ncclCommInitAll(&comm, 1, &device));
  if (limited) {
    make_limited_calls(comm, buffer, argv[2]);
    return 0;
  }
  call(comm, buffer);
  printf("descriptors: %d closed\n", close_logs(file));
  call(comm, buffer);
  NCCL_CHECK(ncclCommDestroy(comm));
  if (file >= 0 && (fstat(file, &status) != 0 || status.st_size != 0))
    printf("descriptors: the job's own file was written to\n");
  return 0;
}
