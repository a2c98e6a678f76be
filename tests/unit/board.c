/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who gets on a board, with real processes, and what becomes of its name in /dev/shm.
 */
#include "shim/board.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 8, LONG_US = 60 * 1000 * 1000, OTHER_USER = 12345 };

static const struct board_pace no_pause = {0};

/* A key that no other run of the tests uses, so that they may run side by side. */
static uint64_t new_key(void)
{
  static uint32_t number;

  return (uint64_t)getpid() << 32 | ++number;
}

static const char *path_of(uint64_t key)
{
  static char path[80];

  snprintf(path, sizeof(path), "/dev/shm/symmshim-%u-%016llx", (unsigned)geteuid(), (unsigned long long)key);
  return path;
}

static bool exists(const char *path)
{
  struct stat status;

  return lstat(path, &status) == 0;
}

/* --- ranks as processes ------------------------------------------------------------------------------------- */

struct stage {
  pthread_barrier_t barrier;
  uint64_t key;
  uint32_t ranks;
  int answer[MOST_RANKS]; /* of each rank: -errno, or what the part is about */
};

typedef int part_fn(struct stage *stage, uint32_t rank);

/* Runs `part` in `ranks` processes. The children never assert: what they return is looked at afterwards. */
static struct stage *play(uint32_t ranks, part_fn *part)
{
  struct stage *stage = mmap(NULL, sizeof(*stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_t shared;
  pid_t children[MOST_RANKS];

  assert_true(stage != MAP_FAILED && ranks <= MOST_RANKS);
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&stage->barrier, &shared, ranks);
  stage->key = new_key();
  stage->ranks = ranks;
  fflush(NULL);
  for (uint32_t rank = 0; rank < ranks; rank++) {
    children[rank] = fork();
    assert_true(children[rank] >= 0);
    if (children[rank] == 0) {
      stage->answer[rank] = part(stage, rank);
      _exit(0);
    }
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    int status;
    assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
    assert_int_equal(status, 0);
  }
  assert_false(exists(path_of(stage->key)));
  return stage;
}

static void expect_all(struct stage *stage, int answer)
{
  for (uint32_t rank = 0; rank < stage->ranks; rank++)
    assert_int_equal(stage->answer[rank], answer);
  munmap(stage, sizeof(*stage));
}

struct joining {
  uint32_t capacity, slot, nranks;
  uint64_t compatibility;
};

/* Attaches, lets all ranks do so as NCCL's init would, and seals. */
static int attach_and_seal(struct stage *stage, struct joining joining, struct board **board)
{
  int error = board_attach(board, stage->key, joining.capacity, joining.slot, joining.compatibility, no_pause);

  pthread_barrier_wait(&stage->barrier);
  return error ? error : (int)board_seal(*board, joining.nranks);
}

static int join_and_leave(struct stage *stage, struct joining joining)
{
  struct board *board = NULL;
  int answer = attach_and_seal(stage, joining, &board);

  if (answer >= 0 && exists(path_of(stage->key)))
    answer = -EEXIST;
  pthread_barrier_wait(&stage->barrier);
  board_detach(board);
  return answer;
}

static int part_sound(struct stage *stage, uint32_t rank)
{
  return join_and_leave(stage, (struct joining){stage->ranks, rank, stage->ranks, 7});
}

static int part_spare_places(struct stage *stage, uint32_t rank)
{
  return join_and_leave(stage, (struct joining){BOARD_MAX_RANKS, BOARD_MAX_RANKS - 1 - rank, stage->ranks, 0});
}

static int part_missing(struct stage *stage, uint32_t rank)
{
  return join_and_leave(stage, (struct joining){stage->ranks + 1, rank, stage->ranks + 1, 7});
}

static int part_rank_twice(struct stage *stage, uint32_t rank)
{
  return join_and_leave(stage, (struct joining){stage->ranks, rank / 2, stage->ranks, 7});
}

/* The first process brings two ranks. */
static int part_same_process(struct stage *stage, uint32_t rank)
{
  uint32_t nranks = stage->ranks + 1;
  struct board *second = NULL;
  int answer;

  if (rank == 0 && board_attach(&second, stage->key, nranks, stage->ranks, 7, no_pause) != 0)
    return -EIO;
  answer = join_and_leave(stage, (struct joining){nranks, rank, nranks, 7});
  if (second && (int)board_seal(second, nranks) != answer)
    answer = -EIO;
  board_detach(second);
  return answer;
}

/* Two values that differ in the lowest bit only, and 0 is a value as any other. */
static int part_incompatible(struct stage *stage, uint32_t rank)
{
  return join_and_leave(stage, (struct joining){stage->ranks, rank, stage->ranks, rank == stage->ranks - 1});
}

static int part_incompatible_and_twice(struct stage *stage, uint32_t rank)
{
  return join_and_leave(stage, (struct joining){stage->ranks, rank % 2, stage->ranks, rank % 2});
}

static int part_other_capacity(struct stage *stage, uint32_t rank)
{
  int answer = join_and_leave(stage, (struct joining){stage->ranks + 4 * rank, rank, stage->ranks, 7});

  return answer == -EPERM || answer == BOARD_MISSING ? 0 : -EIO;
}

static void test_seal(void **state)
{
  (void)state;
  for (uint32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
    expect_all(play(ranks, part_sound), BOARD_SOUND);
    expect_all(play(ranks, part_missing), BOARD_MISSING);
    expect_all(play(ranks, part_spare_places), BOARD_SOUND);
    expect_all(play(ranks, part_same_process), BOARD_SAME_PROCESS);
  }
  for (uint32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
    expect_all(play(ranks, part_rank_twice), BOARD_SAME_PROCESS);
    expect_all(play(ranks, part_incompatible), BOARD_INCOMPATIBLE);
    for (int again = 0; again < 10; again++) /* a race for the size of the object */
      expect_all(play(ranks, part_other_capacity), 0);
  }
  expect_all(play(4, part_incompatible_and_twice), BOARD_INCOMPATIBLE);
}

/* Several times around the ring, with every verdict YES; the answer is the number of the others. */
static int part_long_run(struct stage *stage, uint32_t rank)
{
  struct board *board = NULL;
  int others = attach_and_seal(stage, (struct joining){stage->ranks, rank, stage->ranks, 7}, &board);

  for (uint64_t call = 0; others >= 0 && call < 3 * BOARD_CELLS + 5; call++)
    others += board_vote(board, &(struct board_ballot){.words = {call, 1}}, LONG_US) != BOARD_YES;
  board_detach(board);
  return others;
}

static void test_long_run(void **state)
{
  (void)state;
  for (uint32_t ranks = 1; ranks <= 4; ranks++)
    expect_all(play(ranks, part_long_run), 0);
}

/* --- the object in /dev/shm --------------------------------------------------------------------------------- */

static void test_limits(void **state)
{
  uint64_t key = new_key();
  struct board *board = NULL;

  (void)state;
  assert_int_equal(board_attach(&board, key, 0, 0, 0, no_pause), -EOVERFLOW);
  assert_int_equal(board_attach(&board, key, 4, 4, 0, no_pause), -EOVERFLOW);
  assert_int_equal(board_attach(&board, key, BOARD_MAX_RANKS + 1, 0, 0, no_pause), -EOVERFLOW);
  assert_null(board);
  assert_false(exists(path_of(key)));
  board_detach(NULL);
}

static void test_name_and_mode(void **state)
{
  uint64_t key = new_key();
  mode_t mask = umask(0);
  struct board *board;
  struct stat status;

  (void)state;
  assert_int_equal(board_attach(&board, key, 2, 0, 0, no_pause), 0);
  umask(mask);
  assert_int_equal(lstat(path_of(key), &status), 0);
  assert_int_equal(status.st_mode, S_IFREG | 0600);
  assert_int_equal(status.st_uid, geteuid());
  assert_true(status.st_blocks * 512 >= status.st_size); /* really there, not a hole */
  board_detach(board);
  assert_false(exists(path_of(key)));
}

/* A rank that comes back before the others have done with the name: what it made they leave alone. */
static void test_name_of_a_later_object(void **state)
{
  struct board *early, *sealing, *detaching, *later;
  uint64_t key = new_key();

  (void)state;
  assert_int_equal(board_attach(&early, key, 3, 0, 0, no_pause), 0);
  assert_int_equal(board_attach(&sealing, key, 3, 1, 0, no_pause), 0);
  assert_int_equal(board_attach(&detaching, key, 3, 2, 0, no_pause), 0);
  board_seal(early, 3);
  assert_false(exists(path_of(key)));
  board_detach(early);
  assert_int_equal(board_attach(&later, key, 3, 0, 0, no_pause), 0);
  board_seal(sealing, 3);
  assert_true(exists(path_of(key)));
  board_detach(detaching);
  assert_true(exists(path_of(key)));
  board_detach(later);
  assert_false(exists(path_of(key)));
  board_detach(sealing);
}

static void make_file(const char *path, mode_t mode, off_t size)
{
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, size), 0);
  assert_int_equal(fchmod(fd, mode), 0);
  close(fd);
}

/* What lies at the path already is refused, and left as it is. */
static void expect_refusal(uint64_t key)
{
  struct stat before, after;
  struct board *board = NULL;

  assert_int_equal(lstat(path_of(key), &before), 0);
  assert_int_equal(board_attach(&board, key, 2, 0, 0, no_pause), -EPERM);
  assert_null(board);
  assert_int_equal(lstat(path_of(key), &after), 0);
  assert_int_equal(before.st_ino, after.st_ino);
  assert_int_equal(before.st_size, after.st_size);
  assert_int_equal(before.st_mode, after.st_mode);
  assert_int_equal(before.st_uid, after.st_uid);
}

static off_t right_size(void)
{
  uint64_t key = new_key();
  struct board *board;
  struct stat status;

  assert_int_equal(board_attach(&board, key, 2, 0, 0, no_pause), 0);
  assert_int_equal(lstat(path_of(key), &status), 0);
  board_detach(board);
  return status.st_size;
}

static void test_hostile_objects(void **state)
{
  static const mode_t modes[] = {0666, 0644, 0660, 0602, 0700, 04600, 01600};
  static const off_t off_by[] = {-1, 1, 4096};
  const off_t size = right_size();
  uint64_t key = new_key(), target = new_key();
  char target_path[80];
  struct stat status;

  (void)state;
  for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
    make_file(path_of(key), modes[i], i % 2 ? size : 0);
    expect_refusal(key);
    unlink(path_of(key));
  }
  for (size_t i = 0; i < sizeof(off_by) / sizeof(off_by[0]); i++) {
    make_file(path_of(key), 0600, size + off_by[i]);
    expect_refusal(key);
    unlink(path_of(key));
  }
  /* A symbolic link, first to nothing, then to what would be taken under its own name. */
  snprintf(target_path, sizeof(target_path), "%s", path_of(target));
  assert_int_equal(symlink(target_path, path_of(key)), 0);
  expect_refusal(key);
  assert_false(exists(target_path));
  make_file(target_path, 0600, 0);
  expect_refusal(key);
  assert_int_equal(lstat(target_path, &status), 0);
  assert_int_equal(status.st_size, 0);
  unlink(target_path);
  unlink(path_of(key));
  assert_int_equal(mkfifo(path_of(key), 0600), 0);
  expect_refusal(key);
  unlink(path_of(key));
}

static void test_other_owner(void **state)
{
  const off_t size = right_size(); /* not among arguments: it asks for a path too */
  uint64_t key = new_key();

  (void)state;
  if (geteuid() != 0) {
    print_message("skipped: only root can make another user's object\n");
    skip();
  }
  make_file(path_of(key), 0600, size);
  assert_int_equal(chown(path_of(key), OTHER_USER, OTHER_USER), 0);
  expect_refusal(key);
  unlink(path_of(key));
}

/* A rank of its own, so that the tiny file system is seen by nobody else. 0, or what went wrong. */
static int part_full(struct stage *stage, uint32_t rank)
{
  struct board *board = NULL;
  int error;

  (void)rank;
  if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
      mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=16k") != 0)
    return -ENOSYS;
  error = board_attach(&board, stage->key, 2, 0, 0, no_pause);
  if (error != -ENOSPC || board)
    return -EIO;
  return exists(path_of(stage->key)) ? -EEXIST : 0;
}

static void test_full(void **state)
{
  struct stage *stage;

  (void)state;
  if (geteuid() != 0) {
    print_message("skipped: only root can mount a tiny /dev/shm\n");
    skip();
  }
  stage = play(1, part_full);
  if (stage->answer[0] == -ENOSYS) {
    print_message("skipped: no mount namespace to be had here\n");
    munmap(stage, sizeof(*stage));
    skip();
  }
  expect_all(stage, 0);
}

static void make_old(const char *path)
{
  struct timespec now, times[2];

  clock_gettime(CLOCK_REALTIME, &now);
  times[0] = times[1] = (struct timespec){.tv_sec = now.tv_sec - 2 * 3600};
  assert_int_equal(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

static void test_sweep(void **state)
{
  uint64_t old = new_key(), fresh = new_key(), link = new_key(), others = new_key();
  char foreign_name[80];

  (void)state;
  board_sweep(); /* whatever else is left there */
  make_file(path_of(old), 0600, 100);
  make_old(path_of(old));
  make_file(path_of(fresh), 0600, 100);
  assert_int_equal(symlink("nothing", path_of(link)), 0);
  make_old(path_of(link));
  snprintf(foreign_name, sizeof(foreign_name), "/dev/shm/symmshim-%u-%016llx", (unsigned)geteuid() + 1,
           (unsigned long long)others);
  make_file(foreign_name, 0600, 100);
  make_old(foreign_name);
  if (geteuid() == 0) {
    make_file(path_of(others), 0600, 100);
    assert_int_equal(chown(path_of(others), OTHER_USER, OTHER_USER), 0);
    make_old(path_of(others));
  }

  assert_int_equal(board_sweep(), 1);
  assert_false(exists(path_of(old)));
  assert_true(exists(path_of(fresh)));
  assert_true(exists(path_of(link)));
  assert_true(exists(foreign_name));
  assert_true(geteuid() != 0 || exists(path_of(others)));
  unlink(path_of(fresh));
  unlink(path_of(link));
  unlink(path_of(others));
  unlink(foreign_name);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_seal),
      cmocka_unit_test(test_long_run),
      cmocka_unit_test(test_limits),
      cmocka_unit_test(test_name_and_mode),
      cmocka_unit_test(test_name_of_a_later_object),
      cmocka_unit_test(test_hostile_objects),
      cmocka_unit_test(test_other_owner),
      cmocka_unit_test(test_full),
      cmocka_unit_test(test_sweep),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
