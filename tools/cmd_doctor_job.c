/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the command for a while with SYMMSHIM=audit, and says what a real run would make of the calls that it made. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/cmd.h"
#include "tools/cmd_doctor.h"
#include "tools/cmd_report.h"

enum { POLL_MS = 50, GRACE_MS = 5000 };

struct job {
  char folder[PATH_MAX / 2];
  char shim[PATH_MAX];
};

/* Every call is to be logged, whatever the policy in force says of the log. */
static int write_policy(const struct job *job)
{
  char in_force[CMD_MAX_PATH], path[PATH_MAX], line[4096];
  FILE *in = NULL, *out;
  bool in_shim = true, head = false;

  snprintf(path, sizeof(path), "%s/policy", job->folder);
  out = fopen(path, "we");
  if (!out)
    return -errno;
  if (policy_find(in_force, sizeof(in_force)))
    in = fopen(in_force, "re");
  while (in && fgets(line, sizeof(line), in)) {
    const char *word = line + strspn(line, " \t");

    if (*word == '[')
      in_shim = strncmp(word, "[shim]", 6) == 0;
    if (in_shim && strncmp(word, "audit", 5) == 0 && strchr(" \t=", word[5]))
      continue;
    fputs(line, out);
    if (*word != '[' || !in_shim)
      continue;
    fputs("audit = call\n", out);
    head = true;
  }
  if (in)
    fclose(in);
  if (!head)
    fputs("\n[shim]\naudit = call\n", out);
  return fclose(out) == 0 ? 0 : -errno;
}

static void become(const struct job *job, char **command)
{
  const char *old = getenv("LD_PRELOAD");
  char preload[2 * PATH_MAX], path[PATH_MAX];
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

  setpgid(0, 0);
  dup2(null, STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  snprintf(preload, sizeof(preload), "%s%s%s", old ? old : "", old && *old ? ":" : "", job->shim);
  setenv("LD_PRELOAD", preload, 1);
  setenv("SYMMSHIM", "audit", 1);
  snprintf(path, sizeof(path), "%s/policy", job->folder);
  setenv("SYMMSHIM_POLICY", path, 1);
  snprintf(path, sizeof(path), "%s/audit.%%h.%%p", job->folder);
  setenv("SYMMSHIM_AUDIT", path, 1);
  execvp(command[0], command);
  fprintf(stderr, "symmshim doctor: %s: %s\n", command[0], strerror(errno));
  _exit(errno == ENOENT ? 127 : 126);
}

/* Waits so long for the child; returns whether it ended. */
static bool wait_for(pid_t child, int milliseconds, int *status)
{
  for (int waited = 0;; waited += POLL_MS) {
    pid_t ended = waitpid(child, status, WNOHANG);

    if (ended == child || (ended < 0 && errno != EINTR))
      return true;
    if (waited >= milliseconds)
      return false;
    nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
  }
}

/* The whole group: launchers have children. Returns whether the command ended by itself. */
static bool run(const struct doctor *doctor, const struct job *job, int *status)
{
  pid_t child;

  fflush(NULL);
  child = fork();
  if (child == 0)
    become(job, doctor->command);
  *status = -1;
  if (child < 0)
    return true;
  setpgid(child, child);
  if (wait_for(child, doctor->seconds * 1000, status)) {
    kill(-child, SIGTERM);
    return true;
  }
  kill(-child, SIGTERM);
  if (!wait_for(child, GRACE_MS, status)) {
    kill(-child, SIGKILL);
    waitpid(child, status, 0);
  }
  kill(-child, SIGKILL);
  return false;
}

static void each_log(const struct job *job, void (*visit)(void *data, const char *path), void *data)
{
  DIR *folder = opendir(job->folder);
  char path[PATH_MAX];

  if (!folder)
    return;
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    if (entry->d_name[0] == '.')
      continue;
    snprintf(path, sizeof(path), "%s/%s", job->folder, entry->d_name);
    visit(data, path);
  }
  closedir(folder);
}

static void read_log(void *data, const char *path)
{
  const char *name = strrchr(path, '/');

  if (name && strncmp(name, "/audit.", 7) == 0)
    report_read(data, path);
}

static void remove_file(void *data, const char *path)
{
  (void)data;
  unlink(path);
}

/* The reason that most of an op's calls would be plain for; -1: none. */
static int foremost(const struct report *report, const struct report_op *op)
{
  static const bool none_done[REPORT_MAX_REASONS];

  return report_next_reason(report, op, none_done);
}

static void say_op(struct doctor *doctor, const struct report *report, int op)
{
  const struct report_op *forecast = &report->forecast[op];
  const char *word = policy_op_word((enum policy_op)op);
  int most = foremost(report, forecast);

  if (most < 0)
    doctor_say(doctor, "coverage", DOCTOR_OK, NULL, "%s: all %llu calls would go symmetric", word,
               (unsigned long long)forecast->calls);
  else
    doctor_say(doctor, "coverage", DOCTOR_OK, report_advice(report->reasons[most]),
               "%s: %llu of %llu calls would go symmetric; most of the others stay plain by %s", word,
               (unsigned long long)report_symmetric_calls(forecast), (unsigned long long)forecast->calls,
               report->reasons[most]);
}

/* What the report of the dry run foresees. */
static void say_coverage(struct doctor *doctor, const struct report *report)
{
  uint64_t calls = 0, symmetric = 0;

  for (int op = 0; op < POLICY_OP_COUNT; op++) {
    calls += report->forecast[op].calls;
    symmetric += report_symmetric_calls(&report->forecast[op]);
    if (report->forecast[op].calls > 0)
      say_op(doctor, report, op);
  }
  if (calls == 0)
    doctor_say(doctor, "job", DOCTOR_UNKNOWN,
               "Give it longer with --seconds, and the shim that goes with this symmshim.",
               "calls were seen, and none on all ranks");
  else if (symmetric == 0)
    doctor_say(doctor, "job", DOCTOR_NO, "See the advice above.", "none of the command's calls would go symmetric");
  else
    doctor_say(
        doctor, "job", DOCTOR_OK, NULL,
        "calls were seen in %u processes; ranks that come late, and memory that runs short, only a real run shows",
        HASH_COUNT(report->processes));
}

static void say_silence(struct doctor *doctor, bool ended, int status)
{
  if (ended && WIFEXITED(status) && (WEXITSTATUS(status) == 126 || WEXITSTATUS(status) == 127))
    doctor_say(doctor, "job", DOCTOR_NO, "See the message on standard error.", "the command could not be started");
  else if (ended && status != 0)
    doctor_say(doctor, "job", DOCTOR_UNKNOWN, "See why it fails by itself.",
               "the command failed (%s %d) before it made a call", WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  else if (ended)
    doctor_say(doctor, "job", DOCTOR_UNKNOWN,
               "Name a command that trains; if it does, its NCCL is linked where the shim cannot see it.",
               "the command ended, and no collective was seen");
  else
    doctor_say(doctor, "job", DOCTOR_UNKNOWN, "Give it longer with --seconds.", "no collective was seen in %d seconds",
               doctor->seconds);
}

static void judge(struct doctor *doctor, const struct job *job)
{
  static struct report report;
  int status = 0;
  bool ended = run(doctor, job, &status);

  each_log(job, read_log, &report);
  report_finish(&report);
  if (HASH_COUNT(report.signatures) > 0)
    say_coverage(doctor, &report);
  else
    say_silence(doctor, ended, status);
  report_free(&report);
}

void doctor_job(struct doctor *doctor)
{
  const char *parent = getenv("TMPDIR");
  struct job job;

  if (cmd_choose_shim(doctor->argv, doctor->shim, job.shim) < 0) {
    doctor_say(doctor, "job", DOCTOR_NO, "Name the shim with --shim.", "libsymmshim.so cannot be preloaded");
    return;
  }
  snprintf(job.folder, sizeof(job.folder), "%s/symmshim-doctor-XXXXXX", parent && *parent ? parent : "/tmp");
  if (!mkdtemp(job.folder) || write_policy(&job) < 0) {
    doctor_say(doctor, "job", DOCTOR_UNKNOWN, "Name a writable folder in TMPDIR.", "%s: %s", job.folder,
               strerror(errno));
    return;
  }
  judge(doctor, &job);
  each_log(&job, remove_file, NULL);
  rmdir(job.folder);
}
