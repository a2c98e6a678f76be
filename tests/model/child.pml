/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks agree about: making the child, registering on it, slots to copy through, and dropping it. RANKS ranks
 * make CALLS calls each; a cell of the board is one step here, as cell.pml shows that it may be.
 *
 *   spin -a child.pml && gcc -O1 -DSAFETY -o pan pan.c && ./pan -m100000 (must say errors: 0)
 *   spin -a -DBUG_DROP_ALONE child.pml && ...                            (must say errors: 1, as for each BUG_ below)
 *   spin -t -p -g -DBUG_DROP_ALONE child.pml                             (the steps that lead to the error)
 *
 * A call looks at the epoch first, and lets go of a child of an older one. Then the ranks agree to make a child if
 * there is none, make it together (split), and agree that all have it; agree about the call; register together what is
 * new, or allocate and register the slots, and agree that all could. Each of it may fail on one rank alone. At any time
 * a rank may run out of memory, which raises the epoch. Time-outs may strike whenever a rank waits, and the last rank
 * may be killed at any point (DYING=1), which ends what others enter together with it. A rank that only stands still is
 * one that takes no step.
 *
 * Holds, by assertion:
 *   - all ranks make a call in the same way: plainly, on the same child, or on the same child through slots;
 *   - all ranks take the same cells for a call;
 *   - what a call on the child uses is registered on all ranks, none of which has ended that child;
 *   - a rank ends its child only after all have issued every call on it that this rank agreed to;
 *   - what one rank ended, every other ends when it looks at the epoch at its next call, or as soon as it can;
 *   - a child is not ended once a graph that replays calls on it was captured.
 * Holds, as there is no invalid end state: nobody waits for ever.
 *
 * Left out: plain calls that nothing is asked about, pauses and the ring (cell.pml), two new windows in one call.
 *
 * Variants that must fail:
 *   BUG_DROP_ALONE         a rank that runs out of memory drops its child and tells nobody
 *   BUG_EPOCH_UNSEEN       the epoch is not in the ballot
 *   BUG_DROP_IN_CALL       a rank that runs out of memory drops the child under a call that was agreed
 *   BUG_DROP_BUSY          a rank drops its child though others have not issued what it agreed to
 *   BUG_DROP_WAITS         a call waits until the child may be dropped, instead of declining (takes DYING=1)
 *   BUG_DROP_CAPTURED      a child is dropped though a graph has calls on it
 *   BUG_CHILD_NOT_AGREED   a rank uses the child without asking whether all have it
 *   BUG_WINDOW_NOT_AGREED  a rank uses a window without asking whether all have it
 *   BUG_SLOT_NOT_AGREED    a rank uses slots without asking whether all have them
 *   BUG_SLOT_NOT_READY     the ranks register slots without asking whether all could allocate them
 *   BUG_SLOT_FAIL_KEEPS    after slots could not be registered the child is used on
 *   BUG_NO_ABORT           a rank that cannot register leaves its child alone
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef DYING
#define DYING 0
#endif
#ifndef SHORT
#define SHORT 2 /* how often ranks run out of memory, all together */
#endif
#ifndef FAILS
#define FAILS 1 /* how often something fails on one rank, all together */
#endif
/* NO_TIMEOUTS: the ranks wait for one another as long as it takes, for fewer states */
#define CELLS (5 * CALLS + 1) /* a call takes five at most; none has number 0 */

/* verdicts of a cell */
#define OPEN 0
#define YES 1
#define MIXED 2
#define NO 3 /* DIFFER, DECLINED or TIMEOUT: the ranks do the same on each */

/* questions */
#define CHILD_READY 0
#define CHILD_MADE 1
#define CALL 2
#define REGISTERED 3
#define SLOT_READY 4
#define SLOT_REGISTERED 5

/* bodies */
#define KNOWN 0 /* in the window that all have */
#define NEW 1   /* to be registered */
#define NONE 2  /* in no window */

/* The head of a ballot: all that has to be equal on lenient ranks too. */
#ifdef BUG_EPOCH_UNSEEN
#define HEAD(question, strict) ((question) * 2 + (strict))
#else
#define HEAD(question, strict) (epoch_of[me] * 16 + (question) * 2 + (strict))
#endif

/* how a call is made, with the child's number */
#define PLAIN 1
#define DIRECT 2
#define STAGED 3
#define WAY(made) ((made) + 4 * (made == PLAIN -> 0 : child[me]))

/* the shared memory: the board */
byte verdict[CELLS], count[CELLS], head[CELLS], body[CELLS];
bit mixed[CELLS];
byte epoch;

/* what each rank has; it alone changes it, in the thread that makes its calls or in another */
byte child[RANKS];    /* number of the cell in which the ranks agreed to make it; 0: none */
byte epoch_of[RANKS]; /* the epoch this rank votes under */
bit held[RANKS];      /* a call is under way */
bit window[RANKS];    /* the buffers' window is registered */
bit slots[RANKS];     /* the slots are registered */
bit captured[RANKS];  /* a graph has calls on the child */
bit gave_up[RANKS];   /* slots are not tried again on this child */
byte last_on[RANKS];  /* the last call issued on the child that not all have issued yet; 0: none */

/* NCCL, and whether one rank is dead */
byte entered[CELLS];  /* how many ranks entered what the cell was about */
bit aborted[CELLS];   /* a rank's child with this number is gone */
bit dead;

/* what is only looked at */
byte way[CALLS + 1];    /* how the first rank made the call */
byte issued[CALLS + 1]; /* how many made it */
byte ended[CALLS + 1];  /* with which cell */
byte shortages, fails;

#if RANKS == 2
#define ALL(x) (x(0) && x(1))
#else
#define ALL(x) (x(0) && x(1) && x(2))
#endif
#define HAS_MINE(r) (child[r] == child[me])
#define HAS_WINDOW(r) window[r]
#define HAS_SLOTS(r) slots[r]

/* One may be killed, but not the others: who may always stop is never stuck. */
#define MAY_STOP (DYING && !dead && me == RANKS - 1) -> dead = 1; goto gone
#define MAY_FAIL (fails < FAILS) -> fails++

/* Whether all have issued what this rank issued on its child, which then comes to its end by itself. */
#define IDLE(r) (last_on[r] == 0)

inline end_child(r)
{
  assert(IDLE(r));
  assert(!captured[r]);
  aborted[child[r]] = 1;
  child[r] = 0; window[r] = 0; slots[r] = 0; last_on[r] = 0;
  captured[r] = 0; gave_up[r] = 0
}

/* Posts a ballot and waits; ends with the verdict in `read`. A strict ballot has a head of its own. */
inline vote(question, strict, mine)
{
  cell++;
  if
  :: MAY_STOP
  :: atomic {
      true ->
      if
      :: verdict[cell] != OPEN
      :: verdict[cell] == OPEN && count[cell] == 0 ->
        count[cell] = 1; head[cell] = HEAD(question, strict); body[cell] = mine; mixed[cell] = (mine == NONE)
      :: verdict[cell] == OPEN && count[cell] > 0 && head[cell] != HEAD(question, strict) -> verdict[cell] = NO
      :: verdict[cell] == OPEN && count[cell] > 0 && head[cell] == HEAD(question, strict) ->
        unlike = (mixed[cell] || body[cell] != mine || mine == NONE);
        if
        :: unlike && strict -> verdict[cell] = NO
        :: !unlike || !strict ->
          mixed[cell] = unlike;
          count[cell]++;
          if
          :: count[cell] == RANKS -> verdict[cell] = (unlike -> MIXED : YES)
          :: else
          fi
        fi;
        unlike = 0
      fi
    }
  fi;
  if
  :: MAY_STOP
  :: atomic { verdict[cell] != OPEN -> read = verdict[cell] }
#ifndef NO_TIMEOUTS
  :: atomic { verdict[cell] == OPEN -> verdict[cell] = NO; read = NO }
#endif
  fi
}

inline decline()
{
  cell++;
  if
  :: MAY_STOP
  :: atomic {
      true ->
      if
      :: verdict[cell] == OPEN -> verdict[cell] = NO
      :: else
      fi;
      read = NO
    }
  fi
}

/* Asks whether all could; ends with YES or NO in `read`. A rank that could not does not wait for the answer. */
inline step(question, could)
{
  if
  :: could -> vote(question, 1, KNOWN)
  :: !could -> decline()
  fi
}

/* The split: NCCL lets the ranks go when all have entered, or one is dead. */
inline split()
{
  if
  :: MAY_STOP
  :: entered[cell]++
  fi;
  if
  :: MAY_STOP
  :: atomic { entered[cell] == RANKS -> child[me] = cell; could = true }
  :: atomic { entered[cell] == RANKS && MAY_FAIL; aborted[cell] = 1; could = false }
  :: atomic { entered[cell] < RANKS && dead -> aborted[cell] = 1; could = false }
  fi
}

/* Something failed, here or on another rank: this one has no use for a child any more. */
inline give_up()
{
  atomic {
    lost = true;
#ifndef BUG_NO_ABORT
    if
    :: child[me] != 0 -> end_child(me)
    :: else
    fi
#endif
  }
}

/*
 * A registration on the child: a rank may fail before the others come together or after, and ends the others' wait
 * by aborting its child.
 */
inline enter_together(what)
{
  if
  :: MAY_STOP
  :: atomic { true -> entered[cell]++; could = true }
  :: atomic { MAY_FAIL; could = false }
  fi;
  if
  :: !could
  :: could && MAY_STOP
  :: atomic { could && entered[cell] == RANKS -> what = 1 }
  :: atomic { could && entered[cell] == RANKS && MAY_FAIL; could = false }
  :: atomic { could && entered[cell] < RANKS && (dead || aborted[child[me]]) -> could = false }
  fi;
  if
  :: !could -> give_up()
  :: could
  fi
}

#ifdef BUG_DROP_BUSY
#define IDLE_ENOUGH(r) true
#else
#define IDLE_ENOUGH(r) IDLE(r)
#endif
#ifdef BUG_DROP_CAPTURED
#define CAPTURED(r) false
#else
#define CAPTURED(r) captured[r]
#endif

/* At the start of a call: ends with `busy` set where the child is to go, but cannot yet. */
inline look_at_epoch()
{
  atomic {
    held[me] = 1;
    if
    :: epoch != epoch_of[me] && child[me] != 0 && !CAPTURED(me) && IDLE_ENOUGH(me) ->
      end_child(me);
      epoch_of[me] = epoch
    :: epoch != epoch_of[me] && (child[me] == 0 || CAPTURED(me)) -> epoch_of[me] = epoch
#ifndef BUG_DROP_WAITS
    :: epoch != epoch_of[me] && child[me] != 0 && !CAPTURED(me) && !IDLE_ENOUGH(me) -> busy = true
#endif
    :: epoch == epoch_of[me]
    fi;
    assert(child[me] == 0 || busy || !aborted[child[me]])
  }
}

/* Makes the child, if the ranks agree. A rank that declines, now or for some calls, is like one that comes too late. */
inline make_child()
{
  vote(CHILD_READY, 1, KNOWN);
  if
  :: read == YES ->
    split();
#ifdef BUG_CHILD_NOT_AGREED
    if
    :: could -> read = YES
    :: !could -> give_up()
    fi
#else
    step(CHILD_MADE, could);
    if
    :: read == YES
    :: read != YES -> give_up()
    fi
#endif
  :: read != YES
  fi
}

/* Agrees about a call for which there is a child; ends with how it is made in `made`. */
inline agree()
{
  if /* nothing may be ended any more once there is a graph: then nothing is registered that could fail */
  :: window[me] -> vote(CALL, 0, KNOWN)
  :: !window[me] && !captured[me] -> vote(CALL, 0, NEW)
  :: vote(CALL, 0, NONE)
  :: window[me] -> capturing = true; vote(CALL, 1, KNOWN)
  fi;
  if
  :: read == YES && window[me] -> made = DIRECT
  :: read == YES && !window[me] ->
    enter_together(window[me]);
#ifdef BUG_WINDOW_NOT_AGREED
    read = (could -> YES : NO);
#else
    step(REGISTERED, could);
#endif
    if
    :: read == YES -> made = DIRECT
    :: read != YES -> give_up()
    fi
  :: read == MIXED && slots[me] -> made = STAGED
  :: read == MIXED && !slots[me] && (gave_up[me] || captured[me]) /* alike on all ranks */
  :: read == MIXED && !slots[me] && !gave_up[me] && !captured[me] -> grow_slots()
  :: read == NO
  fi
}

inline grow_slots()
{
  if
  :: atomic { MAY_FAIL; could = false } /* out of memory */
  :: could = true
  fi;
#ifdef BUG_SLOT_NOT_READY
  read = (could -> YES : NO);
#else
  step(SLOT_READY, could);
#endif
  if
  :: read == YES ->
    enter_together(slots[me]);
#ifdef BUG_SLOT_NOT_AGREED
    read = (could -> YES : NO);
#else
    step(SLOT_REGISTERED, could);
#endif
    if
    :: read == YES -> made = STAGED
#ifdef BUG_SLOT_FAIL_KEEPS
    :: read != YES -> gave_up[me] = 1
#else
    :: read != YES -> give_up()
#endif
    fi
  :: read != YES -> gave_up[me] = 1
  fi
}

/* All have made this call, and so nobody looks at its cells again: fewer states. */
inline forget()
{
  way[call] = 0; issued[call] = 0; ended[call] = 0;
  do
  :: number < RANKS ->
    last_on[number] = (last_on[number] == call -> 0 : last_on[number]);
    number++
  :: else -> break
  od;
  number = cell;
  do
  :: number > 0 && verdict[number] != OPEN ->
    verdict[number] = OPEN; count[number] = 0; head[number] = 0; body[number] = 0; mixed[number] = 0;
    entered[number] = 0;
    number--
  :: else -> break
  od;
  number = 0
}

/* The real call. */
inline issue()
{
  atomic {
    assert(way[call] == 0 || way[call] == WAY(made));
    way[call] = WAY(made);
    assert(ended[call] == 0 || ended[call] == cell);
    ended[call] = cell;
    issued[call]++;
    if
    :: made != PLAIN ->
      assert(child[me] != 0 && !aborted[child[me]] && ALL(HAS_MINE));
      assert(made != DIRECT || ALL(HAS_WINDOW));
      assert(made != STAGED || ALL(HAS_SLOTS));
      last_on[me] = call;
      captured[me] = captured[me] || capturing
    :: else
    fi;
    if
    :: issued[call] == RANKS -> forget()
    :: else
    fi;
    held[me] = 0;
    made = PLAIN; capturing = 0; could = 0; read = 0; busy = 0
  }
}

proctype rank(byte me)
{
  byte call, cell, read, number;
  byte made = PLAIN;
  bool could, busy, unlike, capturing;
  bool lost; /* no child any more */

  do
  :: call == CALLS -> break
  :: call < CALLS && MAY_STOP
  :: atomic { call < CALLS -> call++ }
    look_at_epoch();
    if
    :: lost || busy -> decline()
    :: !lost && !busy && child[me] == 0 ->
      make_child();
      if
      :: child[me] != 0 && read == YES -> agree()
      :: else
      fi
    :: !lost && !busy && child[me] != 0 -> agree()
    fi;
    if
    :: MAY_STOP
    :: true -> issue()
    fi
  od;
gone:
  skip
}

/* A rank runs out of memory, in a thread that makes no call or in one that does. */
proctype pressure()
{
  byte me;

end:
  do
  :: atomic {
      shortages < SHORT ->
      shortages++;
      if /* ranks are alike: two of them are enough */
      :: me = 0
      :: me = 1
      fi;
#ifndef BUG_DROP_ALONE
      epoch++ /* before the drop, so that nobody misses it after; here also where there is no child, or one more drop */
#endif
    }
    /* at once if no call is under way; else the next call does it */
    atomic {
      if
#ifdef BUG_DROP_IN_CALL
      :: child[me] != 0 && !captured[me] && IDLE(me) -> end_child(me); epoch_of[me] = epoch
#elif defined(BUG_DROP_ALONE)
      :: child[me] != 0 && !captured[me] && IDLE(me) && !held[me] -> end_child(me)
#else
      :: epoch != epoch_of[me] && child[me] != 0 && !captured[me] && IDLE(me) && !held[me] ->
        end_child(me);
        epoch_of[me] = epoch
#endif
      :: else
      fi;
      me = 0
    }
  od
}

init
{
  byte number;

  atomic {
    do
    :: number < RANKS -> run rank(number); number++
    :: else -> break
    od;
    run pressure()
  }
}
