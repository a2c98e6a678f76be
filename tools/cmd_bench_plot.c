/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "tools/cmd.h"
#include "tools/cmd_bench_figures.h"
#include "tools/cmd_bench_gpu.h"

/* One row of two panels for each kind of call. */
enum { WIDTH = 460, HEIGHT = 260, LEFT = 60, RIGHT = 20, TOP = 36, BOTTOM = 44, GAP = 30 };

struct panel {
  double x0, y0;       /* its upper left corner */
  double min_x, max_x; /* log2 of bytes */
  double min_y, max_y;
};

static double x_of(const struct panel *panel, double bytes)
{
  double span = panel->max_x - panel->min_x;

  return panel->x0 + LEFT + (log2(bytes) - panel->min_x) / (span > 0 ? span : 1) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct panel *panel, double value)
{
  double span = panel->max_y - panel->min_y;

  return panel->y0 + HEIGHT - BOTTOM - (value - panel->min_y) / (span > 0 ? span : 1) * (HEIGHT - TOP - BOTTOM);
}

static bool same_kind(const struct gpu_case *a, const struct gpu_case *b)
{
  return a->op == b->op && a->dtype == b->dtype && a->redop == b->redop;
}

static double value_of(const struct gpu_region *region, int index, int way, bool bandwidth)
{
  double us = gpu_median(&region->figures[index][way], region->rounds);
  double stock = gpu_median(&region->figures[index][GPU_STOCK], region->rounds);

  if (bandwidth)
    return gpu_bus_bandwidth(&region->cases[index], region->nranks, us);
  return us > 0 ? stock / us : 0;
}

/* A round step, so that there are some five lines. */
static double step_for(double span)
{
  double step = pow(10, floor(log10(span > 0 ? span : 1)));

  while (span / step < 4)
    step /= 2;
  return step;
}

static void draw_frame(FILE *out, const struct panel *panel, const char *title, const char *unit)
{
  double step = step_for(panel->max_y - panel->min_y);
  char bytes[32];

  fprintf(out, "<text class=\"title\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", panel->x0 + LEFT, panel->y0 + 20, title);
  for (double value = ceil(panel->min_y / step) * step; value <= panel->max_y + 1e-9; value += step)
    fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/><text class=\"y\" x=\"%.1f\" y=\"%.1f\">%.4g%s</text>\n",
            panel->x0 + LEFT, y_of(panel, value), panel->x0 + WIDTH - RIGHT, panel->x0 + LEFT - 6,
            y_of(panel, value) + 4, value, unit);
  for (double power = ceil(panel->min_x); power <= panel->max_x; power += panel->max_x - panel->min_x > 10 ? 4 : 2)
    fprintf(out, "<text class=\"x\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x_of(panel, exp2(power)),
            panel->y0 + HEIGHT - BOTTOM + 18, cmd_format_bytes((uint64_t)1 << (int)power, bytes, sizeof(bytes)));
}

static void draw_line(FILE *out, const struct gpu_region *region, const struct panel *panel, int from, int to, int way,
                      bool bandwidth)
{
  char command = 'M';

  fprintf(out, "<path class=\"line w%d\" d=\"", way);
  for (int i = from; i < to; i++) {
    if (!region->figures[i][way].measured)
      continue;
    fprintf(out, "%c%.1f %.1f", command, x_of(panel, (double)region->cases[i].bytes),
            y_of(panel, value_of(region, i, way, bandwidth)));
    command = 'L';
  }
  fprintf(out, "\"/>\n");
}

static void draw_legend(FILE *out, const struct gpu_region *region, double x, double y)
{
  for (int way = 0; way < GPU_HAND + region->child_count; way++, x += 130) {
    char name[40];
    const struct gpu_child *child = &region->children[way >= GPU_HAND ? way - GPU_HAND : 0];
    if (way < GPU_HAND)
      snprintf(name, sizeof(name), way == GPU_STOCK ? "stock NCCL" : "through the shim");
    else
      snprintf(name, sizeof(name), child->copy_engine ? "copy engine" : "windows, %d CTAs", child->min_ctas);
    fprintf(out, "<path class=\"line w%d\" d=\"M%.1f %.1fh22\"/><text class=\"key\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
            way, x, y - 4, x + 27, y, name);
  }
}

static void draw_kind(FILE *out, const struct gpu_region *region, int from, int to, double y)
{
  const struct gpu_case *what = &region->cases[from];
  char title[96];

  for (int bandwidth = 0; bandwidth < 2; bandwidth++) {
    struct panel panel = {.x0 = bandwidth * (WIDTH + GAP),
                          .y0 = y,
                          .min_x = log2((double)what->bytes),
                          .max_x = log2((double)region->cases[to - 1].bytes),
                          .min_y = bandwidth ? 0 : 0.5,
                          .max_y = bandwidth ? 1 : 1.5};
    for (int i = from; i < to; i++)
      for (int way = 0; way < GPU_HAND + region->child_count; way++)
        if (region->figures[i][way].measured)
          panel.max_y = fmax(panel.max_y, value_of(region, i, way, bandwidth) * 1.05);
    snprintf(title, sizeof(title), "%s%s %s: %s", policy_op_word(what->op),
             what->op == POLICY_OP_all_gather  ? ""
             : what->redop == POLICY_REDOP_avg ? " avg"
                                               : " sum",
             policy_dtype_word(what->dtype),
             bandwidth ? "bus bandwidth, GB/s" : "speed against stock (above 1 is faster)");
    draw_frame(out, &panel, title, bandwidth ? "" : "x");
    for (int way = bandwidth ? GPU_STOCK : GPU_SHIM; way < GPU_HAND + region->child_count; way++)
      draw_line(out, region, &panel, from, to, way, bandwidth);
    if (!bandwidth)
      fprintf(out, "<path class=\"line w0\" d=\"M%.1f %.1fH%.1f\"/>\n", panel.x0 + LEFT, y_of(&panel, 1),
              panel.x0 + WIDTH - RIGHT);
  }
}

static int count_kinds(const struct gpu_region *region)
{
  int kinds = region->case_count > 0;

  for (int i = 1; i < region->case_count; i++)
    kinds += !same_kind(&region->cases[i], &region->cases[i - 1]);
  return kinds;
}

int gpu_plot(const struct gpu_region *region, const char *file)
{
  static const char style[] =
      "text{font:13px sans-serif;fill:#444}.title{font-weight:bold;fill:#111}.y{text-anchor:end}"
      ".x{text-anchor:middle}.grid{stroke:#ddd}.line{fill:none;stroke-width:2}.w0{stroke:#888}"
      ".w1{stroke:#c2410c;stroke-width:3}.w2{stroke:#1d4ed8;stroke-dasharray:6 3}"
      ".w3{stroke:#15803d;stroke-dasharray:6 3}.w4{stroke:#7e22ce;stroke-dasharray:6 3}"
      ".w5{stroke:#0e7490;stroke-dasharray:6 3}";
  int width = 2 * WIDTH + GAP, height = count_kinds(region) * HEIGHT + 60;
  FILE *out = fopen(file, "w");
  double y = 40;

  if (!out)
    return -errno;
  fprintf(
      out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\"><style>%s</style>\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
      "<text class=\"title\" x=\"%d\" y=\"24\">%d x %s, NCCL %d.%d.%d%s</text>\n",
      width, height, width, height, style, LEFT, region->nranks, region->gpu, region->nccl_version / 10000,
      region->nccl_version / 100 % 100, region->nccl_version % 100, region->busy ? ", beside a busy kernel" : "");
  for (int from = 0, to; from < region->case_count; from = to, y += HEIGHT) {
    for (to = from + 1; to < region->case_count && same_kind(&region->cases[to], &region->cases[from]); to++)
      ;
    draw_kind(out, region, from, to, y);
  }
  draw_legend(out, region, LEFT, y + 12);
  fprintf(out, "</svg>\n");
  return fclose(out) == 0 ? 0 : -errno;
}
