/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The audit log: JSON Lines, schema 1, as symmshim-audit(5) describes them. SYMMSHIM_AUDIT names the file (%h host,
 * %p pid, %r rank); without it only the counts are kept.
 *
 * Owns the descriptor and the wording of the lines. One write(2) a line on an O_APPEND descriptor, no allocation,
 * errno kept; calls neither CUDA nor NCCL.
 */
#ifndef SYMMSHIM_AUDIT_H
#define SYMMSHIM_AUDIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/policy.h"
#include "shim/reason.h"

/* Counts of one op on one communicator, over its whole life. */
struct tally {
  uint64_t calls, bytes, window_calls, window_bytes, staged_calls, staged_bytes;
  uint64_t plain[REASON_COUNT];
};

/* Where a buffer lies; segment 0: not in the arena. */
struct audit_place {
  uint64_t segment, offset;
};

struct audit_call {
  uint64_t comm, sequence; /* the communicator's id, and the call's number on it, from 1 */
  struct policy_request request;
  size_t count;
  bool capturing;
  enum policy_path path;
  enum policy_rewrite rewrite;
  enum reason reason;
  struct audit_place send, recv;
  uint64_t host_ns; /* spent in the shim before the real call */
};

/*
 * Opens the file, if one is asked for, and writes the first line. `policy` is its path; NULL for the built-in. `level`
 * says what else is written.
 */
void audit_start(const char *mode, const char *policy, enum policy_audit_level level);

/* Whether lines of this level are wanted at all. */
bool audit_wants(enum policy_audit_level level);

/* The state of a communicator became known: ready (its child exists) with REASON_none, else plain for good. */
void audit_comm(uint64_t comm, int rank, int nranks, int nccl_version, enum reason reason, uint64_t setup_ns);

void audit_window(uint64_t comm, uint64_t segment, size_t bytes, uint64_t setup_ns);
void audit_call(const struct audit_call *call);
/* Nothing where there was no call. */
void audit_summary(uint64_t comm, int nranks, enum policy_op op, const struct tally *tally);

/* Adds a call to the counts. */
void tally_add(struct tally *tally, enum policy_path path, enum reason reason, uint64_t bytes);

/* Nanoseconds of a clock that only moves on. */
uint64_t audit_clock(void);

#endif
