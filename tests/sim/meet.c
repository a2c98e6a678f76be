/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/meet.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ID_MAGIC 0x6c63636e6d6973ULL

struct id {
  uint64_t magic;
  struct meet_place place; /* pid 0: by the name below */
  uint64_t name;
};
_Static_assert(sizeof(struct id) <= sizeof(ncclUniqueId), "ncclUniqueId is too small");

/* Memory made here whose descriptor is still open for the others. */
struct offer {
  struct offer *next;
  struct meet_place place;
};

static pthread_mutex_t offers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct offer *offers;

static void offer_add(const struct meet_place *place)
{
  struct offer *offer = malloc(sizeof(*offer));
  pthread_mutex_lock(&offers_lock);
  *offer = (struct offer){.next = offers, .place = *place};
  offers = offer;
  pthread_mutex_unlock(&offers_lock);
}

ncclResult_t meet_create(struct meet_place *place)
{
  if (getrandom(&place->nonce, sizeof(place->nonce), 0) != (ssize_t)sizeof(place->nonce))
    return ncclSystemError;
  place->pid = getpid();
  place->fd = shared_create(place->nonce);
  if (place->fd < 0)
    return ncclSystemError;
  offer_add(place);
  return ncclSuccess;
}

/* Several ranks of one process may say so; the descriptor is closed once. */
void meet_close(const struct meet_place *place)
{
  pthread_mutex_lock(&offers_lock);
  for (struct offer **at = &offers; *at; at = &(*at)->next) {
    struct offer *offer = *at;
    if (offer->place.nonce != place->nonce)
      continue;
    close(offer->place.fd);
    *at = offer->next;
    free(offer);
    break;
  }
  pthread_mutex_unlock(&offers_lock);
}

ncclResult_t meet_attach(const struct meet_place *place, int nranks, struct shared **shared, int *fd)
{
  *fd = shared_open_fd(place->pid, place->fd);
  if (*fd < 0)
    return ncclRemoteError;
  *shared = shared_attach(*fd, place->nonce, nranks);
  if (*shared)
    return ncclSuccess;
  close(*fd);
  return ncclRemoteError;
}

/* FNV-1a. */
static uint64_t hash(const char *text)
{
  uint64_t value = 14695981039346656037ULL;
  for (; *text; text++)
    value = (value ^ (unsigned char)*text) * 1099511628211ULL;
  return value;
}

ncclResult_t meet_id_create(ncclUniqueId *out)
{
  const char *name = getenv("NCCL_COMM_ID");
  struct id id = {.magic = ID_MAGIC};
  ncclResult_t result = ncclSuccess;
  if (name && *name)
    id.name = hash(name);
  else
    result = meet_create(&id.place);
  memset(out, 0, sizeof(*out));
  memcpy(out, &id, sizeof(id));
  return result;
}

static socklen_t socket_name(uint64_t name, struct sockaddr_un *address)
{
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  /* A leading NUL: the name lives and dies with the socket. */
  int length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "sim-nccl-%d-%016llx", (int)getuid(),
                        (unsigned long long)name);
  return (socklen_t)(sizeof(sa_family_t) + 1 + (size_t)length);
}

/* Rank 0: makes the memory and tells each other rank where it is. */
static ncclResult_t name_serve(uint64_t name, int nranks, struct meet_place *place)
{
  struct sockaddr_un address;
  socklen_t length = socket_name(name, &address);
  ncclResult_t result = meet_create(place);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(fd, (struct sockaddr *)&address, length) != 0 || listen(fd, SHARED_MAX_RANKS) != 0)
    result = ncclSystemError;
  for (int i = 1; i < nranks && result == ncclSuccess; i++) {
    int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    if (peer < 0 || write(peer, place, sizeof(*place)) != (ssize_t)sizeof(*place))
      result = ncclSystemError;
    close(peer);
  }
  close(fd);
  return result;
}

/* The others: until rank 0 answers, however long that takes. */
static ncclResult_t name_ask(uint64_t name, struct meet_place *place)
{
  struct sockaddr_un address;
  socklen_t length = socket_name(name, &address);
  for (unsigned int tries = 0;; shared_pause(&tries)) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
      return ncclSystemError;
    bool answered = connect(fd, (struct sockaddr *)&address, length) == 0 &&
                    read(fd, place, sizeof(*place)) == (ssize_t)sizeof(*place);
    close(fd);
    if (answered)
      return ncclSuccess;
  }
}

ncclResult_t meet_id_find(const ncclUniqueId *in, int nranks, int rank, struct meet_place *place)
{
  struct id id;
  memcpy(&id, in, sizeof(id));
  if (id.magic != ID_MAGIC)
    return ncclInvalidArgument;
  *place = id.place;
  if (id.place.pid != 0)
    return ncclSuccess;
  return rank == 0 ? name_serve(id.name, nranks, place) : name_ask(id.name, place);
}
