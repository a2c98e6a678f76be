/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many ranks, as processes and as threads, at random: votes of every stance, other votes, declines, delays, short
 * waits, steps, a rank that stops for good. What every rank read is looked at afterwards, cell by cell:
 *
 *   - all that read a verdict read the same one;
 *   - YES only where every rank voted, and voted the same, none of them apart; MIXED only where every rank voted on the
 *     same question, none of them strictly, and not all the same; DIFFER and DECLINED only where somebody did so;
 *   - what a rank wrote before it voted is seen by all after YES and MIXED;
 *   - no wait is without an end: the run itself ends.
 *
 * BOARD_STRESS_SEED repeats a run, as far as the scheduler does. The random choices of a rank do not depend on the
 * others, but for the steps, which follow a YES.
 *
 * The threads are for ThreadSanitizer, which looks at addresses and so must see one mapping, not one a board. That
 * is why the board is compiled in here. Its own words are atomic and never raise a report; the plain array `written`
 * does, should a YES not order the ranks.
 */
#include "shim/board.c" /* NOLINT */

#include <pthread.h>
#include <sys/wait.h>

enum { MOST_RANKS = 16, MOST_CELLS = 4 * BOARD_CELLS, ROUNDS = 4 };

enum { DID_NOTHING, DID_DECLINE, DID_VOTE };
enum { READ_NOTHING = 0xff };

/* What a rank did at a cell, and what it read there. */
struct record {
  uint8_t deed, verdict;
  uint8_t stance, other_question, other_layout; /* of its vote */
};

/* One run, zero at first. In shared memory, for the processes. */
struct run {
  pthread_barrier_t barrier;
  uint64_t seed, key;
  uint32_t ranks, cells, stopping; /* the rank that stops half-way; none if no rank's number */
  bool threads;
  struct board_pace pace;
  struct shared *shared; /* the mapping of the first thread, which all use */
  struct record records[MOST_RANKS][MOST_CELLS];
  uint64_t written[MOST_RANKS][MOST_CELLS];
  _Atomic uint32_t unseen; /* a YES after which the others' writes were not there */
};

struct rank {
  struct run *run;
  uint32_t number;
};

/* splitmix64: one stream for each rank, so that its choices do not depend on the scheduler */
static uint64_t next_random(uint64_t *stream)
{
  uint64_t mixed = *stream += UINT64_C(0x9e3779b97f4a7c15);

  mixed = (mixed ^ mixed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
  return mixed ^ mixed >> 31;
}

static bool one_in(uint64_t *stream, uint32_t odds)
{
  return next_random(stream) % odds == 0;
}

static void delay(uint64_t *stream)
{
  uint64_t kind = next_random(stream) % 64;

  if (kind == 0)
    usleep((useconds_t)(next_random(stream) % 300));
  else if (kind < 8)
    sched_yield();
  else if (kind < 16)
    for (uint64_t turn = next_random(stream) % 1000; turn > 0; turn--)
      relax();
}

/* Mostly long enough for all to come, sometimes not. */
static uint32_t random_wait(uint64_t *stream)
{
  static const uint32_t waits[] = {0, 20, 500, 10000, 10000, 10000, 10000, 10000};

  return waits[next_random(stream) % (sizeof(waits) / sizeof(waits[0]))];
}

/* What most ranks do at a cell is the cell's; some do otherwise. */
static struct board_ballot draw_ballot(const struct run *run, uint32_t cell, uint64_t *stream, struct record *record)
{
  uint64_t common = run->seed ^ cell * UINT64_C(0x2545f4914f6cdd1d);
  struct board_ballot ballot = {.words = {cell, run->seed}, .stance = BOARD_STRICT};

  if (one_in(&common, 2))
    ballot.stance = one_in(stream, 6 * run->ranks) ? BOARD_APART : BOARD_LENIENT;
  if (one_in(stream, 24 * run->ranks))
    ballot.stance = (enum board_stance)(next_random(stream) % 3);
  record->other_layout = one_in(stream, 8 * run->ranks);
  record->other_question = one_in(stream, 24 * run->ranks);
  record->stance = (uint8_t)ballot.stance;
  ballot.words[BOARD_WORDS - 1] ^= (uint64_t)record->other_layout << 63;
  ballot.words[BOARD_QUESTION - 1] ^= (uint64_t)record->other_question << 63;
  return ballot;
}

static struct board *join_board(struct rank *rank)
{
  struct run *run = rank->run;
  struct board *board;

  if (board_attach(&board, run->key, run->ranks, rank->number, 0, run->pace) != 0) {
    fprintf(stderr, "board_attach failed\n");
    exit(1);
  }
  if (run->threads && rank->number == 0)
    run->shared = board->shared;
  pthread_barrier_wait(&run->barrier);
  if (board_seal(board, run->ranks) != (run->threads ? BOARD_SAME_PROCESS : BOARD_SOUND)) {
    fprintf(stderr, "board_seal is wrong\n");
    exit(1);
  }
  if (run->threads && rank->number != 0) {
    munmap(board->shared, board->size);
    board->shared = run->shared;
  }
  return board;
}

static void leave_board(struct rank *rank, struct board *board)
{
  if (rank->run->threads) {
    pthread_barrier_wait(&rank->run->barrier);
    if (rank->number != 0)
      board->shared = mmap(NULL, board->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  board_detach(board);
}

static void *rank_main(void *argument)
{
  struct rank *rank = argument;
  struct run *run = rank->run;
  struct board *board = join_board(rank);
  uint64_t stream = run->seed + rank->number * UINT64_C(0x1234567887654321);
  uint32_t last = rank->number == run->stopping ? run->cells / 2 : run->cells;
  uint32_t sprint = 0; /* cells still to be declined without a delay, to be a whole ring ahead */
  bool step = false, agreed;

  for (uint32_t cell = 0; cell < last; cell++) {
    struct record *record = &run->records[rank->number][cell];

    if (one_in(&stream, 4 * MOST_CELLS))
      sprint = BOARD_CELLS + 8;
    if (sprint > 0)
      sprint--;
    else
      delay(&stream);
    record->verdict = READ_NOTHING;
    if (sprint > 0 || one_in(&stream, 12 * run->ranks)) {
      record->deed = DID_DECLINE;
      board_decline(board);
    } else {
      struct board_ballot ballot = draw_ballot(run, cell, &stream, record);

      record->deed = DID_VOTE;
      run->written[rank->number][cell] = cell + 1;
      record->verdict = (uint8_t)(step ? board_vote_step : board_vote)(board, &ballot, random_wait(&stream));
    }
    agreed = record->verdict == BOARD_YES || record->verdict == BOARD_MIXED;
    if (agreed)
      for (uint32_t other = 0; other < run->ranks; other++)
        if (run->written[other][cell] != cell + 1)
          run->unseen++;
    step = agreed && !step;
  }
  leave_board(rank, board);
  return NULL;
}

/* The votes at a cell that count. */
struct votes {
  uint32_t count, strict, apart, other_questions, other_layouts;
};

static bool is_uniform(uint32_t some, uint32_t all)
{
  return some == 0 || some == all;
}

/* NULL, or why there must be no such verdict on these votes. */
static const char *check_verdict(const struct votes *votes, uint32_t ranks, uint32_t declines, uint8_t verdict)
{
  bool same_question = is_uniform(votes->other_questions, votes->count);
  bool same_layout = is_uniform(votes->other_layouts, votes->count);
  bool same_strictness = is_uniform(votes->strict, votes->count);

  switch (verdict) {
  case BOARD_YES:
    if (votes->count != ranks || !same_question || !same_layout || !same_strictness || votes->apart > 0)
      return "YES, though not all voted the same";
    break;
  case BOARD_MIXED:
    if (votes->count != ranks || !same_question || votes->strict > 0)
      return "MIXED, though not all voted, or not on the same, or one strictly";
    if (same_layout && votes->apart == 0)
      return "MIXED, though all voted the same";
    break;
  case BOARD_DIFFER:
    if (same_question && same_strictness && (same_layout || votes->strict == 0))
      return "DIFFER, though no two votes differ";
    break;
  case BOARD_DECLINED:
    if (declines == 0)
      return "DECLINED, though nobody declined";
    break;
  default:
    break;
  }
  return NULL;
}

/* NULL, or what is wrong with what the ranks read at a cell. *ret_verdict is what they read. */
static const char *check_cell(const struct run *run, uint32_t cell, uint8_t *ret_verdict)
{
  struct votes votes = {0};
  uint32_t declines = 0, readers = 0;
  uint8_t verdict = READ_NOTHING;

  for (uint32_t number = 0; number < run->ranks; number++) {
    const struct record *record = &run->records[number][cell];

    if (record->verdict == BOARD_PAUSED)
      continue;
    declines += record->deed == DID_DECLINE;
    if (record->deed != DID_VOTE)
      continue;
    votes.count++;
    votes.strict += record->stance == BOARD_STRICT;
    votes.apart += record->stance == BOARD_APART;
    votes.other_questions += record->other_question;
    votes.other_layouts += record->other_layout;
    if (readers++ > 0 && record->verdict != verdict)
      return "the ranks read different verdicts";
    verdict = record->verdict;
  }
  *ret_verdict = verdict;
  return check_verdict(&votes, run->ranks, declines, verdict);
}

static int check(struct run *run, uint32_t verdicts[BOARD_PAUSED])
{
  const char *form = run->threads ? "threads" : "processes";

  for (uint32_t cell = 0; cell < run->cells; cell++) {
    uint8_t verdict = READ_NOTHING;
    const char *wrong = check_cell(run, cell, &verdict);
    if (wrong) {
      fprintf(stderr, "%s: %u ranks as %s, cell %u\n", wrong, run->ranks, form, cell);
      return 1;
    }
    if (verdict < BOARD_PAUSED)
      verdicts[verdict]++;
  }
  if (run->unseen) {
    fprintf(stderr, "a write before the vote was not seen after YES: %u ranks as %s\n", run->ranks, form);
    return 1;
  }
  return 0;
}

static int run_threads(struct run *run)
{
  pthread_t threads[MOST_RANKS];
  struct rank ranks[MOST_RANKS];

  for (uint32_t number = 0; number < run->ranks; number++) {
    ranks[number] = (struct rank){run, number};
    if (pthread_create(&threads[number], NULL, rank_main, &ranks[number]) != 0)
      exit(1);
  }
  for (uint32_t number = 0; number < run->ranks; number++)
    pthread_join(threads[number], NULL);
  return 0;
}

static int run_processes(struct run *run)
{
  int failed = 0;

  for (uint32_t number = 0; number < run->ranks; number++) {
    pid_t child = fork();
    if (child < 0)
      exit(1);
    if (child == 0) {
      rank_main(&(struct rank){run, number});
      _exit(0);
    }
  }
  for (uint32_t number = 0; number < run->ranks; number++) {
    int status;
    wait(&status);
    failed |= status != 0;
  }
  return failed;
}

static int run_once(uint64_t seed, uint32_t ranks, uint32_t cells, bool threads, uint32_t verdicts[BOARD_PAUSED])
{
  struct run *run = mmap(NULL, sizeof(*run), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  uint64_t stream = seed + ranks;
  pthread_barrierattr_t shared;
  int failed;

  if (run == MAP_FAILED)
    return 1;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&run->barrier, &shared, ranks);
  run->seed = seed;
  run->key = (uint64_t)getpid() << 32 | (next_random(&stream) & UINT32_MAX);
  run->ranks = ranks;
  run->cells = cells;
  run->threads = threads;
  run->stopping = MOST_RANKS;
  run->pace.pause_after = (uint32_t)(next_random(&stream) % 4);
  run->pace.pause_calls = (uint32_t)(next_random(&stream) % 40);
  if (one_in(&stream, 3)) {
    run->stopping = (uint32_t)(next_random(&stream) % ranks);
    run->pace = (struct board_pace){.pause_after = 2, .pause_calls = 30}; /* or every call would wait for it */
  }
  failed = threads ? run_threads(run) : run_processes(run);
  failed |= check(run, verdicts);
  pthread_barrier_destroy(&run->barrier);
  munmap(run, sizeof(*run));
  return failed;
}

int main(void)
{
  static const struct {
    uint32_t ranks, cells;
  } sizes[] = {{2, MOST_CELLS}, {3, MOST_CELLS}, {4, MOST_CELLS}, {8, 600}, {16, 200}};
  const char *wanted = getenv("BOARD_STRESS_SEED");
  uint64_t seed = wanted ? strtoull(wanted, NULL, 0) : now_us();

  for (int threads = 0; threads <= 1; threads++) {
    uint32_t verdicts[BOARD_PAUSED] = {0};
    for (uint64_t round = 0; round < ROUNDS; round++)
      for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (run_once(seed + round * 1000, sizes[i].ranks, sizes[i].cells, threads, verdicts) != 0) {
          fprintf(stderr, "BOARD_STRESS_SEED=%llu repeats it\n", (unsigned long long)seed);
          return 1;
        }
    printf("%s: YES %u, MIXED %u, DIFFER %u, DECLINED %u, TIMEOUT %u\n", threads ? "threads" : "processes",
           verdicts[BOARD_YES], verdicts[BOARD_MIXED], verdicts[BOARD_DIFFER], verdicts[BOARD_DECLINED],
           verdicts[BOARD_TIMEOUT]);
  }
  return 0;
}
