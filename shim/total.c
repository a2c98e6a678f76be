/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/total.h"

#include <stdarg.h>
#include <stdio.h>

#include "shim/log.h"

enum { REASONS_TOLD = 3 };

/* Of the counts, those that say how the calls were made. */
static struct tally totals[POLICY_OP_COUNT];
static uint64_t setup;

static void sum_up(uint64_t *sum, uint64_t more)
{
  if (more > 0)
    __atomic_fetch_add(sum, more, __ATOMIC_RELAXED);
}

void total_add(const struct tally tallies[POLICY_OP_COUNT])
{
  for (int op = 0; op < POLICY_OP_COUNT; op++) {
    struct tally tally = tally_read(&tallies[op]);

    sum_up(&totals[op].window_calls, tally.window_calls);
    sum_up(&totals[op].staged_calls, tally.staged_calls);
    for (int reason = 0; reason < REASON_COUNT; reason++)
      sum_up(&totals[op].plain[reason], tally.plain[reason]);
  }
}

void total_setup(uint64_t ns)
{
  sum_up(&setup, ns);
}

struct text {
  char bytes[768];
  size_t length;
};

__attribute__((format(printf, 2, 3))) static void append(struct text *text, const char *format, ...)
{
  size_t room = sizeof(text->bytes) - text->length;
  va_list args;
  int length;

  va_start(args, format);
  length = vsnprintf(text->bytes + text->length, room, format, args);
  va_end(args);
  if (length > 0)
    text->length += (size_t)length < room ? (size_t)length : room - 1;
}

static uint64_t plain_calls(const struct tally *total)
{
  uint64_t sum = 0;

  for (int reason = 0; reason < REASON_COUNT; reason++)
    sum += total->plain[reason];
  return sum;
}

/* The most frequent ones first. */
static void append_reasons(struct text *text, struct tally total)
{
  uint64_t left = plain_calls(&total);

  if (left == 0)
    return;
  for (int told = 0; told < REASONS_TOLD && left > 0; told++) {
    int most = 0;

    for (int reason = 1; reason < REASON_COUNT; reason++)
      most = total.plain[reason] > total.plain[most] ? reason : most;
    append(text, "%s%llu %s", told ? ", " : " (", (unsigned long long)total.plain[most],
           reason_code((enum reason)most));
    left -= total.plain[most];
    total.plain[most] = 0;
  }
  if (left > 0)
    append(text, ", %llu for other reasons", (unsigned long long)left);
  append(text, ")");
}

void total_tell(void)
{
  struct text text = {.length = 0};

  if (!log_wants(LOG_INFO) || log_rank() > 0)
    return;
  for (int op = 0; op < POLICY_OP_COUNT; op++) {
    struct tally total = tally_read(&totals[op]); /* threads that the end finds inside a call may still add */
    uint64_t symmetric = total.window_calls + total.staged_calls, calls = symmetric + plain_calls(&total);

    if (calls == 0)
      continue;
    append(&text, "%s%s %llu/%llu%s", text.length ? ", " : "", policy_op_word((enum policy_op)op),
           (unsigned long long)symmetric, (unsigned long long)calls, text.length ? "" : " symmetric");
    append_reasons(&text, total);
  }
  if (text.length > 0)
    log_info("%s, setup %.1f s", text.bytes, (double)__atomic_load_n(&setup, __ATOMIC_RELAXED) / 1e9);
}
