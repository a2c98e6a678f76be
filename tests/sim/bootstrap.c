/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/bootstrap.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

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
void sim_bootstrap_publish(const char *name, int index, const void *data, size_t size)
{
  char path[4096], draft[4200];

  path_make(path, sizeof(path), name, index);
  snprintf(draft, sizeof(draft), "%s.%d", path, (int)getpid());
  int fd = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd) != 0 || rename(draft, path) != 0)
    fail(path);
}

void sim_bootstrap_await(const char *name, int index, void *data, size_t size)
{
  char path[4096];
  int fd;

  path_make(path, sizeof(path), name, index);
  while ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
    nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
  if (read(fd, data, size) != (ssize_t)size)
    fail(path);
  close(fd);
}

void sim_bootstrap_barrier(const char *name)
{
  char byte = 0;

  if (sim_bootstrap_size() == 1)
    return;
  sim_bootstrap_publish(name, sim_bootstrap_rank(), &byte, sizeof(byte));
  for (int r = 0; r < sim_bootstrap_size(); r++)
    sim_bootstrap_await(name, r, &byte, sizeof(byte));
}
