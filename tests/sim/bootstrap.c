/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/bootstrap.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* NCCL's own declaration may be elsewhere, or the same. */
extern ncclResult_t ncclGetUniqueId(ncclUniqueId *id);

static int number(const char *name, int otherwise)
{
  const char *text = getenv(name);
  return text && *text ? atoi(text) : otherwise;
}

int sim_bootstrap_rank(void)
{
  return number("RANK", 0);
}

int sim_bootstrap_size(void)
{
  return number("WORLD_SIZE", 1);
}

static _Noreturn void fail(const char *what)
{
  perror(what);
  exit(1);
}

static void path_make(char *path, size_t size, const char *name, int index)
{
  const char *directory = getenv("SIM_RUN_DIR");
  if (!directory || (size_t)snprintf(path, size, "%s/%s.%d", directory, name, index) >= size) {
    fprintf(stderr, "bootstrap: SIM_RUN_DIR is not set: start the ranks with `ranks`\n");
    exit(1);
  }
}

/* Written whole under another name first, so that no reader sees a part of it. */
static void file_publish(const char *path, const void *data, size_t size)
{
  char draft[4200];
  snprintf(draft, sizeof(draft), "%s.%d", path, (int)getpid());
  int fd = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd) != 0 || rename(draft, path) != 0)
    fail(path);
}

static void file_await(const char *path, void *data, size_t size)
{
  int fd;
  while ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
    nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
  if (read(fd, data, size) != (ssize_t)size)
    fail(path);
  close(fd);
}

ncclUniqueId sim_bootstrap_id(int rank)
{
  static int calls;
  char path[4096];
  ncclUniqueId id;
  if (sim_bootstrap_size() == 1) {
    if (ncclGetUniqueId(&id) != ncclSuccess)
      fail("ncclGetUniqueId");
    return id;
  }
  path_make(path, sizeof(path), "id", calls++);
  if (rank == 0) {
    if (ncclGetUniqueId(&id) != ncclSuccess)
      fail("ncclGetUniqueId");
    file_publish(path, &id, sizeof(id));
  } else {
    file_await(path, &id, sizeof(id));
  }
  return id;
}

void sim_bootstrap_barrier(const char *name)
{
  char path[4096];
  char byte = 0;
  path_make(path, sizeof(path), name, sim_bootstrap_rank());
  file_publish(path, &byte, sizeof(byte));
  for (int r = 0; r < sim_bootstrap_size(); r++) {
    path_make(path, sizeof(path), name, r);
    file_await(path, &byte, sizeof(byte));
  }
}
