/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Audit logs, added up. cmd_report_read.c reads lines (symmshim-audit(5), schema 1) into totals; cmd_report.c
 * prints them.
 */
#ifndef SYMMSHIM_CMD_REPORT_H
#define SYMMSHIM_CMD_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/policy.h"

enum {
  REPORT_SCHEMA = 1,
  REPORT_MAX_LINE = 64 << 10, /* bytes of a line, with its end */
  REPORT_MAX_REASONS = 128,   /* different reason codes in all files */
  REPORT_MAX_REASON = 32      /* bytes of one, with the end */
};

struct report_op {
  uint64_t calls, bytes;               /* all calls of the op */
  uint64_t window_calls, window_bytes; /* those that went symmetric */
  uint64_t plain[REPORT_MAX_REASONS];  /* the others, by index of the reason */
  uint64_t unfinished;                 /* communicators in processes that left no summary for the op */
};

struct report {
  struct report_op ops[POLICY_OP_COUNT];
  int reason_count;
  char reasons[REPORT_MAX_REASONS][REPORT_MAX_REASON];
  uint64_t records; /* understood lines */
  uint64_t skipped; /* lines that are malformed, cut off, too long, or of an unknown schema */
  uint64_t unknown_schema;
};

/*
 * Adds a file to `report`, line by line; malformed lines are counted, never fatal. Returns 0, or a negative
 * errno when the file cannot be opened or read.
 */
int report_read(struct report *report, const char *path);

#endif
