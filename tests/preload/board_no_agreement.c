/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A board on which everything is agreed at once and nobody is asked. A shim with this board is what the shim would be
 * without agreement: the tests of differing allocators must fail with it.
 */
#include "shim/board.h"

#include <errno.h>
#include <stdlib.h>

struct board {
  uint32_t nranks;
};

int board_attach(struct board **board, uint64_t key, uint32_t capacity, uint32_t slot, uint64_t compatibility,
                 struct board_pace pace)
{
  (void)key, (void)capacity, (void)slot, (void)compatibility, (void)pace;
  *board = calloc(1, sizeof(**board));
  return *board ? 0 : -ENOMEM;
}

enum board_fault board_seal(struct board *board, uint32_t nranks)
{
  board->nranks = nranks;
  return BOARD_SOUND;
}

void board_detach(struct board *board)
{
  free(board);
}

enum board_verdict board_vote(struct board *board, const struct board_ballot *ballot, uint32_t wait_us)
{
  (void)board, (void)ballot, (void)wait_us;
  return BOARD_YES;
}

enum board_verdict board_vote_step(struct board *board, const struct board_ballot *ballot, uint32_t wait_us)
{
  return board_vote(board, ballot, wait_us);
}

void board_decline(struct board *board)
{
  (void)board;
}

uint64_t board_epoch(const struct board *board)
{
  (void)board;
  return 0;
}

void board_end_epoch(struct board *board, uint64_t epoch)
{
  (void)board, (void)epoch;
}

int board_late_rank(const struct board *board)
{
  (void)board;
  return -1;
}

bool board_is_pausing(const struct board *board)
{
  (void)board;
  return false;
}

void board_name_rank(struct board *board, int rank)
{
  (void)board;
  (void)rank;
}

void board_leave(struct board *board)
{
  (void)board;
}

void board_cancel(struct board *board)
{
  (void)board;
}

int board_sweep(void)
{
  return 0;
}
