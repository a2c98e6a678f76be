/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of shim/board.c: a ring of CELLS cells, RANKS ranks, LAST cells each.
 *
 *   spin -a board.pml && gcc -O2 -DSAFETY -DMEMLIM=1900 -o pan pan.c && ./pan -m100000
 *   spin -a -DBUG_NOT_LATCHED board.pml && ...                          (must say errors: 1, as for each BUG_ below)
 *   spin -t -p -g board.pml                                             (the steps that lead to the error)
 *   spin -a board.pml && gcc -O2 -DNP -o pan pan.c && ./pan -l -m100000 (no endless loop anywhere)
 *
 * Every rank, at every cell: declines, or votes 0 or 1. After YES to a question it does its part ("registers"), which
 * may fail on it alone; the next cell is then a step, where it says whether it could. YES to the step and it uses the
 * result. Time-outs may strike whenever a rank waits, and ranks may stop for ever at any point.
 *
 * Holds, by assertion:
 *   - all that read a verdict at a cell read the same one; all ask the same kind of question there;
 *   - YES is read only where all ranks voted, and voted the same;
 *   - a rank uses a registration only if it succeeded on all ranks.
 * Holds, as there is no invalid end state: rank 0 comes to its end, whichever others stop.
 *
 * Left out: memory order (everything here is sequentially consistent; tests/unit/board_stress.c is for the rest) and
 * time. A ballot is one word, and compare-and-swap is strong.
 *
 * Variants that must fail:
 *   BUG_NOT_LATCHED   a rank that times out tells nobody
 *   BUG_COUNT_FIRST   the cell is opened before the ballot is in it
 *   BUG_EARLY_REUSE   a cell is taken though a rank has not done with its former use
 *   BUG_COUNT_TWICE   a vote whose compare-and-swap failed is counted, and then counted again (takes RANKS=4, LAST=1)
 *   BUG_NOT_AGREED    a rank uses what it registered without asking whether all could
 *   BUG_NO_TIMEOUT    a wait without an end
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef LAST
#define LAST 4
#endif
#ifndef CELLS
#define CELLS 2
#endif
#ifndef DYING
#define DYING 1 /* whether ranks may stop, all but rank 0 */
#endif
#ifndef PAUSE_AFTER
#define PAUSE_AFTER 2 /* 0: time-outs are not counted */
#endif
#ifndef PAUSE_CALLS
#define PAUSE_CALLS 1
#endif

#define FREE 0
#define CLAIMED 1
#define OPEN 2
#define YES 3
#define DIFFER 4
#define DECLINED 5
#define TIMEOUT 6
#define PAUSED 7

#define VOTE 1
#define DECLINE 2

/* {sequence, count, phase} in one number, as in the code, so that it changes at once */
#define WORD(sequence, count, phase) ((sequence) * 64 + (count) * 8 + (phase))
#define SEQUENCE(word) ((word) / 64)
#define COUNT(word) (((word) / 8) % 8)
#define PHASE(word) ((word) % 8)

/* the shared memory */
short cell[CELLS];
bit ballot[CELLS];
byte done[RANKS];
byte paused_until, timeouts;

/* what is only looked at */
byte seen[LAST + 1];      /* the verdict that was read first */
byte votes[LAST + 1];     /* how many voted */
byte ones[LAST + 1];      /* how many of them 1 */
byte succeeded[LAST + 1]; /* on how many ranks the registration after this question succeeded */
byte asked[LAST + 1];     /* 1: as a question, 2: as a step */

/*
 * A rank that stops is seen by the others only in what it no longer writes. So it is enough that it may stop before
 * each write that is not the same step as its last look. Rank 0 never does: who may always stop is never stuck.
 * Options beside this one must not begin with a choice that has an `else`: Spin merges the two choices, and the
 * `else` would mean "unless it may stop".
 */
#define MAY_STOP (DYING && me != 0) -> goto gone
#define CELL cell[last % CELLS]
#define BALLOT ballot[last % CELLS]
#define IS_PAUSED (last < paused_until)

/* Scanning done[] takes several steps in the code. Each only grows, so one step tells as much. */
#if RANKS == 2
#define ALL_DONE(k) (done[0] >= (k) && done[1] >= (k))
#elif RANKS == 3
#define ALL_DONE(k) (done[0] >= (k) && done[1] >= (k) && done[2] >= (k))
#else
#define ALL_DONE(k) (done[0] >= (k) && done[1] >= (k) && done[2] >= (k) && done[3] >= (k))
#endif
#ifdef BUG_EARLY_REUSE
#define IS_FREE true
#else
#define IS_FREE (last <= CELLS || ALL_DONE(last - CELLS))
#endif

inline pause_from(sequence)
{
  d_step {
    if
    :: paused_until < sequence + PAUSE_CALLS -> paused_until = sequence + PAUSE_CALLS
    :: else
    fi
  }
}

/* Compare-and-swap of the cell's word, from `word` to `wanted`; like the code's, it leaves the word seen in `word`. */
inline swap(wanted)
{
  d_step {
    swapped = (CELL == word);
    if
    :: swapped -> CELL = wanted; word = wanted
    :: else -> word = CELL
    fi
  }
}

#define IS_MINE (SEQUENCE(word) == last)
#define IS_FINAL (IS_MINE && PHASE(word) >= YES)

inline latch(phase)
{
  do
  :: IS_FINAL -> break
  :: atomic { !IS_FINAL -> swap(WORD(last, 0, phase)) }
    if
    :: swapped && phase == TIMEOUT && PAUSE_AFTER > 0 && MAY_STOP
    :: swapped && phase == TIMEOUT && PAUSE_AFTER > 0 && !IS_PAUSED ->
      timeouts++;
      if
      :: timeouts >= PAUSE_AFTER -> timeouts = 0; pause_from(last + 1)
      :: else
      fi
    :: !swapped || phase != TIMEOUT || PAUSE_AFTER == 0 || IS_PAUSED
    fi
  od
}

inline claim()
{
#ifdef BUG_COUNT_FIRST
  atomic { swap(WORD(last, 1, OPEN)); voted = swapped }
  if
  :: voted -> BALLOT = mine
  :: else
  fi
#else
  swap(WORD(last, 0, CLAIMED));
  if
  :: swapped ->
    if
    :: MAY_STOP
    :: BALLOT = mine
    fi;
    if
    :: MAY_STOP
    :: atomic { true -> swap(WORD(last, 1, OPEN)); voted = swapped }
    fi
  :: else
  fi
#endif
}

inline join()
{
  atomic {
    if
    :: COUNT(word) + extra + 1 >= RANKS -> swap(WORD(last, 0, YES))
    :: else -> swap(WORD(last, COUNT(word) + extra + 1, OPEN))
    fi;
    voted = swapped;
#ifdef BUG_COUNT_TWICE
    extra = extra + !swapped
#endif
  }
  if
  :: voted && IS_FINAL && MAY_STOP
  :: voted && IS_FINAL -> timeouts = 0
  :: !voted || !IS_FINAL
  fi
}

/* Ends with what this rank reads in `verdict`. */
inline vote_in_cell()
{
  do
  :: !IS_MINE -> claim()
  :: atomic { IS_FINAL -> verdict = PHASE(word); break }
  :: IS_MINE && PHASE(word) == OPEN && !voted ->
    if
    :: BALLOT == mine -> join()
    :: BALLOT != mine -> latch(DIFFER)
    fi
  :: IS_MINE && !IS_FINAL && (PHASE(word) != OPEN || voted) ->
    /* the code looks again and again; here, until the word changes */
    if
    :: MAY_STOP
    :: d_step { CELL != word -> word = CELL }
    :: !step && IS_PAUSED -> latch(TIMEOUT)
#ifdef BUG_NOT_LATCHED
    :: true -> verdict = TIMEOUT; break
#elif !defined(BUG_NO_TIMEOUT)
    :: true -> latch(TIMEOUT)
#endif
    fi
  od
}

/* A cell that is free stays so for this rank: the look at it and the first look at the word may be one step. */
inline vote()
{
  if
  :: atomic { IS_FREE -> word = CELL } vote_in_cell()
  :: !IS_FREE -> /* the wait for it came to its end */
    assert(!step);
    pause_from(last);
    verdict = PAUSED
  fi
}

inline decline()
{
  if
  :: atomic { IS_FREE -> word = CELL } latch(DECLINED)
  :: !IS_FREE
  fi
}

/* Looks at what was read, as no step of the protocol, and has done with the cell. */
inline finish()
{
  atomic {
    if
    :: choice == DECLINE || verdict == PAUSED
    :: else ->
      assert(seen[last] == FREE || seen[last] == verdict);
      seen[last] = verdict;
      assert(verdict != YES || (votes[last] == RANKS && (ones[last] == 0 || ones[last] == RANKS)))
    fi;
    if
    :: step && verdict == YES -> assert(succeeded[last - 1] == RANKS)
    :: else
    fi;
    done[me] = last;
    step = (verdict == YES && !step && last < LAST && CELLS > 1); /* a step needs the next cell free at once */
    if
    :: ALL_DONE(last) -> /* nobody looks there again: fewer states */
      seen[last] = 0; votes[last] = 0; ones[last] = 0; asked[last] = 0; succeeded[last - 1] = 0
    :: else
    fi;
    word = 0; mine = 0; verdict = 0; voted = 0; swapped = 0; extra = 0; choice = 0
  }
}

/* Does what a question that was answered YES was about. */
inline register()
{
  if
  :: succeeded[last]++; succeeds = true
  :: true
  fi;
#ifdef BUG_NOT_AGREED
  assert(!succeeds || succeeded[last] == RANKS)
#endif
}

proctype rank(byte me)
{
  byte last, verdict, choice, extra;
  short word;
  bit mine;
  bool step, succeeds, voted, swapped;

  do
  :: last == LAST -> break
  :: last < LAST && MAY_STOP
  :: atomic {
      last < LAST ->
      if
      :: step -> register()
      :: else
      fi;
      last++;
      assert(asked[last] == 0 || asked[last] == 1 + step);
      asked[last] = 1 + step;
      if
      :: !step -> choice = VOTE
      :: !step && me != 0 -> choice = VOTE; mine = 1 /* if rank 0 always votes 0, nothing is lost but mirror images */
      :: step && succeeds -> choice = VOTE; mine = 1
      :: !step || !succeeds -> choice = DECLINE
      fi;
      if
      :: choice == VOTE -> votes[last]++; ones[last] = ones[last] + mine
      :: else
      fi;
      succeeds = 0;
      if
      :: choice == VOTE && !step && IS_PAUSED -> verdict = PAUSED
      :: else
      fi
    }
    if
    :: verdict == PAUSED
    :: verdict != PAUSED && choice == VOTE -> vote()
    :: choice == DECLINE -> decline()
    fi;
    if
    :: MAY_STOP
    :: true -> finish()
    fi
  od;
gone:
  skip
}

init
{
  byte number;

  atomic {
    do
    :: number < RANKS -> run rank(number); number++
    :: else -> break
    od
  }
}
