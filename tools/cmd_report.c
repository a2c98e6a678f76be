/* SPDX-License-Identifier: Apache-2.0 */
/* symmshim report: what went symmetric, what did not, and why, over any number of audit logs. */
#include "tools/cmd_report.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cmd.h"
#include "tools/cmd_json.h"

enum { MAX_REQUIREMENTS = 16 };

struct requirement {
  enum policy_op op;
  double percent;
  const char *text; /* the number as it was given */
};

struct request {
  bool json;
  int requirement_count;
  struct requirement requirements[MAX_REQUIREMENTS];
};

static void print_help(void)
{
  printf("Usage: symmshim report [OPTIONS] FILE...\n\n"
         "Adds up audit logs: for each op all calls, those that went symmetric, and why the others did not.\n\n"
         "  --require OP>=PERCENT   fail unless so many of all calls of that op went symmetric (repeatable)\n"
         "  --json                  print one JSON object instead\n"
         "  --help                  print this\n\n"
         "Exit status: 0, 1 a requirement is not met, 2 wrong use or a file cannot be read.\n");
}

/* "all_gather>=99.5". Returns 0 or CMD_USAGE. */
static int add_requirement(char **argv, const char *text, struct request *request)
{
  struct requirement *requirement = &request->requirements[request->requirement_count];
  const char *sign = strstr(text, ">=");
  char op[32], *end;
  int value;

  if (request->requirement_count == MAX_REQUIREMENTS)
    return cmd_usage_error(argv, "more than %d --require", MAX_REQUIREMENTS);
  snprintf(op, sizeof(op), "%.*s", sign ? (int)(sign - text) : 0, text);
  value = policy_op_value(op);
  if (!sign || value < 0)
    return cmd_usage_error(argv, "--require must be OP>=PERCENT, as in 'all_gather>=100', not '%s'", text);
  requirement->op = (enum policy_op)value;
  requirement->text = sign + 2;
  requirement->percent = strtod(requirement->text, &end);
  if (strspn(requirement->text, "0123456789.") != strlen(requirement->text) || end == requirement->text ||
      *end != '\0' || requirement->percent > 100)
    return cmd_usage_error(argv, "--require: the percentage must be from 0 to 100, not '%s'", requirement->text);
  request->requirement_count++;
  return 0;
}

static double percent(uint64_t part, uint64_t whole)
{
  return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

/* The next reason in the order of the table: most frequent first, then by code. `done` marks those that were. */
static int next_reason(const struct report *report, const struct report_op *op, const bool *done)
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

static void print_reasons(const struct report *report, const struct report_op *op)
{
  bool done[REPORT_MAX_REASONS] = {false};

  for (int reason; (reason = next_reason(report, op, done)) >= 0; done[reason] = true)
    printf("  %-32s %12llu  %5.1f %%\n", report->reasons[reason], (unsigned long long)op->plain[reason],
           percent(op->plain[reason], op->calls));
}

/* 99.96 % must not be printed as 100 %. */
static double shown_percent(const struct report_op *op)
{
  double value = percent(op->window_calls, op->calls);

  return op->window_calls < op->calls && value > 99.9 ? 99.9 : value;
}

static void print_for_people(const struct report *report)
{
  const char *bold = cmd_style(stdout, "1"), *normal = cmd_style(stdout, "0");
  bool any = false;

  for (int i = 0; i < POLICY_OP_COUNT; i++) {
    const struct report_op *op = &report->ops[i];
    char bytes[32], window_bytes[32];

    if (op->calls == 0)
      continue;
    if (!any)
      printf("%s%-16s %12s %12s %12s %8s %12s%s\n", bold, "op", "calls", "bytes", "symmetric", "share", "sym. bytes",
             normal);
    any = true;
    printf("%-16s %12llu %12s %12llu %6.1f %% %12s%s\n", policy_op_word((enum policy_op)i),
           (unsigned long long)op->calls, cmd_format_bytes(op->bytes, bytes, sizeof(bytes)),
           (unsigned long long)op->window_calls, shown_percent(op),
           cmd_format_bytes(op->window_bytes, window_bytes, sizeof(window_bytes)),
           op->unfinished > 0 ? "  incomplete" : "");
  }
  if (!any) {
    printf("no calls\n");
    return;
  }
  for (int i = 0; i < POLICY_OP_COUNT; i++) {
    const struct report_op *op = &report->ops[i];

    if (op->window_calls == op->calls)
      continue;
    printf("\n%splain %s by reason%s\n", bold, policy_op_word((enum policy_op)i), normal);
    print_reasons(report, op);
  }
}

static json_t *json_of_op(const struct report *report, const struct report_op *op)
{
  bool done[REPORT_MAX_REASONS] = {false};
  json_t *plain = json_object();

  for (int reason; (reason = next_reason(report, op, done)) >= 0; done[reason] = true)
    json_object_set_new(plain, report->reasons[reason], json_integer((json_int_t)op->plain[reason]));
  return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:b}", "calls", (json_int_t)op->calls, "bytes",
                   (json_int_t)op->bytes, "symmetric_calls", (json_int_t)op->window_calls, "symmetric_bytes",
                   (json_int_t)op->window_bytes, "symmetric_percent",
                   op->calls > 0 ? json_real(percent(op->window_calls, op->calls)) : json_null(), "plain", plain,
                   "incomplete", op->unfinished > 0);
}

static void print_json(const struct report *report, int files)
{
  json_t *ops = json_object();

  for (int i = 0; i < POLICY_OP_COUNT; i++)
    json_object_set_new(ops, policy_op_word((enum policy_op)i), json_of_op(report, &report->ops[i]));
  cmd_print_json(json_pack("{s:i, s:o, s:i, s:I}", "schema", 1, "ops", ops, "files", files, "skipped_lines",
                           (json_int_t)report->skipped));
}

/* What the figures do not show, on stderr. */
static void print_warnings(char **argv, const struct report *report)
{
  if (report->skipped > 0)
    cmd_error(argv, "%llu line%s skipped", (unsigned long long)report->skipped, report->skipped == 1 ? "" : "s");
  if (report->unknown_schema > 0)
    cmd_error(argv, "%llu of them written in a schema that is not %d; use the symmshim that wrote them",
              (unsigned long long)report->unknown_schema, REPORT_SCHEMA);
  for (int i = 0; i < POLICY_OP_COUNT; i++)
    if (report->ops[i].unfinished > 0)
      cmd_error(argv,
                "%s: incomplete: %llu communicator%s in processes that ended without a summary, so only logged "
                "calls were counted",
                policy_op_word((enum policy_op)i), (unsigned long long)report->ops[i].unfinished,
                report->ops[i].unfinished == 1 ? "" : "s");
}

static int check_requirements(char **argv, const struct report *report, const struct request *request)
{
  int status = CMD_OK;

  for (int i = 0; i < request->requirement_count; i++) {
    const struct requirement *requirement = &request->requirements[i];
    const struct report_op *op = &report->ops[requirement->op];
    const char *word = policy_op_word(requirement->op);

    if (op->calls == 0)
      cmd_error(argv, "%s: no calls, %s %% required", word, requirement->text);
    else if (percent(op->window_calls, op->calls) < requirement->percent)
      cmd_error(argv, "%s: %.6g %% symmetric (%llu of %llu calls), %s %% required", word,
                percent(op->window_calls, op->calls), (unsigned long long)op->window_calls,
                (unsigned long long)op->calls, requirement->text);
    else
      continue;
    status = CMD_NO;
  }
  return status;
}

static int read_files(char **argv, int count, char **paths, struct report *report)
{
  for (int i = 0; i < count; i++) {
    uint64_t before = report->records;
    int rc = report_read(report, paths[i]);

    if (rc < 0) {
      cmd_error(argv, "%s: %s", paths[i], strerror(-rc));
      return CMD_USAGE;
    }
    if (report->records == before)
      cmd_error(argv, "%s: no record in it", paths[i]);
  }
  return CMD_OK;
}

int cmd_report(int argc, char **argv)
{
  static const struct option options[] = {{"require", required_argument, NULL, 'r'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
  static struct report report;
  struct request request = {0};
  int status;

  for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
    if (option == 'h') {
      print_help();
      return CMD_OK;
    }
    if (option == 'j')
      request.json = true;
    else if (option != 'r' || add_requirement(argv, optarg, &request) != 0)
      return CMD_USAGE;
  }
  if (optind == argc)
    return cmd_usage_error(argv, "no file given");
  status = read_files(argv, argc - optind, argv + optind, &report);
  if (status != CMD_OK)
    return status;
  if (request.json)
    print_json(&report, argc - optind);
  else
    print_for_people(&report);
  fflush(stdout);
  print_warnings(argv, &report);
  return check_requirements(argv, &report, &request);
}
