/* SPDX-License-Identifier: Apache-2.0 */
/* symmshim bench: measures what the shim costs, and judges nothing. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench.h"
#include "tools/cmd.h"

enum { DEFAULT_RUNS = 15 };

struct settings {
  bool host, json;
  const char *shim;
  int runs;
};

static volatile sig_atomic_t interrupted;

static void print_help(void)
{
  printf("Usage: symmshim bench --host [OPTIONS]\n\n"
         "Measures what the shim costs a program on the host. Neither a GPU nor CUDA nor NCCL is needed: the programs\n"
         "that are timed call libraries that do nothing, with the shim and without it in turn.\n\n"
         "  --host        what is measured; there is nothing else yet\n"
         "  --json        print the figures as JSON\n"
         "  --runs N      measure everything N times (default %d, at most %d)\n"
         "  --shim FILE   this libsymmshim.so, not the one of this tool\n"
         "  --help        print this\n\n"
         "Exit status: 0 measured, whatever the figures are; 1 something could not be run; 2 wrong use.\n",
         DEFAULT_RUNS, BENCH_MAX_RUNS);
}

/* The folder of the programs: beside this one in the build tree, else the installed one. */
static int find_programs(char **argv, char programs[PATH_MAX])
{
  char near[PATH_MAX], self[PATH_MAX];

  if (cmd_self_folder(self, sizeof(self)) == 0 &&
      (size_t)snprintf(near, sizeof(near), "%s/bench", self) < sizeof(near) && access(near, X_OK) == 0) {
    memcpy(programs, near, sizeof(near));
    return 0;
  }
  snprintf(programs, PATH_MAX, "%s/bench", SYMMSHIM_LIBDIR);
  if (access(programs, X_OK) == 0)
    return 0;
  cmd_error(argv, "%s: %s", programs, strerror(errno));
  return -1;
}

static void say_progress(const char *text, int run, int runs)
{
  if (isatty(STDERR_FILENO))
    fprintf(stderr, "\r\033[K%s", "");
  if (text && isatty(STDERR_FILENO))
    fprintf(stderr, "run %d of %d: %s", run + 1, runs, text);
}

/* Every second run goes through the cases backwards, so that none always comes after the same other. */
static int measure_all(char **argv, struct bench *bench)
{
  for (int run = 0; run < bench->runs; run++)
    for (int i = 0; i < bench_case_count; i++) {
      struct bench_case *what = &bench_cases[run % 2 ? bench_case_count - 1 - i : i];
      double ns[2] = {0, 0};
      say_progress(what->text, run, bench->runs);
      if (interrupted || what->sample(bench, what, ns) < 0) {
        say_progress(NULL, run, bench->runs);
        cmd_error(argv, "%s: %s", what->name, interrupted ? "interrupted" : "a program could not be run, or failed");
        return -1;
      }
      what->samples[0][run] = ns[0];
      what->samples[1][run] = ns[1];
    }
  say_progress(NULL, 0, 0);
  return 0;
}

static double *make_room(int runs)
{
  double *samples = calloc((size_t)bench_case_count * 2 * (size_t)runs, sizeof(*samples));

  for (int i = 0; samples && i < bench_case_count; i++) {
    bench_cases[i].samples[0] = samples + (size_t)(2 * i) * (size_t)runs;
    bench_cases[i].samples[1] = samples + (size_t)(2 * i + 1) * (size_t)runs;
  }
  return samples;
}

static void interrupt(int number)
{
  (void)number;
  interrupted = 1;
}

static int bench_host(char **argv, const struct settings *settings)
{
  char shim[PATH_MAX];
  struct bench bench = {.shim = shim, .runs = settings->runs};
  double *samples;
  int rc;

  if (cmd_choose_shim(argv, settings->shim, shim) < 0 || find_programs(argv, bench.programs) < 0)
    return CMD_NO;
  samples = make_room(bench.runs);
  if (!samples) {
    cmd_error(argv, "%s", strerror(ENOMEM));
    return CMD_NO;
  }
  signal(SIGINT, interrupt); /* the folder is to be removed */
  signal(SIGTERM, interrupt);
  rc = bench_open(&bench);
  if (rc < 0)
    cmd_error(argv, "cannot prepare a folder: %s", strerror(errno));
  else
    rc = measure_all(argv, &bench);
  bench_close(&bench);
  if (rc == 0 && settings->json)
    bench_print_json(&bench);
  else if (rc == 0)
    bench_print_table(&bench);
  free(samples);
  return rc < 0 ? CMD_NO : CMD_OK;
}

/* Returns 0 or CMD_USAGE. */
static int set_runs(char **argv, struct settings *settings, const char *word)
{
  char *end;
  long runs = strtol(word, &end, 10);

  if (end == word || *end != '\0' || runs < 1 || runs > BENCH_MAX_RUNS)
    return cmd_usage_error(argv, "--runs wants a number from 1 to %d, not '%s'", BENCH_MAX_RUNS, word);
  settings->runs = (int)runs;
  return 0;
}

int cmd_bench(int argc, char **argv)
{
  static const struct option options[] = {
      {"host", no_argument, NULL, 'H'},       {"json", no_argument, NULL, 'j'}, {"runs", required_argument, NULL, 'r'},
      {"shim", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  struct settings settings = {.runs = DEFAULT_RUNS};
  int status = 0;

  for (int option; status == 0 && (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
    switch (option) {
    case 'H':
      settings.host = true;
      break;
    case 'j':
      settings.json = true;
      break;
    case 'r':
      status = set_runs(argv, &settings, optarg);
      break;
    case 's':
      settings.shim = optarg;
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
  if (optind < argc)
    return cmd_usage_error(argv, "unexpected argument '%s'", argv[optind]);
  if (!settings.host)
    return cmd_usage_error(argv, "say what to measure: --host");
  return bench_host(argv, &settings);
}
