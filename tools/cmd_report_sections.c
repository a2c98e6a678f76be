/* SPDX-License-Identifier: Apache-2.0 */
/* Sections of the report's page: dry run, what NCCL did, over time, what would gain most, ranks, setting up,
 * communicators. */
#include <stdlib.h>

#include "tools/cmd.h"
#include "tools/cmd_report_html.h"

enum { MAX_COMMS = 200, MAX_DIFFERENCES = 200 };

static void write_kind(FILE *file, const struct report *report, const struct report_signature *signature)
{
  char name[192];

  fprintf(file, "<tr><td>");
  html_text(file, report_name(report, signature, name, sizeof(name)));
  fprintf(file,
          "</td><td class=\"n\">%llu</td><td class=\"n\">%llu</td><td class=\"n\">%llu</td><td class=\"n\">%.3g ms</td>"
          "</tr>\n",
          (unsigned long long)signature->calls, (unsigned long long)signature->would[REPORT_WINDOW],
          (unsigned long long)signature->would[REPORT_STAGED], report_would_gain(report, signature) * 1e3);
}

static void write_kinds(FILE *file, const struct report *report)
{
  struct report_signature **sorted;
  size_t count = report_would_go(report, &sorted);

  if (count > 0) {
    fprintf(file, "<h3>Calls that would go symmetric</h3>\n<div class=\"wide\"><table>\n<tr><th>kind</th>"
                  "<th class=\"n\">calls</th><th class=\"n\">window</th><th class=\"n\">staged</th>"
                  "<th class=\"n\">gain a rank (estimate)</th></tr>\n");
    for (size_t i = 0; i < count && i < MAX_COMMS; i++)
      write_kind(file, report, sorted[i]);
    fprintf(file, "</table></div>\n");
  }
  if (count > MAX_COMMS)
    fprintf(file, "<p class=\"note\">And %zu kinds more.</p>\n", count - MAX_COMMS);
  free(sorted);
}

static void write_unforeseen(FILE *file, const struct report *report)
{
  if (report->unforeseen > 0)
    fprintf(file,
            "<p class=\"note\">Of %llu calls nothing is foreseen: not every rank's log has them, or there are too "
            "many.</p>\n",
            (unsigned long long)report->unforeseen);
  if (report->absent > 0)
    fprintf(file,
            "<p class=\"note\">There is no log of %llu rank%s, taken to do as the others; ranks that are not under the "
            "shim keep all calls plain.</p>\n",
            (unsigned long long)report->absent, report->absent == 1 ? "" : "s");
  fprintf(file, "<p class=\"note\">Ranks that come late, and device memory that runs short, cannot be foreseen.</p>\n");
}

void html_forecast(FILE *file, const struct report *report)
{
  if (!report->audit_only)
    return;
  html_open(file, "Dry run: what would become of these calls without SYMMSHIM=audit");
  if (report->foreseen == 0) {
    fprintf(file, "<p class=\"note\">Nothing is foreseen, since the logs have no single calls: leave <code>audit = "
                  "summary</code> out of the policy.</p>\n");
  } else {
    html_ops(file, report->forecast);
    html_reasons(file, report, report->forecast);
    write_kinds(file, report);
    write_unforeseen(file, report);
  }
  html_close(file);
}

static void write_observed(FILE *file, int op, const struct report_op *counts)
{
  const struct report_observed *observed = &counts->observed;

  fprintf(file,
          "<tr><td><code>%s</code></td><td class=\"n\">%llu</td><td class=\"n\">%llu</td><td class=\"n\">%llu</td>"
          "<td class=\"n\">%llu</td><td class=\"n%s\">%llu</td></tr>\n",
          policy_op_word((enum policy_op)op), (unsigned long long)report_symmetric_calls(counts),
          (unsigned long long)observed->symmetric, (unsigned long long)observed->plain,
          (unsigned long long)(counts->calls - observed->symmetric - observed->plain),
          observed->mismatched > 0 ? " alarm" : "", (unsigned long long)observed->mismatched);
}

void html_observed(FILE *file, const struct report *report)
{
  bool any = false;

  for (int op = 0; op < POLICY_OP_COUNT; op++) {
    const struct report_observed *observed = &report->ops[op].observed;

    if (observed->symmetric + observed->plain == 0)
      continue;
    if (!any) {
      html_open(file, "What NCCL was seen to do");
      fprintf(file, "<div class=\"wide\"><table>\n<tr><th>op</th><th class=\"n\">arranged</th>"
                    "<th class=\"n\">seen symmetric</th><th class=\"n\">seen plain</th><th class=\"n\">not told</th>"
                    "<th class=\"n\">mismatch</th></tr>\n");
    }
    any = true;
    write_observed(file, op, &report->ops[op]);
  }
  if (!any)
    return;
  fprintf(file, "</table></div>\n");
  html_close(file);
}

/* At the top of the page, since the other figures are wrong then. */
void html_alarm(FILE *file, const struct report *report)
{
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    if (report->ops[op].observed.mismatched > 0)
      fprintf(
          file,
          "<p class=\"alarm\" role=\"alert\"><b>MISMATCH:</b> %llu <code>%s</code> calls were put on windows, and NCCL "
          "made them on plain kernels.</p>\n",
          (unsigned long long)report->ops[op].observed.mismatched, policy_op_word((enum policy_op)op));
}

/* One slice of time as a column of full height: symmetric from below, plain above. */
static void write_column(FILE *file, const struct report_timeline *timeline, int at, int op)
{
  const struct report_slice *slice = &timeline->slices[at];
  double share = report_percent(slice->symmetric[op], slice->calls[op]);

  if (slice->calls[op] == 0)
    return;
  fprintf(file, "<g><title>%.1f s: %llu of %llu calls symmetric</title>", (double)(at * timeline->width) / REPORT_TICKS,
          (unsigned long long)slice->symmetric[op], (unsigned long long)slice->calls[op]);
  if (share < 100)
    fprintf(file, "<rect class=\"plain\" x=\"%d\" y=\"0\" width=\"1\" height=\"%.2f\"/>", at, 100 - share);
  if (share > 0)
    fprintf(file, "<rect class=\"window\" x=\"%d\" y=\"%.2f\" width=\"1\" height=\"%.2f\"/>", at, 100 - share, share);
  fprintf(file, "</g>\n");
}

static void write_plot(FILE *file, const struct report_timeline *timeline, int op)
{
  const char *word = policy_op_word((enum policy_op)op);

  fprintf(
      file,
      "<h3><code>%s</code></h3>\n<div class=\"plot\"><div class=\"y\"><span>100 %%</span><span>50</span>"
      "<span>0</span></div>\n<svg viewBox=\"0 0 %d 100\" preserveAspectRatio=\"none\" shape-rendering=\"crispEdges\" "
      "role=\"img\" aria-label=\"share of symmetric %s calls over time\">\n",
      word, timeline->used, word);
  for (int at = 0; at < timeline->used; at++)
    write_column(file, timeline, at, op);
  fprintf(file, "</svg>\n<div class=\"x\"><span>0 s</span><span>%.1f s</span></div></div>\n",
          (double)(timeline->used * timeline->width) / REPORT_TICKS);
}

void html_timeline(FILE *file, const struct report *report)
{
  const struct report_timeline *timeline = report_timeline_best(report);

  html_open(file, "Coverage over time");
  fprintf(file, "<p class=\"key\"><i class=\"window\"></i>symmetric<i class=\"plain\"></i>plain</p>\n");
  if (!timeline)
    fprintf(file, "<p class=\"note\">No record of a call has a time.</p>\n");
  for (int op = 0; timeline && op < POLICY_OP_COUNT; op++)
    if (report->ops[op].calls > 0)
      write_plot(file, timeline, op);
  if (timeline == &report->by_summary)
    fprintf(file, "<p class=\"note\">From the summaries, one a minute; with audit = call in the policy the log has "
                  "every call.</p>\n");
  html_close(file);
}

static void write_signature(FILE *file, const struct report *report, const struct report_signature *signature)
{
  char name[192], text[1024];

  fprintf(file, "<li><b>");
  html_text(file, report_name(report, signature, name, sizeof(name)));
  fprintf(file, "</b>: about %.0f plain calls, %.3g ms a rank\n<p>", signature->about, signature->seconds * 1e3);
  html_text(file, report_explain(report, signature, text, sizeof(text)));
  fprintf(file, "</p></li>\n");
}

void html_top(FILE *file, struct report *report)
{
  struct report_signature *top[REPORT_TOP];
  int count = report_top(report, top);

  html_open(file, "What would gain most");
  if (count == 0) {
    fprintf(file, "<p class=\"note\">Nothing that was logged is left to gain.</p>\n");
  } else {
    fprintf(file, "<ol>\n");
    for (int i = 0; i < count; i++)
      write_signature(file, report, top[i]);
    fprintf(file, "</ol>\n<p class=\"note\">Times are estimates, from what two H200 with NCCL 2.28.9 gained.</p>\n");
  }
  html_close(file);
}

struct differences {
  FILE *file;
  int count;
};

static void write_side(FILE *file, uint64_t calls, int rank)
{
  fprintf(file, "<td class=\"n\">%llu</td><td>rank %d</td>", (unsigned long long)calls, rank);
}

static void write_difference(void *data, const struct report_difference *difference)
{
  struct differences *differences = data;
  FILE *file = differences->file;

  if (differences->count++ == 0)
    fprintf(file, "<div class=\"wide\"><table>\n<tr><th>communicator</th><th>op</th><th>what</th>"
                  "<th class=\"n\">most</th><th></th><th class=\"n\">least</th><th></th></tr>\n");
  if (differences->count > MAX_DIFFERENCES)
    return;
  fprintf(file, "<tr><td><code>");
  html_text(file, difference->comm);
  fprintf(file, "</code></td><td><code>%s</code></td><td>", policy_op_word((enum policy_op)difference->op));
  html_text(file, difference->what);
  fprintf(file, "</td>");
  write_side(file, difference->most, difference->most_rank);
  write_side(file, difference->least, difference->least_rank);
  fprintf(file, "</tr>\n");
}

void html_differences(FILE *file, const struct report *report)
{
  struct differences differences = {.file = file};

  html_open(file, "Counts that differ between ranks");
  report_differences(report, write_difference, &differences);
  if (differences.count > 0)
    fprintf(file, "</table></div>\n");
  if (differences.count > MAX_DIFFERENCES)
    fprintf(file, "<p class=\"note\">And %d more.</p>\n", differences.count - MAX_DIFFERENCES);
  if (differences.count == 0)
    fprintf(file, "<p class=\"note\">None: every rank made the same calls, and each went the same way on all of them.</p>\n");
  html_close(file);
}

static void write_setup_row(FILE *file, const struct report_process *process)
{
  char bytes[32];

  fprintf(file,
          "<tr><td>%d</td><td class=\"n\">%.3f s</td><td class=\"n\">%.3f s</td><td class=\"n\">%llu</td>"
          "<td class=\"n\">%s</td></tr>\n",
          process->rank, (double)process->child_ns / 1e9, (double)process->window_ns / 1e9,
          (unsigned long long)process->windows, cmd_format_bytes(process->window_bytes, bytes, sizeof(bytes)));
}

static void write_break_even(FILE *file, const struct report_setup *setup)
{
  if (setup->break_even <= 0)
    fprintf(file, "<p class=\"note\">No call went symmetric, so nothing has repaid it.</p>\n");
  else
    fprintf(file,
            "<p class=\"note\">%s: about %.3f s gained in %.0f symmetric calls a rank; break-even after about %.0f "
            "(estimate).</p>\n",
            setup->gained_s >= setup->slowest_s ? "Repaid" : "Not repaid yet", setup->gained_s, setup->calls_per_rank,
            setup->break_even);
}

void html_setup(FILE *file, const struct report *report)
{
  struct report_setup setup;
  int rows = 0;

  report_setup(report, &setup);
  if (!setup.slowest)
    return;
  html_open(file, "Setting up");
  fprintf(file, "<div class=\"wide\"><table>\n<tr><th>rank</th><th class=\"n\">child communicators</th>"
                "<th class=\"n\">registration</th><th class=\"n\">windows</th><th class=\"n\">their bytes</th></tr>\n");
  for (const struct report_process *process = report->processes; process && rows < MAX_COMMS;
       process = process->hh.next)
    if (process->child_ns + process->window_ns > 0) {
      write_setup_row(file, process);
      rows++;
    }
  fprintf(file, "</table></div>\n");
  write_break_even(file, &setup);
  html_close(file);
}

static void write_comm(FILE *file, const struct report *report, const struct report_comm *comm)
{
  fprintf(file, "<h3><code>");
  html_text(file, comm->id);
  fprintf(file, "</code>, %d ranks", comm->nranks);
  if (comm->nccl[0]) {
    fprintf(file, ", NCCL ");
    html_text(file, comm->nccl);
  }
  if (comm->reason >= 0) {
    fprintf(file, ", plain: ");
    html_text(file, report->reasons[comm->reason]);
  }
  fprintf(file, "</h3>\n");
  html_ops(file, comm->ops);
}

static bool has_calls(const struct report_comm *comm)
{
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    if (comm->ops[op].calls > 0)
      return true;
  return false;
}

void html_comms(FILE *file, const struct report *report)
{
  int shown = 0;

  html_open(file, "Communicators");
  for (const struct report_comm *comm = report->comms; comm; comm = comm->hh.next) {
    if (!has_calls(comm))
      continue;
    if (shown++ < MAX_COMMS)
      write_comm(file, report, comm);
  }
  if (shown > MAX_COMMS)
    fprintf(file, "<p class=\"note\">And %d more.</p>\n", shown - MAX_COMMS);
  html_close(file);
}
