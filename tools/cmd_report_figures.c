/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, shares and slices of time. */
#include <string.h>

#include "tools/cmd_report.h"

bool report_has_identity(const char *comm)
{
  return strspn(comm, "0") != strlen(comm);
}

uint64_t report_symmetric_calls(const struct report_op *op)
{
  return op->path_calls[REPORT_WINDOW] + op->path_calls[REPORT_STAGED];
}

uint64_t report_symmetric_bytes(const struct report_op *op)
{
  return op->path_bytes[REPORT_WINDOW] + op->path_bytes[REPORT_STAGED];
}

double report_percent(uint64_t part, uint64_t whole)
{
  return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

double report_shown_percent(const struct report_op *op)
{
  uint64_t symmetric = report_symmetric_calls(op);
  double value = report_percent(symmetric, op->calls);

  return symmetric < op->calls && value > 99.9 ? 99.9 : value;
}

int report_next_reason(const struct report *report, const struct report_op *op, const bool *done)
{
  int best = -1;

  for (int i = 0; i < report->reason_count; i++) {
    if (done[i] || op->plain[i] == 0)
      continue;
    if (best < 0 || op->plain[i] > op->plain[best] ||
        (op->plain[i] == op->plain[best] && strcmp(report->reasons[i], report->reasons[best]) < 0))
      best = i;
  }
  return best;
}

static void slice_add(struct report_slice *sum, const struct report_slice *slice)
{
  for (int op = 0; op < POLICY_OP_COUNT; op++) {
    sum->calls[op] += slice->calls[op];
    sum->symmetric[op] += slice->symmetric[op];
  }
}

/* Slices of twice the width, on the same grid whatever came first. */
static void widen(struct report_timeline *timeline)
{
  struct report_timeline wide = {.width = timeline->width * 2, .start = timeline->start / 2};

  for (int i = 0; i < timeline->used; i++) {
    int at = (int)((timeline->start + i) / 2 - wide.start);

    slice_add(&wide.slices[at], &timeline->slices[i]);
    wide.used = at + 1;
  }
  *timeline = wide;
}

/* Makes room for slice `at` of the present width. */
static void cover(struct report_timeline *timeline, int64_t at)
{
  int before = at < timeline->start ? (int)(timeline->start - at) : 0;

  if (before > 0) {
    memmove(timeline->slices + before, timeline->slices, (size_t)timeline->used * sizeof(timeline->slices[0]));
    memset(timeline->slices, 0, (size_t)before * sizeof(timeline->slices[0]));
    timeline->start = at;
    timeline->used += before;
  }
  if (at >= timeline->start + timeline->used)
    timeline->used = (int)(at - timeline->start) + 1;
}

void report_timeline_add(struct report_timeline *timeline, double time, int op, uint64_t calls, uint64_t symmetric)
{
  int64_t tick, first, last;

  if (!(time > 0 && time < 1e12) || calls == 0)
    return;
  tick = (int64_t)(time * REPORT_TICKS);
  if (timeline->width == 0)
    *timeline = (struct report_timeline){.width = 1, .start = tick, .used = 1};
  for (;; widen(timeline)) {
    int64_t at = tick / timeline->width;

    first = at < timeline->start ? at : timeline->start;
    last = timeline->start + timeline->used - 1;
    last = at > last ? at : last;
    if (last - first < REPORT_BUCKETS)
      break;
  }
  cover(timeline, tick / timeline->width);
  timeline->slices[tick / timeline->width - timeline->start].calls[op] += calls;
  timeline->slices[tick / timeline->width - timeline->start].symmetric[op] += symmetric;
}

static uint64_t calls_of(const struct report_timeline *timeline)
{
  uint64_t calls = 0;

  for (int i = 0; i < timeline->used; i++)
    for (int op = 0; op < POLICY_OP_COUNT; op++)
      calls += timeline->slices[i].calls[op];
  return calls;
}

const struct report_timeline *report_timeline_best(const struct report *report)
{
  uint64_t by_call = calls_of(&report->by_call), by_summary = calls_of(&report->by_summary);

  if (by_call == 0 && by_summary == 0)
    return NULL;
  /* A log of changes only has few calls; a log of all is finer than the summaries. */
  return by_call * 10 >= by_summary * 9 ? &report->by_call : &report->by_summary;
}
