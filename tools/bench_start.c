/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

double bench_now_ns(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int write_policy(const struct bench *bench, const char *level)
{
  char path[PATH_MAX + 32];
  FILE *file;

  snprintf(path, sizeof(path), "%s/%s.conf", bench->folder, level);
  file = fopen(path, "we");
  if (!file)
    return -1;
  /* Ranks that share cores are late for milliseconds at times; they are to be waited for. */
  fprintf(file,
          "[shim]\nagree_us = 10000000\nsetup_ms = 60000\nwarn_s = 0\naudit = %s\n"
          "[arena]\ncallers = *\n"
          "[rule all_gather]\nop = all_gather\npath = window\n"
          "[rule all_reduce]\nop = all_reduce\npath = plain\n",
          level);
  return fclose(file) == 0 ? 0 : -1;
}

static int copy_file(const char *from, const char *to)
{
  char buffer[1 << 16];
  ssize_t count = -1;
  int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);

  if (in >= 0 && out >= 0)
    while ((count = read(in, buffer, sizeof(buffer))) > 0)
      if (write(out, buffer, (size_t)count) != count) {
        count = -1;
        break;
      }
  if (in >= 0)
    close(in);
  if (out >= 0)
    close(out);
  return count == 0 ? 0 : -1;
}

/* Copies, since the loader knows a file that it has loaded already. */
static int copy_libraries(const struct bench *bench)
{
  char from[PATH_MAX + 32], to[PATH_MAX + 32];

  snprintf(from, sizeof(from), "%s/tiny.so", bench->programs);
  for (int i = 0; i < BENCH_LIBRARIES; i++) {
    snprintf(to, sizeof(to), "%s/%d.so", bench->folder, i);
    if (copy_file(from, to) < 0)
      return -1;
  }
  return 0;
}

int bench_open(struct bench *bench)
{
  const char *parent = getenv("TMPDIR");

  bench->region = MAP_FAILED;
  bench->region_fd = -1;
  snprintf(bench->folder, sizeof(bench->folder), "%s/symmshim-bench.XXXXXX", parent && *parent ? parent : "/tmp");
  if (!mkdtemp(bench->folder)) {
    bench->folder[0] = '\0';
    return -1;
  }
  bench->region_fd = memfd_create("symmshim-bench", 0);
  if (bench->region_fd < 0 || ftruncate(bench->region_fd, sizeof(*bench->region)) < 0)
    return -1;
  bench->region = mmap(NULL, sizeof(*bench->region), PROT_READ | PROT_WRITE, MAP_SHARED, bench->region_fd, 0);
  if (bench->region == MAP_FAILED)
    return -1;
  return write_policy(bench, "change") < 0 || write_policy(bench, "call") < 0 ? -1 : copy_libraries(bench);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
  (void)status;
  (void)kind;
  (void)where;
  return remove(path);
}

void bench_close(struct bench *bench)
{
  if (bench->region != MAP_FAILED)
    munmap(bench->region, sizeof(*bench->region));
  if (bench->region_fd >= 0)
    close(bench->region_fd);
  if (bench->folder[0] != '\0')
    nftw(bench->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* The environment of a program: nothing of the user's, who may have settings of NCCL or a library path. */
struct environment {
  char text[8][PATH_MAX + 64];
  char *list[9];
  int count;
};

__attribute__((format(printf, 2, 3))) static void add(struct environment *environment, const char *format, ...)
{
  char *text = environment->text[environment->count];
  va_list args;

  va_start(args, format);
  vsnprintf(text, sizeof(environment->text[0]), format, args);
  va_end(args);
  environment->list[environment->count++] = text;
}

pid_t bench_start(const struct bench *bench, enum bench_shim shim, const char *program, char *const arguments[])
{
  struct environment environment = {.count = 0};
  char path[PATH_MAX + 32];
  pid_t pid;

  snprintf(path, sizeof(path), "%s/%s", bench->programs, program);
  add(&environment, "HOME=%s", bench->folder);
  add(&environment, "LD_LIBRARY_PATH=%s", bench->programs);
  if (shim != BENCH_WITHOUT) {
    add(&environment, "LD_PRELOAD=%s", bench->shim);
    add(&environment, "SYMMSHIM=%s", shim == BENCH_OFF ? "off" : "on");
    add(&environment, "SYMMSHIM_POLICY=%s/%s.conf", bench->folder, shim == BENCH_CALL ? "call" : "change");
    add(&environment, "SYMMSHIM_AUDIT=%s/audit.%%p", bench->folder);
  }
  errno = posix_spawn(&pid, path, NULL, NULL, arguments, environment.list);
  return errno == 0 ? pid : -1;
}

bool bench_await(pid_t pid)
{
  int status;

  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR)
      return false;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
