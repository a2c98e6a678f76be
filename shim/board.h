/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of one host agree. One POSIX shared-memory object per communicator holds a ring of cells; each
 * rank brings the same sequence of questions, one cell each, and every rank reads the same verdict: YES only if
 * all of them posted the very same ballot in time.
 *
 * Owns the shared memory and its layout. Knows neither CUDA nor NCCL, prints nothing, starts nothing. One
 * thread at a time per board, except that any thread may set the cancel flag.
 */
#ifndef SYMMSHIM_BOARD_H
#define SYMMSHIM_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define BOARD_FOLDER "/dev/shm" /* where its object lies */

enum {
  BOARD_MAX_RANKS = 1024,
  BOARD_CELLS = 512,  /* how far the fastest rank may run ahead of the slowest; a power of two */
  BOARD_QUESTION = 3, /* words of a ballot that say what is asked */
  BOARD_WORDS = 9     /* all of them: the others say how things lie on this rank */
};

struct board;

/*
 * What is compared, to the last bit. The question has to be equal on all ranks in any case. Whether the rest has to be
 * is the voter's stance; a strict ballot never agrees with one that is not.
 */
enum board_stance {
  BOARD_STRICT,  /* it has to be */
  BOARD_LENIENT, /* where it is not, MIXED will do */
  BOARD_APART    /* it is not: MIXED at best */
};
struct board_ballot {
  uint64_t words[BOARD_WORDS];
  enum board_stance stance;
};

enum board_verdict {
  BOARD_YES,
  BOARD_MIXED,    /* all voted, none strictly, and the ballots are equal but for how things lie */
  BOARD_DIFFER,   /* the ballots differ */
  BOARD_DECLINED, /* a rank declined */
  BOARD_TIMEOUT,  /* a rank came later than another was willing to wait, or this one was cancelled */
  BOARD_PAUSED,   /* not asked: agreement pauses, after time-outs in a row or when a rank is a whole ring behind */
  BOARD_LEFT      /* a rank left for good: there will be no YES any more */
};

/* Why a board is of no use, as found when it is sealed; the same on every rank that attached. */
enum board_fault {
  BOARD_SOUND,
  BOARD_MISSING,      /* fewer ranks attached than the communicator has */
  BOARD_SAME_PROCESS, /* two ranks of one process, or a rank twice */
  BOARD_INCOMPATIBLE  /* ranks attached with different `compatibility` */
};

struct board_pace {
  uint32_t pause_after; /* time-outs in a row; 0: no number of them */
  uint32_t pause_calls; /* cells left out by a pause; twice as many by the next one if there was no YES between */
};

/*
 * Before a rank enters the communicator's init, which returns only after all ranks have entered: opens or makes
 * the object named by `key` and takes place `slot` of `capacity`. Nothing in it is trusted but what has the
 * right owner, mode and size. Returns 0 or -errno (-EPERM: not ours, -EOVERFLOW: capacity or slot too large).
 */
int board_attach(struct board **board, uint64_t key, uint32_t capacity, uint32_t slot, uint64_t compatibility,
                 struct board_pace pace);

/*
 * After init is complete, with the communicator's real size: removes the name and says whether all ranks are
 * there. The answer is final and the same on all attached ranks.
 */
enum board_fault board_seal(struct board *board, uint32_t nranks);

/* Unmaps; if it was not sealed removes the name, and leaves. NULL is fine. */
void board_detach(struct board *board);

/*
 * Posts a ballot in the next cell and waits at most `wait_us` for the verdict. A step belongs to a question that
 * was already answered YES (did all succeed?): it is asked even in a pause. Ends early when *cancel is set.
 */
enum board_verdict board_vote(struct board *board, const struct board_ballot *ballot, uint32_t wait_us);
enum board_verdict board_vote_step(struct board *board, const struct board_ballot *ballot, uint32_t wait_us);

/*
 * What can be said of a time-out: a rank that has not come to this rank's last question, or -1 if all have by now or it
 * is not known which one it is; and whether the next one will not be asked. A rank is known by what it was named.
 */
int board_late_rank(const struct board *board);
bool board_is_pausing(const struct board *board);
void board_name_rank(struct board *board, int rank);

/* Declines the next cell; never waits. */
void board_decline(struct board *board);

/*
 * What ranks built on each other's word they give up rank by rank, as each hears of it: whoever wants that moves the
 * epoch on. Any thread. Ballots under different epochs must not agree, so the caller puts its epoch into the question;
 * a rank that waits for a verdict meanwhile, but for a step's, has DIFFER at once.
 */
uint64_t board_epoch(const struct board *board);
void board_end_epoch(struct board *board, uint64_t epoch); /* does nothing if it has ended */

/*
 * Tells the others that this rank will never vote again, so that they need not hold on to anything either: what they
 * ask from then on is answered LEFT. Any thread; this rank goes on declining.
 */
void board_leave(struct board *board);

/* Makes every wait on the board end as a time-out, from any thread, for good. */
void board_cancel(struct board *board);

/* Objects of this user that a killed process left, older than an hour, are removed. Returns their number. */
int board_sweep(void);

#endif
