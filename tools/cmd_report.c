/* SPDX-License-Identifier: Apache-2.0 */
/* symmshim report: what went symmetric, what did not, and why, over any number of audit logs. */
#include "tools/cmd_report.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cmd.h"
#include "tools/cmd_json.h"

enum { MAX_REQUIREMENTS = 16, ANY_OP = -1 };

struct requirement {
  int op; /* ANY_OP: all of them together */
  double percent;
  const char *text; /* the number as it was given */
};

struct request {
  bool json;
  const char *html, *trace; /* files; NULL: not wanted */
  int requirement_count;
  struct requirement requirements[MAX_REQUIREMENTS];
};

static void print_help(void)
{
  printf("Usage: symmshim report [OPTIONS] FILE...\n\n"
         "Adds up audit logs: for each op all calls, those that went symmetric, and why the others did not; where\n"
         "ranks differ; what setting up took; and what would gain most. The job may still be running.\n\n"
         "  --require PERCENT       fail unless so many of all calls went symmetric\n"
         "  --require OP>=PERCENT   likewise, of the calls of that op (repeatable)\n"
         "  --json                  print one JSON object instead\n"
         "  --html FILE             also write a page with tables and plots\n"
         "  --trace FILE            also write a trace for Perfetto or chrome://tracing, on PyTorch's clock\n"
         "  --help                  print this\n\n"
         "Exit status: 0, 1 a requirement is not met, 2 wrong use or a file cannot be read or written.\n");
}

/* "all_gather>=99.5", or "99.5". Returns 0 or CMD_USAGE. */
static int add_requirement(char **argv, const char *text, struct request *request)
{
  struct requirement *requirement = &request->requirements[request->requirement_count];
  const char *sign = strstr(text, ">=");
  char op[32], *end;

  if (request->requirement_count == MAX_REQUIREMENTS)
    return cmd_usage_error(argv, "more than %d --require", MAX_REQUIREMENTS);
  snprintf(op, sizeof(op), "%.*s", sign ? (int)(sign - text) : 0, text);
  requirement->op = sign ? policy_op_value(op) : ANY_OP;
  requirement->text = sign ? sign + 2 : text;
  if (sign ? requirement->op < 0 : text[strspn(text, "0123456789.-")] != '\0')
    return cmd_usage_error(argv, "--require must be PERCENT or OP>=PERCENT, as in '95' or 'all_gather>=100', not '%s'",
                           text);
  requirement->percent = strtod(requirement->text, &end);
  if (strspn(requirement->text, "0123456789.") != strlen(requirement->text) || end == requirement->text ||
      *end != '\0' || requirement->percent > 100)
    return cmd_usage_error(argv, "--require: the percentage must be from 0 to 100, not '%s'", requirement->text);
  request->requirement_count++;
  return 0;
}

/* What the figures do not show, on stderr. */
static void print_warnings(char **argv, const struct report *report)
{
  if (report->skipped > 0)
    cmd_error(argv, "%llu line%s skipped%s", (unsigned long long)report->skipped, report->skipped == 1 ? "" : "s",
              report->cut_off > 0 ? "; a last line is cut off: its process was killed, or is writing it" : "");
  for (int i = 0; i < POLICY_OP_COUNT; i++)
    if (report->ops[i].observed.mismatched > 0)
      cmd_error(argv, "MISMATCH: %llu %s calls were put on windows, and NCCL made them on plain kernels",
                (unsigned long long)report->ops[i].observed.mismatched, policy_op_word((enum policy_op)i));
  if (report->unknown_schema > 0)
    cmd_error(argv, "%llu of them written in a schema that is not %d; use the symmshim that wrote them",
              (unsigned long long)report->unknown_schema, REPORT_SCHEMA);
  if (report->unassigned > 0)
    cmd_error(argv,
              "there are more processes and communicators than can be kept apart: %llu lines of the others are "
              "missing; report on fewer files at a time",
              (unsigned long long)report->unassigned);
  if (report->left_out > 0)
    cmd_error(argv, "more than %d kinds of calls: %llu calls are not in the list of what would gain most",
              REPORT_MAX_SIGNATURES, (unsigned long long)report->left_out);
  for (int i = 0; i < POLICY_OP_COUNT; i++)
    if (report->ops[i].unfinished > 0)
      cmd_error(argv,
                "%s: incomplete: %llu communicator%s in processes that left no summary yet (killed, or still running), "
                "so only logged calls were counted",
                policy_op_word((enum policy_op)i), (unsigned long long)report->ops[i].unfinished,
                report->ops[i].unfinished == 1 ? "" : "s");
}

static struct report_op counts_for(const struct report *report, int wanted)
{
  static struct report_op sum;

  memset(&sum, 0, sizeof(sum));
  for (int op = 0; op < POLICY_OP_COUNT; op++)
    if (wanted == ANY_OP || wanted == op)
      report_op_add(&sum, &report->ops[op]);
  return sum;
}

static int check_requirements(char **argv, const struct report *report, const struct request *request)
{
  int status = CMD_OK;

  for (int i = 0; i < request->requirement_count; i++) {
    const struct requirement *requirement = &request->requirements[i];
    const char *word = requirement->op == ANY_OP ? "all ops" : policy_op_word((enum policy_op)requirement->op);
    struct report_op op = counts_for(report, requirement->op);
    uint64_t symmetric = report_symmetric_calls(&op);

    if (op.calls == 0)
      cmd_error(argv, "%s: no calls, %s %% required", word, requirement->text);
    else if (report_percent(symmetric, op.calls) < requirement->percent)
      cmd_error(argv, "%s: %.6g %% symmetric (%llu of %llu calls), %s %% required", word,
                report_percent(symmetric, op.calls), (unsigned long long)symmetric, (unsigned long long)op.calls,
                requirement->text);
    else
      continue;
    status = CMD_NO;
  }
  return status;
}

static int read_file(char **argv, const char *path, struct report *report)
{
  uint64_t before = report->records;
  int rc = report_read(report, path);

  if (rc < 0)
    cmd_error(argv, "%s: %s", path, strerror(-rc));
  else if (report->records == before)
    cmd_error(argv, "%s: no record in it", path);
  return rc < 0 ? CMD_USAGE : CMD_OK;
}

static int read_files(char **argv, int count, char **paths, struct report *report)
{
  struct report_progress *progress = report_progress_begin(count, paths);
  int status = CMD_OK;

  report->progress = progress ? report_progress_show : NULL;
  report->progress_data = progress;
  for (int i = 0; status == CMD_OK && i < count; i++)
    status = read_file(argv, paths[i], report);
  report_progress_end(progress);
  return status;
}

static int cannot_write(char **argv, const char *path, int error)
{
  cmd_error(argv, "%s: cannot be written: %s", path, strerror(error));
  return CMD_USAGE;
}

/* Reads everything, with the trace on the side. */
static int gather(char **argv, const struct request *request, int count, char **paths, struct report *report)
{
  struct report_trace *trace = NULL;
  int status, rc = 0;

  if (request->trace) {
    trace = report_trace_open(request->trace);
    if (!trace)
      return cannot_write(argv, request->trace, errno);
    report->see = report_trace_add;
    report->see_data = trace;
  }
  status = read_files(argv, count, paths, report);
  if (trace)
    rc = report_trace_close(trace);
  return rc < 0 && status == CMD_OK ? cannot_write(argv, request->trace, -rc) : status;
}

static int print(char **argv, const struct request *request, struct report *report)
{
  int rc = request->html ? report_write_html(report, request->html) : 0;

  if (request->json)
    cmd_print_json(report_json(report));
  else
    report_print_text(report, stdout);
  fflush(stdout);
  print_warnings(argv, report);
  return rc < 0 ? cannot_write(argv, request->html, -rc) : check_requirements(argv, report, request);
}

/* Returns 0, CMD_USAGE, or -1 after help. */
static int parse(int argc, char **argv, struct request *request)
{
  static const struct option options[] = {
      {"require", required_argument, NULL, 'r'}, {"json", no_argument, NULL, 'j'},
      {"html", required_argument, NULL, 'w'},    {"trace", required_argument, NULL, 't'},
      {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0}};

  for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
    if (option == 'h') {
      print_help();
      return -1;
    }
    if (option == 'j')
      request->json = true;
    else if (option == 'w')
      request->html = optarg;
    else if (option == 't')
      request->trace = optarg;
    else if (option != 'r' || add_requirement(argv, optarg, request) != 0)
      return CMD_USAGE;
  }
  if (optind == argc)
    return cmd_usage_error(argv, "no file given: name the audit logs, as in 'symmshim report audit.*.jsonl'");
  return 0;
}

int cmd_report(int argc, char **argv)
{
  static struct report report;
  struct request request = {0};
  int status = parse(argc, argv, &request);

  if (status != 0)
    return status < 0 ? CMD_OK : status;
  status = gather(argv, &request, argc - optind, argv + optind, &report);
  if (status == CMD_OK) {
    report_finish(&report);
    status = print(argv, &request, &report);
  }
  report_free(&report);
  return status;
}
