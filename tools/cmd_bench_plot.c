/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "tools/cmd.h"
#include "tools/cmd_bench_figures.h"
#include "tools/cmd_bench_gpu.h"

/* One row of two panels for each kind of call, below a head with title and legend. */
enum {
  MARGIN = 24,
  HEAD = 96,
  WIDTH = 500,
  HEIGHT = 300,
  GAP = 32,
  LEFT = 58, /* room within a panel, around the field of its lines */
  RIGHT = 12,
  TOP = 44,
  BOTTOM = 52,
  KEY_WIDTH = 176
};

static const char style[] =
    "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#52525b}"
    ".head{font-size:20px;font-weight:600;fill:#18181b}.warn{fill:#b91c1c;font-weight:600}"
    ".title{font-size:14px;font-weight:600;fill:#18181b}.y{text-anchor:end}.x,.label{text-anchor:middle}"
    ".label{fill:#71717a}.key{font-size:13px;fill:#27272a}"
    ".grid{stroke:#e4e4e7}.axis{stroke:#a1a1aa}.even{stroke:#71717a;stroke-dasharray:2 3}"
    ".line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    ".w0{stroke:#71717a;fill:#71717a}.w1{stroke:#ea580c;fill:#ea580c}.w2{stroke:#2563eb;fill:#2563eb}"
    ".w3{stroke:#16a34a;fill:#16a34a}.w4{stroke:#9333ea;fill:#9333ea}.w5{stroke:#0891b2;fill:#0891b2}"
    ".line{fill:none}.line.w1{stroke-width:3}.line.w2,.line.w3,.line.w4,.line.w5{stroke-dasharray:7 5}"
    ".dot{stroke:#fff;stroke-width:1}";

struct panel {
  double x0, y0;       /* upper left corner of the field of its lines */
  double min_x, max_x; /* log2 of bytes */
  double max_y, step;  /* both axes begin at 0 */
  bool bandwidth;      /* else ratio to stock */
};

static double x_of(const struct panel *panel, double bytes)
{
  double span = panel->max_x - panel->min_x;

  return panel->x0 + (span > 0 ? (log2(bytes) - panel->min_x) / span : 0.5) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct panel *panel, double value)
{
  return panel->y0 + (1 - value / panel->max_y) * (HEIGHT - TOP - BOTTOM);
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

/* 1, 2 or 5 times a power of ten, so that there are four to eight lines. */
static double step_for(double span)
{
  double power = pow(10, floor(log10(span > 0 ? span : 1))), part = span / power;

  return power * (part < 1.6 ? 0.2 : part < 4 ? 0.5 : part < 8 ? 1 : 2);
}

/* The scale ends at a whole step above the greatest value. */
static struct panel make_panel(const struct gpu_region *region, int from, int to, double y, bool bandwidth)
{
  struct panel panel = {.x0 = MARGIN + LEFT + (bandwidth ? WIDTH + GAP : 0),
                        .y0 = y + TOP,
                        .min_x = log2((double)region->cases[from].bytes),
                        .max_x = log2((double)region->cases[to - 1].bytes),
                        .bandwidth = bandwidth};
  double most = bandwidth ? 1e-3 : 1.2;

  for (int i = from; i < to; i++)
    for (int way = 0; way < GPU_HAND + region->child_count; way++)
      if (region->figures[i][way].measured)
        most = fmax(most, value_of(region, i, way, bandwidth));
  panel.step = step_for(most);
  panel.max_y = ceil(most * 1.02 / panel.step) * panel.step;
  return panel;
}

static void draw_scales(FILE *out, const struct gpu_region *region, const struct panel *panel, int from, int to)
{
  double right = panel->x0 + WIDTH - LEFT - RIGHT, bottom = y_of(panel, 0), last = -1e9;
  char bytes[32];

  for (int i = 0; i * panel->step <= panel->max_y * (1 + 1e-9); i++) {
    double value = i * panel->step, y = y_of(panel, value);
    fprintf(out, "<path class=\"%s\" d=\"M%.1f %.1fH%.1f\"/><text class=\"y\" x=\"%.1f\" y=\"%.1f\">%.4g%s</text>\n",
            i == 0 ? "axis" : "grid", panel->x0, y, right, panel->x0 - 8, y + 4, value, panel->bandwidth ? "" : "x");
  }
  for (int i = from; i < to; i++) { /* each size that was measured, where there is room for its name */
    double x = x_of(panel, (double)region->cases[i].bytes);
    fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fv5\"/>", x, bottom);
    if (x - last >= 50) {
      fprintf(out, "<text class=\"x\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x, bottom + 20,
              cmd_format_bytes(region->cases[i].bytes, bytes, sizeof(bytes)));
      last = x;
    }
  }
  fprintf(out, "<text class=\"label\" x=\"%.1f\" y=\"%.1f\">size of the call's large side</text>\n",
          (panel->x0 + right) / 2, bottom + 40);
}

static void draw_line(FILE *out, const struct gpu_region *region, const struct panel *panel, int from, int to, int way)
{
  char command = 'M';

  fprintf(out, "<path class=\"line w%d\" d=\"", way);
  for (int i = from; i < to; i++) {
    if (!region->figures[i][way].measured)
      continue;
    fprintf(out, "%c%.1f %.1f", command, x_of(panel, (double)region->cases[i].bytes),
            y_of(panel, value_of(region, i, way, panel->bandwidth)));
    command = 'L';
  }
  fprintf(out, "%s\"/>", command == 'M' ? "M0 0" : "");
  for (int i = from; i < to; i++)
    if (region->figures[i][way].measured)
      fprintf(out, "<circle class=\"dot w%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"/>", way,
              x_of(panel, (double)region->cases[i].bytes), y_of(panel, value_of(region, i, way, panel->bandwidth)),
              way == GPU_SHIM ? "4" : "3");
  fputc('\n', out);
}

/* What goes through the shim is drawn last, over the others. */
static void draw_panel(FILE *out, const struct gpu_region *region, int from, int to, double y, bool bandwidth)
{
  struct panel panel = make_panel(region, from, to, y, bandwidth);
  char name[40];

  fprintf(out, "<text class=\"title\" x=\"%.1f\" y=\"%.1f\">%s: %s</text>\n", panel.x0, y + 24,
          gpu_name_kind(&region->cases[from], name, sizeof(name)),
          bandwidth ? "bus bandwidth, GB/s" : "speed against stock NCCL");
  draw_scales(out, region, &panel, from, to);
  if (bandwidth)
    draw_line(out, region, &panel, from, to, GPU_STOCK);
  else
    fprintf(out, "<path class=\"even\" d=\"M%.1f %.1fh%d\"/>\n", panel.x0, y_of(&panel, 1), WIDTH - LEFT - RIGHT);
  for (int way = GPU_HAND; way < GPU_HAND + region->child_count; way++)
    draw_line(out, region, &panel, from, to, way);
  draw_line(out, region, &panel, from, to, GPU_SHIM);
}

static void draw_head(FILE *out, const struct gpu_region *region)
{
  double x = MARGIN;
  char name[40];

  fprintf(out, "<text class=\"head\" x=\"%d\" y=\"40\">%d x %s, NCCL %d.%d.%d%s</text>\n", MARGIN, region->nranks,
          region->gpu, region->nccl_version / 10000, region->nccl_version / 100 % 100, region->nccl_version % 100,
          region->busy ? ", beside a kernel on all SMs" : "");
  if (region->simulation)
    fprintf(out,
            "<text class=\"warn\" x=\"%d\" y=\"40\" text-anchor=\"end\">simulated: these times mean nothing</text>\n",
            2 * MARGIN + 2 * WIDTH + GAP - MARGIN);
  for (int way = 0; way < GPU_HAND + region->child_count; way++, x += KEY_WIDTH)
    fprintf(out,
            "<path class=\"line w%d\" d=\"M%.1f 68h30\"/><circle class=\"dot w%d\" cx=\"%.1f\" cy=\"68\" r=\"4\"/>"
            "<text class=\"key\" x=\"%.1f\" y=\"72\">%s</text>\n",
            way, x, way, x + 15, x + 38, gpu_name_way(region, way, name, sizeof(name)));
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
  int width = 2 * MARGIN + 2 * WIDTH + GAP, height = HEAD + count_kinds(region) * HEIGHT + MARGIN;
  FILE *out = fopen(file, "w");
  double y = HEAD;
  bool bad;

  if (!out)
    return -errno;
  fprintf(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\">\n"
          "<style>%s</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
          width, height, width, height, style);
  draw_head(out, region);
  for (int from = 0, to; from < region->case_count; from = to, y += HEIGHT) {
    for (to = from + 1; to < region->case_count && same_kind(&region->cases[to], &region->cases[from]); to++)
      ;
    draw_panel(out, region, from, to, y, false);
    draw_panel(out, region, from, to, y, true);
  }
  fprintf(out, "</svg>\n");
  bad = ferror(out) != 0;
  return fclose(out) == 0 && !bad ? 0 : -EIO;
}
