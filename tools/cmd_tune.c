/* SPDX-License-Identifier: Apache-2.0 */
/* symmshim tune: measures which calls are faster symmetric on this machine, and writes a policy that says so. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/cmd.h"
#include "tools/cmd_bench.h"
#include "tools/cmd_bench_gpu.h"
#include "tools/cmd_tune.h"

enum { DEFAULT_ROUNDS = 9, DEFAULT_TIMEOUT = 60 };
static const int candidates[] = {8, 16, 24, 32};

struct settings {
  struct bench_gpu_settings gpu;
  const char *out;
};

static void print_help(void)
{
  printf(
      "Usage: symmshim tune [OPTIONS]\n\n"
      "Measures on the GPUs of this host, one rank on each, which calls are faster symmetric than by stock NCCL: in\n"
      "windows with 8, 16, 24 and 32 CTAs, through the shim, and copied through slots; and writes a policy file\n"
      "with rules for those that are, and the figures in comments. \"symmshim bench --policy FILE\" shows what it\n"
      "gains.\n\n"
      "  --out FILE       write the policy there (default: standard output)\n"
      "  --min-bytes N    of the large side of the smallest call (default 64K)\n"
      "  --max-bytes N    of the largest one (default 1G); 6 times as much device memory is needed\n"
      "  --factor N       from one size to the next (default 4)\n"
      "  --ranks N        so many GPUs (default: all)\n"
      "  --rounds N       measure each way so often (default %d, at most %d)\n"
      "  --timeout N      give up when one case takes longer than N seconds (default %d)\n"
      "  --libs FOLDERS   in front of LD_LIBRARY_PATH, where libcudart.so.13 and libnccl.so.2 are\n"
      "  --shim FILE      this libsymmshim.so, not the one of this tool\n"
      "  --help           print this\n\n"
      "Exit status: 0 a policy was written; 1 something could not be run, or a result was wrong; 2 wrong use, or\n"
      "the file cannot be written.\n",
      DEFAULT_ROUNDS, GPU_MAX_ROUNDS, DEFAULT_TIMEOUT);
}

/* Copies what was measured of one way; `path` is how it must have gone, NULL for whatever. */
static struct tune_figure figure_of(const struct gpu_region *region, int index, int way, const char *path,
                                    char paths[][40])
{
  const struct gpu_figures *figures = &region->figures[index][way];

  return (struct tune_figure){.measured = figures->measured && (!path || strcmp(paths[index], path) == 0),
                              .us = gpu_median(figures, region->rounds),
                              .spread = gpu_spread(figures, region->rounds)};
}

static void take_figures(struct tune *tune, const struct gpu_region *region, enum policy_path path, char paths[][40])
{
  for (int i = 0; i < tune->case_count; i++) {
    struct tune_case *it = &tune->cases[i];
    struct tune_figure stock = figure_of(region, i, GPU_STOCK, NULL, paths);
    if (path == POLICY_PATH_window) {
      it->window_stock = stock;
      it->window = figure_of(region, i, GPU_SHIM, "window", paths);
    } else if (path == POLICY_PATH_staged) {
      it->staged_stock = stock;
      it->staged = figure_of(region, i, GPU_SHIM, "staged", paths);
    } else {
      it->stock = stock;
      for (int child = 0; child < region->child_count; child++)
        it->hand[child] = figure_of(region, i, GPU_HAND + child, NULL, paths);
    }
  }
}

/* Takes the region's cases in their order, but an all-gather only once: what it moves are bytes, of whatever type. */
static void take_cases(struct tune *tune, struct gpu_region *region)
{
  int count = 0;

  for (int i = 0; i < region->case_count; i++)
    if (region->cases[i].op != POLICY_OP_all_gather || region->cases[i].dtype == POLICY_DTYPE_bf16)
      region->cases[count++] = region->cases[i];
  region->case_count = tune->case_count = count;
  for (int i = 0; i < count; i++)
    tune->cases[i].what = region->cases[i];
}

static void take_libraries(struct tune *tune, const struct gpu_region *region)
{
  tune->nccl_version = region->nccl_version;
  tune->simulation = region->simulation;
  memcpy(tune->gpu, region->gpu, sizeof(tune->gpu));
}

static void prepare(const struct settings *settings, const struct tune *tune, enum policy_path path,
                    struct gpu_region *region)
{
  region->nranks = tune->nranks;
  region->rounds = settings->gpu.rounds;
  region->ways = 1U << GPU_STOCK;
  region->unseen = path == POLICY_PATH_staged;
  if (path != POLICY_PATH_plain) {
    region->ways |= 1U << GPU_SHIM;
    return;
  }
  for (int i = 0; i < tune->ctas_count; i++) {
    region->children[region->child_count++] = (struct gpu_child){tune->ctas[i], tune->max_ctas, false};
    region->ways |= 1U << (GPU_HAND + i);
  }
}

/* One run of the ranks: by path, windows by hand (plain), through the shim, through slots. Returns 0 or -1. */
static int measure(char **argv, const struct settings *settings, const char *shim, struct tune *tune,
                   enum policy_path path)
{
  static const char *const titles[POLICY_PATH_COUNT] = {"1/3 windows", "2/3 through the shim", "3/3 through slots"};
  static char paths[GPU_MAX_CASES][40];
  struct gpu_run run = {
      .shim = shim, .libraries = settings->gpu.libraries, .title = titles[path], .timeout = settings->gpu.timeout};
  struct gpu_region *region;
  char text[512] = "";
  FILE *out = fmemopen(text, sizeof(text), "w");
  int fd, rc;

  if (out) {
    tune_write_trial(tune, path, out);
    fclose(out);
  }
  run.policy_text = text;
  region = gpu_region_new(argv, &fd);
  if (!region)
    return -1;
  prepare(settings, tune, path, region);
  bench_add_cases(&settings->gpu, region);
  take_cases(tune, region);
  rc = gpu_measure(argv, &run, region, fd, paths);
  if (rc == 0 && bench_check_results(argv, region) > 0)
    rc = -1;
  if (rc == 0) {
    take_figures(tune, region, path, paths);
    take_libraries(tune, region);
  }
  munmap(region, sizeof(*region));
  close(fd);
  return rc;
}

/* A file that is there is replaced at once or not at all; what is no plain file (a device, a link) is written to. */
static bool put(const char *path, const char *text, size_t length)
{
  char fresh[PATH_MAX];
  struct stat there;
  bool direct = lstat(path, &there) == 0 && !S_ISREG(there.st_mode), good;
  FILE *out;

  if ((size_t)snprintf(fresh, sizeof(fresh), "%s%s", path, direct ? "" : ".new") >= sizeof(fresh)) {
    errno = ENAMETOOLONG;
    return false;
  }
  out = fopen(fresh, "w");
  if (!out)
    return false;
  good = fwrite(text, 1, length, out) == length;
  good = fclose(out) == 0 && good;
  if (good && !direct)
    good = rename(fresh, path) == 0;
  if (!good && !direct)
    unlink(fresh);
  return good;
}

/* A policy that the shim would refuse is not written. */
static int write_file(char **argv, const struct tune *tune, const char *path)
{
  struct policy_error error;
  struct policy policy;
  char *text = NULL;
  size_t length = 0;
  FILE *memory = open_memstream(&text, &length);
  int rc = 0;

  if (memory) {
    tune_write(tune, memory);
    fclose(memory);
  }
  if (!text || policy_parse(&policy, text, length, &error) < 0) {
    cmd_error(argv, "%s", text ? error.message : strerror(ENOMEM));
    rc = -1;
  } else if (!path) {
    fwrite(text, 1, length, stdout);
  } else if (!put(path, text, length)) {
    cmd_error(argv, "%s: %s", path, strerror(errno));
    rc = -1;
  }
  free(text);
  return rc;
}

static int decide(char **argv, struct tune *tune, const char *path)
{
  tune_choose_paths(tune);
  if (tune_make_rules(tune) < 0) {
    cmd_error(argv, "more than %d rules come of it: give --factor more", POLICY_MAX_RULES);
    return CMD_NO;
  }
  if (write_file(argv, tune, path) < 0)
    return CMD_USAGE;
  if (path)
    printf("%s: %d rule%s, %d CTAs%s\n", path, tune->rule_count, tune->rule_count == 1 ? "" : "s",
           tune->ctas[tune->chosen_ctas], tune->simulation ? "; of simulated GPUs, so it means nothing" : "");
  return CMD_OK;
}

static int tune_all(char **argv, const struct settings *settings, const char *shim, struct tune *tune)
{
  if (measure(argv, settings, shim, tune, POLICY_PATH_plain) < 0)
    return CMD_NO;
  tune->chosen_ctas = tune_choose_ctas(tune);
  if (measure(argv, settings, shim, tune, POLICY_PATH_window) < 0 ||
      measure(argv, settings, shim, tune, POLICY_PATH_staged) < 0)
    return CMD_NO;
  return decide(argv, tune, settings->out);
}

static int tune_gpus(char **argv, const struct settings *settings)
{
  char shim[CMD_MAX_PATH];
  struct tune *tune;
  struct policy policy;
  int rc, nranks = settings->gpu.nranks > 0 ? settings->gpu.nranks : gpu_count();

  if (nranks < 2) {
    cmd_error(argv, "two GPUs are needed, and %d can be seen", nranks);
    return CMD_NO;
  }
  if (settings->gpu.min_bytes > settings->gpu.max_bytes)
    return cmd_usage_error(argv, "--min-bytes is above --max-bytes");
  if (cmd_choose_shim(argv, settings->gpu.shim, shim) < 0)
    return CMD_NO;
  tune = calloc(1, sizeof(*tune));
  if (!tune) {
    cmd_error(argv, "%s", strerror(ENOMEM));
    return CMD_NO;
  }
  policy_default(&policy);
  tune->nranks = nranks < GPU_MAX_RANKS ? nranks : GPU_MAX_RANKS;
  tune->max_ctas = (int)policy.child_max_ctas;
  tune->ctas_count = sizeof(candidates) / sizeof(candidates[0]);
  memcpy(tune->ctas, candidates, sizeof(candidates));
  rc = tune_all(argv, settings, shim, tune);
  free(tune);
  return rc;
}

static const struct option options[] = {{"out", required_argument, NULL, 'o'},
                                        {"min-bytes", required_argument, NULL, 'm'},
                                        {"max-bytes", required_argument, NULL, 'M'},
                                        {"factor", required_argument, NULL, 'f'},
                                        {"ranks", required_argument, NULL, 'n'},
                                        {"rounds", required_argument, NULL, 'N'},
                                        {"timeout", required_argument, NULL, 't'},
                                        {"libs", required_argument, NULL, 'l'},
                                        {"shim", required_argument, NULL, 's'},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

/* Returns 0 or CMD_USAGE. */
static int set(char **argv, struct settings *settings, int option)
{
  struct bench_gpu_settings *gpu = &settings->gpu;
  int factor = 0, rc;

  switch (option) {
  case 'o':
    settings->out = optarg;
    return 0;
  case 'm':
    return bench_set_bytes(argv, "min-bytes", &gpu->min_bytes, optarg);
  case 'M':
    return bench_set_bytes(argv, "max-bytes", &gpu->max_bytes, optarg);
  case 'f':
    rc = bench_set_number(argv, "factor", 2, 1024, &factor, optarg);
    gpu->factor = (uint64_t)factor;
    return rc;
  case 'n':
    return bench_set_number(argv, "ranks", 2, GPU_MAX_RANKS, &gpu->nranks, optarg);
  case 'N':
    return bench_set_number(argv, "rounds", 1, GPU_MAX_ROUNDS, &gpu->rounds, optarg);
  case 't':
    return bench_set_number(argv, "timeout", 1, 3600, &gpu->timeout, optarg);
  case 'l':
    gpu->libraries = optarg;
    return 0;
  case 's':
    gpu->shim = optarg;
    return 0;
  default:
    return CMD_USAGE;
  }
}

int cmd_tune(int argc, char **argv)
{
  struct settings settings = {.gpu = {.min_bytes = 64 << 10,
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
  return tune_gpus(argv, &settings);
}
