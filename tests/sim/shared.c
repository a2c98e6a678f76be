/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { YIELDS = 20, POLL_NS = 20 * 1000 * 1000 };

static size_t page_round(size_t size)
{
  return (size + 4095) & ~(size_t)4095;
}

static size_t head_size(int nranks)
{
  return page_round(sizeof(struct shared) + (size_t)nranks * sizeof(struct shared_rank));
}

static size_t shared_size(int nranks)
{
  size_t n = (size_t)nranks;
  return head_size(nranks) + n * 2 * SHARED_SLOT_BYTES + page_round(n * n * sizeof(struct shared_mail));
}

int shared_create(uint64_t nonce)
{
  int fd = memfd_create("sim-nccl", MFD_CLOEXEC);
  if (fd >= 0 && pwrite(fd, &nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce)) {
    close(fd);
    fd = -1;
  }
  return fd;
}

int shared_open_fd(int pid, int fd)
{
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
  return open(path, O_RDWR | O_CLOEXEC);
}

struct shared *shared_attach(int fd, uint64_t nonce, int nranks)
{
  uint64_t there = 0;
  struct stat stat;
  if (pread(fd, &there, sizeof(there), 0) != (ssize_t)sizeof(there) || there != nonce || fstat(fd, &stat) != 0)
    return NULL;
  size_t size = shared_size(nranks);
  /* Whoever comes first makes it large enough; it is sparse. */
  if ((size_t)stat.st_size < size && ftruncate(fd, (off_t)size) != 0)
    return NULL;
  struct shared *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (shared == MAP_FAILED)
    return NULL;
  unsigned int none = 0;
  if (!atomic_compare_exchange_strong(&shared->nranks, &none, (unsigned int)nranks) && none != (unsigned int)nranks) {
    munmap(shared, size);
    return NULL;
  }
  return shared;
}

void shared_detach(struct shared *shared, int nranks)
{
  munmap(shared, shared_size(nranks));
}

bool shared_enter(struct shared *shared, int fd, int rank)
{
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
  return fcntl(fd, F_OFD_SETLK, &lock) == 0 && atomic_exchange(&shared->ranks[rank].claimed, 1U) == 0;
}

bool shared_lost(struct shared *shared, int fd, int rank)
{
  struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
  return atomic_load(&shared->ranks[rank].claimed) && fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

unsigned char *shared_slot(struct shared *shared, int nranks, int rank, unsigned int chunk)
{
  return (unsigned char *)shared + head_size(nranks) + ((size_t)rank * 2 + chunk % 2) * SHARED_SLOT_BYTES;
}

struct shared_mail *shared_mail(struct shared *shared, int nranks, int from, int to)
{
  unsigned char *base = (unsigned char *)shared + head_size(nranks) + (size_t)nranks * 2 * SHARED_SLOT_BYTES;
  return (struct shared_mail *)(void *)(base +
                                        ((size_t)from * (size_t)nranks + (size_t)to) * sizeof(struct shared_mail));
}

void shared_post(atomic_uint *counter, unsigned int value)
{
  /* Pairs with the load in shared_wait: what was written before is seen by who sees the value. */
  atomic_store_explicit(counter, value, memory_order_release);
  syscall(SYS_futex, counter, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool abort_raised(struct shared_abort abort)
{
  for (int i = 0; i < SHARED_FLAGS; i++)
    if (abort.flag[i] && atomic_load(abort.flag[i]))
      return true;
  return false;
}

static bool reached(atomic_uint *counter, unsigned int value, unsigned int *now)
{
  *now = atomic_load_explicit(counter, memory_order_acquire);
  return (int)(*now - value) >= 0;
}

/* A little at first, then until something happens to the counter or a while has passed. */
static void counter_sleep(atomic_uint *counter, unsigned int now, unsigned int tries)
{
  if (tries < YIELDS)
    sched_yield();
  else
    syscall(SYS_futex, counter, FUTEX_WAIT, now, &(struct timespec){.tv_nsec = POLL_NS}, NULL, 0);
}

bool shared_wait(atomic_uint *counter, unsigned int value, struct shared_abort abort)
{
  unsigned int now;
  for (unsigned int tries = 0; !reached(counter, value, &now); tries++) {
    if (abort_raised(abort))
      return false;
    counter_sleep(counter, now, tries);
  }
  return true;
}

/* The member that is so many places further. */
static bool neighbour_lost(const struct shared_party *party, int distance)
{
  int self = 0;
  while (party->members[self] != party->rank)
    self++;
  int other = party->members[(self + distance + party->nmembers) % party->nmembers];
  return other != party->rank && shared_lost(party->shared, party->presence, other);
}

static enum shared_end member_wait(const struct shared_party *party, int member, unsigned int value)
{
  atomic_uint *counter = &party->shared->ranks[member].boot[party->channel].sequence;
  unsigned int now;
  for (unsigned int tries = 0; !reached(counter, value, &now); tries++) {
    if (abort_raised(party->abort))
      return SHARED_ABORTED;
    /* What a rank did before it went counts. */
    if (party->links == SHARED_RING && tries >= YIELDS && (neighbour_lost(party, 1) || neighbour_lost(party, -1)))
      return reached(counter, value, &now) ? SHARED_DONE : SHARED_LOST;
    counter_sleep(counter, now, tries);
  }
  return SHARED_DONE;
}

static double clock_seconds(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A port that is closed is tried again and again. */
static enum shared_end next_connect(const struct shared_party *party)
{
  double start = clock_seconds();
  while (party->links == SHARED_CONNECT && neighbour_lost(party, 1)) {
    if (abort_raised(party->abort))
      return SHARED_ABORTED;
    if (clock_seconds() - start > party->patience)
      return SHARED_LOST;
    nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
  }
  return SHARED_DONE;
}

enum shared_end shared_gather(const struct shared_party *party, const void *own, void *all, size_t size)
{
  struct shared_rank *ranks = party->shared->ranks;
  unsigned int turn = 2 * party->count;
  enum shared_end end = next_connect(party);
  for (int i = 0; i < party->nmembers && end == SHARED_DONE; i++)
    end = member_wait(party, party->members[i], turn);
  if (end != SHARED_DONE)
    return end;
  if (size > 0)
    memcpy(ranks[party->rank].boot[party->channel].data, own, size);
  shared_post(&ranks[party->rank].boot[party->channel].sequence, turn + 1);
  for (int i = 0; i < party->nmembers && end == SHARED_DONE; i++) {
    end = member_wait(party, party->members[i], turn + 1);
    if (end == SHARED_DONE && size > 0)
      memcpy((unsigned char *)all + (size_t)i * size, ranks[party->members[i]].boot[party->channel].data, size);
  }
  if (end == SHARED_DONE)
    shared_post(&ranks[party->rank].boot[party->channel].sequence, turn + 2);
  return end;
}

void shared_pause(unsigned int *tries)
{
  if ((*tries)++ < YIELDS)
    sched_yield();
  else
    nanosleep(&(struct timespec){.tv_nsec = *tries < 100 ? 50 * 1000 : 1000 * 1000}, NULL);
}
