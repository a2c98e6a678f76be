/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks agree on one cell, and on one after the other: the protocol of shim/board.c. A ring of CELLS cells,
 * RANKS ranks, LAST cells each. What they agree about is in child.pml.
 *
 *   spin -a cell.pml && gcc -O1 -DSAFETY -o pan pan.c && ./pan -m100000 (must say errors: 0)
 *   spin -a -DBUG_NOT_LATCHED cell.pml && ...                           (must say errors: 1, as for each BUG_ below)
 *   spin -t -p -g -DBUG_NOT_LATCHED cell.pml                            (the steps that lead to the error)
 *   spin -a cell.pml && gcc -O1 -DNP -o pan pan.c && ./pan -l -m100000  (no endless loop anywhere)
 *
 * At every cell each rank declines or votes. A ballot has a head (what is asked, and whether the voter is strict: it
 * could not make the call by copying) and a body (how its buffers lie, or NONE: like nobody's). All heads and bodies
 * equal: YES. All heads equal and lenient, but not all bodies: MIXED. After either the next cell is a step, where it
 * says whether it could do what was agreed. Time-outs may strike whenever a rank waits, and ranks may stop for ever at
 * any point, or for as long as they like.
 *
 * Holds, by assertion:
 *   - all that read a verdict at a cell read the same one; all ask the same kind of question there;
 *   - YES is read only where all ranks voted, and voted the same;
 *   - MIXED is read only where all ranks voted, none of them strict, all with one head and not all with one body;
 *   - DIFFER is read only where two votes stood against each other;
 *   - a step finds its cell free at once.
 * Holds, as there is no invalid end state: rank 0 comes to its end, whichever others stop.
 *
 * Left out: memory order (everything here is sequentially consistent; tests/unit/board_stress.c is for the rest) and
 * time. A ballot is one word, and compare-and-swap is strong.
 *
 * Variants that must fail:
 *   BUG_NOT_LATCHED      a rank that times out tells nobody
 *   BUG_DECLINE_UNTOLD   a rank that declines counts as if it had voted, lest the others wait for it
 *   BUG_COUNT_FIRST      the cell is opened before the ballot is in it
 *   BUG_EARLY_REUSE      a cell is taken though a rank has not done with its former use
 *   BUG_COUNT_TWICE      a vote whose compare-and-swap failed is counted twice (takes RANKS=4, LAST=1)
 *   BUG_MIXED_STRICT     a strict rank counts where the bodies are not all the same
 *   BUG_STRICT_UNSEEN    whether a rank is strict is not in its ballot (takes RANKS=3, LAST=1)
 *   BUG_MIXED_FORGOTTEN  a vote that is like the first one's clears the mixed flag (takes RANKS=3, LAST=1)
 *   BUG_NONE_EQUAL       two ballots of NONE are taken for equal
 *   BUG_NO_TIMEOUT       a wait without an end
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef LAST
#define LAST 3
#endif
#ifndef CELLS
#define CELLS 2
#endif
#ifndef DYING
#define DYING 1 /* whether ranks may stop, all but rank 0 */
#endif
#ifndef PAUSE_AFTER
#define PAUSE_AFTER 2 /* 0: there are no pauses */
#endif
#ifndef PAUSE_CALLS
#define PAUSE_CALLS 1
#endif
#define MAX_DOUBLINGS 1
/* FEW_BALLOTS: not all that there are, where something else is looked at */

#define FREE 0
#define CLAIMED 1
#define OPEN 2
#define YES 3
#define MIXED 4
#define DIFFER 5
#define DECLINED 6
#define TIMEOUT 7
#define PAUSED 8 /* a verdict, but no phase of a cell */

#define VOTE 1
#define DECLINE 2

/* A ballot: head and body. */
#define STRICT 0
#define LENIENT 1
#define OTHER 2 /* lenient too, but about something else */
#define NONE 2  /* bodies: 0, 1, NONE */
#define BALLOT_OF(head, body) ((head) * 3 + (body))
#define HEAD(ballot) ((ballot) / 3)
#define BODY(ballot) ((ballot) % 3)
#define NOT_YET 15
#ifdef BUG_STRICT_UNSEEN
#define SAME_HEAD(a, b) ((HEAD(a) == OTHER) == (HEAD(b) == OTHER))
#else
#define SAME_HEAD(a, b) (HEAD(a) == HEAD(b))
#endif
#define SAME_BODY(a, b) (BODY(a) == BODY(b) && BODY(a) != NONE)

/* {sequence, count, mixed, phase} in one number, as in the code, so that it changes at once */
#define WORD(sequence, count, mixed, phase) ((sequence) * 128 + (count) * 16 + (mixed) * 8 + (phase))
#define SEQUENCE(word) ((word) / 128)
#define COUNT(word) (((word) / 16) % 8)
#define IS_MIXED(word) (((word) / 8) % 2)
#define PHASE(word) ((word) % 8)

/* the shared memory */
short cell[CELLS];
byte ballot[CELLS];
byte done[RANKS];
byte paused_until, timeouts, pauses;

/* what is only looked at */
byte seen[LAST + 1];  /* the verdict that was read first */
byte votes[LAST + 1]; /* how many voted */
byte first[LAST + 1]; /* what the first of them voted */
byte found[LAST + 1]; /* what there is to say of the votes: the three bits below */
byte asked[LAST + 1]; /* 1: as a question, 2: as a step */

#define HEADS_DIFFER 1
#define BODIES_DIFFER 2 /* or one of them is NONE */
#define SOME_STRICT 4
#define AGAINST (found[last] & HEADS_DIFFER || (found[last] & BODIES_DIFFER && found[last] & SOME_STRICT))

/*
 * A rank that stops is seen by the others only in what it no longer writes. So it is enough that it may stop before
 * each write that is not the same step as its last look. Rank 0 never does: who may always stop is never stuck.
 * Options beside this one must not begin with a choice that has an `else`: Spin merges the two choices, and the
 * `else` would mean "unless it may stop".
 */
#define MAY_STOP (DYING && me != 0) -> goto gone
#define CELL cell[last % CELLS]
#define BALLOT ballot[last % CELLS]
#if PAUSE_AFTER > 0
#define IS_PAUSED (last < paused_until)
#else
#define IS_PAUSED false
#endif

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

/* Each pause is twice as long as the one before, until the ranks agree again. */
inline pause_from(sequence)
{
#if PAUSE_AFTER > 0
  d_step {
    if
    :: paused_until < sequence + (PAUSE_CALLS << pauses) -> paused_until = sequence + (PAUSE_CALLS << pauses)
    :: else
    fi;
    if
    :: pauses < MAX_DOUBLINGS -> pauses++
    :: else
    fi
  }
#else
  skip
#endif
}

/*
 * What this rank votes need not be settled before it writes or compares its ballot: fewer states. Rank 0's body is 0
 * or NONE, as the rest is but a mirror image.
 */
inline choose_ballot()
{
  if
  :: mine == NOT_YET ->
    if
    :: true -> mine = BALLOT_OF(STRICT, 0)
    :: !step -> mine = BALLOT_OF(LENIENT, 0)
    :: !step && me != 0 -> mine = BALLOT_OF(LENIENT, 1)
#ifndef FEW_BALLOTS
    :: !step && me != 0 -> mine = BALLOT_OF(STRICT, 1)
    :: !step -> mine = BALLOT_OF(LENIENT, NONE)
    :: !step && me == RANKS - 1 -> mine = BALLOT_OF(OTHER, 0)
#endif
    fi;
    if
    :: votes[last] == 0 -> first[last] = mine
    :: else
    fi;
    votes[last]++;
    found[last] = found[last] | (SAME_HEAD(mine, first[last]) -> 0 : HEADS_DIFFER) |
                  (SAME_BODY(mine, first[last]) -> 0 : BODIES_DIFFER) | (HEAD(mine) == STRICT -> SOME_STRICT : 0)
  :: else
  fi
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
  :: atomic { !IS_FINAL -> swap(WORD(last, 0, 0, phase)) }
#if PAUSE_AFTER > 0
    if
    :: swapped && phase == TIMEOUT && MAY_STOP
    :: swapped && phase == TIMEOUT && !IS_PAUSED ->
      timeouts++;
      if
      :: timeouts >= PAUSE_AFTER -> timeouts = 0; pause_from(last + 1)
      :: else
      fi
    :: !swapped || phase != TIMEOUT || IS_PAUSED
    fi
#endif
  od
}

#define OPENED WORD(last, 1, (BODY(mine) == NONE), OPEN)

inline claim()
{
#ifdef BUG_COUNT_FIRST
  atomic { choose_ballot(); swap(OPENED); voted = swapped }
  if
  :: voted -> BALLOT = mine
  :: else
  fi
#else
  swap(WORD(last, 0, 0, CLAIMED));
  if
  :: swapped ->
    if
    :: MAY_STOP
    :: atomic { true -> choose_ballot(); BALLOT = mine }
    fi;
    if
    :: MAY_STOP
    :: atomic { true -> swap(OPENED); voted = swapped }
    fi
  :: else
  fi
#endif
}

/*
 * Adds this rank's vote to the open cell, or finds that it stands against the ballot there. A cell whose ballot is
 * strict is never mixed, so that equal heads are all that a joiner has to know of those who joined before it.
 */
inline join()
{
  atomic {
    swapped = false;
    choose_ballot();
#if defined(BUG_NONE_EQUAL)
    mixed = (BODY(mine) != BODY(BALLOT));
#elif defined(BUG_MIXED_FORGOTTEN)
    mixed = !SAME_BODY(mine, BALLOT);
#else
    mixed = IS_MIXED(word) || !SAME_BODY(mine, BALLOT);
#endif
#ifdef BUG_MIXED_STRICT
    fits = SAME_HEAD(mine, BALLOT);
#else
    fits = SAME_HEAD(mine, BALLOT) && (!mixed || HEAD(mine) != STRICT);
#endif
    if
    :: fits && COUNT(word) + extra + 1 >= RANKS && !mixed -> swap(WORD(last, 0, 0, YES))
    :: fits && COUNT(word) + extra + 1 >= RANKS && mixed -> swap(WORD(last, 0, 0, MIXED))
    :: fits && COUNT(word) + extra + 1 < RANKS -> swap(WORD(last, COUNT(word) + extra + 1, mixed, OPEN))
    :: !fits
    fi;
    voted = swapped;
    mixed = 0;
#ifdef BUG_COUNT_TWICE
    extra = extra + (fits && !swapped)
#endif
  }
  if
  :: !fits -> latch(DIFFER)
#if PAUSE_AFTER > 0
  :: fits && voted && IS_FINAL && MAY_STOP
  :: fits && voted && IS_FINAL -> d_step { timeouts = 0; pauses = 0 }
  :: fits && (!voted || !IS_FINAL)
#else
  :: fits
#endif
  fi;
  fits = 0
}

/* Ends with what this rank reads in `verdict`. */
inline vote_in_cell()
{
  do
  :: !IS_MINE -> claim()
  :: atomic { IS_FINAL -> verdict = PHASE(word); break }
  :: IS_MINE && PHASE(word) == OPEN && !voted -> join()
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
#ifdef BUG_DECLINE_UNTOLD
  :: atomic {
      IS_FREE ->
      word = CELL;
      if
      :: IS_MINE && PHASE(word) == OPEN && COUNT(word) + 1 == RANKS -> CELL = WORD(last, 0, 0, YES)
      :: IS_MINE && PHASE(word) == OPEN && COUNT(word) + 1 < RANKS -> CELL = word + WORD(0, 1, 0, 0)
      :: !IS_MINE || PHASE(word) != OPEN
      fi
    }
#else
  :: atomic { IS_FREE -> word = CELL } latch(DECLINED)
#endif
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
      assert(verdict != YES || (votes[last] == RANKS && !(found[last] & (HEADS_DIFFER | BODIES_DIFFER))));
      assert(verdict != MIXED || (votes[last] == RANKS && found[last] == BODIES_DIFFER));
      assert(verdict != DIFFER || AGAINST)
    fi;
    done[me] = last;
    step = ((verdict == YES || verdict == MIXED) && !step && last < LAST && CELLS > 1); /* it needs the next cell */
    if
    :: ALL_DONE(last) -> /* nobody looks there again: fewer states */
      seen[last] = 0; votes[last] = 0; first[last] = 0; found[last] = 0; asked[last] = 0
    :: else
    fi;
    word = 0; mine = NOT_YET; verdict = 0; voted = 0; swapped = 0; extra = 0; choice = 0
  }
}

proctype rank(byte me)
{
  byte last, verdict, choice, extra;
  byte mine = NOT_YET;
  short word;
  bool step, voted, swapped, mixed, fits;

  do
  :: last == LAST -> break
  :: last < LAST && MAY_STOP
  :: atomic {
      last < LAST ->
      last++;
      assert(asked[last] == 0 || asked[last] == 1 + step);
      asked[last] = 1 + step;
      if
      :: choice = VOTE
      :: choice = DECLINE
      fi;
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
