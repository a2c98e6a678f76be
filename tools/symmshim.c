/* SPDX-License-Identifier: Apache-2.0 */
/* The symmshim tool: finds the command and hands over. */
#include <errno.h>
#include <string.h>

#include "tools/cmd.h"

struct command {
  const char *name;
  const char *summary;
  int (*run)(int argc, char **argv);
};

static const struct command commands[] = {
    {"run", "start a command under the shim", cmd_run},
    {"report", "say from audit logs what went symmetric and what did not", cmd_report},
    {"doctor", "say whether jobs can go symmetric here", cmd_doctor},
    {"explain", "say what the policy makes of a call", cmd_explain},
    {"check", "look for errors in policy files", cmd_check},
    {"bench", "measure what the shim gains on GPUs, and costs on the host", cmd_bench},
    {"tune", "measure what is faster on this machine, and write a policy", cmd_tune},
};
enum { COMMAND_COUNT = sizeof(commands) / sizeof(commands[0]) };

static void print_help(void)
{
  printf("Usage: symmshim COMMAND [OPTIONS] [ARGUMENTS]\n\n"
         "Commands:\n");
  for (int i = 0; i < COMMAND_COUNT; i++)
    printf("  %-9s %s\n", commands[i].name, commands[i].summary);
  printf("\n\"symmshim COMMAND --help\" has the options of a command, symmshim(1) everything.\n");
}

static const struct command *find_command(const char *name)
{
  for (int i = 0; i < COMMAND_COUNT; i++)
    if (strcmp(commands[i].name, name) == 0)
      return &commands[i];
  return NULL;
}

static int no_command(const char *name)
{
  fprintf(stderr, "symmshim: %s%s%s; commands:", name ? "unknown command '" : "no command given", name ? name : "",
          name ? "'" : "");
  for (int i = 0; i < COMMAND_COUNT; i++)
    fprintf(stderr, "%s %s", i > 0 ? "," : "", commands[i].name);
  fprintf(stderr, " (see symmshim --help)\n");
  return CMD_USAGE;
}

/* A full disk must not look like success. */
static int end_output(int status)
{
  if (fflush(stdout) == 0 && !ferror(stdout))
    return status;
  fprintf(stderr, "symmshim: cannot write the output: %s\n", strerror(errno));
  return CMD_USAGE;
}

int main(int argc, char **argv)
{
  const struct command *command;
  char name[32];

  if (argc < 2)
    return no_command(NULL);
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    print_help();
    return end_output(CMD_OK);
  }
  if (strcmp(argv[1], "--version") == 0) {
    printf("symmshim %s\n", SYMMSHIM_VERSION);
    return end_output(CMD_OK);
  }
  command = find_command(argv[1]);
  if (!command)
    return no_command(argv[1]);
  snprintf(name, sizeof(name), "symmshim %s", command->name);
  argv[1] = name;
  return end_output(command->run(argc - 1, argv + 1));
}
