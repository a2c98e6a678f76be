/* SPDX-License-Identifier: Apache-2.0 */
/* symmshim bench: measures what the shim gains and costs, and judges nothing. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench.h"
#include "tools/cmd.h"
#include "tools/cmd_bench.h"
#include "tools/gpu/region.h"

enum { DEFAULT_RUNS = 15, DEFAULT_ROUNDS = 9, DEFAULT_TIMEOUT = 60 };

struct settings {
  bool host;
  int runs;
  struct bench_gpu_settings gpu;
};

static volatile sig_atomic_t interrupted;

static void print_help(void)
{
  printf(
      "Usage: symmshim bench [OPTIONS]\n"
      "       symmshim bench --host [OPTIONS]\n\n"
      "Measures collective calls on the GPUs of this host, one rank on each: by stock NCCL, through the shim, and "
      "with\n"
      "windows registered by hand, in turn and in one process tree; and holds the results against each other.\n"
      "--host measures what the shim costs a program on the host instead. Neither a GPU nor CUDA nor NCCL is needed\n"
      "for that: the programs that are timed call libraries that do nothing, with the shim and without it in turn.\n\n"
      "  --ops LIST       of all_gather, reduce_scatter, all_reduce (default: all)\n"
      "  --dtypes LIST    of bf16, fp32 (default: both)\n"
      "  --redops LIST    of sum, avg (default: both)\n"
      "  --min-bytes N    of the large side of the smallest call (default 1K)\n"
      "  --max-bytes N    of the largest one (default 1G); 8 times as much device memory is needed\n"
      "  --factor N       from one size to the next (default 4)\n"
      "  --ranks N        so many GPUs (default: all)\n"
      "  --rounds N       measure each way so often (default %d, at most %d)\n"
      "  --timeout N      give up when one case takes longer than N seconds (default %d)\n"
      "  --busy           measure beside a kernel that keeps all SMs at work, and say how much slower it becomes\n"
      "  --copy-engine    windows by hand with CTAPolicy zero, too\n"
      "  --policy FILE    this policy, not the one in force\n"
      "  --libs FOLDERS   in front of LD_LIBRARY_PATH, where libcudart.so.13 and libnccl.so.2 are\n"
      "  --plot FILE      draw ratio and bandwidth over the size as SVG\n"
      "  --host           measure on the host\n"
      "  --runs N         with --host: measure everything N times (default %d, at most %d)\n"
      "  --json           print the figures as JSON\n"
      "  --shim FILE      this libsymmshim.so, not the one of this tool\n"
      "  --help           print this\n\n"
      "Exit status: 0 measured, whatever the figures are; 1 something could not be run, or a result was wrong;\n"
      "2 wrong use.\n",
      DEFAULT_ROUNDS, GPU_MAX_ROUNDS, DEFAULT_TIMEOUT, DEFAULT_RUNS, BENCH_MAX_RUNS);
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

  if (cmd_choose_shim(argv, settings->gpu.shim, shim) < 0 || find_programs(argv, bench.programs) < 0)
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
  if (rc == 0 && settings->gpu.json)
    bench_print_json(&bench);
  else if (rc == 0)
    bench_print_table(&bench);
  free(samples);
  return rc < 0 ? CMD_NO : CMD_OK;
}

int bench_set_number(char **argv, const char *option, int least, int most, int *number, const char *word)
{
  char *end;
  long value = strtol(word, &end, 10);

  if (end == word || *end != '\0' || value < least || value > most)
    return cmd_usage_error(argv, "--%s wants a number from %d to %d, not '%s'", option, least, most, word);
  *number = (int)value;
  return 0;
}

int bench_set_bytes(char **argv, const char *option, uint64_t *bytes, const char *word)
{
  if (policy_parse_bytes(word, bytes) < 0 || *bytes == 0)
    return cmd_usage_error(argv, "--%s wants a number of bytes such as 4096, 64K, 2M or 1G, not '%s'", option, word);
  return 0;
}

/* A list of words, each of which `value_of` knows. */
static int set_list(char **argv, const char *option, int (*value_of)(const char *word), const char **list,
                    const char *words)
{
  char copy[256], *rest = copy, *word;

  if ((size_t)snprintf(copy, sizeof(copy), "%s", words) >= sizeof(copy))
    return cmd_usage_error(argv, "--%s is too long", option);
  while ((word = strsep(&rest, ",")) != NULL)
    if (value_of(word) < 0)
      return cmd_usage_error(argv, "--%s: unknown word '%s'", option, word);
  *list = words;
  return 0;
}

static const struct option options[] = {{"host", no_argument, NULL, 'H'},
                                        {"json", no_argument, NULL, 'j'},
                                        {"runs", required_argument, NULL, 'r'},
                                        {"shim", required_argument, NULL, 's'},
                                        {"ops", required_argument, NULL, 'o'},
                                        {"dtypes", required_argument, NULL, 'd'},
                                        {"redops", required_argument, NULL, 'R'},
                                        {"min-bytes", required_argument, NULL, 'm'},
                                        {"max-bytes", required_argument, NULL, 'M'},
                                        {"factor", required_argument, NULL, 'f'},
                                        {"ranks", required_argument, NULL, 'n'},
                                        {"rounds", required_argument, NULL, 'N'},
                                        {"copy-engine", no_argument, NULL, 'c'},
                                        {"policy", required_argument, NULL, 'p'},
                                        {"libs", required_argument, NULL, 'l'},
                                        {"timeout", required_argument, NULL, 't'},
                                        {"busy", no_argument, NULL, 'b'},
                                        {"plot", required_argument, NULL, 'P'},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

/* An option that has a value to check. Returns 0 or CMD_USAGE. */
static int set_checked(char **argv, struct settings *settings, int option)
{
  struct bench_gpu_settings *gpu = &settings->gpu;
  int factor = 0, rc;

  switch (option) {
  case 'r':
    return bench_set_number(argv, "runs", 1, BENCH_MAX_RUNS, &settings->runs, optarg);
  case 'n':
    return bench_set_number(argv, "ranks", 2, GPU_MAX_RANKS, &gpu->nranks, optarg);
  case 'N':
    return bench_set_number(argv, "rounds", 1, GPU_MAX_ROUNDS, &gpu->rounds, optarg);
  case 't':
    return bench_set_number(argv, "timeout", 1, 3600, &gpu->timeout, optarg);
  case 'f':
    rc = bench_set_number(argv, "factor", 2, 1024, &factor, optarg);
    gpu->factor = (uint64_t)factor;
    return rc;
  case 'm':
    return bench_set_bytes(argv, "min-bytes", &gpu->min_bytes, optarg);
  case 'M':
    return bench_set_bytes(argv, "max-bytes", &gpu->max_bytes, optarg);
  case 'o':
    return set_list(argv, "ops", policy_op_value, &gpu->ops, optarg);
  case 'd':
    return set_list(argv, "dtypes", policy_dtype_value, &gpu->dtypes, optarg);
  case 'R':
    return set_list(argv, "redops", policy_redop_value, &gpu->redops, optarg);
  default:
    return CMD_USAGE;
  }
}

static int set(char **argv, struct settings *settings, int option)
{
  struct bench_gpu_settings *gpu = &settings->gpu;

  switch (option) {
  case 'H':
    settings->host = true;
    return 0;
  case 'j':
    gpu->json = true;
    return 0;
  case 'c':
    gpu->copy_engine = true;
    return 0;
  case 'b':
    gpu->busy = true;
    return 0;
  case 's':
    gpu->shim = optarg;
    return 0;
  case 'p':
    gpu->policy = optarg;
    return 0;
  case 'l':
    gpu->libraries = optarg;
    return 0;
  case 'P':
    gpu->plot = optarg;
    return 0;
  default:
    return set_checked(argv, settings, option);
  }
}

int cmd_bench(int argc, char **argv)
{
  struct settings settings = {.runs = DEFAULT_RUNS,
                              .gpu = {.min_bytes = 1 << 10,
                                      .max_bytes = 1 << 30,
                                      .factor = 4,
                                      .rounds = DEFAULT_ROUNDS,
                                      .timeout = DEFAULT_TIMEOUT}};
  int status = 0;

  for (int option; status == 0 && (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
    if (option == 'h') {
      print_help();
      return CMD_OK;
    }
    status = set(argv, &settings, option);
  }
  if (status != 0)
    return status;
  if (optind < argc)
    return cmd_usage_error(argv, "unexpected argument '%s'", argv[optind]);
  return settings.host ? bench_host(argv, &settings) : bench_gpu(argv, &settings.gpu);
}
