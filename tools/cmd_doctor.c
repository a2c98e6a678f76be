/* SPDX-License-Identifier: Apache-2.0 */
/* symmshim doctor: says before a job is started whether it can go symmetric here. */
#include "tools/cmd_doctor.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/cmd.h"
#include "tools/cmd_json.h"

static const char *const words[] = {[DOCTOR_OK] = "ok", [DOCTOR_NO] = "no", [DOCTOR_UNKNOWN] = "unknown"};

enum { DEFAULT_SECONDS = 30, MAX_SECONDS = 86400 };

static void print_help(void)
{
  printf(
      "Usage: symmshim doctor [OPTIONS] [-- COMMAND [ARGUMENTS]]\n\n"
      "Says whether jobs can go symmetric here: GPUs, driver, NCCL, PyTorch, shared memory, settings. With COMMAND,\n"
      "starts it for a while with SYMMSHIM=audit, and says which of its calls could. Leaves no context on a GPU.\n\n"
      "  --seconds N   how long COMMAND may run, default 30\n"
      "  --shim FILE   this libsymmshim.so, not the one of this tool\n"
      "  --json        print one JSON object instead\n"
      "  --help        print this\n\n"
      "Exit status: 0 yes, 1 no, 2 something could not be found out, or wrong use.\n");
}

void doctor_say(struct doctor *doctor, const char *name, enum doctor_answer answer, const char *todo,
                const char *format, ...)
{
  struct doctor_check *check = &doctor->checks[doctor->count];
  va_list args;

  if (doctor->count == DOCTOR_MAX_CHECKS)
    return;
  doctor->count++;
  memset(check, 0, sizeof(*check));
  check->answer = answer;
  snprintf(check->name, sizeof(check->name), "%s", name);
  snprintf(check->todo, sizeof(check->todo), "%s", todo ? todo : "");
  va_start(args, format);
  vsnprintf(check->reason, sizeof(check->reason), format, args);
  va_end(args);
}

/* Nothing that a library prints belongs to the answers. */
static void run_probe(int out, void (*probe)(struct doctor *doctor, void *data), void *data)
{
  static struct doctor said;

  alarm(DOCTOR_PROBE_SECONDS);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  probe(&said, data);
  for (int i = 0; i < said.count; i++)
    if (write(out, &said.checks[i], sizeof(said.checks[i])) != (ssize_t)sizeof(said.checks[i]))
      break;
  _exit(0);
}

/* Returns whether a whole check came. */
static bool take_check(struct doctor *doctor, int in)
{
  struct doctor_check check;
  char *to = (char *)&check;
  size_t have = 0;

  while (have < sizeof(check)) {
    ssize_t count = read(in, to + have, sizeof(check) - have);

    if (count < 0 && errno == EINTR)
      continue;
    if (count <= 0)
      return false;
    have += (size_t)count;
  }
  if (doctor->count < DOCTOR_MAX_CHECKS)
    doctor->checks[doctor->count++] = check;
  return true;
}

void doctor_in_child(struct doctor *doctor, const char *name, void (*probe)(struct doctor *doctor, void *data),
                     void *data)
{
  int ends[2], status = 0, before = doctor->count;
  pid_t child;

  fflush(NULL);
  if (pipe(ends) < 0 || (child = fork()) < 0) {
    doctor_say(doctor, name, DOCTOR_UNKNOWN, "Free some processes and file descriptors.", "cannot start a probe: %s",
               strerror(errno));
    return;
  }
  if (child == 0) {
    close(ends[0]);
    run_probe(ends[1], probe, data);
  }
  close(ends[1]);
  while (take_check(doctor, ends[0]))
    ;
  close(ends[0]);
  while (waitpid(child, &status, 0) < 0 && errno == EINTR)
    ;
  if (doctor->count > before)
    return;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    doctor_say(doctor, name, DOCTOR_UNKNOWN, "See whether nvidia-smi answers.", "the probe did not end in %d seconds",
               DOCTOR_PROBE_SECONDS);
  else
    doctor_say(doctor, name, DOCTOR_UNKNOWN, "See whether other programs can use the library.",
               "the probe ended without an answer (%s %d)", WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static enum doctor_answer verdict(const struct doctor *doctor)
{
  enum doctor_answer answer = DOCTOR_OK;

  for (int i = 0; i < doctor->count; i++) {
    if (doctor->checks[i].answer == DOCTOR_NO)
      return DOCTOR_NO;
    if (doctor->checks[i].answer == DOCTOR_UNKNOWN)
      answer = DOCTOR_UNKNOWN;
  }
  return answer;
}

static const char *colour(enum doctor_answer answer)
{
  return cmd_style(stdout, answer == DOCTOR_OK ? "32" : answer == DOCTOR_NO ? "31" : "33");
}

static void print_text(const struct doctor *doctor)
{
  static const char *const ends[] = {[DOCTOR_OK] = "yes: jobs can go symmetric here",
                                     [DOCTOR_NO] = "no: see what is marked no",
                                     [DOCTOR_UNKNOWN] = "unknown: see what is marked unknown"};

  for (int i = 0; i < doctor->count; i++) {
    const struct doctor_check *check = &doctor->checks[i];

    printf("%s%-7s%s %-14s %s\n", colour(check->answer), words[check->answer], cmd_style(stdout, "0"), check->name,
           check->reason);
    if (check->todo[0])
      printf("%-22s -> %s\n", "", check->todo);
  }
  printf("\n%s%s%s\n", colour(verdict(doctor)), ends[verdict(doctor)], cmd_style(stdout, "0"));
}

static void print_json(const struct doctor *doctor)
{
  json_t *checks = json_array();

  for (int i = 0; i < doctor->count; i++) {
    const struct doctor_check *check = &doctor->checks[i];

    json_array_append_new(checks, json_pack("{s:o, s:s, s:o, s:o}", "check", cmd_json_path(check->name), "answer",
                                            words[check->answer], "reason", cmd_json_path(check->reason), "todo",
                                            check->todo[0] ? cmd_json_path(check->todo) : json_null()));
  }
  cmd_print_json(json_pack("{s:i, s:s, s:o}", "schema", 1, "answer", words[verdict(doctor)], "checks", checks));
}

static int parse_seconds(char **argv, const char *text, struct doctor *doctor)
{
  char *end;
  long value = strtol(text, &end, 10);

  if (*text == '\0' || *end != '\0' || value < 1 || value > MAX_SECONDS)
    return cmd_usage_error(argv, "--seconds must be a whole number from 1 to %d, not '%s'", MAX_SECONDS, text);
  doctor->seconds = (int)value;
  return 0;
}

int cmd_doctor(int argc, char **argv)
{
  static const struct option options[] = {{"seconds", required_argument, NULL, 's'},
                                          {"shim", required_argument, NULL, 'l'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
  static const int statuses[] = {[DOCTOR_OK] = CMD_OK, [DOCTOR_NO] = CMD_NO, [DOCTOR_UNKNOWN] = CMD_USAGE};
  static struct doctor doctor;
  bool json = false;

  doctor.argv = argv;
  doctor.seconds = DEFAULT_SECONDS;
  for (int option; (option = getopt_long(argc, argv, "+h", options, NULL)) != -1;) {
    if (option == 'h') {
      print_help();
      return CMD_OK;
    }
    if (option == 'j')
      json = true;
    else if (option == 'l')
      doctor.shim = optarg;
    else if (option != 's' || parse_seconds(argv, optarg, &doctor) != 0)
      return CMD_USAGE;
  }
  doctor.command = optind < argc ? argv + optind : NULL;
  doctor_gpu(&doctor);
  doctor_host(&doctor);
  doctor_policy(&doctor);
  doctor_nccl(&doctor);
  if (doctor.command)
    doctor_job(&doctor);
  if (json)
    print_json(&doctor);
  else
    print_text(&doctor);
  return statuses[verdict(&doctor)];
}
