/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks ask each other on the board, and what its verdicts mean for a call. The questions are numbers in
 * a ballot's first word, so a rank that asks one thing never agrees with a rank that asks another.
 */
#ifndef SYMMSHIM_VERDICT_H
#define SYMMSHIM_VERDICT_H

#include "shim/board.h"
#include "shim/reason.h"

enum verdict_question {
  VERDICT_CHILD_READY = 1, /* may we all split now? */
  VERDICT_CHILD_MADE,      /* did all get a child? */
  VERDICT_CALL,            /* do all buffers lie alike? (call.c adds the rest of the ballot) */
  VERDICT_REGISTERED,      /* did all get their windows? */
  VERDICT_SLOT_READY       /* have all got the memory for slots? */
};

static inline enum reason verdict_reason(enum board_verdict verdict)
{
  static const enum reason reasons[] = {[BOARD_YES] = REASON_none,
                                        [BOARD_MIXED] = REASON_none,
                                        [BOARD_DIFFER] = REASON_ranks_differ,
                                        [BOARD_DECLINED] = REASON_peer_declined,
                                        [BOARD_TIMEOUT] = REASON_agree_timeout,
                                        [BOARD_PAUSED] = REASON_paused,
                                        [BOARD_LEFT] = REASON_peer_left};

  return reasons[verdict];
}

#endif
