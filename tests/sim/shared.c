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
  for (int i = 0; i < 2; i++)
    if (abort.flag[i] && atomic_load(abort.flag[i]))
      return true;
  return false;
}

bool shared_wait(atomic_uint *counter, unsigned int value, struct shared_abort abort)
{
  for (unsigned int tries = 0;; tries++) {
    unsigned int now = atomic_load_explicit(counter, memory_order_acquire);
    if ((int)(now - value) >= 0)
      return true;
    if (abort_raised(abort))
      return false;
    if (tries < YIELDS)
      sched_yield();
    else
      syscall(SYS_futex, counter, FUTEX_WAIT, now, &(struct timespec){.tv_nsec = POLL_NS}, NULL, 0);
  }
}

bool shared_gather(struct shared *shared, enum shared_channel channel, unsigned int count, const int *members,
                   int nmembers, int rank, const void *own, void *all, size_t size, struct shared_abort abort)
{
  for (int i = 0; i < nmembers; i++)
    if (!shared_wait(&shared->ranks[members[i]].boot[channel].sequence, 2 * count, abort))
      return false;
  if (size > 0)
    memcpy(shared->ranks[rank].boot[channel].data, own, size);
  shared_post(&shared->ranks[rank].boot[channel].sequence, 2 * count + 1);
  for (int i = 0; i < nmembers; i++) {
    if (!shared_wait(&shared->ranks[members[i]].boot[channel].sequence, 2 * count + 1, abort))
      return false;
    if (size > 0)
      memcpy((unsigned char *)all + (size_t)i * size, shared->ranks[members[i]].boot[channel].data, size);
  }
  shared_post(&shared->ranks[rank].boot[channel].sequence, 2 * count + 2);
  return true;
}

void shared_pause(unsigned int *tries)
{
  if ((*tries)++ < YIELDS)
    sched_yield();
  else
    nanosleep(&(struct timespec){.tv_nsec = *tries < 100 ? 50 * 1000 : 1000 * 1000}, NULL);
}
