/* SPDX-License-Identifier: Apache-2.0 */
/* What going symmetric is worth, roughly: the order of the signatures and the break-even rest on it, no decision does.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/cmd_report.h"

/*
 * Microseconds that a call was faster on symmetric kernels with 16 CTAs than on stock NCCL: two H200, NCCL 2.28.9,
 * bf16. Other GPUs, rank counts and versions have other figures.
 */
enum { POINTS = 4 };
static const uint64_t point_bytes[POINTS] = {2 << 20, 8 << 20, 32 << 20, 128 << 20};
static const double all_gather_us[POINTS] = {6.9, 17.4, 34.1, 90};
static const double reduce_scatter_us[POINTS] = {7.2, 10.9, 29.6, 65};
static const double scaled_us[POINTS] = {2.4, 8.1, 21, 28}; /* reduce-scatter, its average made of a sum */
static const double all_reduce_us[POINTS] = {13.2, 12.4, 25.8, 51};

static double interpolate(const double us[POINTS], uint64_t bytes)
{
  if (bytes < point_bytes[0])
    return us[0] * (double)bytes / (double)point_bytes[0];
  for (int i = 1; i < POINTS; i++)
    if (bytes <= point_bytes[i])
      return us[i - 1] +
             (us[i] - us[i - 1]) * (double)(bytes - point_bytes[i - 1]) / (double)(point_bytes[i] - point_bytes[i - 1]);
  return us[POINTS - 1]; /* no more is known of larger ones */
}

double report_gain(enum policy_op op, uint64_t bytes, bool scaled)
{
  const double *us = op == POLICY_OP_all_gather      ? all_gather_us
                     : op == POLICY_OP_all_reduce    ? all_reduce_us
                     : scaled /* a reduce-scatter */ ? scaled_us
                                                     : reduce_scatter_us;

  return interpolate(us, bytes) / 1e6;
}

static void find_slowest(const struct report *report, struct report_setup *setup)
{
  for (const struct report_process *process = report->processes; process; process = process->hh.next) {
    double seconds = (double)(process->child_ns + process->window_ns) / 1e9;

    setup->child_s += (double)process->child_ns / 1e9;
    setup->window_s += (double)process->window_ns / 1e9;
    if (seconds <= setup->slowest_s)
      continue;
    setup->slowest_s = seconds;
    setup->slowest = process;
  }
}

void report_setup(const struct report *report, struct report_setup *setup)
{
  memset(setup, 0, sizeof(*setup));
  find_slowest(report, setup);
  for (const struct report_comm *comm = report->comms; comm; comm = comm->hh.next)
    for (int op = 0; op < POLICY_OP_COUNT; op++) {
      uint64_t calls = report_symmetric_calls(&comm->ops[op]);
      double each = comm->processes[op] > 0 ? (double)calls / (double)comm->processes[op] : 0;

      if (calls == 0)
        continue;
      setup->calls_per_rank += each;
      setup->gained_s += each * report_gain((enum policy_op)op, report_symmetric_bytes(&comm->ops[op]) / calls, true);
    }
  if (setup->gained_s > 0)
    setup->break_even = setup->slowest_s * setup->calls_per_rank / setup->gained_s;
}

/* Whether the reason is only what a rank says when another has a reason of its own. */
static bool is_echo(const char *code)
{
  return strcmp(code, "peer_declined") == 0 || strcmp(code, "paused") == 0;
}

/* The reason to speak of: the most frequent one, one that only echoes another's last. */
static bool is_better(const struct report *report, const struct report_signature *signature, int reason)
{
  int best = signature->reason;

  if (best < 0)
    return true;
  if (is_echo(report->reasons[reason]) != is_echo(report->reasons[best]))
    return is_echo(report->reasons[best]);
  return signature->plain[reason] > signature->plain[best];
}

/* A log of changes has some of the calls; the summaries say how many there were with each reason. */
static double how_many(const struct report_comm *comm, const struct report_signature *signature, int reason)
{
  uint64_t all = comm->ops[signature->key.op].plain[reason], seen = comm->seen[signature->key.op].plain[reason];
  double calls = signature->plain[reason];

  return seen > 0 && all > seen ? calls * (double)all / (double)seen : calls;
}

static bool is_scaled(const struct report_signature_key *key)
{
  return strcmp(key->redop, "avg") == 0 || strcmp(key->redop, "premulsum") == 0;
}

static void rank_signature(const struct report *report, struct report_signature *signature)
{
  bool scaled = is_scaled(&signature->key);
  struct report_comm *comm;

  signature->about = signature->seconds = 0;
  signature->reason = -1;
  HASH_FIND(hh, report->comms, signature->key.comm, sizeof(signature->key.comm), comm);
  if (!comm || comm->processes[signature->key.op] == 0)
    return;
  for (int reason = 0; reason < report->reason_count; reason++) {
    if (signature->plain[reason] == 0 || !report_can_help(report->reasons[reason]))
      continue;
    signature->about += how_many(comm, signature, reason);
    if (is_better(report, signature, reason))
      signature->reason = reason;
  }
  signature->seconds = signature->about / (double)comm->processes[signature->key.op] *
                       report_gain((enum policy_op)signature->key.op, signature->key.bytes, scaled);
}

int report_top(struct report *report, struct report_signature *top[REPORT_TOP])
{
  int count = 0;

  for (struct report_signature *signature = report->signatures; signature; signature = signature->hh.next) {
    int at;

    rank_signature(report, signature);
    if (signature->seconds <= 0)
      continue;
    for (at = count; at > 0 && top[at - 1]->seconds < signature->seconds; at--)
      if (at < REPORT_TOP)
        top[at] = top[at - 1];
    if (at == REPORT_TOP)
      continue;
    top[at] = signature;
    count += count < REPORT_TOP;
  }
  return count;
}

double report_would_gain(const struct report *report, const struct report_signature *signature)
{
  const struct report_signature_key *key = &signature->key;
  uint64_t calls = signature->would[REPORT_WINDOW] + signature->would[REPORT_STAGED];
  struct report_comm *comm;

  HASH_FIND(hh, report->comms, key->comm, sizeof(key->comm), comm);
  if (!comm || comm->processes[key->op] == 0)
    return 0;
  return (double)calls / (double)comm->processes[key->op] *
         report_gain((enum policy_op)key->op, key->bytes, is_scaled(key));
}

static const struct report *sorting; /* qsort() hands nothing on */

static int compare(const void *a, const void *b)
{
  double x = report_would_gain(sorting, *(const struct report_signature *const *)a);
  double y = report_would_gain(sorting, *(const struct report_signature *const *)b);

  return (x < y) - (x > y);
}

size_t report_would_go(const struct report *report, struct report_signature ***sorted)
{
  size_t count = 0;

  *sorted = calloc(HASH_COUNT(report->signatures) + 1, sizeof(struct report_signature *));
  if (!*sorted)
    return 0;
  for (struct report_signature *signature = report->signatures; signature; signature = signature->hh.next)
    if (signature->would[REPORT_WINDOW] + signature->would[REPORT_STAGED] > 0)
      (*sorted)[count++] = signature;
  sorting = report;
  qsort(*sorted, count, sizeof(struct report_signature *), compare);
  return count;
}
