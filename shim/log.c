/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/life.h"
#include "shim/real.h"
#include "shim/sink.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static enum log_level threshold = LOG_WARN;
static int descriptor = STDERR_FILENO;
static char host[64];

int log_rank(void)
{
  static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};

  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    const char *text = getenv(names[i]);
    char *end;
    long rank;

    if (!text || !*text)
      continue;
    rank = strtol(text, &end, 10);
    if (*end == '\0' && rank >= 0 && rank < 1 << 24)
      return (int)rank;
  }
  return -1;
}

bool log_expand(char *path, size_t size, const char *pattern)
{
  size_t used = 0;

  for (const char *p = pattern; *p; p++) {
    char piece[72] = {p[0], '\0'};

    if (p[0] == '%' && p[1]) {
      p++;
      if (*p == 'h')
        gethostname(piece, sizeof(piece) - 1);
      else if (*p == 'p')
        snprintf(piece, sizeof(piece), "%d", (int)getpid());
      else if (*p == 'r')
        snprintf(piece, sizeof(piece), "%d", log_rank());
      else if (*p != '%')
        snprintf(piece, sizeof(piece), "%%%c", *p);
    }
    if (used + strlen(piece) + 1 > size)
      return false;
    memcpy(path + used, piece, strlen(piece));
    used += strlen(piece);
  }
  path[used] = '\0';
  return true;
}

int log_open(const char *path)
{
  struct stat status;
  /* O_NONBLOCK: a FIFO without a reader must not hold the job up before it is refused. */
  int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);

  if (fd < 0)
    return -errno;
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid())
    return fd;
  close(fd);
  return -EPERM;
}

static void open_log(void)
{
  static const char *const words[] = {[LOG_WARN] = "WARN", [LOG_INFO] = "INFO", [LOG_TRACE] = "TRACE"};
  const char *word = getenv("SYMMSHIM_DEBUG");
  const char *pattern = getenv("SYMMSHIM_DEBUG_FILE");
  char path[4096];

  if (gethostname(host, sizeof(host) - 1) != 0)
    strcpy(host, "?");
  host[strcspn(host, ".")] = '\0';
  for (int level = LOG_WARN; word && level <= LOG_TRACE; level++)
    if (strcasecmp(word, words[level]) == 0)
      threshold = level;
  if (pattern && *pattern && log_expand(path, sizeof(path), pattern)) {
    int fd = log_open(path);
    descriptor = fd < 0 ? STDERR_FILENO : fd;
  }
}

bool log_wants(enum log_level level)
{
  pthread_once(&once, open_log);
  return level <= threshold;
}

static int current_device(void)
{
  const struct driver *driver;
  CUdevice device;

  /* While the shim wakes, others may wait for it who hold the loader's lock, which real_driver() takes. */
  if (__atomic_load_n(&life_state, __ATOMIC_ACQUIRE) == LIFE_ASLEEP)
    return -1;
  driver = real_driver();
  return driver && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
}

void log_write(enum log_level level, const char *format, ...)
{
  static const char *const words[] = {[LOG_WARN] = "WARN", [LOG_INFO] = "INFO", [LOG_TRACE] = "TRACE"};
  int saved_errno = errno;
  char line[1024];
  va_list args;
  int head, body;

  if (!log_wants(level))
    return;
  head = snprintf(line, sizeof(line), "%s:%d:%d [%d] SYMMSHIM %s ", host, (int)getpid(), (int)gettid(),
                  current_device(), words[level]);
  va_start(args, format);
  body = vsnprintf(line + head, sizeof(line) - (size_t)head, format, args);
  va_end(args);
  if (body < 0)
    body = 0;
  if ((size_t)(head + body) > sizeof(line) - 1)
    body = (int)sizeof(line) - 1 - head;
  line[head + body] = '\n';
  if (sink_write_quietly(descriptor, line, (size_t)(head + body) + 1) < 0) {
    /* nowhere to say it */
  }
  errno = saved_errno;
}
