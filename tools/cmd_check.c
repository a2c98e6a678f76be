/* SPDX-License-Identifier: Apache-2.0 */
/* symmshim check: looks for errors in policy files. */
#include <getopt.h>
#include <inttypes.h>

#include "tools/cmd.h"
#include "tools/cmd_json.h"

static void print_help(void)
{
  printf("Usage: symmshim check [--json] FILE...\n\n"
         "Reads each policy file as the shim does. Prints \"FILE: ok\", or \"FILE:LINE: message\" on stderr.\n\n"
         "  --json   print one JSON object instead\n"
         "  --help   print this\n\n"
         "Exit status: 0 all files are good, 1 one is not, 2 wrong use.\n");
}

static void check_for_people(const char *path, int rc, const struct policy *policy, const struct policy_error *error)
{
  if (rc < 0)
    cmd_print_policy_error(path, error);
  else
    printf("%s: %sok%s (%d rule%s)\n", path, cmd_style(stdout, "32"), cmd_style(stdout, "0"), policy->rule_count,
           policy->rule_count == 1 ? "" : "s");
}

static json_t *check_for_json(const char *path, int rc, const struct policy *policy, const struct policy_error *error)
{
  char hash[17];

  if (rc < 0)
    return json_pack("{s:o, s:b, s:i, s:s}", "file", cmd_json_path(path), "ok", 0, "line", error->line, "message",
                     error->message);
  snprintf(hash, sizeof(hash), "%016" PRIx64, policy->hash);
  return json_pack("{s:o, s:b, s:i, s:s}", "file", cmd_json_path(path), "ok", 1, "rules", policy->rule_count, "hash",
                   hash);
}

int cmd_check(int argc, char **argv)
{
  static const struct option options[] = {
      {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  json_t *files = NULL;
  int status = CMD_OK;

  for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
    if (option == 'h') {
      print_help();
      return CMD_OK;
    }
    if (option != 'j')
      return CMD_USAGE;
    if (!files)
      files = json_array();
  }
  if (optind == argc)
    return cmd_usage_error(argv, "no file given");
  for (int i = optind; i < argc; i++) {
    struct policy policy;
    struct policy_error error;
    int rc = policy_read(&policy, argv[i], &error);

    if (files)
      json_array_append_new(files, check_for_json(argv[i], rc, &policy, &error));
    else
      check_for_people(argv[i], rc, &policy, &error);
    if (rc < 0)
      status = CMD_NO;
  }
  if (files)
    cmd_print_json(json_pack("{s:i, s:o}", "schema", 1, "files", files));
  return status;
}
