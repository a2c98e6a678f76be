/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the ranks of one simulated communicator share, and all waiting in it. Owns the layout, the
 * futex waits, the barriers and the bootstrap's all-gather. Knows neither CUDA nor NCCL's API.
 *
 * It is a memfd: nothing is left in the file system whatever becomes of the ranks.
 */
#ifndef SYMMSHIM_SIM_SHARED_H
#define SYMMSHIM_SIM_SHARED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  SHARED_MAX_RANKS = 64,
  SHARED_BOOT_BYTES = 256,
  SHARED_SLOT_BYTES = 256 << 10, /* one chunk of a plain collective */
  SHARED_MAIL_BYTES = 64 << 10,  /* one chunk of a send */
};

/* The bootstrap has two channels: one for what all ranks do, and one for shrink, which some ranks stay out of. */
enum shared_channel { SHARED_ALL, SHARED_SHRINK, SHARED_CHANNELS };

/* What a plain collective is, to catch ranks that disagree. */
struct shared_signature {
  uint32_t function;
  uint32_t type;
  uint32_t op;
  uint32_t root;
  uint64_t count;
};

struct shared_rank {
  _Alignas(64) atomic_uint claimed;
  struct {
    atomic_uint sequence; /* 2k + 1: the k-th contribution is there; 2k + 2: this rank has read the others' */
    unsigned char data[SHARED_BOOT_BYTES];
  } boot[SHARED_CHANNELS];
  _Alignas(64) atomic_uint plain;     /* chunks of plain collectives that this rank has posted */
  _Alignas(64) atomic_uint symmetric; /* symmetric barriers that this rank has reached */
  struct shared_signature signatures[2];
  atomic_uint signals[SHARED_MAX_RANKS]; /* so many each rank has given to this one */
};

struct shared_mail {
  _Alignas(64) atomic_uint full;
  uint32_t bytes;
  unsigned char data[SHARED_MAIL_BYTES];
};

struct shared {
  uint64_t nonce;
  atomic_uint nranks;
  struct shared_rank ranks[];
};

/* Flags that end a wait; NULL flags are never raised. */
enum { SHARED_FLAGS = 3 };
struct shared_abort {
  const atomic_bool *flag[SHARED_FLAGS];
};

/* How a wait for other ranks ended; lost: a rank has closed its end of a connection, or died. */
enum shared_end { SHARED_DONE, SHARED_ABORTED, SHARED_LOST };

/* A new one: a memfd, or -1. */
int shared_create(uint64_t nonce);

/* Maps what the descriptor holds. NULL: it is not such memory, or was made for another number of ranks. */
struct shared *shared_attach(int fd, uint64_t nonce, int nranks);
void shared_detach(struct shared *shared, int nranks);

/*
 * This rank is there: a lock of the descriptor, which the kernel takes away when the last process that has it open
 * ends; as with a socket that a forked child has inherited, a child keeps it. False: another has this rank.
 */
bool shared_enter(struct shared *shared, int fd, int rank);
/* Whether a rank that was there has closed its descriptor, or died. */
bool shared_lost(struct shared *shared, int fd, int rank);

/* Opens a descriptor of another process. */
int shared_open_fd(int pid, int fd);

unsigned char *shared_slot(struct shared *shared, int nranks, int rank, unsigned int chunk);
struct shared_mail *shared_mail(struct shared *shared, int nranks, int from, int to);

/* Sets the counter and wakes who waits for it. */
void shared_post(atomic_uint *counter, unsigned int value);

/* Waits until the counter has reached the value. False: a flag was raised first. */
bool shared_wait(atomic_uint *counter, unsigned int value, struct shared_abort abort);

/*
 * How the ranks of a meeting are connected, which decides what they learn of each other (bootstrap.cc, 2.28.9 to
 * 2.30.7). In the ring each has had a socket to either neighbour from the beginning, and sees it close. Else each
 * first connects to the next one, which it gives up after `patience` if that has closed its port, and then waits to
 * be connected by the one before, of whose end nothing ever tells it.
 */
enum shared_links { SHARED_RING, SHARED_CONNECT };

/*
 * Every rank in `members` gives `size` bytes and gets all of them, in the order of `members`. `count` is how
 * often this rank has been here before.
 */
struct shared_party {
  struct shared *shared;
  int presence; /* the descriptor of shared_enter */
  enum shared_links links;
  double patience; /* seconds */
  enum shared_channel channel;
  unsigned int count;
  const int *members;
  int nmembers;
  int rank;
  struct shared_abort abort;
};
enum shared_end shared_gather(const struct shared_party *party, const void *own, void *all, size_t size);

/* Sleeps a little longer each time; for waits on several things at once. */
void shared_pause(unsigned int *tries);

#endif
