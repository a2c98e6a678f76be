/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every verdict takes. Needs no processes: two boards of one process differ from two processes in nothing but
 * the answer of the seal, which is let pass here. No test depends on how long anything takes; a wait that should
 * end early and does not runs into the time limit of the test.
 *
 * The board is compiled in, so that it can start where nobody has ever come.
 */
#include "shim/board.c" /* NOLINT */

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { PAIR = 2, LONG_US = 60 * 1000 * 1000 };

static const struct board_pace no_pause = {0};

/* Two ranks of this process. */
static void open_pair(struct board *boards[PAIR], struct board_pace pace)
{
  static uint32_t number;
  uint64_t key = (uint64_t)getpid() << 32 | ++number;

  for (uint32_t rank = 0; rank < PAIR; rank++)
    assert_int_equal(board_attach(&boards[rank], key, PAIR, rank, 0, pace), 0);
  for (uint32_t rank = 0; rank < PAIR; rank++)
    assert_int_equal(board_seal(boards[rank], PAIR), BOARD_SAME_PROCESS);
}

static void close_pair(struct board *boards[PAIR])
{
  for (uint32_t rank = 0; rank < PAIR; rank++)
    board_detach(boards[rank]);
}

/* A rank that votes in a thread of its own, and waits long. */
struct voter {
  pthread_t thread;
  struct board *board;
  struct board_ballot ballot;
  bool step;
  enum board_verdict verdict;
};

static void *voter_main(void *argument)
{
  struct voter *voter = argument;

  voter->verdict = (voter->step ? board_vote_step : board_vote)(voter->board, &voter->ballot, LONG_US);
  return NULL;
}

static void voter_start(struct voter *voter)
{
  assert_int_equal(pthread_create(&voter->thread, NULL, voter_main, voter), 0);
}

static enum board_verdict voter_join(struct voter *voter)
{
  assert_int_equal(pthread_join(voter->thread, NULL), 0);
  return voter->verdict;
}

static void short_sleep(void)
{
  usleep(3000);
}

/* Both vote at once and must read the same. */
static enum board_verdict vote_both(struct board *boards[PAIR], struct board_ballot first, struct board_ballot second,
                                    bool step)
{
  struct voter voter = {.board = boards[0], .ballot = first, .step = step};
  enum board_verdict verdict;

  voter_start(&voter);
  verdict = (step ? board_vote_step : board_vote)(boards[1], &second, LONG_US);
  assert_int_equal(voter_join(&voter), verdict);
  return verdict;
}

static const struct board_ballot same = {.words = {1, 2, 3, 4, 5, 6, 7, 8}};

static void test_yes_and_differ(void **state)
{
  struct board *boards[PAIR];

  (void)state;
  open_pair(boards, no_pause);
  assert_int_equal(vote_both(boards, same, same, false), BOARD_YES);
  for (int word = 0; word < BOARD_WORDS; word++)
    for (int bit = 0; bit < 64; bit += 21) {
      struct board_ballot other = same;
      other.words[word] ^= UINT64_C(1) << bit;
      assert_int_equal(vote_both(boards, same, other, false), BOARD_DIFFER);
      assert_int_equal(vote_both(boards, other, other, true), BOARD_YES);
    }
  close_pair(boards);
}

static void test_declined(void **state)
{
  struct voter voter = {.ballot = same};
  struct board *boards[PAIR];

  (void)state;
  open_pair(boards, no_pause);
  board_decline(boards[0]); /* first */
  assert_int_equal(board_vote(boards[1], &same, LONG_US), BOARD_DECLINED);
  voter.board = boards[1]; /* while the other waits */
  voter_start(&voter);
  short_sleep();
  board_decline(boards[0]);
  assert_int_equal(voter_join(&voter), BOARD_DECLINED);
  assert_int_equal(board_vote(boards[1], &same, 0), BOARD_TIMEOUT); /* too late to change the verdict */
  board_decline(boards[0]);
  board_decline(boards[0]); /* both */
  board_decline(boards[1]);
  assert_int_equal(vote_both(boards, same, same, false), BOARD_YES);
  close_pair(boards);
}

static void test_timeout(void **state)
{
  struct board_ballot other = {.words = {9}};
  struct board *boards[PAIR];

  (void)state;
  open_pair(boards, no_pause);
  assert_int_equal(board_vote(boards[0], &same, 1000), BOARD_TIMEOUT);
  assert_int_equal(board_vote(boards[1], &same, LONG_US), BOARD_TIMEOUT); /* late: the same verdict, though equal */
  assert_int_equal(board_vote(boards[1], &same, 0), BOARD_TIMEOUT);
  assert_int_equal(board_vote(boards[0], &other, LONG_US), BOARD_TIMEOUT); /* and though it differs */
  assert_int_equal(board_vote_step(boards[0], &same, 1000), BOARD_TIMEOUT);
  assert_int_equal(board_vote_step(boards[1], &same, LONG_US), BOARD_TIMEOUT);
  assert_int_equal(vote_both(boards, same, same, false), BOARD_YES);
  close_pair(boards);
}

static void expect_votes(struct board *board, int calls, enum board_verdict verdict)
{
  for (int call = 0; call < calls; call++)
    assert_int_equal(board_vote(board, &same, 0), verdict);
}

static void test_pause(void **state)
{
  const struct board_pace pace = {.pause_after = 3, .pause_calls = 5};
  struct board *boards[PAIR];

  (void)state;
  open_pair(boards, pace);
  expect_votes(boards[0], 3, BOARD_TIMEOUT);
  expect_votes(boards[0], 5, BOARD_PAUSED);
  expect_votes(boards[1], 8, BOARD_PAUSED);
  assert_int_equal(vote_both(boards, same, same, false), BOARD_YES); /* over */
  /* A YES in between starts the count anew; the verdicts of late ranks do not count again. */
  for (int round = 0; round < 3; round++) {
    expect_votes(boards[0], 2, BOARD_TIMEOUT);
    expect_votes(boards[1], 2, BOARD_TIMEOUT);
    assert_int_equal(vote_both(boards, same, same, false), BOARD_YES);
  }
  expect_votes(boards[1], 3, BOARD_TIMEOUT);
  expect_votes(boards[1], 1, BOARD_PAUSED);
  close_pair(boards);
}

static void test_step_in_pause(void **state)
{
  const struct board_pace pace = {.pause_after = 1, .pause_calls = 10};
  struct board *boards[PAIR];

  (void)state;
  open_pair(boards, pace);
  expect_votes(boards[0], 1, BOARD_TIMEOUT);
  expect_votes(boards[1], 1, BOARD_PAUSED);
  assert_int_equal(vote_both(boards, same, same, true), BOARD_YES);
  assert_int_equal(vote_both(boards, same, same, false), BOARD_PAUSED);
  board_decline(boards[0]);
  assert_int_equal(board_vote_step(boards[1], &same, LONG_US), BOARD_DECLINED);
  assert_int_equal(board_vote_step(boards[1], &same, 0), BOARD_TIMEOUT); /* makes the pause no longer */
  assert_int_equal(board_vote_step(boards[0], &same, LONG_US), BOARD_TIMEOUT);
  expect_votes(boards[0], 6, BOARD_PAUSED);
  expect_votes(boards[1], 6, BOARD_PAUSED);
  assert_int_equal(vote_both(boards, same, same, false), BOARD_YES);
  close_pair(boards);
}

/* One rank a whole ring behind: the other neither takes the cells from it nor waits for it at every call. */
static void test_lapping(void **state)
{
  const struct board_pace pace = {.pause_after = 0, .pause_calls = 10};
  struct board *boards[PAIR];

  (void)state;
  open_pair(boards, pace);
  board_decline(boards[0]);
  expect_votes(boards[0], BOARD_CELLS - 1, BOARD_TIMEOUT);
  assert_int_equal(board_vote(boards[0], &same, 1000), BOARD_PAUSED); /* the first cell is not free yet */
  for (int call = 0; call < 9; call++)
    assert_int_equal(board_vote(boards[0], &same, LONG_US), BOARD_PAUSED); /* without a wait */
  expect_votes(boards[1], BOARD_CELLS + 10, BOARD_PAUSED);
  assert_int_equal(vote_both(boards, same, same, false), BOARD_YES);
  close_pair(boards);
}

/* Declines neither wait nor pause, and may run on for ever: they must not take cells that are still to be read. */
static void test_lapping_keeps_verdicts(void **state)
{
  struct board *boards[PAIR];

  (void)state;
  open_pair(boards, no_pause);
  for (int call = 0; call < BOARD_CELLS + 3; call++)
    board_decline(boards[0]);
  for (int call = 0; call < BOARD_CELLS; call++)
    assert_int_equal(board_vote(boards[1], &same, LONG_US), BOARD_DECLINED);
  expect_votes(boards[1], 3, BOARD_TIMEOUT);
  assert_int_equal(vote_both(boards, same, same, false), BOARD_YES);
  close_pair(boards);
}

static void test_cancel(void **state)
{
  struct voter voter = {.ballot = same};
  struct board *boards[PAIR];

  (void)state;
  open_pair(boards, no_pause);
  voter.board = boards[0];
  voter_start(&voter);
  short_sleep();
  board_cancel(boards[0]);
  assert_int_equal(voter_join(&voter), BOARD_TIMEOUT);
  assert_int_equal(board_vote(boards[1], &same, LONG_US), BOARD_TIMEOUT);
  /* For good, and where the wait is for a free cell too. */
  for (int call = 1; call < BOARD_CELLS; call++)
    assert_int_equal(board_vote(boards[0], &same, LONG_US), BOARD_TIMEOUT);
  expect_votes(boards[0], 1, BOARD_TIMEOUT);
  assert_int_equal(board_vote(boards[0], &same, LONG_US), BOARD_PAUSED);
  close_pair(boards);
}

/* Past the last sequence nothing is asked any more, however it would be. */
static void test_last_sequence(void **state)
{
  struct board *boards[PAIR];

  (void)state;
  open_pair(boards, no_pause);
  for (int rank = 0; rank < PAIR; rank++) {
    boards[rank]->last = LAST_SEQUENCE - BOARD_CELLS - 3;
    finish_cell(boards[rank]);
  }
  for (int call = 0; call < BOARD_CELLS + 3; call++)
    assert_int_equal(vote_both(boards, same, same, call % 2 == 1), BOARD_YES);
  for (int call = 0; call < 3; call++) {
    assert_int_equal(board_vote(boards[0], &same, LONG_US), BOARD_LEFT);
    assert_int_equal(board_vote_step(boards[1], &same, LONG_US), BOARD_LEFT);
    board_decline(boards[0]);
    board_decline(boards[1]);
  }
  close_pair(boards);
}

/* One that only declines comes to the end as well, and those behind it learn of it. */
static void test_last_sequence_declined(void **state)
{
  struct board *boards[PAIR];

  (void)state;
  open_pair(boards, no_pause);
  for (int rank = 0; rank < PAIR; rank++) {
    boards[rank]->last = LAST_SEQUENCE - 1;
    finish_cell(boards[rank]);
  }
  board_decline(boards[0]);
  board_decline(boards[0]);
  assert_int_equal(boards[0]->last, LAST_SEQUENCE);
  assert_int_equal(board_vote(boards[1], &same, LONG_US), BOARD_LEFT);
  assert_int_equal(board_vote(boards[1], &same, LONG_US), BOARD_LEFT);
  close_pair(boards);
}

/* Ranks that vote one after another: each when the one before stands in the cell, or has ended it. */
enum { MOST_RANKS = 3 };

static void open_ranks(struct board *boards[], uint32_t ranks, struct board_pace pace)
{
  static uint32_t number;
  uint64_t key = (uint64_t)getpid() << 32 | UINT64_C(1) << 31 | ++number;

  for (uint32_t rank = 0; rank < ranks; rank++)
    assert_int_equal(board_attach(&boards[rank], key, ranks, rank, 0, pace), 0);
  for (uint32_t rank = 0; rank < ranks; rank++)
    assert_int_equal(board_seal(boards[rank], ranks), BOARD_SAME_PROCESS);
}

static void close_ranks(struct board *boards[], uint32_t ranks)
{
  for (uint32_t rank = 0; rank < ranks; rank++)
    board_detach(boards[rank]);
}

static void wait_for_votes(struct board *board, uint64_t sequence, uint32_t count)
{
  cell_word word;

  do {
    sched_yield();
    word = atomic_load(&board->shared->cells[sequence % BOARD_CELLS].word);
  } while (word_sequence(word) != sequence || (word_phase(word) < PHASE_YES && word_count(word) < count));
}

static enum board_verdict vote_in_order(struct board *boards[], const struct board_ballot ballots[], uint32_t ranks)
{
  struct voter voters[MOST_RANKS];
  uint64_t sequence = boards[0]->last + 1;

  for (uint32_t rank = 0; rank < ranks; rank++) {
    voters[rank] = (struct voter){.board = boards[rank], .ballot = ballots[rank]};
    voter_start(&voters[rank]);
    wait_for_votes(boards[rank], sequence, rank + 1);
  }
  for (uint32_t rank = 0; rank < ranks; rank++)
    if (voter_join(&voters[rank]) != voters[0].verdict)
      fail_msg("rank %u reads %d, rank 0 reads %d", rank, voters[rank].verdict, voters[0].verdict);
  return voters[0].verdict;
}

/* What has to come of ballots that are there in time. */
static enum board_verdict wanted_verdict(const struct board_ballot ballots[], uint32_t ranks)
{
  bool strict = false, lax = false, apart = false, uneven = false;

  for (uint32_t rank = 0; rank < ranks; rank++) {
    if (memcmp(ballots[rank].words, ballots[0].words, BOARD_QUESTION * sizeof(uint64_t)) != 0)
      return BOARD_DIFFER;
    strict |= ballots[rank].stance == BOARD_STRICT;
    lax |= ballots[rank].stance != BOARD_STRICT;
    apart |= ballots[rank].stance == BOARD_APART;
    uneven |= memcmp(ballots[rank].words, ballots[0].words, sizeof(ballots[0].words)) != 0;
  }
  if (strict)
    return lax || uneven ? BOARD_DIFFER : BOARD_YES;
  return apart || uneven ? BOARD_MIXED : BOARD_YES;
}

/* Number `n` of the ballots: its stance, and whether the layout, and then the question, is another. */
static struct board_ballot ballot_number(uint32_t n)
{
  struct board_ballot ballot = same;

  ballot.stance = (enum board_stance)(n % 3);
  ballot.words[BOARD_QUESTION + n % 5] += n / 3 % 2;
  ballot.words[n % BOARD_QUESTION] += (uint64_t)(n / 6) << 40;
  return ballot;
}
enum { BALLOTS = 12 };

static void test_every_mixture_of_ballots(void **state)
{
  struct board *boards[MOST_RANKS];

  (void)state;
  for (uint32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
    uint32_t mixtures = ranks == 2 ? BALLOTS * BALLOTS : BALLOTS * BALLOTS * BALLOTS;

    open_ranks(boards, ranks, no_pause);
    for (uint32_t mixture = 0; mixture < mixtures; mixture++) {
      uint32_t numbers[MOST_RANKS] = {mixture % BALLOTS, mixture / BALLOTS % BALLOTS, mixture / BALLOTS / BALLOTS};
      struct board_ballot ballots[MOST_RANKS];
      enum board_verdict verdict, wanted;

      for (uint32_t rank = 0; rank < ranks; rank++)
        ballots[rank] = ballot_number(numbers[rank]);
      verdict = vote_in_order(boards, ballots, ranks);
      wanted = wanted_verdict(ballots, ranks);
      if (verdict != wanted)
        fail_msg("ballots %u, %u, %u of %u ranks: %d instead of %d", numbers[0], numbers[1], numbers[2], ranks, verdict,
                 wanted);
    }
    close_ranks(boards, ranks);
  }
}

/* Every bit of the layout may differ, and none of the question. */
static void test_question_and_layout(void **state)
{
  struct board *boards[PAIR];
  struct board_ballot lenient = same;

  (void)state;
  lenient.stance = BOARD_LENIENT;
  open_pair(boards, no_pause);
  for (int word = 0; word < BOARD_WORDS; word++)
    for (int bit = 0; bit < 64; bit += 9) {
      struct board_ballot other = lenient;

      other.words[word] ^= UINT64_C(1) << bit;
      assert_int_equal(vote_both(boards, lenient, other, bit % 2 == 0),
                       word < BOARD_QUESTION ? BOARD_DIFFER : BOARD_MIXED);
      assert_int_equal(vote_both(boards, other, other, false), BOARD_YES);
      other.stance = BOARD_APART;
      assert_int_equal(vote_both(boards, lenient, other, false), word < BOARD_QUESTION ? BOARD_DIFFER : BOARD_MIXED);
      assert_int_equal(vote_both(boards, other, other, false), BOARD_MIXED);
    }
  close_pair(boards);
}

/* Rank 0 votes and waits; once its vote stands, `last` ends the cell, and rank 2 comes when all is over. */
static enum board_verdict end_uneven(struct board *boards[], void (*last)(struct board *))
{
  struct board_ballot apart = same, lenient = same;
  struct voter voters[2];
  uint64_t sequence = boards[0]->last + 1;
  enum board_verdict verdict;

  apart.stance = BOARD_APART;
  lenient.stance = BOARD_LENIENT;
  voters[0] = (struct voter){.board = boards[0], .ballot = apart};
  voter_start(&voters[0]);
  wait_for_votes(boards[0], sequence, 1);
  last(boards[1]);
  verdict = voter_join(&voters[0]);
  assert_int_equal(board_vote(boards[2], &lenient, LONG_US), verdict);
  return verdict;
}

static void give_up(struct board *board)
{
  assert_int_equal(board_vote(board, &(struct board_ballot){.words = {1, 2, 3}, .stance = BOARD_LENIENT}, 0),
                   BOARD_TIMEOUT);
}

static void ask_something_else(struct board *board)
{
  assert_int_equal(board_vote(board, &(struct board_ballot){.words = {4}, .stance = BOARD_LENIENT}, LONG_US),
                   BOARD_DIFFER);
}

static void test_uneven_ends_as_any_other(void **state)
{
  struct board_ballot ballots[MOST_RANKS] = {same, same, same};
  struct board *boards[MOST_RANKS];

  (void)state;
  open_ranks(boards, MOST_RANKS, no_pause);
  assert_int_equal(end_uneven(boards, board_decline), BOARD_DECLINED);
  assert_int_equal(end_uneven(boards, give_up), BOARD_TIMEOUT);
  assert_int_equal(end_uneven(boards, ask_something_else), BOARD_DIFFER);
  for (int rank = 0; rank < MOST_RANKS; rank++)
    ballots[rank].stance = BOARD_LENIENT;
  assert_int_equal(vote_in_order(boards, ballots, MOST_RANKS), BOARD_YES);
  close_ranks(boards, MOST_RANKS);
}

/* Something came of it: so the count of time-outs starts anew, and the next pause is a short one. */
static void test_mixed_counts_as_agreement(void **state)
{
  const struct board_pace pace = {.pause_after = 3, .pause_calls = 5};
  struct board_ballot apart = same;
  struct board *boards[PAIR];

  (void)state;
  apart.stance = BOARD_APART;
  open_pair(boards, pace);
  expect_votes(boards[0], 3, BOARD_TIMEOUT);
  expect_votes(boards[0], 5, BOARD_PAUSED);
  expect_votes(boards[1], 8, BOARD_PAUSED);
  for (int round = 0; round < 3; round++) {
    assert_int_equal(vote_both(boards, apart, apart, false), BOARD_MIXED);
    expect_votes(boards[0], 2, BOARD_TIMEOUT);
    expect_votes(boards[1], 2, BOARD_TIMEOUT);
  }
  assert_int_equal(vote_both(boards, apart, apart, false), BOARD_MIXED);
  expect_votes(boards[0], 3, BOARD_TIMEOUT);
  expect_votes(boards[0], 5, BOARD_PAUSED); /* not ten */
  expect_votes(boards[1], 8, BOARD_PAUSED);
  assert_int_equal(vote_both(boards, apart, apart, false), BOARD_MIXED);
  close_pair(boards);
}

/* A rank that leaves takes nothing back of what all voted for, and prevents whatever comes after. */
static void test_mixed_and_left(void **state)
{
  struct board_ballot apart = same;
  struct board *boards[PAIR];

  (void)state;
  apart.stance = BOARD_APART;
  open_pair(boards, no_pause);
  board_leave(boards[0]);
  assert_int_equal(vote_both(boards, apart, apart, true), BOARD_MIXED);
  board_decline(boards[0]);
  assert_int_equal(board_vote(boards[1], &apart, LONG_US), BOARD_LEFT);
  close_pair(boards);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_yes_and_differ),
      cmocka_unit_test(test_declined),
      cmocka_unit_test(test_timeout),
      cmocka_unit_test(test_pause),
      cmocka_unit_test(test_step_in_pause),
      cmocka_unit_test(test_lapping),
      cmocka_unit_test(test_lapping_keeps_verdicts),
      cmocka_unit_test(test_cancel),
      cmocka_unit_test(test_last_sequence),
      cmocka_unit_test(test_last_sequence_declined),
      cmocka_unit_test(test_every_mixture_of_ballots),
      cmocka_unit_test(test_question_and_layout),
      cmocka_unit_test(test_uneven_ends_as_any_other),
      cmocka_unit_test(test_mixed_counts_as_agreement),
      cmocka_unit_test(test_mixed_and_left),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
