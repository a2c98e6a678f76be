/* SPDX-License-Identifier: Apache-2.0 */
/* symmshim explain: what the policy makes of a call, and which section said so. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "shim/plan.h"
#include "tools/cmd.h"
#include "tools/cmd_json.h"

enum { DEFAULT_NCCL = 22809 };

struct query {
  struct policy_request request;
  bool has_redop;
  const char *policy_path; /* NULL: the one in force */
  bool json;
};

static void print_help(void)
{
  printf("Usage: symmshim explain --op OP --bytes N --dtype DTYPE --nranks N [OPTIONS]\n\n"
         "Says what becomes of a call that every rank makes alike, and why.\n\n"
         "  --op OP          all_gather, reduce_scatter or all_reduce\n"
         "  --bytes N        the large side of the call: output of an all-gather, input of a reduce-scatter,\n"
         "                   buffer of an all-reduce; K, M and G are powers of 1024\n"
         "  --dtype DTYPE    bf16, fp16, fp32, ...\n"
         "  --redop REDOP    sum (the default for a reduction), avg, prod, max, min, premulsum\n"
         "  --nranks N       ranks of the communicator\n"
         "  --nccl VERSION   default 2.28.9\n"
         "  --policy FILE    default: the file in force\n"
         "  --json           print one JSON object instead\n"
         "  --help           print this\n\n"
         "Exit status: 0, 1 the policy file has an error, 2 wrong use.\n");
}

static int parse_enum(char **argv, const char *what, const char *word, int (*value_of)(const char *word), int *value)
{
  *value = value_of(word);
  return *value < 0 ? cmd_usage_error(argv, "unknown %s '%s'", what, word) : 0;
}

static int parse_nranks(char **argv, const char *text, int *nranks)
{
  char *end;
  long value;

  errno = 0;
  value = strtol(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || value < 1 || value > INT_MAX)
    return cmd_usage_error(argv, "--nranks must be a whole number from 1 on, not '%s'", text);
  *nranks = (int)value;
  return 0;
}

/* Returns 0 or CMD_USAGE. */
static int take_option(char **argv, int option, struct query *query)
{
  struct policy_request *request = &query->request;
  int value = 0, status = 0;

  switch (option) {
  case 'o':
    status = parse_enum(argv, "op", optarg, policy_op_value, &value);
    request->op = (enum policy_op)value;
    break;
  case 'd':
    status = parse_enum(argv, "dtype", optarg, policy_dtype_value, &value);
    request->dtype = (enum policy_dtype)value;
    break;
  case 'r':
    status = parse_enum(argv, "redop", optarg, policy_redop_value, &value);
    request->redop = (enum policy_redop)value;
    query->has_redop = true;
    break;
  case 'b':
    if (policy_parse_bytes(optarg, &request->bytes) < 0 || request->bytes > INT64_MAX)
      status = cmd_usage_error(argv, "--bytes must be a number such as 4096, 64K or 2M, not '%s'", optarg);
    break;
  case 'n':
    status = parse_nranks(argv, optarg, &request->nranks);
    break;
  case 'v':
    if (policy_parse_nccl(optarg, &request->nccl_version) < 0)
      status = cmd_usage_error(argv, "--nccl must be a version such as 2.28.9, not '%s'", optarg);
    break;
  case 'p':
    query->policy_path = optarg;
    break;
  case 'j':
    query->json = true;
    break;
  default:
    status = CMD_USAGE; /* getopt_long() has said why */
  }
  return status;
}

/* Fills in the reduce op, and refuses calls that cannot be. */
static int complete(char **argv, struct query *query)
{
  struct policy_request *request = &query->request;
  bool reduces = request->op != POLICY_OP_all_gather;
  uint64_t unit = policy_dtype_size(request->dtype);

  if (!query->has_redop)
    request->redop = reduces ? POLICY_REDOP_sum : POLICY_REDOP_none;
  if (!reduces && request->redop != POLICY_REDOP_none)
    return cmd_usage_error(argv, "all_gather does not reduce, so it has no --redop");
  if (reduces && request->redop == POLICY_REDOP_none)
    return cmd_usage_error(argv, "%s reduces, so --redop cannot be none", policy_op_word(request->op));
  if (request->op != POLICY_OP_all_reduce)
    unit *= (uint64_t)request->nranks;
  if (request->bytes % unit != 0)
    return cmd_usage_error(argv, "--bytes must be a multiple of %llu here (%s elements%s)", (unsigned long long)unit,
                           policy_dtype_word(request->dtype),
                           request->op != POLICY_OP_all_reduce ? " for each rank" : "");
  return 0;
}

/* The section that made a decision, as it stands in the file. */
static const char *section_of(const struct policy *policy, enum policy_op op, int from, char text[64])
{
  if (from >= 0)
    snprintf(text, 64, "[rule %s]", policy->rules[from].name);
  else if (from == POLICY_FROM_OP)
    snprintf(text, 64, "[%s]", policy_op_word(op));
  else
    snprintf(text, 64, "default");
  return text;
}

static const char *format_nccl(int version, char text[32])
{
  int unit = version < 10000 ? 1000 : 10000;

  snprintf(text, 32, "%d.%d.%d", version / unit, version % unit / 100, version % 100);
  return text;
}

static void print_for_people(const struct query *query, const struct policy *policy, const char *path,
                             const struct plan *plan)
{
  const struct policy_request *request = &query->request;
  const struct policy_decision *wish = &plan->decision;
  const char *bold = cmd_style(stdout, "1"), *normal = cmd_style(stdout, "0");
  char bytes[32], nccl[32], section[64];

  printf("call:     %s%s%s, %s, %s, %d rank%s, NCCL %s\n", policy_op_word(request->op),
         request->redop != POLICY_REDOP_none ? " " : "",
         request->redop != POLICY_REDOP_none ? policy_redop_word(request->redop) : "",
         policy_dtype_word(request->dtype), cmd_format_bytes(request->bytes, bytes, sizeof(bytes)), request->nranks,
         request->nranks == 1 ? "" : "s", format_nccl(request->nccl_version, nccl));
  printf("policy:   %s\n", path[0] != '\0' ? path : "built in");
  printf("path:     %s, from %s\n", policy_path_word(wish->path),
         section_of(policy, request->op, wish->path_from, section));
  printf("rewrite:  %s, from %s\n", policy_rewrite_word(wish->rewrite),
         section_of(policy, request->op, wish->rewrite_from, section));
  printf("result:   %s%s%s%s%s\n", bold, policy_path_word(plan->path), normal,
         plan->rewrite != POLICY_REWRITE_none ? ", rewrite " : "",
         plan->rewrite != POLICY_REWRITE_none ? policy_rewrite_word(plan->rewrite) : "");
  if (plan->reason != REASON_none)
    printf("reason:   %s: %s\n", reason_code(plan->reason), reason_meaning(plan->reason));
  if (!policy->arena)
    printf("note:     [arena] enable = no, so no buffer can be shared and every call is plain\n");
}

static void print_json(const struct query *query, const struct policy *policy, const char *path,
                       const struct plan *plan)
{
  const struct policy_request *request = &query->request;
  const struct policy_decision *wish = &plan->decision;
  char nccl[32], path_from[64], rewrite_from[64];
  json_t *root = json_pack(
      "{s:i, s:o?, s:b, s:{s:s, s:I, s:s, s:s, s:i, s:s}, s:{s:s, s:s}, s:{s:s, s:s}, s:{s:s, s:s, s:s?, s:s?}}",
      "schema", 1, "policy", path[0] != '\0' ? cmd_json_path(path) : NULL, "arena", policy->arena, "call", "op",
      policy_op_word(request->op), "bytes", (json_int_t)request->bytes, "dtype", policy_dtype_word(request->dtype),
      "redop", policy_redop_word(request->redop), "nranks", request->nranks, "nccl",
      format_nccl(request->nccl_version, nccl), "path", "word", policy_path_word(wish->path), "from",
      section_of(policy, request->op, wish->path_from, path_from), "rewrite", "word",
      policy_rewrite_word(wish->rewrite), "from", section_of(policy, request->op, wish->rewrite_from, rewrite_from),
      "result", "path", policy_path_word(plan->path), "rewrite", policy_rewrite_word(plan->rewrite), "reason",
      reason_code(plan->reason), "meaning", reason_meaning(plan->reason));

  cmd_print_json(root);
}

int cmd_explain(int argc, char **argv)
{
  static const struct option options[] = {
      {"op", required_argument, NULL, 'o'},     {"bytes", required_argument, NULL, 'b'},
      {"dtype", required_argument, NULL, 'd'},  {"redop", required_argument, NULL, 'r'},
      {"nranks", required_argument, NULL, 'n'}, {"nccl", required_argument, NULL, 'v'},
      {"policy", required_argument, NULL, 'p'}, {"json", no_argument, NULL, 'j'},
      {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
  struct query query = {.request = {.nccl_version = DEFAULT_NCCL}};
  struct policy policy;
  struct plan plan;
  char seen[128] = "", path[CMD_MAX_PATH];

  for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
    if (option == 'h') {
      print_help();
      return CMD_OK;
    }
    if (take_option(argv, option, &query) != 0)
      return CMD_USAGE;
    seen[option & 127] = 1;
  }
  if (optind < argc)
    return cmd_usage_error(argv, "unexpected argument '%s'", argv[optind]);
  if (!seen['o'] || !seen['b'] || !seen['d'] || !seen['n'])
    return cmd_usage_error(argv, "--op, --bytes, --dtype and --nranks are needed");
  if (complete(argv, &query) != 0)
    return CMD_USAGE;
  if (cmd_load_policy(query.policy_path, &policy, path) < 0)
    return CMD_NO;
  plan = plan_make(&policy, &query.request);
  (query.json ? print_json : print_for_people)(&query, &policy, path, &plan);
  return CMD_OK;
}
