/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cmd_bench_gpu.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/cmd.h"

struct job {
  char folder[PATH_MAX - 64];
  char policy[PATH_MAX];
  pid_t ranks[GPU_MAX_RANKS];
  int started;
};

static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
  (void)number;
  interrupted = 1;
}

struct gpu_region *gpu_region_new(char **argv, int *fd)
{
  struct gpu_region *region = MAP_FAILED;

  *fd = memfd_create("symmshim-bench", 0);
  if (*fd >= 0 && ftruncate(*fd, sizeof(*region)) == 0)
    region = mmap(NULL, sizeof(*region), PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  if (region != MAP_FAILED)
    return region;
  cmd_error(argv, "no shared memory: %s", strerror(errno));
  return NULL;
}

/*
 * The policy, but that everybody's memory is moved, since the ranks allocate it themselves, and that each kind of call
 * is logged.
 */
static bool write_policy(const struct job *job, FILE *in)
{
  FILE *out = fopen(job->policy, "w");
  bool arena = false;
  char line[256];

  while (out && in && fgets(line, sizeof(line), in)) {
    if (strncmp(line, "callers", 7) == 0 || strncmp(line, "audit", 5) == 0)
      continue;
    fputs(line, out);
    if (strncmp(line, "[arena]", 7) == 0) {
      fputs("callers = *\n", out);
      arena = true;
    }
  }
  if (out && !arena)
    fputs("\n[arena]\ncallers = *\n", out);
  return out && fclose(out) == 0;
}

/* The policy's text; NULL for the built-in one. Returns false after the error was told. */
static bool open_policy(char **argv, const struct gpu_run *run, FILE **in)
{
  char path[CMD_MAX_PATH];
  struct policy policy;

  *in = NULL;
  if (!run->policy_text && cmd_load_policy(run->policy, &policy, path) < 0)
    return false;
  if (!run->policy_text && path[0] == '\0')
    return true;
  *in = run->policy_text ? fmemopen((void *)(uintptr_t)run->policy_text, strlen(run->policy_text), "r")
                         : fopen(path, "r");
  if (!*in)
    cmd_error(argv, "%s: %s", run->policy_text ? "policy" : path, strerror(errno));
  return *in != NULL;
}

static bool open_job(char **argv, const struct gpu_run *run, struct job *job)
{
  const char *temporary = getenv("TMPDIR");
  bool good;
  FILE *in;

  if (!open_policy(argv, run, &in))
    return false;
  snprintf(job->folder, sizeof(job->folder), "%s/symmshim-bench-XXXXXX", temporary && *temporary ? temporary : "/tmp");
  if (mkdtemp(job->folder)) {
    snprintf(job->policy, sizeof(job->policy), "%s/policy.conf", job->folder);
    good = write_policy(job, in);
  } else {
    snprintf(job->policy, sizeof(job->policy), "%s", job->folder);
    job->folder[0] = '\0';
    good = false;
  }
  if (!good)
    cmd_error(argv, "%s: %s", job->policy, strerror(errno));
  if (in)
    fclose(in);
  return good;
}

static void close_job(const struct job *job)
{
  DIR *folder = job->folder[0] ? opendir(job->folder) : NULL;
  struct dirent *entry;

  while (folder && (entry = readdir(folder)) != NULL)
    unlinkat(dirfd(folder), entry->d_name, 0);
  if (folder)
    closedir(folder);
  if (job->folder[0])
    rmdir(job->folder);
}

/* The program of a rank: beside this one in the build tree, else the installed one. */
static bool find_rank(char **argv, char program[PATH_MAX])
{
  char self[PATH_MAX];

  if (cmd_self_folder(self, sizeof(self)) == 0 &&
      (size_t)snprintf(program, PATH_MAX, "%s/gpu/symmshim-rank", self) < PATH_MAX && access(program, X_OK) == 0)
    return true;
  snprintf(program, PATH_MAX, "%s/bench/symmshim-rank", SYMMSHIM_LIBDIR);
  if (access(program, X_OK) == 0)
    return true;
  cmd_error(argv, "%s: %s", program, strerror(errno));
  return false;
}

/* What NCCL launches goes to a file of this rank's. */
static void have_nccl_log(const struct job *job, int rank)
{
  char path[PATH_MAX];

  snprintf(path, sizeof(path), "%s/nccl.%d", job->folder, rank);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "TUNING", 1);
  setenv("NCCL_DEBUG_FILE", path, 1);
}

static void become_rank(const struct gpu_run *run, const struct job *job, const char *program, int fd, int rank,
                        enum gpu_pass pass)
{
  char descriptor[16], number[16], audit[PATH_MAX], path[2 * PATH_MAX];
  const char *libraries = getenv("LD_LIBRARY_PATH");

  snprintf(descriptor, sizeof(descriptor), "%d", fd);
  snprintf(number, sizeof(number), "%d", rank);
  snprintf(audit, sizeof(audit), "%s/%s.%d", job->folder, pass == GPU_LOOK ? "unread" : "audit", rank);
  snprintf(path, sizeof(path), "%s%s%s", run->libraries ? run->libraries : "", run->libraries && libraries ? ":" : "",
           libraries ? libraries : "");
  setenv("LD_PRELOAD", run->shim, 1);
  setenv("LD_LIBRARY_PATH", path, 1);
  setenv("SYMMSHIM", "on", 1);
  setenv("SYMMSHIM_POLICY", job->policy, 1);
  setenv("SYMMSHIM_AUDIT", audit, 1);
  setenv("RANK", number, 1);
  unsetenv("NCCL_COMM_ID"); /* it would give all communicators one id */
  if (pass == GPU_LOOK)
    have_nccl_log(job, rank);
  execl(program, "symmshim-rank", descriptor, number, (char *)NULL);
  _exit(127);
}

static bool start_ranks(char **argv, const struct gpu_run *run, struct job *job, const struct gpu_region *region,
                        int fd)
{
  char program[PATH_MAX];

  if (!find_rank(argv, program))
    return false;
  for (int rank = 0; rank < region->nranks; rank++) {
    job->ranks[rank] = fork();
    if (job->ranks[rank] == 0)
      become_rank(run, job, program, fd, rank, region->pass);
    if (job->ranks[rank] < 0) {
      cmd_error(argv, "fork: %s", strerror(errno));
      return false;
    }
    job->started++;
  }
  return true;
}

static void kill_ranks(struct job *job)
{
  for (int i = 0; i < job->started; i++)
    if (job->ranks[i] > 0)
      kill(job->ranks[i], SIGKILL);
  for (int i = 0; i < job->started; i++)
    if (job->ranks[i] > 0)
      waitpid(job->ranks[i], NULL, 0);
}

static void say_progress(const struct gpu_run *run, const struct gpu_region *region)
{
  char name[64];
  int done = (int)atomic_load(&region->done);

  if (!isatty(STDERR_FILENO))
    return;
  fprintf(stderr, "\r\033[K");
  if (!run)
    return;
  fprintf(stderr, "%s%s", run->title ? run->title : "", run->title ? ": " : "");
  if (region->pass == GPU_LOOK)
    fprintf(stderr, "SMs, ");
  if (atomic_load(&region->way) == GPU_WAYS)
    fprintf(stderr, "communicators are set up");
  else if (done < region->case_count)
    fprintf(stderr, "case %d of %d, %s", done + 1, region->case_count,
            gpu_name_case(&region->cases[done], name, sizeof(name)));
}

/* A rank's end that was no success. */
static void note_end(struct gpu_region *region, int rank, int status)
{
  if (atomic_load(&region->failed)) /* it said why, or another did */
    return;
  if (WIFSIGNALED(status))
    snprintf(region->message, sizeof(region->message), "rank %d was ended by signal %d (%s)", rank, WTERMSIG(status),
             strsignal(WTERMSIG(status)));
  else if (WEXITSTATUS(status) == 127)
    snprintf(region->message, sizeof(region->message),
             "a rank could not be started: are libcudart.so.13 and libnccl.so.2 in LD_LIBRARY_PATH (--libs)?");
  else
    snprintf(region->message, sizeof(region->message), "rank %d ended with status %d", rank, WEXITSTATUS(status));
}

/* Whether one has ended, and well; counts it. */
static bool reap(struct job *job, struct gpu_region *region, int *left)
{
  for (int rank = 0; rank < job->started; rank++) {
    int status = 0;
    if (job->ranks[rank] <= 0 || waitpid(job->ranks[rank], &status, WNOHANG) != job->ranks[rank])
      continue;
    job->ranks[rank] = 0;
    (*left)--;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      note_end(region, rank, status);
      return false;
    }
  }
  return true;
}

static void note_hang(const struct gpu_run *run, struct gpu_region *region)
{
  char name[64], way_name[40];
  int done = (int)atomic_load(&region->done), way = (int)atomic_load(&region->way);

  if (way == GPU_WAYS || done >= region->case_count)
    snprintf(region->message, sizeof(region->message),
             "the ranks hang while they %s: %d s without progress (--timeout)",
             way == GPU_WAYS ? "set up their communicators" : "end", run->timeout);
  else
    snprintf(region->message, sizeof(region->message), "the ranks hang at %s, %s: more than %d s for it (--timeout)",
             gpu_name_case(&region->cases[done], name, sizeof(name)),
             gpu_name_way(region, way, way_name, sizeof(way_name)), run->timeout);
}

static double now_s(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/*
 * Waits for the ranks. As soon as one fails, all hang or the user has enough, it returns false, and the others are to
 * be ended.
 */
static bool await_ranks(char **argv, const struct gpu_run *run, struct job *job, struct gpu_region *region)
{
  uint32_t done = 0;
  double since = now_s();
  bool set_up = false, good = true;

  for (int left = job->started; left > 0 && good;) {
    uint32_t now_done = atomic_load(&region->done);
    bool now_set_up = atomic_load(&region->way) != GPU_WAYS;
    good = reap(job, region, &left);
    if (now_done != done || now_set_up != set_up)
      since = now_s();
    done = now_done;
    set_up = now_set_up;
    if (good && (interrupted || now_s() - since > run->timeout)) {
      good = false;
      if (interrupted)
        snprintf(region->message, sizeof(region->message), "interrupted");
      else
        note_hang(run, region);
    }
    say_progress(run, region);
    if (left > 0 && good)
      nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  }
  say_progress(NULL, region);
  if (!good)
    cmd_error(argv, "%s", region->message);
  return good;
}

/* A line of rank 0's audit log: how a kind of call was made. Later ones overrule. */
static void note_path(const struct gpu_region *region, json_t *line, char paths[GPU_MAX_CASES][40])
{
  const char *op = json_string_value(json_object_get(line, "op")),
             *path = json_string_value(json_object_get(line, "path"));
  const char *dtype = json_string_value(json_object_get(line, "dtype"));
  const char *redop = json_string_value(json_object_get(line, "redop"));
  const char *reason = json_string_value(json_object_get(line, "reason"));
  json_int_t bytes = json_integer_value(json_object_get(line, "bytes"));

  if (!op || !path || !dtype)
    return;
  for (int i = 0; i < region->case_count; i++) {
    const struct gpu_case *what = &region->cases[i];
    if (policy_op_value(op) != (int)what->op || policy_dtype_value(dtype) != (int)what->dtype ||
        (uint64_t)bytes != what->bytes ||
        (redop ? policy_redop_value(redop) : POLICY_REDOP_none) !=
            (int)(what->op == POLICY_OP_all_gather ? POLICY_REDOP_none : what->redop))
      continue;
    snprintf(paths[i], sizeof(paths[i]), reason ? "%s (%s)" : "%s", path, reason);
  }
}

static void read_paths(const struct job *job, const struct gpu_region *region, char paths[GPU_MAX_CASES][40])
{
  char path[PATH_MAX], *line = NULL;
  size_t room = 0;
  FILE *in;

  snprintf(path, sizeof(path), "%s/audit.0", job->folder);
  in = fopen(path, "r");
  while (in && getline(&line, &room, in) > 0) {
    json_t *parsed = json_loads(line, 0, NULL);
    const char *event = json_string_value(json_object_get(parsed, "event"));
    if (event && strcmp(event, "call") == 0)
      note_path(region, parsed, paths);
    json_decref(parsed);
  }
  free(line);
  if (in)
    fclose(in);
}

static bool run_pass(char **argv, const struct gpu_run *run, struct job *job, struct gpu_region *region, int fd,
                     enum gpu_pass pass)
{
  job->started = 0;
  region->pass = pass;
  atomic_store(&region->arrivals, 0);
  atomic_store(&region->done, 0);
  atomic_store(&region->way, GPU_WAYS);
  if (start_ranks(argv, run, job, region, fd) && await_ranks(argv, run, job, region))
    return true;
  kill_ranks(job);
  return false;
}

int gpu_measure(char **argv, const struct gpu_run *run, struct gpu_region *region, int fd,
                char paths[GPU_MAX_CASES][40])
{
  struct job job = {.started = 0};
  bool good;

  signal(SIGINT, interrupt); /* the folder is to be removed */
  signal(SIGTERM, interrupt);
  memset(paths, 0, GPU_MAX_CASES * sizeof(paths[0]));
  good = open_job(argv, run, &job) && run_pass(argv, run, &job, region, fd, GPU_TIME);
  if (good)
    read_paths(&job, region, paths);
  if (good && run->look)
    good = run_pass(argv, run, &job, region, fd, GPU_LOOK);
  close_job(&job);
  return good ? 0 : -1;
}

static int compare_doubles(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;

  return (x > y) - (x < y);
}

/* The value below which a part of the rounds lies. */
static double quantile(const struct gpu_figures *figures, int rounds, double part)
{
  double sorted[GPU_MAX_ROUNDS], at = part * (rounds - 1);
  int below = (int)at;

  memcpy(sorted, figures->us, (size_t)rounds * sizeof(*sorted));
  qsort(sorted, (size_t)rounds, sizeof(*sorted), compare_doubles);
  return below + 1 < rounds ? sorted[below] + (at - below) * (sorted[below + 1] - sorted[below]) : sorted[below];
}

double gpu_median(const struct gpu_figures *figures, int rounds)
{
  return quantile(figures, rounds, 0.5);
}

double gpu_spread(const struct gpu_figures *figures, int rounds)
{
  return (quantile(figures, rounds, 0.75) - quantile(figures, rounds, 0.25)) / 2;
}

double gpu_bus_bandwidth(const struct gpu_case *what, int nranks, double us)
{
  double factor = (double)(nranks - 1) / nranks * (what->op == POLICY_OP_all_reduce ? 2 : 1);

  return us > 0 ? (double)what->bytes * factor / us / 1e3 : 0;
}

int gpu_count(void)
{
  DIR *folder = opendir("/dev");
  struct dirent *entry;
  int count = 0;

  while (folder && (entry = readdir(folder)) != NULL)
    count += strncmp(entry->d_name, "nvidia", 6) == 0 && entry->d_name[6] >= '0' && entry->d_name[6] <= '9';
  if (folder)
    closedir(folder);
  return count;
}
