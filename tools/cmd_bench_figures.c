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

static void print_head(const struct gpu_region *region, const struct gpu_case *what)
{
  printf("\n%s%s%s %s%s\n", cmd_style(stdout, "1"), policy_op_word(what->op),
         what->op == POLICY_OP_all_gather  ? ""
         : what->redop == POLICY_REDOP_avg ? " avg"
                                           : " sum",
         policy_dtype_word(what->dtype), cmd_style(stdout, "0"));
  printf("%9s %18s %18s %7s %8s %10s", "bytes", "stock us", "shim us", "ratio", "GB/s", "host us");
  for (int child = 0; child < region->child_count; child++) {
    const struct gpu_child *it = &region->children[child];
    char name[32];
    snprintf(name, sizeof(name), it->copy_engine ? "copy engine" : "window %d CTAs", it->min_ctas);
    printf(" %15s", name);
  }
  printf("  path\n");
}

static void print_case(const struct gpu_region *region, int index, const char *path)
{
  const struct gpu_case *what = &region->cases[index];
  const struct gpu_figures *stock = &region->figures[index][GPU_STOCK], *shim = &region->figures[index][GPU_SHIM];
  double us = gpu_median(shim, region->rounds), gain = ratio(region, index, GPU_SHIM);
  char bytes[32];

  printf("%9s %9.1f +-%5.1f %9.1f +-%5.1f %s%7.2f%s %8.1f %4.1f|%4.1f ",
         cmd_format_bytes(what->bytes, bytes, sizeof(bytes)), gpu_median(stock, region->rounds),
         gpu_spread(stock, region->rounds), us, gpu_spread(shim, region->rounds), cmd_style(stdout, style_of(gain)),
         gain, cmd_style(stdout, "0"), gpu_bus_bandwidth(what, region->nranks, us), stock->host_us, shim->host_us);
  for (int child = 0; child < region->child_count; child++) {
    const struct gpu_figures *hand = &region->figures[index][GPU_HAND + child];
    if (hand->measured)
      printf(" %8.1f (%4.2f)", gpu_median(hand, region->rounds), ratio(region, index, GPU_HAND + child));
    else
      printf(" %15s", "-");
  }
  printf("  %s\n", path);
}

void gpu_print_table(const struct gpu_region *region, char paths[][40])
{
  printf(
      "%d x %s, NCCL %d.%d.%d; microseconds of a call, the slowest rank's: median of %d rounds and half the distance\n"
      "of their quartiles. ratio: stock / shim, above 1 is a gain. host us: stock | shim.\n",
      region->nranks, region->gpu, region->nccl_version / 10000, region->nccl_version / 100 % 100,
      region->nccl_version % 100, region->rounds);
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
      json_pack("{s:f,s:f,s:f,s:f,s:f,s:f}", "us", us, "us_spread", gpu_spread(figures, region->rounds), "ratio",
                ratio(region, index, way), "bus_gb_s", gpu_bus_bandwidth(&region->cases[index], region->nranks, us),
                "host_us", figures->host_us, "relative_error", figures->error);
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
  json_t *result;

  for (int way = GPU_HAND; way < GPU_HAND + region->child_count; way++)
    if (region->figures[index][way].measured)
      json_array_append_new(hand, json_of_way(region, index, way));
  result = json_pack("{s:s,s:s,s:s?,s:I,s:s,s:o,s:o,s:o}", "op", policy_op_word(what->op), "dtype",
                     policy_dtype_word(what->dtype), "redop",
                     what->op == POLICY_OP_all_gather ? NULL : policy_redop_word(what->redop), "bytes",
                     (json_int_t)what->bytes, "path", path, "stock", json_of_way(region, index, GPU_STOCK), "shim",
                     json_of_way(region, index, GPU_SHIM), "windows", hand);
  return result;
}

void gpu_print_json(const struct gpu_region *region, char paths[][40])
{
  json_t *cases = json_array(), *all;

  for (int i = 0; i < region->case_count; i++)
    json_array_append_new(cases, json_of_case(region, i, paths[i]));
  all = json_pack("{s:s,s:i,s:i,s:i,s:b,s:o}", "gpu", region->gpu, "nranks", region->nranks, "nccl",
                  region->nccl_version, "rounds", region->rounds, "busy", region->busy, "cases", cases);
  json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
  putchar('\n');
  json_decref(all);
}
