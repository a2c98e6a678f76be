/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "tools/cmd.h"
#include "tools/cmd_json.h"

struct figure {
  double median, min, max;
};

static int compare(const void *a, const void *b)
{
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Of the differences to `base` run by run, where there is one. */
static struct figure figure_of(const double *samples, const double *base, int count)
{
  double sorted[BENCH_MAX_RUNS];

  for (int i = 0; i < count; i++)
    sorted[i] = samples[i] - (base ? base[i] : 0);
  qsort(sorted, (size_t)count, sizeof(sorted[0]), compare);
  return (struct figure){(sorted[(count - 1) / 2] + sorted[count / 2]) / 2, sorted[0], sorted[count - 1]};
}

static const struct bench_case *find_base(const struct bench_case *what)
{
  for (int i = 0; what->base && i < bench_case_count; i++)
    if (strcmp(bench_cases[i].name, what->base) == 0)
      return &bench_cases[i];
  return NULL;
}

/* That this process, and so those it starts, may run on. */
static int count_cores(void)
{
  cpu_set_t cores;

  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

/* "12.3 ns", "1.23 us", "45.6 ms" */
static const char *format_ns(double ns, char text[32])
{
  static const char *const units[] = {"ns", "us", "ms", "s"};
  int unit = 0;

  while (unit < 3 && fabs(ns) >= 1000) {
    ns /= 1000;
    unit++;
  }
  snprintf(text, 32, "%.*f %s", fabs(ns) >= 100 ? 0 : fabs(ns) >= 10 || unit == 0 ? 1 : 2, ns, units[unit]);
  return text;
}

static void print_row(const struct bench *bench, const char *text, const char *suffix, const double *samples,
                      const struct bench_case *base)
{
  struct figure all = figure_of(samples, NULL, bench->runs);
  char label[80], median[32], min[32], max[32], over[32] = "";

  snprintf(label, sizeof(label), "%s%s", text, suffix);
  if (base)
    format_ns(figure_of(samples, base->samples[0], bench->runs).median, over);
  printf("%-56s %9s %9s %9s %9s\n", label, format_ns(all.median, median), format_ns(all.min, min),
         format_ns(all.max, max), over);
}

void bench_print_table(const struct bench *bench)
{
  struct utsname machine = {0};
  int cores = count_cores();

  uname(&machine);
  printf("symmshim %s, %s %s %s, cores: %d, runs: %d\n", SYMMSHIM_VERSION, machine.sysname, machine.release,
         machine.machine, cores, bench->runs);
  if (cores < BENCH_MAX_RANKS)
    printf("With more than %d ranks the ranks take turns on the cores, and their figures are the scheduler's.\n",
           cores);
  printf("\n%s%-56s %9s %9s %9s %9s%s\n", cmd_style(stdout, "1"), "", "median", "min", "max", "added",
         cmd_style(stdout, "0"));
  for (int i = 0; i < bench_case_count; i++) {
    const struct bench_case *what = &bench_cases[i];
    bool late = what->job.late_us > 0;
    print_row(bench, what->text, late ? ": the others" : "", what->samples[0], find_base(what));
    if (late)
      print_row(bench, what->text, ": that one", what->samples[1], NULL);
  }
  printf(
      "\nTime of one call in the slowest rank (median of stretches of calls), of one program, of all libraries. Added: "
      "over\nthe same without the shim, or, for the audit line, without the line.\n");
}

static json_t *json_figure(const double *samples, const double *base, int count)
{
  struct figure figure = figure_of(samples, base, count);

  return json_pack("{s:f, s:f, s:f}", "median", figure.median, "min", figure.min, "max", figure.max);
}

void bench_print_json(const struct bench *bench)
{
  json_t *cases = json_array();

  for (int i = 0; i < bench_case_count; i++) {
    const struct bench_case *what = &bench_cases[i], *base = find_base(what);
    json_t *one = json_pack("{s:s, s:i, s:i, s:o}", "name", what->name, "ranks", (int)what->job.nranks, "late_us",
                            (int)what->job.late_us, "ns", json_figure(what->samples[0], NULL, bench->runs));
    if (what->job.late_us > 0)
      json_object_set_new(one, "late_ns", json_figure(what->samples[1], NULL, bench->runs));
    if (base) {
      json_object_set_new(one, "base", json_string(base->name));
      json_object_set_new(one, "added_ns", json_figure(what->samples[0], base->samples[0], bench->runs));
    }
    json_array_append_new(cases, one);
  }
  cmd_print_json(json_pack("{s:i, s:s, s:o, s:i, s:i, s:o}", "schema", 1, "version", SYMMSHIM_VERSION, "shim",
                           cmd_json_path(bench->shim), "cores", count_cores(), "runs", bench->runs, "cases", cases));
}
