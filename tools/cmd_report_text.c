/* SPDX-License-Identifier: Apache-2.0 */
/* The report for people. */
#include <stdlib.h>
#include <string.h>

#include "tools/cmd.h"
#include "tools/cmd_report.h"

enum { MAX_DIFFERENCES = 12, MAX_COMMS = 12, TEXT_WIDTH = 112 };

/* Where the text goes, and how it may look. */
struct output {
  FILE *file;
  const char *bold, *normal;
  const struct report *report;
  int differences;
};

static void print_heading(const struct output *output, const char *text)
{
  fprintf(output->file, "\n%s%s%s\n", output->bold, text, output->normal);
}

/* Words in lines of a width, all but the first behind `indent` blanks. */
static void print_wrapped(FILE *file, int indent, const char *text)
{
  int column = indent;

  while (*text) {
    int length = (int)strcspn(text, " ");

    if (column > indent && column + 1 + length > TEXT_WIDTH) {
      fprintf(file, "\n%*s", indent, "");
      column = indent;
    }
    fprintf(file, "%s%.*s", column > indent ? " " : "", length, text);
    column += length + (column > indent);
    text += length;
    text += strspn(text, " ");
  }
  fputc('\n', file);
}

static void print_reasons(const struct output *output, const struct report_op *op)
{
  bool done[REPORT_MAX_REASONS] = {false};

  for (int reason; (reason = report_next_reason(output->report, op, done)) >= 0; done[reason] = true)
    fprintf(output->file, "  %-32s %12llu  %5.1f %%\n", output->report->reasons[reason],
            (unsigned long long)op->plain[reason], report_percent(op->plain[reason], op->calls));
}

static void print_op(const struct output *output, const char *name, const struct report_op *op)
{
  char bytes[32], symmetric[32];

  fprintf(output->file, "%-16s %12llu %12s %12llu %6.1f %% %12s", name, (unsigned long long)op->calls,
          cmd_format_bytes(op->bytes, bytes, sizeof(bytes)), (unsigned long long)report_symmetric_calls(op),
          report_shown_percent(op), cmd_format_bytes(report_symmetric_bytes(op), symmetric, sizeof(symmetric)));
  if (op->path_calls[REPORT_STAGED] > 0)
    fprintf(output->file, "  %llu staged", (unsigned long long)op->path_calls[REPORT_STAGED]);
  fprintf(output->file, "%s\n", op->unfinished > 0 ? "  incomplete" : "");
}

/* Returns whether there were calls. */
static bool print_ops(const struct output *output)
{
  bool any = false;

  for (int i = 0; i < POLICY_OP_COUNT; i++) {
    if (output->report->ops[i].calls == 0)
      continue;
    if (!any)
      fprintf(output->file, "%s%-16s %12s %12s %12s %8s %12s%s\n", output->bold, "op", "calls", "bytes", "symmetric",
              "share", "sym. bytes", output->normal);
    any = true;
    print_op(output, policy_op_word((enum policy_op)i), &output->report->ops[i]);
  }
  return any;
}

static uint64_t lost_lines(const struct report *report)
{
  uint64_t lost = 0;

  for (const struct report_process *process = report->processes; process; process = process->hh.next)
    lost += process->lost;
  return lost;
}

/* What the shim arranged against what NCCL did. */
static void print_observed(const struct output *output)
{
  bool any = false;

  for (int i = 0; i < POLICY_OP_COUNT; i++) {
    const struct report_op *op = &output->report->ops[i];
    const struct report_observed *observed = &op->observed;

    if (observed->symmetric + observed->plain == 0)
      continue;
    if (!any)
      print_heading(output, "what NCCL was seen to do");
    any = true;
    fprintf(output->file, "  %-16s %llu calls arranged, %llu seen symmetric, %llu seen plain, %llu not told\n",
            policy_op_word((enum policy_op)i), (unsigned long long)report_symmetric_calls(op),
            (unsigned long long)observed->symmetric, (unsigned long long)observed->plain,
            (unsigned long long)(op->calls - observed->symmetric - observed->plain));
    if (observed->mismatched > 0)
      fprintf(output->file, "  %sMISMATCH: %llu %s calls were put on windows, and NCCL made them on plain kernels%s\n",
              output->bold, (unsigned long long)observed->mismatched, policy_op_word((enum policy_op)i),
              output->normal);
  }
  if (lost_lines(output->report) > 0)
    fprintf(output->file, "\n%llu lines of the logs could not be written, and are missing here\n",
            (unsigned long long)lost_lines(output->report));
}

static void print_would_go(const struct output *output, const struct report_signature *signature, int number)
{
  uint64_t window = signature->would[REPORT_WINDOW], staged = signature->would[REPORT_STAGED];
  char name[192];

  fprintf(output->file, "%2d  %s%s%s: %llu of %llu calls", number, output->bold,
          report_name(output->report, signature, name, sizeof(name)), output->normal,
          (unsigned long long)(window + staged), (unsigned long long)signature->calls);
  if (staged > 0)
    fprintf(output->file, ", %llu of them staged", (unsigned long long)staged);
  fprintf(output->file, ", about %.3g ms a rank\n", report_would_gain(output->report, signature) * 1e3);
}

static void print_all_that_would_go(const struct output *output)
{
  struct report_signature **sorted;
  size_t count = report_would_go(output->report, &sorted);

  if (count > 0)
    print_heading(output, "dry run: calls that would go symmetric (gain is an estimate)");
  for (size_t i = 0; i < count && i < REPORT_TOP; i++)
    print_would_go(output, sorted[i], (int)i + 1);
  if (count > REPORT_TOP)
    fprintf(output->file, "and %zu kinds more, of which --json has all\n", count - REPORT_TOP);
  free(sorted);
}

/* Of what the logs cannot tell. */
static void print_unforeseen(const struct output *output)
{
  const struct report *report = output->report;

  if (report->unforeseen > 0)
    fprintf(output->file, "  not foreseen: %llu calls, which not every rank's log has, or which are too many\n",
            (unsigned long long)report->unforeseen);
  if (report->absent > 0)
    fprintf(
        output->file,
        "  there is no log of %llu rank%s, taken to do as the others: name all ranks' logs; ranks that are not under "
        "the shim keep all calls plain\n",
        (unsigned long long)report->absent, report->absent == 1 ? "" : "s");
  fprintf(output->file, "  not foreseen: ranks that come late, and device memory that runs short\n");
}

/* What a real run would have made of calls that were only watched. */
static void print_forecast(const struct output *output)
{
  const struct report *report = output->report;

  if (!report->audit_only)
    return;
  print_heading(output, "dry run: what would become of these calls without SYMMSHIM=audit");
  if (report->foreseen == 0) {
    fprintf(output->file,
            "  nothing is foreseen, since the logs have no single calls: leave `audit = summary` out of the "
            "policy\n");
    return;
  }
  for (int i = 0; i < POLICY_OP_COUNT; i++)
    if (report->forecast[i].calls > 0) {
      print_op(output, policy_op_word((enum policy_op)i), &report->forecast[i]);
      print_reasons(output, &report->forecast[i]);
    }
  print_unforeseen(output);
  print_all_that_would_go(output);
}

static void print_plain(const struct output *output)
{
  for (int i = 0; i < POLICY_OP_COUNT; i++) {
    const struct report_op *op = &output->report->ops[i];
    char heading[64];

    if (report_symmetric_calls(op) == op->calls)
      continue;
    snprintf(heading, sizeof(heading), "plain %s by reason", policy_op_word((enum policy_op)i));
    print_heading(output, heading);
    print_reasons(output, op);
  }
}

static void print_comm(const struct output *output, const struct report_comm *comm)
{
  fprintf(output->file, "%s  %d ranks", comm->id, comm->nranks);
  if (comm->nccl[0] != '\0')
    fprintf(output->file, ", NCCL %s", comm->nccl);
  if (comm->ready > 0)
    fprintf(output->file, ", ready on %d", comm->ready);
  if (comm->plain > 0)
    fprintf(output->file, ", plain on %d%s%s", comm->plain, comm->reason >= 0 ? ": " : "",
            comm->reason >= 0 ? output->report->reasons[comm->reason] : "");
  fputc('\n', output->file);
  for (int i = 0; i < POLICY_OP_COUNT; i++)
    if (comm->ops[i].calls > 0)
      print_op(output, policy_op_word((enum policy_op)i), &comm->ops[i]);
}

static bool has_calls(const struct report_comm *comm)
{
  for (int i = 0; i < POLICY_OP_COUNT; i++)
    if (comm->ops[i].calls > 0)
      return true;
  return false;
}

/* One communicator has nothing to say that the table above has not. */
static void print_comms(const struct output *output)
{
  unsigned shown = 0, all = HASH_COUNT(output->report->comms);

  if (all < 2)
    return;
  print_heading(output, "communicators");
  for (const struct report_comm *comm = output->report->comms; comm && shown < MAX_COMMS; comm = comm->hh.next) {
    if (!has_calls(comm))
      continue;
    print_comm(output, comm);
    shown++;
  }
  if (all > shown)
    fprintf(output->file, "and %u more, of which --json has all\n", all - shown);
}

static void print_difference(void *data, const struct report_difference *difference)
{
  struct output *output = data;

  if (output->differences++ == 0)
    print_heading(output, "counts that differ between ranks");
  if (output->differences > MAX_DIFFERENCES)
    return;
  fprintf(output->file, "  %s %-14s %-16s %llu on rank %d, %llu on rank %d\n", difference->comm,
          policy_op_word((enum policy_op)difference->op), difference->what, (unsigned long long)difference->most,
          difference->most_rank, (unsigned long long)difference->least, difference->least_rank);
}

static void print_differences(struct output *output)
{
  report_differences(output->report, print_difference, output);
  if (output->differences > MAX_DIFFERENCES)
    fprintf(output->file, "  and %d more, of which --json has all\n", output->differences - MAX_DIFFERENCES);
}

static void print_setup(const struct output *output)
{
  struct report_setup setup;

  report_setup(output->report, &setup);
  if (!setup.slowest)
    return;
  print_heading(output, "setting up");
  fprintf(output->file, "  child communicators %.3f s, windows %.3f s over all ranks; rank %d took longest: %.3f s\n",
          setup.child_s, setup.window_s, setup.slowest->rank, setup.slowest_s);
  if (setup.break_even <= 0)
    fprintf(output->file, "  no call went symmetric, so nothing has repaid it\n");
  else if (setup.gained_s >= setup.slowest_s)
    fprintf(output->file, "  repaid: about %.3f s gained in %.0f symmetric calls a rank (estimate)\n", setup.gained_s,
            setup.calls_per_rank);
  else
    fprintf(output->file,
            "  not repaid yet: about %.3f s gained in %.0f symmetric calls a rank; break-even after about %.0f "
            "(estimate)\n",
            setup.gained_s, setup.calls_per_rank, setup.break_even);
}

static void print_signature(const struct output *output, int number, const struct report_signature *signature)
{
  char name[192], text[1024];

  fprintf(output->file, "%2d  %s%s%s: about %.0f plain calls, %.3g ms a rank\n    ", number, output->bold,
          report_name(output->report, signature, name, sizeof(name)), output->normal, signature->about,
          signature->seconds * 1e3);
  print_wrapped(output->file, 4, report_explain(output->report, signature, text, sizeof(text)));
}

static void print_top(const struct output *output, struct report *report)
{
  struct report_signature *top[REPORT_TOP];
  int count = report_top(report, top);

  if (count == 0)
    return;
  print_heading(output, "what would gain most (estimate)");
  for (int i = 0; i < count; i++)
    print_signature(output, i + 1, top[i]);
}

void report_print_text(struct report *report, FILE *file)
{
  struct output output = {.file = file, .bold = cmd_style(file, "1"), .normal = cmd_style(file, "0"), .report = report};

  if (!print_ops(&output)) {
    fprintf(file, "no calls\n");
    return;
  }
  print_forecast(&output);
  print_observed(&output);
  print_plain(&output);
  print_comms(&output);
  print_differences(&output);
  print_setup(&output);
  print_top(&output, report);
}
