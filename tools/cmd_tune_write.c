/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "tools/cmd.h"
#include "tools/cmd_bench_gpu.h"
#include "tools/cmd_tune.h"

/* As the policy file has it: 65536 is 64K. */
static const char *policy_bytes(uint64_t bytes, char text[32])
{
  static const char units[] = {'\0', 'K', 'M', 'G', '\0'};
  int unit = 0;

  while (unit < 3 && bytes > 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    unit++;
  }
  snprintf(text, 32, "%" PRIu64 "%.1s", bytes, &units[unit]);
  return text;
}

static void write_figure(FILE *out, const struct tune_figure *figure, const struct tune_figure *stock)
{
  char text[64] = "-";

  if (figure->measured)
    snprintf(text, sizeof(text), "%.1f (%.2f)", figure->us, figure->us > 0 ? stock->us / figure->us : 0);
  fprintf(out, " %16s", text);
}

static void write_case(const struct tune *tune, const struct tune_case *it, FILE *out)
{
  char bytes[32];

  fprintf(out, "# %9s %8.1f +-%5.1f", cmd_format_bytes(it->what.bytes, bytes, sizeof(bytes)), it->window_stock.us,
          it->window_stock.spread);
  for (int i = 0; i < tune->ctas_count; i++)
    write_figure(out, &it->hand[i], &it->stock);
  write_figure(out, &it->window, &it->window_stock);
  write_figure(out, &it->staged, &it->staged_stock);
  fprintf(out, "  %s\n", policy_path_word(it->choice));
}

static void write_figures(const struct tune *tune, FILE *out)
{
  char name[40];

  for (int i = 0; i < tune->case_count; i++) {
    if (i == 0 || tune_ends_kind(tune, i - 1)) {
      bool reduces = tune->cases[i].what.op != POLICY_OP_all_gather;
      fprintf(out, "#\n# %s\n# %9s %16s",
              reduces ? gpu_name_kind(&tune->cases[i].what, name, sizeof(name)) : "all_gather", "bytes", "stock");
      for (int c = 0; c < tune->ctas_count; c++) {
        snprintf(name, sizeof(name), "%d CTAs", tune->ctas[c]);
        fprintf(out, " %16s", name);
      }
      fprintf(out, " %16s %16s  choice\n", "window", "staged");
    }
    write_case(tune, &tune->cases[i], out);
  }
}

static void write_dtypes(uint32_t dtypes, FILE *out)
{
  const char *between = "dtype = ";

  for (int i = 0; i < POLICY_DTYPE_COUNT; i++)
    if (dtypes & 1U << i) {
      fprintf(out, "%s%s", between, policy_dtype_word((enum policy_dtype)i));
      between = ", ";
    }
  if (dtypes)
    fputc('\n', out);
}

static void write_rule(const struct tune *tune, int index, FILE *out)
{
  const struct tune_rule *rule = &tune->rules[index];
  int major = tune->nccl_version / 10000, minor = tune->nccl_version / 100 % 100;
  bool reduces = rule->op != POLICY_OP_all_gather;
  char bytes[32];

  fprintf(out, "\n[rule %s%s%s_%d]\nop = %s\n", policy_op_word(rule->op), reduces ? "_" : "",
          reduces ? policy_redop_word(rule->redop) : "", index + 1, policy_op_word(rule->op));
  if (reduces)
    fprintf(out, "redop = %s\n", policy_redop_word(rule->redop));
  write_dtypes(rule->dtypes, out);
  fprintf(out, "nranks = %d\nmin_bytes = %s\n", tune->nranks, policy_bytes(rule->min_bytes, bytes));
  if (rule->max_bytes != UINT64_MAX)
    fprintf(out, "max_bytes = %s\n", policy_bytes(rule->max_bytes, bytes));
  fprintf(out, "nccl = %d.%d.0..%d.%d.99\npath = %s\n", major, minor, major, minor, policy_path_word(rule->path));
  if (rule->redop == POLICY_REDOP_avg)
    fprintf(out, "rewrite = post_scale\n");
}

static void write_ctas(const struct tune *tune, FILE *out)
{
  fprintf(out, "[shim]\nchild_min_ctas = %d\nchild_max_ctas = %d\n", tune->ctas[tune->chosen_ctas], tune->max_ctas);
}

void tune_write(const struct tune *tune, FILE *out)
{
  fprintf(out,
          "# Policy for symmshim, written by \"symmshim tune\" of version %s; symmshim.conf(5) has every key.\n"
          "#\n# Measured on %d x %s with NCCL %d.%d.%d.\n",
          SYMMSHIM_VERSION, tune->nranks, tune->gpu, tune->nccl_version / 10000, tune->nccl_version / 100 % 100,
          tune->nccl_version % 100);
  if (tune->simulation)
    fprintf(out, "# The GPUs were simulated: these figures and choices mean nothing.\n");
  fprintf(
      out,
      "# Microseconds a call by the bytes of its large side, and in parentheses how many times as fast as stock\n"
      "# NCCL in the same run. CTAs: windows by hand. window: through the shim with %d CTAs, averages scaled after\n"
      "# the sum. staged: likewise, but every call is copied through slots. A call goes symmetric only where that\n"
      "# was faster by more than 2 %% and twice the spread.\n",
      tune->ctas[tune->chosen_ctas]);
  write_figures(tune, out);
  fputc('\n', out);
  write_ctas(tune, out);
  for (int i = 0; i < tune->rule_count; i++)
    write_rule(tune, i, out);
  if (tune->rule_count == 0)
    fprintf(out, "\n# Nothing was faster than stock. A rule of its own keeps the built-in ones out.\n"
                 "[rule nothing]\npath = plain\n");
}

void tune_write_trial(const struct tune *tune, enum policy_path path, FILE *out)
{
  write_ctas(tune, out);
  fprintf(out,
          "[rule average]\nop = reduce_scatter\nredop = avg\npath = %s\nrewrite = post_scale\n"
          "[rule all]\npath = %s\n",
          policy_path_word(path), policy_path_word(path));
}
