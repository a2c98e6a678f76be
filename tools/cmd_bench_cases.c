/* SPDX-License-Identifier: Apache-2.0 */
/* symmshim bench on GPUs: which calls are measured, and in which ways. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/cmd.h"
#include "tools/cmd_bench.h"
#include "tools/cmd_bench_figures.h"
#include "tools/cmd_bench_gpu.h"

/* Kinds of call, in the order of the table. */
static const struct {
  enum policy_op op;
  enum policy_redop redop;
} kinds[] = {{POLICY_OP_all_gather, POLICY_REDOP_none},
             {POLICY_OP_reduce_scatter, POLICY_REDOP_sum},
             {POLICY_OP_reduce_scatter, POLICY_REDOP_avg},
             {POLICY_OP_all_reduce, POLICY_REDOP_sum}};
static const enum policy_dtype dtypes[] = {POLICY_DTYPE_bf16, POLICY_DTYPE_fp32};

/* Whether a word stands in a list that commas part; NULL is any. */
static bool is_listed(const char *list, const char *word)
{
  size_t length = strlen(word);

  for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0'))
      return true;
  return list == NULL;
}

int bench_add_cases(const struct bench_gpu_settings *settings, struct gpu_region *region)
{
  uint64_t unit = (uint64_t)region->nranks * 16; /* so that every part is whole and aligned */

  for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
      if (!is_listed(settings->ops, policy_op_word(kinds[k].op)) ||
          !is_listed(settings->dtypes, policy_dtype_word(dtypes[d])) ||
          (kinds[k].redop != POLICY_REDOP_none && !is_listed(settings->redops, policy_redop_word(kinds[k].redop))))
        continue;
      for (uint64_t bytes = settings->min_bytes; bytes <= settings->max_bytes && region->case_count < GPU_MAX_CASES;
           bytes *= settings->factor)
        region->cases[region->case_count++] =
            (struct gpu_case){kinds[k].op, dtypes[d], kinds[k].redop, (bytes + unit - 1) / unit * unit};
    }
  return region->case_count;
}

static void add_children(const struct bench_gpu_settings *settings, const struct policy *policy,
                         struct gpu_region *region)
{
  struct gpu_child own = {(int)policy->child_min_ctas, (int)policy->child_max_ctas, false};

  region->children[region->child_count++] = own;
  own.copy_engine = true;
  if (settings->copy_engine)
    region->children[region->child_count++] = own;
}

/* The largest error against stock that rounding explains: a few units in the last place. */
static double tolerance_of(const struct gpu_case *what)
{
  if (what->op == POLICY_OP_all_gather)
    return 0;
  return what->dtype == POLICY_DTYPE_bf16 ? 0x1p-7 : 0x1p-21;
}

int bench_check_results(char **argv, const struct gpu_region *region)
{
  char name[64], way_name[40];
  int wrong = 0;

  for (int i = 0; i < region->case_count; i++)
    for (int way = GPU_SHIM; way < GPU_HAND + region->child_count; way++) {
      const struct gpu_figures *figures = &region->figures[i][way];
      if (!figures->measured || figures->error <= tolerance_of(&region->cases[i]))
        continue;
      gpu_name_case(&region->cases[i], name, sizeof(name));
      gpu_name_way(region, way, way_name, sizeof(way_name));
      if (figures->error >= GPU_NO_NUMBER)
        cmd_error(argv, "%s, %s: results are no numbers, or were not written", name, way_name);
      else
        cmd_error(argv, "%s, %s: results differ from stock NCCL's by %.3g of the largest element", name, way_name,
                  figures->error);
      wrong++;
    }
  return wrong;
}

static int measure_and_show(char **argv, const struct bench_gpu_settings *settings, const struct gpu_run *run,
                            struct gpu_region *region, int fd)
{
  static char paths[GPU_MAX_CASES][40];
  int rc;

  if (gpu_measure(argv, run, region, fd, paths) < 0)
    return CMD_NO;
  if (settings->json)
    gpu_print_json(region, paths);
  else
    gpu_print_table(region, paths);
  rc = settings->plot ? gpu_plot(region, settings->plot) : 0;
  if (rc < 0)
    cmd_error(argv, "%s: %s", settings->plot, strerror(-rc));
  return bench_check_results(argv, region) == 0 && rc == 0 ? CMD_OK : CMD_NO;
}

int bench_gpu(char **argv, const struct bench_gpu_settings *settings)
{
  char shim[CMD_MAX_PATH], path[CMD_MAX_PATH];
  struct gpu_run run = {.shim = shim,
                        .policy = settings->policy,
                        .libraries = settings->libraries,
                        .timeout = settings->timeout,
                        .look = true};
  struct gpu_region *region;
  struct policy policy;
  int fd, rc = CMD_NO, nranks = settings->nranks > 0 ? settings->nranks : gpu_count();

  if (nranks < 2) {
    cmd_error(argv, "two GPUs are needed, and %d can be seen; --host measures what needs none", nranks);
    return CMD_NO;
  }
  if (cmd_choose_shim(argv, settings->shim, shim) < 0 || cmd_load_policy(settings->policy, &policy, path) < 0)
    return CMD_NO;
  region = gpu_region_new(argv, &fd);
  if (!region)
    return CMD_NO;
  region->nranks = nranks < GPU_MAX_RANKS ? nranks : GPU_MAX_RANKS;
  region->rounds = settings->rounds;
  region->busy = settings->busy;
  region->ways = ~0U;
  add_children(settings, &policy, region);
  if (bench_add_cases(settings, region) > 0)
    rc = measure_and_show(argv, settings, &run, region, fd);
  else
    cmd_error(argv, "no case is left to measure: look at --ops, --dtypes, --redops, --min-bytes and --max-bytes");
  munmap(region, sizeof(*region));
  close(fd);
  return rc;
}
