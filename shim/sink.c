/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shim/log.h"

/* Above what programs that close or count descriptors have in mind, where the limit lets it. */
enum { HIGH_DESCRIPTOR = 512 };

static char path[PATH_MAX];
static uint64_t max_bytes;
static bool wanted;
static int descriptor = -1;
static uint64_t device, inode; /* of the file that is open */
static bool is_torn;           /* the last line stopped short */
static bool is_busy;           /* a thread is opening it anew */
static uint64_t lost;

bool sink_is_wanted(void)
{
  return wanted;
}

uint64_t sink_lost(void)
{
  return __atomic_load_n(&lost, __ATOMIC_RELAXED);
}

void sink_lose(void)
{
  __atomic_add_fetch(&lost, 1, __ATOMIC_RELAXED);
}

long sink_write_quietly(int fd, const char *text, size_t length)
{
  static const struct timespec at_once = {0};
  struct pollfd ready = {.fd = fd, .events = POLLOUT};
  sigset_t fatal, pending, before;
  bool was_pending[2];
  long written;
  int error;

  if (poll(&ready, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  sigemptyset(&fatal);
  sigaddset(&fatal, SIGPIPE);
  sigaddset(&fatal, SIGXFSZ);
  sigpending(&pending);
  was_pending[0] = sigismember(&pending, SIGPIPE);
  was_pending[1] = sigismember(&pending, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &fatal, &before);
  written = write(fd, text, length);
  error = errno;
  /* What the write raised goes to this thread; what was there before is the job's. */
  if (written < 0 && ((error == EPIPE && !was_pending[0]) || (error == EFBIG && !was_pending[1]))) {
    sigemptyset(&pending);
    sigaddset(&pending, error == EPIPE ? SIGPIPE : SIGXFSZ);
    sigtimedwait(&pending, NULL, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  errno = error;
  return written;
}

/* Opens the path under a number of its own. */
static int open_high(void)
{
  int low = log_open(path), high;

  if (low < 0)
    return low;
  high = fcntl(low, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
  if (high < 0)
    return low;
  close(low);
  return high;
}

static bool is_log(const struct stat *status)
{
  return status->st_dev == __atomic_load_n(&device, __ATOMIC_RELAXED) &&
         status->st_ino == __atomic_load_n(&inode, __ATOMIC_RELAXED);
}

static void take(int fd, const struct stat *status)
{
  __atomic_store_n(&device, status->st_dev, __ATOMIC_RELAXED);
  __atomic_store_n(&inode, status->st_ino, __ATOMIC_RELAXED);
  __atomic_store_n(&is_torn, false, __ATOMIC_RELAXED);
  __atomic_store_n(&descriptor, fd, __ATOMIC_RELEASE);
}

int sink_open(const char *name, uint64_t max)
{
  struct stat status;
  int fd;

  snprintf(path, sizeof(path), "%s", name);
  max_bytes = max;
  fd = open_high();
  if (fd < 0)
    return fd;
  if (fstat(fd, &status) == 0)
    take(fd, &status);
  wanted = true;
  return 0;
}

/* The job closed it. Its number may be another file's by now, so it is not to be closed again. */
static bool reopen(void)
{
  struct stat status;
  int fd = open_high();

  if (fd < 0 || fstat(fd, &status) != 0) {
    __atomic_store_n(&descriptor, -1, __ATOMIC_RELEASE);
    return false;
  }
  take(fd, &status);
  return true;
}

/*
 * Several processes may append to one file. The lock is the old file's, so that one of them renames it; the others find
 * another file under the name then. dup3, since other threads may be writing.
 */
static void rotate(int fd)
{
  char aside[PATH_MAX + 2];
  struct stat status;
  int fresh;

  if (flock(fd, LOCK_EX | LOCK_NB) != 0)
    return;
  snprintf(aside, sizeof(aside), "%s.1", path);
  if (stat(path, &status) == 0 && is_log(&status) && rename(path, aside) != 0)
    log_warn_once("%s could not be renamed: %s; it grows beyond audit_max", path, strerror(errno));
  flock(fd, LOCK_UN);
  fresh = log_open(path);
  if (fresh < 0)
    return;
  if (fstat(fresh, &status) == 0 && dup3(fresh, fd, O_CLOEXEC) == fd)
    take(fd, &status);
  close(fresh);
}

/* Whether the descriptor is the log's. Looks again while another thread may be changing that, but not for long. */
static bool is_ours(int fd, struct stat *status)
{
  enum { TRIES = 100 };

  for (int tries = 0; tries < TRIES; tries++) {
    bool busy = __atomic_load_n(&is_busy, __ATOMIC_ACQUIRE);

    if (fstat(fd, status) == 0 && is_log(status))
      return true;
    if (!busy && !__atomic_load_n(&is_busy, __ATOMIC_ACQUIRE))
      return false;
    sched_yield();
  }
  return false;
}

/* Sees to it that the descriptor is the log's, and that the log has room. */
static bool tend(size_t length)
{
  struct stat status;
  int fd = __atomic_load_n(&descriptor, __ATOMIC_ACQUIRE);
  bool ours;

  if (fd < 0)
    return false;
  ours = is_ours(fd, &status);
  if (ours && (max_bytes == 0 || (uint64_t)status.st_size + length <= max_bytes))
    return true;
  if (__atomic_exchange_n(&is_busy, true, __ATOMIC_ACQUIRE))
    return ours;
  if (!ours)
    ours = reopen();
  else
    rotate(fd);
  __atomic_store_n(&is_busy, false, __ATOMIC_RELEASE);
  return ours;
}

/* To write beyond RLIMIT_FSIZE ends a process that does not expect the signal. */
static bool is_limited(void)
{
  struct rlimit limit;

  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

void sink_write(char *line, size_t length)
{
  int saved_errno = errno;
  long written = -1;

  errno = EBADF;
  if (tend(length)) {
    /* What stopped short is a line of its own, so that only that is lost. */
    bool torn = __atomic_exchange_n(&is_torn, false, __ATOMIC_RELAXED);
    char *start = torn ? line - 1 : line;
    int fd = __atomic_load_n(&descriptor, __ATOMIC_ACQUIRE);

    length += torn;
    *start = torn ? '\n' : *start;
    written = is_limited() ? sink_write_quietly(fd, start, length) : write(fd, start, length);
    if (written != (long)length && (torn || written > 0))
      __atomic_store_n(&is_torn, true, __ATOMIC_RELAXED);
    if (written >= 0 && written != (long)length)
      errno = ENOSPC;
  }
  if (written != (long)length) {
    sink_lose();
    log_warn_once("the audit log could not be written: %s; lines are missing from it", strerror(errno));
  }
  errno = saved_errno;
}
