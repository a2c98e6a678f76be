/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board on an object that holds anything: what a rank of another version, a stray writer or an enemy left there
 * before this one came, and writes while it votes. Verdicts may then be wrong; but no call may crash, hang or write
 * past the object's end.
 *
 * The board is compiled in for its layout and to start far along the ring. The object lasts: each input finds it
 * rewritten and under its name by a hard link, which the board removes.
 *
 * An input is a head, a number of writes that come before the attach, and then calls and writes up to its end.
 */
#include "shim/board.c" /* NOLINT */

#include "tests/fuzz/fuzz.h"

enum { MOST_CAPACITY = 4, MOST_STEPS = 32, WAIT_US = 20, PAGE = 4096 };

struct input {
  const uint8_t *data;
  size_t left;
};

/* The next bytes, then zeros for ever. */
static uint64_t take(struct input *input, size_t bytes)
{
  uint64_t value = 0;

  for (size_t i = 0; i < bytes && input->left > 0; i++, input->left--)
    value |= (uint64_t)*input->data++ << (8 * i);
  return value;
}

/* One object for each capacity. */
struct object {
  char path[80];
  struct shared *shared;
  size_t size;
};

static struct object objects[MOST_CAPACITY + 1];

static void remove_objects(void)
{
  for (uint32_t i = 1; i <= MOST_CAPACITY; i++)
    if (objects[i].shared)
      unlink(objects[i].path);
}

static uint64_t object_key(void)
{
  return (uint64_t)getpid() << 32;
}

static const char *offered_path(void)
{
  static char path[80];

  snprintf(path, sizeof(path), BOARD_FOLDER "/" BOARD_PREFIX "-%u-%016llx", (unsigned)geteuid(),
           (unsigned long long)object_key());
  return path;
}

static size_t size_in_pages(const struct object *object)
{
  return (object->size + PAGE - 1) / PAGE * PAGE;
}

static struct object *object_of(uint32_t capacity)
{
  static bool cleaning;
  struct object *object = &objects[capacity];
  int fd;

  if (object->shared)
    return object;
  if (!cleaning) {
    cleaning = true;
    atexit(remove_objects);
  }
  object->size = sizeof(struct shared) + capacity * sizeof(struct place);
  snprintf(object->path, sizeof(object->path), BOARD_FOLDER "/fuzz-" BOARD_PREFIX "-%d-%u", (int)getpid(), capacity);
  fd = open(object->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  MUST(fd >= 0 && allocate(fd, object->size) == 0);
  object->shared = mmap(NULL, size_in_pages(object), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  MUST(object->shared != MAP_FAILED);
  close(fd);
  return object;
}

/* Puts the object where board_attach() looks, all zero but for what the input writes. */
static void offer(struct object *object)
{
  memset(object->shared, 0, object->size);
  object->shared->size = object->size;
  MUST(link(object->path, offered_path()) == 0);
}

/* The board leaves an object alone whose layout is not its own. */
static void withdraw(void)
{
  MUST(unlink(offered_path()) == 0 || errno == ENOENT);
}

/* Writes one word of the object: anywhere, or where the board looks next. */
static void scribble(struct object *object, struct input *input, uint64_t sequence)
{
  uint64_t kind = take(input, 1), where = take(input, 2);
  struct shared *shared = object->shared;
  struct cell *cell = &shared->cells[(sequence + (where & 3)) % BOARD_CELLS];

  switch (kind % 7) {
  case 0:
    ((_Atomic uint64_t *)shared)[where % (object->size / sizeof(uint64_t))] = take(input, 8);
    break;
  case 1: /* a cell's word that fits, but for its count */
    cell->word = word_of(sequence + (where & 3), (uint32_t)take(input, 2), (enum phase)take(input, 1));
    break;
  case 2:
    cell->word = take(input, 8);
    break;
  case 3:
    cell->ballot[where / 4 % BOARD_WORDS] = take(input, 8);
    break;
  case 4:
    shared->places[where % ((object->size - sizeof(struct shared)) / sizeof(struct place))].done = take(input, 8);
    break;
  case 5:
    shared->places[where % ((object->size - sizeof(struct shared)) / sizeof(struct place))].process = take(input, 8);
    break;
  default: /* whose stance the ballot has, or nobody's */
    cell->stance = where & 4 ? take(input, 8) : where >> 3;
  }
}

static void call(struct board *board, struct object *object, struct input *input)
{
  uint64_t kind = take(input, 1);
  struct board_ballot ballot = {.stance = (enum board_stance)(kind >> 5 & 3)};
  uint32_t wait_us = kind == 0x81 ? WAIT_US : 0; /* rare: it gives the processor away */

  if (ballot.stance > BOARD_APART)
    ballot.stance = BOARD_STRICT;
  ballot.words[0] = kind >> 4 & 1;
  ballot.words[BOARD_QUESTION] = kind >> 3 & 1;
  switch (kind % 8) {
  case 0:
  case 1:
    MUST(board_vote(board, &ballot, wait_us) <= BOARD_LEFT);
    break;
  case 2:
    MUST(board_vote_step(board, &ballot, wait_us) <= BOARD_LEFT);
    break;
  case 3:
    board_decline(board);
    break;
  case 4:
    board_leave(board);
    break;
  case 5:
    if (kind == 0xfd)
      board_cancel(board);
    break;
  default:
    scribble(object, input, board->last + 1);
  }
}

/* What is past the object's end in its last page is nobody's. */
static bool tail_is_zero(const struct object *object)
{
  static const uint8_t zeros[PAGE];

  return memcmp((const uint8_t *)object->shared + object->size, zeros, size_in_pages(object) - object->size) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct input input = {data, size};
  uint32_t capacity = 1 + (uint32_t)take(&input, 1) % MOST_CAPACITY;
  uint32_t slot = (uint32_t)take(&input, 1), nranks = (uint32_t)take(&input, 1);
  struct board_pace pace = {.pause_after = (uint32_t)take(&input, 1), .pause_calls = (uint32_t)take(&input, 4)};
  uint64_t start = take(&input, 4), writes = take(&input, 1) % 16;
  struct object *object = object_of(capacity);
  struct board *boards[2] = {NULL, NULL};
  int attached = 0, wanted = slot & 0x80 ? 2 : 1;

  offer(object);
  for (uint64_t i = 0; i < writes; i++)
    scribble(object, &input, start + 1);
  while (attached < wanted) {
    int rc = board_attach(&boards[attached], object_key(), capacity, (slot + (uint32_t)attached) % capacity, 0, pace);

    MUST(rc == 0 || rc == -EPERM);
    if (rc != 0)
      break;
    attached++;
  }
  for (int i = 0; i < attached; i++) {
    boards[i]->last = start;
    MUST(board_seal(boards[i], nranks) <= BOARD_INCOMPATIBLE);
  }
  for (int step = 0; step < MOST_STEPS && attached > 0 && input.left > 0; step++)
    call(boards[step % attached], object, &input);
  for (int i = 0; i < attached; i++)
    board_detach(boards[i]);
  withdraw();
  MUST(tail_is_zero(object));
  return 0;
}
