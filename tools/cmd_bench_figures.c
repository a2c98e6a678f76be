/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cmd_bench_figures.h"

#include <inttypes.h>
#include <jansson.h>

#include "tools/cmd.h"
#include "tools/cmd_bench_gpu.h"

static bool same_kind(const struct gpu_case *a, const struct gpu_case *b)
{
  return a->op == b->op && a->dtype == b->dtype && a->redop == b->redop;
}

static double ratio(const struct gpu_region *region, int index, int way)
{
  double stock = gpu_median(&region->figures[index][GPU_STOCK], region->rounds);
  double other = gpu_median(&region->figures[index][way], region->rounds);

  return other > 0 ? stock / other : 0;
}

/* Green where it is a gain, red where it is a loss beyond the noise of a few percent. */
static const char *style_of(double value)
{
  return value >= 1.02 ? "32" : value < 0.97 ? "31" : "0";
}

static const char *sms_of(const struct gpu_figures *figures, char text[16])
{
  snprintf(text, 16, figures->sms_known ? "%d" : "-", figures->sms);
  return text;
}

static void print_head(const struct gpu_region *region, const struct gpu_case *what)
{
  char name[40];

  printf("\n%s%s%s\n", cmd_style(stdout, "1"), gpu_name_kind(what, name, sizeof(name)), cmd_style(stdout, "0"));
  printf("%9s %16s %3s %16s %3s %6s %7s %11s", "bytes", "stock us", "SMs", "shim us", "SMs", "ratio", "GB/s",
         "host us");
  if (region->busy)
    printf(" %13s", "busy kernel");
  for (int child = 0; child < region->child_count; child++)
    printf("  %20s", gpu_name_way(region, GPU_HAND + child, name, sizeof(name)));
  printf("  path\n");
}

static void print_us(const struct gpu_region *region, const struct gpu_figures *figures)
{
  char sms[16];

  printf(" %8.1f +-%6.1f %3s", gpu_median(figures, region->rounds), gpu_spread(figures, region->rounds),
         sms_of(figures, sms));
}

static void print_hand(const struct gpu_region *region, int index, int way)
{
  const struct gpu_figures *hand = &region->figures[index][way];
  char sms[16], text[64];

  snprintf(text, sizeof(text), "%.1f (%.2f) %3s", gpu_median(hand, region->rounds), ratio(region, index, way),
           sms_of(hand, sms));
  printf("  %20s", hand->measured ? text : "-");
}

static void print_case(const struct gpu_region *region, int index, const char *path)
{
  const struct gpu_case *what = &region->cases[index];
  const struct gpu_figures *stock = &region->figures[index][GPU_STOCK], *shim = &region->figures[index][GPU_SHIM];
  double gain = ratio(region, index, GPU_SHIM);
  char bytes[32];

  printf("%9s", cmd_format_bytes(what->bytes, bytes, sizeof(bytes)));
  print_us(region, stock);
  print_us(region, shim);
  printf(" %s%6.2f%s %7.1f %5.1f|%5.1f", cmd_style(stdout, style_of(gain)), gain, cmd_style(stdout, "0"),
         gpu_bus_bandwidth(what, region->nranks, gpu_median(shim, region->rounds)), stock->host_us, shim->host_us);
  if (region->busy && shim->busy > 0)
    printf("   x%.2f|x%.2f", stock->busy, shim->busy);
  else if (region->busy)
    printf(" %13s", "-");
  for (int child = 0; child < region->child_count; child++)
    print_hand(region, index, GPU_HAND + child);
  printf("  %s\n", path);
}

void gpu_print_table(const struct gpu_region *region, char paths[][40])
{
  printf("%d x %s, NCCL %d.%d.%d%s; microseconds of a call, the slowest rank's: median of %d rounds and half the\n"
         "distance of their quartiles. SMs: that NCCL's kernel takes. ratio: stock / shim, above 1 is a gain (also in\n"
         "parentheses). host us: stock | shim.%s\n",
         region->nranks, region->gpu, region->nccl_version / 10000, region->nccl_version / 100 % 100,
         region->nccl_version % 100, region->busy ? ", beside a kernel on all SMs" : "", region->rounds,
         region->busy ? " busy kernel: how much longer it takes, stock | shim." : "");
  if (region->simulation)
    printf("%sThe GPUs are simulated: these times mean nothing.%s\n", cmd_style(stdout, "31"), cmd_style(stdout, "0"));
  for (int i = 0; i < region->case_count; i++) {
    if (i == 0 || !same_kind(&region->cases[i], &region->cases[i - 1]))
      print_head(region, &region->cases[i]);
    print_case(region, i, paths[i]);
  }
}

static json_t *json_of_way(const struct gpu_region *region, int index, int way)
{
  const struct gpu_figures *figures = &region->figures[index][way];
  double us = gpu_median(figures, region->rounds);
  json_t *way_json;

  way_json =
      json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:o,s:o}", "us", us, "us_spread", gpu_spread(figures, region->rounds),
                "ratio", ratio(region, index, way), "bus_gb_s",
                gpu_bus_bandwidth(&region->cases[index], region->nranks, us), "host_us", figures->host_us,
                "relative_error", figures->error, "sms", figures->sms_known ? json_integer(figures->sms) : json_null(),
                "busy_slowdown", figures->busy > 0 ? json_real(figures->busy) : json_null());
  if (way >= GPU_HAND) {
    const struct gpu_child *child = &region->children[way - GPU_HAND];
    json_object_set_new(way_json, "min_ctas", json_integer(child->min_ctas));
    json_object_set_new(way_json, "max_ctas", json_integer(child->max_ctas));
    json_object_set_new(way_json, "copy_engine", json_boolean(child->copy_engine));
  }
  return way_json;
}

static json_t *json_of_case(const struct gpu_region *region, int index, const char *path)
{
  const struct gpu_case *what = &region->cases[index];
  json_t *hand = json_array();

  for (int way = GPU_HAND; way < GPU_HAND + region->child_count; way++)
    if (region->figures[index][way].measured)
      json_array_append_new(hand, json_of_way(region, index, way));
  return json_pack("{s:s,s:s,s:s?,s:I,s:s,s:o,s:o,s:o}", "op", policy_op_word(what->op), "dtype",
                   policy_dtype_word(what->dtype), "redop",
                   what->op == POLICY_OP_all_gather ? NULL : policy_redop_word(what->redop), "bytes",
                   (json_int_t)what->bytes, "path", path, "stock", json_of_way(region, index, GPU_STOCK), "shim",
                   json_of_way(region, index, GPU_SHIM), "windows", hand);
}

void gpu_print_json(const struct gpu_region *region, char paths[][40])
{
  json_t *cases = json_array(), *all;
  char nccl[32];

  snprintf(nccl, sizeof(nccl), "%d.%d.%d", region->nccl_version / 10000, region->nccl_version / 100 % 100,
           region->nccl_version % 100);
  for (int i = 0; i < region->case_count; i++)
    json_array_append_new(cases, json_of_case(region, i, paths[i]));
  all = json_pack("{s:i,s:s,s:s,s:b,s:i,s:s,s:i,s:b,s:o}", "schema", 1, "version", SYMMSHIM_VERSION, "gpu", region->gpu,
                  "simulation", region->simulation, "nranks", region->nranks, "nccl", nccl, "rounds", region->rounds,
                  "busy", region->busy, "cases", cases);
  json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
  putchar('\n');
  json_decref(all);
}
