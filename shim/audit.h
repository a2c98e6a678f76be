/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The audit log: JSON Lines, schema 1, as symmshim-audit(5) describes them. SYMMSHIM_AUDIT names the file (%h host,
 * %p pid, %r rank); without it only the counts are kept.
 *
 * Owns the wording of the lines. One write(2) a line on an O_APPEND descriptor (sink.h), no allocation, errno kept;
 * calls neither CUDA nor NCCL.
 */
#ifndef SYMMSHIM_AUDIT_H
#define SYMMSHIM_AUDIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/policy.h"
#include "shim/reason.h"
#include "shim/verify.h"

/* Counts of one op on one communicator, over its whole life. */
struct tally {
  uint64_t calls, bytes, window_calls, window_bytes, staged_calls, staged_bytes;
  uint64_t plain[REASON_COUNT], plain_bytes[REASON_COUNT];
  uint64_t host_ns;
  uint64_t observed_symmetric_calls, observed_plain_calls; /* by NCCL's own word; the others it did not tell of */
  uint64_t mismatched_calls;                               /* made on windows, and observed to be plain */
};

/* Where a buffer lies; segment 0: not in the arena. */
struct audit_place {
  uint64_t segment, offset;
  uint64_t bytes; /* of the segment; 0: not told */
};

/* In an audit-only run, what this rank alone foresees of a call (forecast.h). */
struct audit_forecast {
  enum policy_path path;
  enum policy_rewrite rewrite;
  enum reason reason;     /* why it would be plain */
  enum reason send, recv; /* why a buffer could not be in a window, where that is not the end of it */
};

/* What became known of a communicator. */
struct audit_comm {
  uint64_t comm;
  int rank, nranks, nccl_version;
  const void *library; /* an address in the copy of NCCL that made it, or NULL */
  enum reason reason;  /* REASON_none: ready, its child exists; else plain for good */
  uint64_t setup_ns;
  bool watched; /* in an audit-only run; then: */
  enum reason foreseen;
  uint64_t compatibility, board; /* which the ranks have to have in common */
  uint64_t stage_max;            /* the policy's, which they then have in common too */
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
  uint64_t start_ns; /* audit_clock() when the job called */
  uint64_t host_ns;  /* spent in the shim before the real call */
  uint64_t call_ns;  /* from then until NCCL had returned */
  uint64_t since;    /* calls of its kind since the last line about that kind */
  enum observed observed;
  bool watched; /* in an audit-only run; then: */
  struct audit_forecast forecast;
};

/*
 * Opens the file, if one is asked for, and writes the first line. `path` is the policy's; NULL for the built-in. The
 * policy says what else is written.
 */
void audit_start(const char *mode, const char *path, const struct policy *policy);

/* Whether lines of this level are wanted at all. */
bool audit_wants(enum policy_audit_level level);

void audit_comm(const struct audit_comm *comm);

/*
 * The copy of NCCL in use, `library`, is newer than `newest`, which the shim was checked against, or has functions that
 * the shim does not know: `count`, the first of which, up to `size`, are in `names`.
 */
void audit_library(const char *library, int nccl_version, int newest, const char *const names[], size_t size,
                   size_t count);

void audit_window(uint64_t comm, uint64_t segment, size_t bytes, uint64_t setup_ns);
/* The windows of a communicator were given up; they are not made again before its call `retry_at`. */
void audit_drop(uint64_t comm, enum reason reason, uint64_t retry_at);

void audit_call(const struct audit_call *call);
/* Nothing where there was no call. */
void audit_summary(uint64_t comm, int nranks, enum policy_op op, const struct tally *tally);

/* Adds a call to the counts. They have one writer at a time. */
void tally_add(struct tally *tally, const struct audit_call *call);
/* For any thread, also while another is adding: each count is whole, though not all of the same moment. */
struct tally tally_read(const struct tally *tally);

/* Nanoseconds of a clock that only moves on. */
uint64_t audit_clock(void);

#endif
