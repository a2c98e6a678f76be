/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/ipc.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shim/life.h"
#include "shim/log.h"

enum {
  BACKLOG = 128,
  ASK_S = 10,   /* a wait for the owner, which may be stopped; or very busy */
  ANSWER_S = 1, /* a wait for one who asks: others wait meanwhile */
  BUSY_NS = 10000000
};

/* Both sides have their signals blocked; only a stop and its end cut a wait short. */
#define AGAIN(call) TEMP_FAILURE_RETRY(call)

#define MAGIC 0x314350494d4d5953ULL /* SYMMIPC1 */

/* The opaque bytes. Equal in all handles of one allocation, as callers key their tables with them (PyTorch does). */
struct content {
  uint64_t magic;
  uint64_t owner; /* random; names the process and its socket */
  uint64_t secret[2];
  uint64_t segment;
  uint64_t size;
  uint32_t lives;
  uint32_t reserved;
  uint64_t sum; /* of all before it: a handle that was changed is nobody's */
};
_Static_assert(sizeof(struct content) == sizeof(cudaIpcMemHandle_t), "the content of a handle has another size");

/* What this process is to the others. */
struct server {
  int fd;
  ino_t inode; /* a program may close descriptors that are not its own, and use their numbers again */
  uint64_t owner, secret[2];
  bool running;
  unsigned int answered; /* atomic */
  bool told;             /* atomic: nobody has asked, and that was said */
};

/* A handle that is open here. */
struct opened {
  struct opened *next;
  cudaIpcMemHandle_t handle;
  void *ptr;
  unsigned int count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the start of the server, and the table */
static struct server server = {.fd = -1};
static struct opened *table;

static uint64_t sum_of(const struct content *content)
{
  const unsigned char *bytes = (const unsigned char *)content;
  uint64_t sum = 0xcbf29ce484222325ULL; /* FNV-1a */

  for (size_t i = 0; i < offsetof(struct content, sum); i++)
    sum = (sum ^ bytes[i]) * 0x100000001b3ULL;
  return sum;
}

/* False: not one of the shim's. */
static bool content_of(const cudaIpcMemHandle_t *handle, struct content *content)
{
  memcpy(content, handle, sizeof(*content));
  return content->magic == MAGIC && content->reserved == 0 && content->sum == sum_of(content);
}

/* Returns the length that goes with it. */
static socklen_t address_of(uint64_t owner, struct sockaddr_un *address)
{
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  /* The first byte stays 0: an abstract name. */
  int length =
      snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "symmshim-ipc-%016llx", (unsigned long long)owner);

  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static bool is_same_user(int fd)
{
  struct ucred peer;
  socklen_t size = sizeof(peer);

  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

static void limit_waits(int fd, unsigned int seconds)
{
  struct timeval limit = {.tv_sec = seconds};

  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

/* An answer is 0 with a descriptor, or a negative errno without. */
union control {
  struct cmsghdr header;
  char room[CMSG_SPACE(sizeof(int))];
};

static void send_answer(int client, int fd)
{
  int status = fd < 0 ? fd : 0;
  union control control = {0};
  struct iovec data = {&status, sizeof(status)};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

  if (fd >= 0) {
    message.msg_control = control.room;
    message.msg_controllen = sizeof(control.room);
    control.header = (struct cmsghdr){CMSG_LEN(sizeof(fd)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
  }
  if (AGAIN(sendmsg(client, &message, MSG_NOSIGNAL)) < 0) {
    /* It is gone, and misses nothing. */
  }
}

static int receive_answer(int fd)
{
  int status = -EPROTO, received = -1;
  union control control = {0};
  struct iovec data = {&status, sizeof(status)};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room)};
  const struct cmsghdr *header;

  if (AGAIN(recvmsg(fd, &message, MSG_CMSG_CLOEXEC)) != sizeof(status))
    return errno == EAGAIN ? -ETIMEDOUT : -ECONNRESET;
  header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(received)))
    memcpy(&received, CMSG_DATA(header), sizeof(received));
  if (received >= 0)
    return received;
  /* The descriptor was sent and did not arrive: this process has too many. */
  return status == 0 ? -EMFILE : status < 0 ? status : -EPROTO;
}

/* A descriptor of the segment that the handle names, or a negative errno. */
static int export_of(const cudaIpcMemHandle_t *handle)
{
  struct content content;

  if (!content_of(handle, &content) || content.owner != server.owner ||
      memcmp(content.secret, server.secret, sizeof(content.secret)) != 0)
    return -EACCES;
  return arena_export(content.segment, content.lives);
}

static void answer(int client)
{
  cudaIpcMemHandle_t handle;
  int fd;

  limit_waits(client, ANSWER_S);
  if (!is_same_user(client)) {
    log_warn_once("cudaIpcOpenMemHandle: another user asked for memory of this process and did not get it");
    return;
  }
  if (AGAIN(recv(client, &handle, sizeof(handle), MSG_TRUNC)) != (ssize_t)sizeof(handle))
    return;
  fd = export_of(&handle);
  send_answer(client, fd);
  if (fd >= 0) {
    __atomic_fetch_add(&server.answered, 1, __ATOMIC_RELAXED);
    close(fd);
  }
}

static bool is_our_socket(int fd)
{
  struct stat status;

  return fd >= 0 && fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) && status.st_ino == server.inode;
}

/*
 * A process without the shim cannot open such a handle; what it hears is an error of the real runtime's that says
 * nothing of the shim. Its silence is all that there is to notice here.
 */
static void tell_unanswered(void)
{
  if (__atomic_load_n(&server.answered, __ATOMIC_RELAXED) == 0 &&
      !__atomic_exchange_n(&server.told, true, __ATOMIC_RELAXED))
    log_warn(
        "cudaIpcGetMemHandle gave out a handle of the arena's memory, and no process has opened it: only one under "
        "the shim can, of the same user and in the same network namespace; to keep such memory plain, leave the "
        "library that allocates it out of `callers`, or set `enable = no`, in [arena] of the policy file");
}

/* For how long the next accept waits before that is said; 0: for ever. */
static unsigned int patience(void)
{
  bool quiet =
      __atomic_load_n(&server.told, __ATOMIC_RELAXED) || __atomic_load_n(&server.answered, __ATOMIC_RELAXED) > 0;

  return quiet ? 0 : life_policy()->warn_s;
}

/* False: the socket cannot be used any more. */
static bool serve_one(int fd)
{
  int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);

  if (client >= 0) {
    answer(client);
    close(client);
    return true;
  }
  if (errno == EAGAIN)
    tell_unanswered();
  /* Too many descriptors, or too little memory: whoever asks waits. */
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
    nanosleep(&(struct timespec){.tv_nsec = BUSY_NS}, NULL);
  return errno != EBADF && errno != ENOTSOCK && errno != EINVAL && errno != EOPNOTSUPP;
}

/* An accept that waits keeps the socket, poll would look at what has its number by then. */
static void *serve(void *data)
{
  int fd = server.fd;

  (void)data;
  do
    limit_waits(fd, patience());
  while (serve_one(fd) && is_our_socket(fd));
  return NULL;
}

static int open_socket(uint64_t owner, ino_t *inode)
{
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  struct sockaddr_un address;
  socklen_t length = address_of(owner, &address);
  struct stat status;

  if (fd < 0)
    return -errno;
  if (bind(fd, (const struct sockaddr *)&address, length) == 0 && listen(fd, BACKLOG) == 0 && fstat(fd, &status) == 0) {
    *inode = status.st_ino;
    return fd;
  }
  int error = errno;
  close(fd);
  return -error;
}

static int start_thread(void)
{
  pthread_t thread;
  sigset_t all, before;
  int error;

  /* The job's signals are for the job's threads. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  error = pthread_create(&thread, NULL, serve, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error != 0)
    return -error;
  pthread_setname_np(thread, "symmshim-ipc");
  pthread_detach(thread);
  return 0;
}

/* Holds the lock. Returns 0 or -errno. */
static int start_server(void)
{
  uint64_t random[3];
  int error;

  if (server.running)
    return 0;
  if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
    return -EAGAIN;
  server.owner = random[0];
  memcpy(server.secret, &random[1], sizeof(server.secret));
  server.fd = open_socket(server.owner, &server.inode);
  if (server.fd < 0)
    return server.fd;
  error = start_thread();
  if (error < 0) {
    close(server.fd);
    server.fd = -1;
    return error;
  }
  __atomic_store_n(&server.running, true, __ATOMIC_RELEASE);
  return 0;
}

bool ipc_handle(const struct segment *segment, cudaIpcMemHandle_t *handle)
{
  struct content content = {.magic = MAGIC, .segment = segment->id, .size = segment->size};
  int error;

  pthread_mutex_lock(&lock);
  error = start_server();
  pthread_mutex_unlock(&lock);
  if (error < 0) {
    log_warn_once("cudaIpcGetMemHandle: memory of the arena cannot be shared (%s), so the call fails",
                  strerror(-error));
    return false;
  }
  content.owner = server.owner;
  memcpy(content.secret, server.secret, sizeof(content.secret));
  content.lives = __atomic_load_n(&segment->lives, __ATOMIC_RELAXED);
  content.sum = sum_of(&content);
  memcpy(handle, &content, sizeof(*handle));
  return true;
}

/* Asks the owner on a connection of its own. */
static int ask(int fd, const cudaIpcMemHandle_t *handle, uint64_t owner)
{
  struct sockaddr_un address;
  socklen_t length = address_of(owner, &address);

  limit_waits(fd, ASK_S);
  if (AGAIN(connect(fd, (const struct sockaddr *)&address, length)) < 0)
    return errno == EAGAIN ? -ETIMEDOUT : -errno;
  /* Whoever has the name now is not the owner if it is another user. */
  if (!is_same_user(fd))
    return -EACCES;
  if (AGAIN(send(fd, handle, sizeof(*handle), MSG_NOSIGNAL)) < 0)
    return errno == EAGAIN ? -ETIMEDOUT : -errno;
  return receive_answer(fd);
}

/* The descriptor from the owner, or a negative errno. */
static int fetch(const cudaIpcMemHandle_t *handle, uint64_t owner)
{
  sigset_t all, before;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), received = -errno;

  if (fd < 0)
    return received;
  /* A signal would cut the waits short, and if they began anew each time they would have no end. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  received = ask(fd, handle, owner);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  close(fd);
  return received;
}

static const char *explain(int error)
{
  switch (error) {
  case -ECONNREFUSED:
  case -ECONNRESET:
  case -EPIPE:
    return "its owner has ended, or is in another network namespace";
  case -ESTALE:
    return "its owner has freed it";
  case -EACCES:
    return "its owner is another user's process";
  case -ETIMEDOUT:
    return "its owner does not answer";
  default:
    return strerror(-error);
  }
}

/* Holds the lock. */
static struct opened *find_opened(const cudaIpcMemHandle_t *handle)
{
  for (struct opened *opened = table; opened; opened = opened->next)
    if (memcmp(&opened->handle, handle, sizeof(*handle)) == 0)
      return opened;
  return NULL;
}

/* Counts one more opening, if there is one. */
static bool open_again(const cudaIpcMemHandle_t *handle, void **ptr)
{
  struct opened *opened;

  pthread_mutex_lock(&lock);
  opened = find_opened(handle);
  if (opened) {
    opened->count++;
    *ptr = opened->ptr;
  }
  pthread_mutex_unlock(&lock);
  return opened != NULL;
}

/* Enters a mapping that was just made; if another thread was faster it is undone, and the other's is taken. */
static cudaError_t enter(const cudaIpcMemHandle_t *handle, void *mapped, void **ptr)
{
  struct opened *fresh = malloc(sizeof(*fresh)), *first;

  if (!fresh) {
    arena_unimport(mapped);
    return cudaErrorMemoryAllocation;
  }
  pthread_mutex_lock(&lock);
  first = find_opened(handle);
  if (first) {
    first->count++;
    *ptr = first->ptr;
  } else {
    *fresh = (struct opened){.next = table, .handle = *handle, .ptr = mapped, .count = 1};
    table = fresh;
    *ptr = mapped;
  }
  pthread_mutex_unlock(&lock);
  if (first) {
    free(fresh);
    arena_unimport(mapped);
  }
  return cudaSuccess;
}

bool ipc_open(const cudaIpcMemHandle_t *handle, void **ptr, cudaError_t *result)
{
  struct content content;
  void *mapped;
  int fd;

  if (!content_of(handle, &content))
    return false;
  if (__atomic_load_n(&server.running, __ATOMIC_ACQUIRE) && content.owner == server.owner) {
    *result = cudaErrorDeviceUninitialized; /* what drivers give (UCX #11603, 2026), whether or not it is still there */
    return true;
  }
  *result = cudaSuccess;
  if (open_again(handle, ptr))
    return true;
  fd = fetch(handle, content.owner);
  if (fd < 0) {
    log_warn_once("cudaIpcOpenMemHandle: memory of another process's arena is not to be had: %s", explain(fd));
    return false;
  }
  /* The numbers are the same in both APIs since CUDA 10.1. */
  *result = (cudaError_t)arena_import(fd, content.size, &mapped);
  close(fd);
  if (*result == cudaSuccess)
    *result = enter(handle, mapped, ptr);
  return true;
}

static bool is_opened(const void *ptr)
{
  const struct opened *opened;

  pthread_mutex_lock(&lock);
  for (opened = table; opened && opened->ptr != ptr; opened = opened->next) {
  }
  pthread_mutex_unlock(&lock);
  return opened != NULL;
}

/* Counts one opening less. False: it was the last, and the mapping is the caller's to undo. */
static bool close_once(const void *ptr)
{
  struct opened **at = &table, *last = NULL;

  pthread_mutex_lock(&lock);
  while (*at && (*at)->ptr != ptr)
    at = &(*at)->next;
  if (*at && --(*at)->count == 0) {
    last = *at;
    *at = last->next;
  }
  pthread_mutex_unlock(&lock);
  free(last);
  return last == NULL;
}

bool ipc_close(void *ptr, cudaError_t *result)
{
  if (!ptr || !is_opened(ptr))
    return false;
  /* cuMemUnmap does not wait for the work that uses the memory, as the real one does. */
  *result = (cudaError_t)arena_settle();
  if (*result == cudaSuccess && !close_once(ptr))
    arena_unimport(ptr);
  return true;
}

void ipc_after_fork(void)
{
  int saved_errno = errno;

  /* An open copy of the socket would keep its name after the owner's end, for nobody who answers. */
  if (__atomic_load_n(&server.running, __ATOMIC_ACQUIRE) && is_our_socket(server.fd))
    close(server.fd);
  __atomic_store_n(&server.running, false, __ATOMIC_RELAXED);
  errno = saved_errno;
}

__attribute__((destructor)) static void tell_at_the_end(void)
{
  if (__atomic_load_n(&server.running, __ATOMIC_ACQUIRE) && life_policy()->warn_s > 0)
    tell_unanswered();
}
