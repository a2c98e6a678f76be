/* SPDX-License-Identifier: Apache-2.0 */
/* The report as a page of its own: its style is in it, its plots are drawn in it, and it loads nothing. */
#include "tools/cmd_report_html.h"

#include <errno.h>
#include <time.h>

#include "tools/cmd.h"

/* tools/report.css, embedded by the build. */
extern const char report_css[];
extern const size_t report_css_size;

static const char *const path_names[REPORT_PATHS + 1] = {"window", "staged", "plain"};

void html_text(FILE *file, const char *text)
{
  for (; *text; text++) {
    const char *entity = *text == '<'   ? "&lt;"
                         : *text == '>' ? "&gt;"
                         : *text == '&' ? "&amp;"
                         : *text == '"' ? "&quot;"
                                        : NULL;

    if (entity)
      fputs(entity, file);
    else
      fputc(*text, file);
  }
}

void html_open(FILE *file, const char *heading)
{
  fprintf(file, "<section>\n<h2>");
  html_text(file, heading);
  fprintf(file, "</h2>\n");
}

void html_close(FILE *file)
{
  fprintf(file, "</section>\n");
}

static void write_head(FILE *file)
{
  fprintf(file, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                "'unsafe-inline'\">\n<title>symmshim report</title>\n<style>\n");
  fwrite(report_css, 1, report_css_size, file);
  fprintf(file, "</style>\n</head>\n<body>\n");
}

static void write_date(FILE *file, double seconds)
{
  time_t time = (time_t)seconds;
  struct tm parts;
  char text[64];

  if (gmtime_r(&time, &parts) && strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts) > 0)
    fputs(text, file);
}

/* When the logs begin and end; false without times. */
static bool covered(const struct report *report, double *first, double *last)
{
  *first = *last = 0;
  for (const struct report_process *process = report->processes; process; process = process->hh.next) {
    if (process->first <= 0)
      continue;
    *first = *first > 0 && *first < process->first ? *first : process->first;
    *last = *last > process->last ? *last : process->last;
  }
  return *first > 0;
}

static void write_title(FILE *file, const struct report *report)
{
  double first, last;

  fprintf(file, "<header>\n<h1>symmshim report</h1>\n<p>%u process%s in %d file%s", HASH_COUNT(report->processes),
          HASH_COUNT(report->processes) == 1 ? "" : "es", report->files, report->files == 1 ? "" : "s");
  if (covered(report, &first, &last)) {
    fprintf(file, ", from ");
    write_date(file, first);
    fprintf(file, ", %.1f s", last - first);
  }
  fprintf(file, "</p>\n");
  if (report->audit_only)
    fprintf(file, "<p>SYMMSHIM=audit: calls were watched, none was moved.</p>\n");
  if (report->skipped > 0)
    fprintf(file, "<p>%llu lines could not be understood and were passed over.</p>\n",
            (unsigned long long)report->skipped);
  fprintf(file, "</header>\n");
}

static void write_tile(FILE *file, const char *value, const char *what)
{
  fprintf(file, "<div class=\"tile\"><b>%s</b><span>%s</span></div>\n", value, what);
}

static void write_would_tile(FILE *file, const struct report *report)
{
  static struct report_op all;
  char text[64];

  if (report->foreseen == 0)
    return;
  all = (struct report_op){0};
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    report_op_add(&all, &report->forecast[op]);
  snprintf(text, sizeof(text), "%.1f %%", report_shown_percent(&all));
  write_tile(file, text, "would go symmetric without SYMMSHIM=audit");
}

static void write_tiles(FILE *file, const struct report *report)
{
  static struct report_op all;
  struct report_setup setup;
  char text[64], bytes[32];

  all = (struct report_op){0};
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    report_op_add(&all, &report->ops[op]);
  report_setup(report, &setup);
  fprintf(file, "<div class=\"tiles\">\n");
  snprintf(text, sizeof(text), "%.1f %%", report_shown_percent(&all));
  write_tile(file, text, "of all calls went symmetric");
  write_would_tile(file, report);
  snprintf(text, sizeof(text), "%llu", (unsigned long long)all.calls);
  write_tile(file, text, "calls, of all ranks");
  write_tile(file, cmd_format_bytes(all.bytes, bytes, sizeof(bytes)), "moved by them");
  snprintf(text, sizeof(text), "%.3f s", setup.slowest_s);
  write_tile(file, text, "setting up, in the slowest rank");
  fprintf(file, "</div>\n");
}

static void write_op_row(FILE *file, const char *name, const struct report_op *op)
{
  char bytes[32], symmetric[32];

  fprintf(file,
          "<tr><td><code>%s</code></td><td class=\"n\">%llu</td><td class=\"n\">%s</td><td class=\"n\">%llu</td>"
          "<td class=\"n\">%llu</td><td class=\"n\">%.1f %%</td><td class=\"n\">%s</td><td>%s</td></tr>\n",
          name, (unsigned long long)op->calls, cmd_format_bytes(op->bytes, bytes, sizeof(bytes)),
          (unsigned long long)op->path_calls[REPORT_WINDOW], (unsigned long long)op->path_calls[REPORT_STAGED],
          report_shown_percent(op), cmd_format_bytes(report_symmetric_bytes(op), symmetric, sizeof(symmetric)),
          op->unfinished > 0 ? "incomplete" : "");
}

void html_ops(FILE *file, const struct report_op *ops)
{
  fprintf(file, "<div class=\"wide\"><table>\n<tr><th>op</th><th class=\"n\">calls</th><th class=\"n\">bytes</th>"
                "<th class=\"n\">window</th><th class=\"n\">staged</th><th class=\"n\">symmetric</th>"
                "<th class=\"n\">sym. bytes</th><th></th></tr>\n");
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    if (ops[op].calls > 0)
      write_op_row(file, policy_op_word((enum policy_op)op), &ops[op]);
  fprintf(file, "</table></div>\n");
}

static void write_key(FILE *file)
{
  fprintf(file, "<p class=\"key\">");
  for (int path = 0; path <= REPORT_PATHS; path++)
    fprintf(file, "<i class=\"%s\"></i>%s", path_names[path], path_names[path]);
  fprintf(file, "</p>\n");
}

static void write_part(FILE *file, int path, uint64_t bytes, uint64_t whole)
{
  char text[32];

  if (bytes > 0)
    fprintf(file, "<i class=\"%s\" style=\"width:%.3f%%\" title=\"%s: %s\"></i>", path_names[path],
            report_percent(bytes, whole), path_names[path], cmd_format_bytes(bytes, text, sizeof(text)));
}

static void write_bytes(FILE *file, const struct report *report)
{
  uint64_t most = 1;

  html_open(file, "Bytes by path");
  write_key(file);
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    most = report->ops[op].bytes > most ? report->ops[op].bytes : most;
  for (int i = 0; i < POLICY_OP_COUNT; i++) {
    const struct report_op *op = &report->ops[i];
    char bytes[32];

    if (op->calls == 0)
      continue;
    fprintf(file, "<div class=\"row\"><code>%s</code><div class=\"bar\">", policy_op_word((enum policy_op)i));
    for (int path = 0; path < REPORT_PATHS; path++)
      write_part(file, path, op->path_bytes[path], most);
    write_part(file, REPORT_PATHS, op->bytes - report_symmetric_bytes(op), most);
    fprintf(file, "</div><span>%s</span></div>\n", cmd_format_bytes(op->bytes, bytes, sizeof(bytes)));
  }
  html_close(file);
}

static void write_reason(FILE *file, const struct report *report, int reason, uint64_t calls, uint64_t most)
{
  const char *what = report_advice(report->reasons[reason]);

  fprintf(file, "<div class=\"row\"><code>");
  html_text(file, report->reasons[reason]);
  fprintf(file,
          "</code><div class=\"bar\"><i class=\"plain\" style=\"width:%.3f%%\"></i></div><span>%llu</span></div>\n",
          report_percent(calls, most), (unsigned long long)calls);
  if (!what)
    return;
  fprintf(file, "<p class=\"note\">");
  html_text(file, what);
  fprintf(file, "</p>\n");
}

void html_reasons(FILE *file, const struct report *report, const struct report_op *ops)
{
  static struct report_op all;
  bool done[REPORT_MAX_REASONS] = {false};
  int reason;
  uint64_t most = 0;

  all = (struct report_op){0};
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    report_op_add(&all, &ops[op]);
  for (; (reason = report_next_reason(report, &all, done)) >= 0; done[reason] = true) {
    most = most > 0 ? most : all.plain[reason];
    write_reason(file, report, reason, all.plain[reason], most);
  }
  if (most == 0)
    fprintf(file, "<p class=\"note\">None is plain.</p>\n");
}

static void write_page(FILE *file, struct report *report)
{
  write_head(file);
  write_title(file, report);
  html_alarm(file, report);
  write_tiles(file, report);
  html_forecast(file, report);
  html_open(file, "Calls by op");
  html_ops(file, report->ops);
  html_close(file);
  html_observed(file, report);
  html_timeline(file, report);
  write_bytes(file, report);
  html_open(file, "Why calls stayed plain");
  html_reasons(file, report, report->ops);
  html_close(file);
  html_top(file, report);
  html_differences(file, report);
  html_setup(file, report);
  html_comms(file, report);
  fprintf(file, "</body>\n</html>\n");
}

int report_write_html(struct report *report, const char *path)
{
  FILE *file = fopen(path, "we");
  int rc;

  if (!file)
    return -errno;
  write_page(file, report);
  rc = ferror(file) ? -EIO : 0;
  if (fclose(file) != 0 && rc == 0)
    rc = -errno;
  return rc;
}
