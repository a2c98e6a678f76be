/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks -n N [-t SECONDS] [-k] [-p] [-e STATUS] -- COMMAND [ARGUMENT...]
 *
 * Starts COMMAND N times, as torchrun would (RANK, LOCAL_RANK, WORLD_SIZE; and SIM_RUN_DIR, a private folder that
 * is gone afterwards), and waits. Exit status: the first rank's that was not 0 (128 + signal, as in a shell), or
 * 124 when SECONDS have passed; then all ranks and what they started are killed. -k: when one rank fails kill the
 * others, as torchrun does, instead of waiting for them. -p: begin each line of output with the rank. -e: STATUS is
 * what is expected; exit with 0 if it comes about, and with 1 if not.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 64, LINE_BYTES = 4096, TIMED_OUT = 124, POLL_MS = 20 };

struct rank {
  pid_t pid;
  bool gone;
  int output; /* with -p: the read end of its pipe, or -1 */
  char line[LINE_BYTES];
  size_t used;
};

static struct rank ranks[MAX_RANKS];
static int count;
static bool prefix;
static bool kill_others;
static volatile sig_atomic_t stopped;

static void on_signal(int signal)
{
  stopped = signal;
}

static _Noreturn void usage(void)
{
  fprintf(stderr, "usage: ranks -n N [-t SECONDS] [-k] [-p] [-e STATUS] -- COMMAND [ARGUMENT...]\n");
  exit(2);
}

static void directory_remove(const char *path)
{
  DIR *directory = opendir(path);
  if (!directory)
    return;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
      continue;
    if (unlinkat(dirfd(directory), entry->d_name, 0) != 0) {
      char inner[4096];
      snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name);
      directory_remove(inner);
    }
  }
  closedir(directory);
  rmdir(path);
}

static void number_set(const char *name, int value)
{
  char text[16];
  snprintf(text, sizeof(text), "%d", value);
  setenv(name, text, 1);
}

static _Noreturn void rank_run(int rank, int output, char **command)
{
  setpgid(0, 0);
  number_set("RANK", rank);
  number_set("LOCAL_RANK", rank);
  number_set("WORLD_SIZE", count);
  if (output >= 0) {
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
  }
  execvp(command[0], command);
  fprintf(stderr, "ranks: %s: %s\n", command[0], strerror(errno));
  _exit(127);
}

static void rank_start(int rank, char **command)
{
  int ends[2] = {-1, -1};
  if (prefix && pipe2(ends, O_CLOEXEC) != 0) {
    perror("ranks: pipe");
    exit(1);
  }
  fflush(NULL);
  pid_t pid = fork();
  if (pid < 0) {
    perror("ranks: fork");
    exit(1);
  }
  if (pid == 0)
    rank_run(rank, ends[1], command);
  setpgid(pid, pid); /* here too: the child may not have got to it */
  ranks[rank].pid = pid;
  ranks[rank].output = ends[0];
  if (prefix)
    close(ends[1]);
}

static void line_print(int rank)
{
  struct rank *from = &ranks[rank];
  printf("[%d] %.*s\n", rank, (int)from->used, from->line);
  fflush(stdout);
  from->used = 0;
}

/* What has come in of one rank's output. */
static void output_read(int rank)
{
  struct rank *from = &ranks[rank];
  char bytes[LINE_BYTES];
  ssize_t got = read(from->output, bytes, sizeof(bytes));
  for (ssize_t i = 0; i < got; i++) {
    if (bytes[i] != '\n')
      from->line[from->used++] = bytes[i];
    if (bytes[i] == '\n' || from->used == sizeof(from->line))
      line_print(rank);
  }
  if (got > 0 || (got < 0 && errno == EINTR))
    return;
  if (from->used > 0)
    line_print(rank);
  close(from->output);
  from->output = -1;
}

/* Waits a little, for output if there can be any. 1: some came, 0: none, -1: no pipe is open. */
static int outputs_read(int timeout)
{
  struct pollfd polls[MAX_RANKS];
  bool open = false;
  bool came = false;
  for (int r = 0; r < count; r++) {
    polls[r] = (struct pollfd){.fd = ranks[r].output, .events = POLLIN};
    open |= ranks[r].output >= 0;
  }
  if (poll(polls, (nfds_t)count, timeout) > 0)
    for (int r = 0; r < count; r++)
      if (polls[r].revents) {
        output_read(r);
        came = true;
      }
  return open ? came : -1;
}

static int exit_status(int status)
{
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Kills what the rank has left running, while its own number cannot be another's yet; then collects it. */
static int rank_end(struct rank *rank)
{
  int status;
  kill(-rank->pid, SIGKILL);
  waitpid(rank->pid, &status, 0);
  rank->gone = true;
  return exit_status(status);
}

/* Collects who has ended. Returns how many have not. */
static int ranks_reap(int *first_failure)
{
  int left = 0;
  for (int r = 0; r < count; r++) {
    siginfo_t ended = {0};
    if (ranks[r].gone)
      continue;
    if (waitid(P_PID, (id_t)ranks[r].pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0) {
      int status = rank_end(&ranks[r]);
      if (*first_failure == 0)
        *first_failure = status;
    } else {
      left++;
    }
  }
  return left;
}

static double now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int ranks_wait(double seconds)
{
  int failure = 0;
  double end = now() + seconds;
  while (ranks_reap(&failure) > 0) {
    bool late = seconds > 0 && now() > end;
    if (stopped || late || (kill_others && failure)) {
      for (int r = 0; r < count; r++)
        if (!ranks[r].gone)
          rank_end(&ranks[r]);
      if (stopped || late)
        failure = stopped ? 128 + stopped : TIMED_OUT;
      break;
    }
    outputs_read(POLL_MS);
  }
  /* What is still in the pipes; something that a rank has left in a session of its own may hold them open. */
  for (int idle = 0; prefix && idle < 5;) {
    int came = outputs_read(POLL_MS);
    if (came < 0)
      break;
    idle = came ? 0 : idle + 1;
  }
  return failure;
}

int main(int argc, char **argv)
{
  double seconds = 0;
  int expected = -1;
  for (int option; (option = getopt(argc, argv, "+n:t:kpe:")) != -1;) {
    if (option == 'n')
      count = atoi(optarg);
    else if (option == 't')
      seconds = atof(optarg);
    else if (option == 'k')
      kill_others = true;
    else if (option == 'p')
      prefix = true;
    else if (option == 'e')
      expected = atoi(optarg);
    else
      usage();
  }
  if (count < 1 || count > MAX_RANKS || optind == argc)
    usage();

  const char *base = getenv("TMPDIR");
  char directory[4096];
  snprintf(directory, sizeof(directory), "%s/sim-ranks-XXXXXX", base && *base ? base : "/tmp");
  if (!mkdtemp(directory)) {
    perror("ranks: mkdtemp");
    return 1;
  }
  setenv("SIM_RUN_DIR", directory, 1);
  signal(SIGINT, on_signal);
  signal(SIGTERM, on_signal);
  for (int r = 0; r < count; r++)
    rank_start(r, argv + optind);
  int status = ranks_wait(seconds);
  directory_remove(directory);
  if (expected < 0 || status == expected)
    return expected < 0 ? status : 0;
  fprintf(stderr, "ranks: status %d where %d was expected\n", status, expected);
  return 1;
}
