/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks of a communicator say different things. */
#include <stdlib.h>
#include <string.h>

#include "tools/cmd_report.h"

/* One figure of the ranks of one op on one communicator. */
struct spread {
  struct report_difference difference;
  uint64_t (*figure)(const struct report_op *op, int reason);
  int reason;
};

static uint64_t figure_calls(const struct report_op *op, int reason)
{
  (void)reason;
  return op->calls;
}

static uint64_t figure_symmetric(const struct report_op *op, int reason)
{
  (void)reason;
  return report_symmetric_calls(op);
}

static uint64_t figure_reason(const struct report_op *op, int reason)
{
  return op->plain[reason];
}

static void widen(struct spread *spread, const struct report_source *source)
{
  struct report_difference *difference = &spread->difference;
  uint64_t value = spread->figure(report_counts(source), spread->reason);

  if (difference->processes++ == 0) {
    difference->least = difference->most = value;
    difference->least_rank = difference->most_rank = source->process->rank;
  } else if (value < difference->least) {
    difference->least = value;
    difference->least_rank = source->process->rank;
  } else if (value > difference->most) {
    difference->most = value;
    difference->most_rank = source->process->rank;
  }
}

/* All spreads of one op on one communicator at once: calls, symmetric, and each reason. */
struct spreads {
  struct spread all[REPORT_MAX_REASONS + 2];
  int count;
};

static void begin(const struct report *report, struct spreads *spreads, const char *comm, int op)
{
  *spreads = (struct spreads){.count = report->reason_count + 2};
  spreads->all[0] = (struct spread){{.what = "calls"}, figure_calls, 0};
  spreads->all[1] = (struct spread){{.what = "symmetric"}, figure_symmetric, 0};
  for (int i = 0; i < report->reason_count; i++)
    spreads->all[i + 2] = (struct spread){{.what = report->reasons[i]}, figure_reason, i};
  for (int i = 0; i < spreads->count; i++) {
    spreads->all[i].difference.comm = comm;
    spreads->all[i].difference.op = op;
  }
}

static int compare_sources(const void *a, const void *b)
{
  const struct report_source *x = *(const struct report_source *const *)a, *y = *(const struct report_source *const *)b;
  int by_comm = memcmp(x->key.comm, y->key.comm, sizeof(x->key.comm));

  if (by_comm != 0)
    return by_comm;
  if (x->key.op != y->key.op)
    return x->key.op < y->key.op ? -1 : 1;
  return x->process->rank < y->process->rank ? -1 : x->process->rank > y->process->rank;
}

static bool is_same(const struct report_source *a, const struct report_source *b)
{
  return a->key.op == b->key.op && memcmp(a->key.comm, b->key.comm, sizeof(a->key.comm)) == 0;
}

void report_differences(const struct report *report,
                        void (*visit)(void *data, const struct report_difference *difference), void *data)
{
  static struct spreads spreads;
  size_t count = HASH_COUNT(report->sources), used = 0;
  struct report_source **sorted = calloc(count ? count : 1, sizeof(*sorted));

  if (!sorted)
    return;
  for (struct report_source *source = report->sources; source; source = source->hh.next)
    if (report_has_identity(source->key.comm))
      sorted[used++] = source;
  qsort(sorted, used, sizeof(*sorted), compare_sources);
  for (size_t i = 0; i < used; i++) {
    if (i == 0 || !is_same(sorted[i - 1], sorted[i]))
      begin(report, &spreads, sorted[i]->key.comm, sorted[i]->key.op);
    for (int at = 0; at < spreads.count; at++)
      widen(&spreads.all[at], sorted[i]);
    if (i + 1 < used && is_same(sorted[i], sorted[i + 1]))
      continue;
    for (int at = 0; at < spreads.count; at++)
      if (spreads.all[at].difference.least != spreads.all[at].difference.most)
        visit(data, &spreads.all[at].difference);
  }
  free(sorted);
}
