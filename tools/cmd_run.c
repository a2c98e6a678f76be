/* SPDX-License-Identifier: Apache-2.0 */
/*
 * symmshim run: starts a command under the shim. It only prepares the environment and then becomes the command,
 * so that exit status, signals and process id are the command's own.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cmd.h"

enum { EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127 }; /* as shells have it */

struct settings {
  const char *policy, *audit, *shim;
  const char *mode; /* $SYMMSHIM */
};

static void print_help(void)
{
  printf("Usage: symmshim run [OPTIONS] -- COMMAND [ARGUMENTS]\n\n"
         "Starts COMMAND with libsymmshim.so added to LD_PRELOAD.\n\n"
         "  --policy FILE   the policy; default: the file in force\n"
         "  --audit FILE    write the audit log there (%%h host, %%p process, %%r rank)\n"
         "  --audit-only    watch and log, change nothing: a dry run, for report\n"
         "  --off           load the shim switched off\n"
         "  --shim FILE     this libsymmshim.so, not the one of this tool\n"
         "  --help          print this\n\n"
         "Exit status: that of COMMAND; 126 it cannot be run, 127 it is not found, 1 the policy file has an error\n"
         "or the shim is not found, 2 wrong use.\n");
}

static bool is_listed(const char *list, const char *path)
{
  size_t length = strlen(path);

  while (*list != '\0') {
    size_t entry = strcspn(list, ": ");

    if (entry == length && memcmp(list, path, length) == 0)
      return true;
    list += entry + (list[entry] != '\0');
  }
  return false;
}

/* Behind what is there already: whoever came first stays first. */
static int add_preload(const char *shim)
{
  const char *old = getenv("LD_PRELOAD");
  char *list;
  int rc;

  if (!old || old[0] == '\0')
    return setenv("LD_PRELOAD", shim, 1);
  if (is_listed(old, shim))
    return 0;
  if (asprintf(&list, "%s:%s", old, shim) < 0)
    return -1;
  rc = setenv("LD_PRELOAD", list, 1);
  free(list);
  return rc;
}

/* Sets a variable to a path that still means the same file after a chdir(). */
static int set_path(const char *name, const char *path)
{
  char folder[PATH_MAX];
  char *absolute;
  int rc;

  if (path[0] == '/')
    return setenv(name, path, 1);
  if (!getcwd(folder, sizeof(folder)) || asprintf(&absolute, "%s/%s", folder, path) < 0)
    return -1;
  rc = setenv(name, absolute, 1);
  free(absolute);
  return rc;
}

static int set_environment(const struct settings *settings, const char *shim, const char *policy)
{
  if (policy[0] != '\0' && set_path("SYMMSHIM_POLICY", policy) < 0)
    return -1;
  if (settings->audit && set_path("SYMMSHIM_AUDIT", settings->audit) < 0)
    return -1;
  if (setenv("SYMMSHIM", settings->mode, 1) < 0 || setenv("SYMMSHIM_RUN", "1", 1) < 0)
    return -1;
  return add_preload(shim);
}

static int start(char **argv, const struct settings *settings, char **command)
{
  char shim[PATH_MAX], policy_path[CMD_MAX_PATH] = "";
  struct policy policy;
  int error;

  if (cmd_choose_shim(argv, settings->shim, shim) < 0)
    return CMD_NO;
  /* A switched-off shim reads no policy, so a bad one that was not asked for must not keep the job from running. */
  if ((settings->policy || strcmp(settings->mode, "off") != 0) &&
      cmd_load_policy(settings->policy, &policy, policy_path) < 0)
    return CMD_NO;
  if (set_environment(settings, shim, policy_path) < 0) {
    cmd_error(argv, "cannot set the environment: %s", strerror(errno));
    return CMD_NO;
  }
  execvp(command[0], command);
  error = errno;
  cmd_error(argv, "%s: %s", command[0], strerror(error));
  return error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
}

/* Returns 0 or CMD_USAGE. */
static int set_mode(char **argv, struct settings *settings, const char *mode)
{
  if (strcmp(settings->mode, "on") != 0 && strcmp(settings->mode, mode) != 0)
    return cmd_usage_error(argv, "--off and --audit-only exclude each other");
  settings->mode = mode;
  return 0;
}

int cmd_run(int argc, char **argv)
{
  static const struct option options[] = {{"policy", required_argument, NULL, 'p'},
                                          {"audit", required_argument, NULL, 'a'},
                                          {"off", no_argument, NULL, 'o'},
                                          {"audit-only", no_argument, NULL, 'w'},
                                          {"shim", required_argument, NULL, 's'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
  struct settings settings = {.mode = "on"};
  int status = 0;

  /* '+': the options of COMMAND are its own, with or without a -- before it. */
  for (int option; status == 0 && (option = getopt_long(argc, argv, "+h", options, NULL)) != -1;) {
    switch (option) {
    case 'p':
      settings.policy = optarg;
      break;
    case 'a':
      settings.audit = optarg;
      break;
    case 's':
      settings.shim = optarg;
      break;
    case 'o':
      status = set_mode(argv, &settings, "off");
      break;
    case 'w':
      status = set_mode(argv, &settings, "audit");
      break;
    case 'h':
      print_help();
      return CMD_OK;
    default:
      return CMD_USAGE;
    }
  }
  if (status != 0)
    return status;
  if (optind == argc)
    return cmd_usage_error(argv, "no command given");
  return start(argv, &settings, argv + optind);
}
