/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of a cell. Its state is one word {sequence, count, phase}; the ballot beside it is written only by
 * the rank that claimed the cell, between its two changes of the word:
 *
 *   (older sequence) -> CLAIMED -> OPEN, 1 -> OPEN, 2 -> ... -> YES          all ballots equal
 *                          |          |-> UNEVEN, 2 -> ... -> MIXED           they differ in what may differ
 *                          |          |-> DIFFER                              in more than that
 *                          |----------|-> DECLINED, TIMEOUT                   a rank says so
 *
 * YES, MIXED, DIFFER, DECLINED and TIMEOUT are final for that sequence, so all ranks read the same verdict, however
 * late. YES and MIXED need a vote of every rank in this very cell; whoever does not vote (paused, lapped, gone) can
 * only prevent them. That is the whole of the safety argument; the pause and the lapping rule below are about
 * time alone.
 *
 * A cell is taken for sequence k only when every rank has done with k - BOARD_CELLS, as `done` of each says.
 */
#include "shim/board.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BOARD_PREFIX "symmshim"

enum { CACHE_LINE = 64, STALE_SECONDS = 3600 };

enum phase {
  PHASE_FREE,
  PHASE_CLAIMED,
  PHASE_OPEN,
  PHASE_UNEVEN,
  PHASE_YES, /* from here on final */
  PHASE_MIXED,
  PHASE_DIFFER,
  PHASE_DECLINED,
  PHASE_TIMEOUT
};

/* {sequence: 40, count: 16, phase: 8} */
typedef uint64_t cell_word;
#define LAST_SEQUENCE ((UINT64_C(1) << 40) - 1)

struct cell {
  _Alignas(2 * CACHE_LINE) _Atomic cell_word word;
  _Atomic uint64_t ballot[BOARD_WORDS];
  _Atomic uint64_t stance;
};

struct place {
  _Alignas(CACHE_LINE) _Atomic uint64_t process; /* 0: not attached; else a number drawn by the process */
  _Atomic uint64_t compatibility;
  _Atomic uint64_t done; /* this rank has done with all cells up to this sequence */
  _Atomic uint64_t come; /* and has come to this one */
  _Atomic uint32_t rank; /* in the communicator, plus 1; 0: not known */
};

/* All zero is the initial state, so that no rank has to be first. */
struct shared {
  _Atomic uint64_t size; /* as the first to attach has it: the ranks may have made the object at the same time */
  _Alignas(CACHE_LINE) _Atomic uint64_t paused_until; /* cells before this sequence are not asked */
  _Atomic uint64_t epoch;
  _Atomic uint32_t timeouts;    /* in a row */
  _Atomic uint32_t pauses;      /* without a YES between them */
  _Atomic uint32_t taken_twice; /* two ranks came for one place */
  _Atomic uint32_t left;        /* a rank will not vote any more */
  _Atomic uint32_t nameless;    /* a rank has removed the name */
  struct cell cells[BOARD_CELLS];
  struct place places[]; /* `capacity` of them */
};

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "a lock would be one per process");

struct board {
  struct shared *shared;
  size_t size;
  char name[64]; /* empty once removed */
  uint32_t capacity, slot, nranks;
  struct board_pace pace;
  uint64_t last;     /* sequence of the last cell this rank brought a question to */
  uint64_t all_done; /* every rank had done with cells up to this sequence when last looked */
  atomic_bool cancel;
};

static cell_word word_of(uint64_t sequence, uint32_t count, enum phase phase)
{
  return sequence << 24 | (uint64_t)count << 8 | phase;
}

static uint64_t word_sequence(cell_word word)
{
  return word >> 24;
}

static uint32_t word_count(cell_word word)
{
  return (uint32_t)(word >> 8) & 0xffff;
}

static enum phase word_phase(cell_word word)
{
  return (enum phase)(word & 0xff);
}

static uint64_t now_us(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void relax(void)
{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/*
 * A wait with an end: spins, then gives the processor away, so that ranks may share one. The clock is first read when
 * there was something to wait for: a tenth of what a vote costs the rank that comes last.
 */
struct patience {
  uint64_t start_us, limit_us; /* start_us: 0 until then */
  uint32_t turns;
};

static bool patience_left(struct patience *patience, const struct board *board)
{
  enum { SPINS = 64, YIELD_US = 2000 };
  uint64_t now, waited;

  if (++patience->turns % SPINS != 0) {
    relax();
    return true;
  }
  now = now_us();
  if (patience->start_us == 0)
    patience->start_us = now;
  waited = now - patience->start_us;
  /* relaxed: only ever ends a wait, publishes nothing */
  if (waited >= patience->limit_us || atomic_load_explicit(&board->cancel, memory_order_relaxed))
    return false;
  if (waited < YIELD_US)
    sched_yield();
  else
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  return true;
}

static uint64_t draw_process_number(void)
{
  static _Atomic uint64_t number;
  uint64_t drawn = 0, expected = 0;

  if (atomic_load(&number) == 0) {
    if (getrandom(&drawn, sizeof(drawn), GRND_NONBLOCK) != (ssize_t)sizeof(drawn))
      drawn = (uint64_t)getpid() << 32 ^ now_us();
    drawn |= 1;
    atomic_compare_exchange_strong(&number, &expected, drawn);
  }
  return atomic_load(&number);
}

/* fallocate, not ftruncate: a full file system is an error here instead of SIGBUS later. */
static int allocate(int fd, size_t size)
{
  while (fallocate(fd, 0, 0, (off_t)size) != 0)
    if (errno != EINTR)
      return -errno;
  return 0;
}

/* Opens the object, or makes it; only a regular 0600 file of ours, of the right size, is taken. */
static int open_object(const char *name, size_t size)
{
  struct stat status;
  int error = -EPERM;
  int fd = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

  if (fd < 0) /* a symbolic link, or another user's */
    return errno == ELOOP || errno == EACCES ? -EPERM : -errno;
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
      (status.st_mode & 07777) == 0600) {
    if ((size_t)status.st_size == size)
      return fd;
    /* The maker may not have set the size yet; doing it twice changes nothing. */
    if (status.st_size == 0) {
      error = allocate(fd, size);
      if (!error)
        return fd;
      shm_unlink(name); /* ours, and empty: nobody else will */
    }
  }
  close(fd);
  return error;
}

/* Maps the object, unless a rank with another idea of its layout was first. */
static int map_object(struct board *board, int fd)
{
  uint64_t none = 0;

  board->shared = mmap(NULL, board->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (board->shared == MAP_FAILED) {
    int error = errno;
    shm_unlink(board->name);
    return -error;
  }
  if (!atomic_compare_exchange_strong(&board->shared->size, &none, board->size) && none != board->size) {
    munmap(board->shared, board->size);
    return -EPERM;
  }
  return 0;
}

/* Takes the rank's place; what is wrong with it all ranks find in the shared memory when they seal. */
static void take_place(struct board *board, uint64_t compatibility)
{
  struct place *place = &board->shared->places[board->slot];
  uint64_t vacant = 0;

  if (atomic_compare_exchange_strong(&place->process, &vacant, draw_process_number()))
    atomic_store(&place->compatibility, compatibility);
  else
    atomic_store(&board->shared->taken_twice, 1);
}

int board_attach(struct board **ret_board, uint64_t key, uint32_t capacity, uint32_t slot, uint64_t compatibility,
                 struct board_pace pace)
{
  struct board *board;
  int error, fd;

  if (capacity == 0 || capacity > BOARD_MAX_RANKS || slot >= capacity)
    return -EOVERFLOW;
  board = calloc(1, sizeof(*board));
  if (!board)
    return -ENOMEM;
  board->capacity = capacity;
  board->slot = slot;
  board->pace = pace;
  board->size = sizeof(struct shared) + capacity * sizeof(struct place);
  snprintf(board->name, sizeof(board->name), "/" BOARD_PREFIX "-%u-%016llx", (unsigned)geteuid(),
           (unsigned long long)key);
  fd = open_object(board->name, board->size);
  error = fd < 0 ? fd : map_object(board, fd);
  if (fd >= 0)
    close(fd);
  if (error) {
    free(board);
    return error;
  }
  take_place(board, compatibility);
  *ret_board = board;
  return 0;
}

/*
 * Once a rank has removed the name it may be another object's, of a later init with the same id, which is not to be
 * removed. A rank that stands still between its look and its unlink, for as long as the others take to come back, still
 * does so; those ranks then do not find each other and stay plain.
 */
static void remove_name(struct board *board)
{
  if (!atomic_load(&board->shared->nameless))
    shm_unlink(board->name);
  atomic_store(&board->shared->nameless, 1);
  board->name[0] = '\0';
}

enum board_fault board_seal(struct board *board, uint32_t nranks)
{
  struct place *places = board->shared->places;
  uint32_t attached = 0;
  bool incompatible = false, same_process = atomic_load(&board->shared->taken_twice);

  remove_name(board);
  board->nranks = nranks;
  for (uint32_t i = 0; i < board->capacity; i++) {
    uint64_t process = atomic_load(&places[i].process);
    if (process == 0)
      continue;
    attached++;
    incompatible |= atomic_load(&places[i].compatibility) != atomic_load(&places[board->slot].compatibility);
    for (uint32_t j = 0; j < i; j++)
      same_process |= atomic_load(&places[j].process) == process;
  }
  if (incompatible)
    return BOARD_INCOMPATIBLE;
  if (same_process)
    return BOARD_SAME_PROCESS;
  return attached == nranks ? BOARD_SOUND : BOARD_MISSING;
}

uint64_t board_epoch(const struct board *board)
{
  /* relaxed: a rank that hears late votes under an old epoch, and never has a YES with one that heard */
  return atomic_load_explicit(&board->shared->epoch, memory_order_relaxed);
}

void board_end_epoch(struct board *board, uint64_t epoch)
{
  atomic_compare_exchange_strong_explicit(&board->shared->epoch, &epoch, epoch + 1, memory_order_relaxed,
                                          memory_order_relaxed);
}

void board_name_rank(struct board *board, int rank)
{
  atomic_store_explicit(&board->shared->places[board->slot].rank, (uint32_t)rank + 1, memory_order_relaxed);
}

int board_late_rank(const struct board *board)
{
  for (uint32_t i = 0; i < board->capacity; i++) {
    const struct place *place = &board->shared->places[i];
    if (atomic_load_explicit(&place->process, memory_order_relaxed) != 0 &&
        atomic_load_explicit(&place->come, memory_order_relaxed) < board->last)
      return (int)atomic_load_explicit(&place->rank, memory_order_relaxed) - 1;
  }
  return -1;
}

void board_leave(struct board *board)
{
  /* relaxed: it prevents nothing that the leaver's declining does not prevent, and publishes nothing */
  atomic_store_explicit(&board->shared->left, 1, memory_order_relaxed);
}

void board_detach(struct board *board)
{
  if (!board)
    return;
  if (board->name[0]) {
    /* Not sealed: another rank may count this one among those that attend, and must not wait for it. */
    board_leave(board);
    remove_name(board);
  }
  munmap(board->shared, board->size);
  free(board);
}

void board_cancel(struct board *board)
{
  atomic_store_explicit(&board->cancel, true, memory_order_relaxed);
}

/* Says that this rank has done with its last cell. */
static void finish_cell(struct board *board)
{
  /* Pairs with the acquire in cell_is_free(): our reads of the cell come before anybody's reuse of it. */
  atomic_store_explicit(&board->shared->places[board->slot].done, board->last, memory_order_release);
}

/* Whether every rank has done with the cell's former use. */
static bool cell_is_free(struct board *board, uint64_t sequence)
{
  uint64_t least = UINT64_MAX;

  if (sequence <= BOARD_CELLS || board->all_done >= sequence - BOARD_CELLS)
    return true;
  for (uint32_t i = 0; i < board->capacity; i++) {
    struct place *place = &board->shared->places[i];
    uint64_t done;
    if (atomic_load_explicit(&place->process, memory_order_relaxed) == 0)
      continue;
    done = atomic_load_explicit(&place->done, memory_order_acquire); /* pairs with finish_cell() */
    least = done < least ? done : least;
  }
  board->all_done = least;
  return least >= sequence - BOARD_CELLS;
}

/* Each pause is twice as long as the one before, until there is a YES again. */
static void pause_from(struct board *board, uint64_t sequence)
{
  enum { MAX_DOUBLINGS = 10 };
  _Atomic uint64_t *until = &board->shared->paused_until;
  uint32_t pauses = atomic_fetch_add_explicit(&board->shared->pauses, 1, memory_order_relaxed);
  uint64_t wanted = sequence + ((uint64_t)board->pace.pause_calls << (pauses < MAX_DOUBLINGS ? pauses : MAX_DOUBLINGS));
  uint64_t seen = atomic_load_explicit(until, memory_order_relaxed);

  while (seen < wanted &&
         !atomic_compare_exchange_weak_explicit(until, &seen, wanted, memory_order_relaxed, memory_order_relaxed)) {
  }
}

static bool is_paused(const struct board *board, uint64_t sequence)
{
  /* relaxed: a rank that does not see a pause yet waits in vain at most once (no YES without the others) */
  return sequence < atomic_load_explicit(&board->shared->paused_until, memory_order_relaxed);
}

static bool somebody_left(const struct board *board)
{
  return atomic_load_explicit(&board->shared->left, memory_order_relaxed);
}

static void count_outcome(struct board *board, enum phase phase, uint64_t sequence)
{
  _Atomic uint32_t *timeouts = &board->shared->timeouts;

  if (phase == PHASE_YES || phase == PHASE_MIXED) {
    /* looked at first: most of the time both are 0, and a store would take the line from the other ranks */
    if (atomic_load_explicit(timeouts, memory_order_relaxed) != 0)
      atomic_store_explicit(timeouts, 0, memory_order_relaxed);
    if (atomic_load_explicit(&board->shared->pauses, memory_order_relaxed) != 0)
      atomic_store_explicit(&board->shared->pauses, 0, memory_order_relaxed);
  } else if (phase == PHASE_TIMEOUT && board->pace.pause_after != 0 && !is_paused(board, sequence) &&
             atomic_fetch_add_explicit(timeouts, 1, memory_order_relaxed) + 1 >= board->pace.pause_after) {
    atomic_store_explicit(timeouts, 0, memory_order_relaxed);
    pause_from(board, sequence + 1);
  }
}

bool board_is_pausing(const struct board *board)
{
  return is_paused(board, board->last + 1);
}

/* Makes a phase final unless another already is; the one that made it so counts it. Returns the word in force. */
static cell_word latch(struct board *board, struct cell *cell, cell_word seen, uint64_t sequence, enum phase phase)
{
  cell_word wanted = word_of(sequence, 0, phase);

  while (word_sequence(seen) != sequence || word_phase(seen) < PHASE_YES)
    /* release: the final word orders our earlier reads of the ballot before it */
    if (atomic_compare_exchange_weak_explicit(&cell->word, &seen, wanted, memory_order_acq_rel, memory_order_acquire)) {
      count_outcome(board, phase, sequence);
      return wanted;
    }
  return seen;
}

static bool same_words(struct cell *cell, const struct board_ballot *ballot, int from, int to)
{
  for (int i = from; i < to; i++)
    if (atomic_load_explicit(&cell->ballot[i], memory_order_relaxed) != ballot->words[i])
      return false;
  return true;
}

/* What a cell in this phase becomes by this ballot: still OPEN, UNEVEN, or final because they DIFFER. */
static enum phase compare(struct cell *cell, enum phase phase, const struct board_ballot *ballot)
{
  uint64_t stance = atomic_load_explicit(&cell->stance, memory_order_relaxed);
  bool same;

  if (!same_words(cell, ballot, 0, BOARD_QUESTION) || (stance == BOARD_STRICT) != (ballot->stance == BOARD_STRICT))
    return PHASE_DIFFER;
  same = ballot->stance != BOARD_APART && same_words(cell, ballot, BOARD_QUESTION, BOARD_WORDS);
  if (same)
    return phase;
  return stance == BOARD_STRICT ? PHASE_DIFFER : PHASE_UNEVEN;
}

/* The word of a cell in which so many ranks have voted, OPEN or UNEVEN so far. */
static cell_word counted(const struct board *board, uint32_t count, enum phase phase)
{
  if (count < board->nranks)
    return word_of(board->last, count, phase);
  return word_of(board->last, 0, phase == PHASE_OPEN ? PHASE_YES : PHASE_MIXED);
}

/*
 * Tries to be the first at the cell: true when this rank's vote now stands in it. *word becomes what the cell
 * was last seen to hold.
 */
static bool claim(struct board *board, struct cell *cell, cell_word *word, const struct board_ballot *ballot)
{
  uint64_t sequence = board->last;
  cell_word claimed = word_of(sequence, 0, PHASE_CLAIMED);
  cell_word opened = counted(board, 1, ballot->stance == BOARD_APART ? PHASE_UNEVEN : PHASE_OPEN);

  if (!atomic_compare_exchange_strong_explicit(&cell->word, word, claimed, memory_order_acq_rel, memory_order_acquire))
    return false;
  *word = claimed;
  for (int i = 0; i < BOARD_WORDS; i++)
    atomic_store_explicit(&cell->ballot[i], ballot->words[i], memory_order_relaxed);
  atomic_store_explicit(&cell->stance, ballot->stance, memory_order_relaxed);
  /* release: pairs with the acquire loads of the word in vote_in_cell(), after which the others read the ballot */
  if (!atomic_compare_exchange_strong_explicit(&cell->word, word, opened, memory_order_acq_rel, memory_order_acquire))
    return false; /* a verdict came in between */
  *word = opened;
  return true;
}

/* Adds this rank's vote to an open cell, which makes it OPEN or UNEVEN; results as of claim(). */
static bool join(struct board *board, struct cell *cell, cell_word *word, enum phase phase)
{
  cell_word wanted = counted(board, word_count(*word) + 1, phase);

  if (!atomic_compare_exchange_strong_explicit(&cell->word, word, wanted, memory_order_acq_rel, memory_order_acquire))
    return false;
  *word = wanted;
  if (word_phase(wanted) >= PHASE_YES)
    count_outcome(board, word_phase(wanted), board->last);
  return true;
}

static enum board_verdict verdict_of(enum phase phase)
{
  static const enum board_verdict verdicts[] = {[PHASE_YES] = BOARD_YES,
                                                [PHASE_MIXED] = BOARD_MIXED,
                                                [PHASE_DIFFER] = BOARD_DIFFER,
                                                [PHASE_DECLINED] = BOARD_DECLINED,
                                                [PHASE_TIMEOUT] = BOARD_TIMEOUT};

  /* whatever a hostile writer may have put there */
  return phase <= PHASE_TIMEOUT ? verdicts[phase] : BOARD_TIMEOUT;
}

/* The next cell, once every rank has done with its former use; NULL when that takes longer than the wait. */
static struct cell *next_cell(struct board *board, struct patience *patience)
{
  while (!cell_is_free(board, board->last))
    if (!patience_left(patience, board))
      return NULL;
  return &board->shared->cells[board->last % BOARD_CELLS];
}

static enum board_verdict vote_in_cell(struct board *board, struct cell *cell, const struct board_ballot *ballot,
                                       struct patience *patience, bool pausable)
{
  uint64_t sequence = board->last, epoch = board_epoch(board);
  cell_word word = atomic_load_explicit(&cell->word, memory_order_acquire); /* pairs with claim() */
  bool voted = false;

  for (;;) {
    enum phase phase = word_phase(word);

    if (word_sequence(word) != sequence) {
      voted = claim(board, cell, &word, ballot);
    } else if (phase >= PHASE_YES) {
      return verdict_of(phase);
    } else if ((phase == PHASE_OPEN || phase == PHASE_UNEVEN) && !voted) {
      phase = compare(cell, phase, ballot);
      if (phase != PHASE_DIFFER)
        voted = join(board, cell, &word, phase);
      else
        word = latch(board, cell, word, sequence, phase);
    } else if (pausable && board_epoch(board) != epoch) {
      word = latch(board, cell, word, sequence, PHASE_DIFFER); /* as it will with the ballots of those that heard */
    } else if ((pausable && (is_paused(board, sequence) || somebody_left(board))) || !patience_left(patience, board)) {
      word = latch(board, cell, word, sequence, PHASE_TIMEOUT);
    } else {
      word = atomic_load_explicit(&cell->word, memory_order_acquire);
    }
  }
}

/* Goes to the next cell; false for good where the sequence does not fit a word any more, which all ranks find alike. */
static bool advance(struct board *board)
{
  if (board->last >= LAST_SEQUENCE) {
    board_leave(board);
    return false;
  }
  board->last++;
  /* relaxed: for people, board_late_rank() */
  atomic_store_explicit(&board->shared->places[board->slot].come, board->last, memory_order_relaxed);
  return true;
}

static enum board_verdict vote(struct board *board, const struct board_ballot *ballot, uint32_t wait_us, bool step)
{
  struct patience patience = {.limit_us = wait_us};
  enum board_verdict verdict = BOARD_PAUSED;
  struct cell *cell;

  if (!advance(board))
    return BOARD_LEFT;
  if (step || !is_paused(board, board->last)) {
    cell = next_cell(board, &patience);
    if (cell)
      verdict = vote_in_cell(board, cell, ballot, &patience, !step);
    else /* lapped: a rank is a whole ring behind, and nobody need try for a while */
      pause_from(board, board->last);
  }
  finish_cell(board);
  if (verdict != BOARD_YES && verdict != BOARD_MIXED && somebody_left(board))
    return BOARD_LEFT;
  return verdict;
}

enum board_verdict board_vote(struct board *board, const struct board_ballot *ballot, uint32_t wait_us)
{
  return vote(board, ballot, wait_us, false);
}

enum board_verdict board_vote_step(struct board *board, const struct board_ballot *ballot, uint32_t wait_us)
{
  return vote(board, ballot, wait_us, true);
}

void board_decline(struct board *board)
{
  struct cell *cell;

  if (!advance(board))
    return;
  /* In a pause too, as this may be a step. Where the cell is not free, not voting is as good as declining: the
   * others time out. */
  if (cell_is_free(board, board->last)) {
    cell = &board->shared->cells[board->last % BOARD_CELLS];
    latch(board, cell, atomic_load_explicit(&cell->word, memory_order_acquire), board->last, PHASE_DECLINED);
  }
  finish_cell(board);
}

int board_sweep(void)
{
  char prefix[64];
  struct dirent *entry;
  DIR *folder = opendir(BOARD_FOLDER);
  time_t now = time(NULL);
  int removed = 0;

  if (!folder)
    return 0;
  snprintf(prefix, sizeof(prefix), BOARD_PREFIX "-%u-", (unsigned)geteuid());
  while ((entry = readdir(folder)) != NULL) {
    struct stat status;
    if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
        fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) &&
        status.st_uid == geteuid() && now - status.st_mtime > STALE_SECONDS &&
        unlinkat(dirfd(folder), entry->d_name, 0) == 0)
      removed++;
  }
  closedir(folder);
  return removed;
}
