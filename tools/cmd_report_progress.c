/* SPDX-License-Identifier: Apache-2.0 */
/* How far the reading is, for who waits at a terminal. */
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/cmd.h"
#include "tools/cmd_report.h"

enum { INTERVAL_MS = 200 };

struct report_progress {
  uint64_t total, done;
  int64_t shown_ms; /* when it was last written */
  bool shown;
};

static int64_t now_ms(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

struct report_progress *report_progress_begin(int count, char **paths)
{
  struct report_progress *progress;

  if (!isatty(STDERR_FILENO))
    return NULL;
  progress = calloc(1, sizeof(*progress));
  if (!progress)
    return NULL;
  for (int i = 0; i < count; i++) {
    struct stat status;

    progress->total += stat(paths[i], &status) == 0 && S_ISREG(status.st_mode) ? (uint64_t)status.st_size : 0;
  }
  progress->shown_ms = now_ms();
  return progress;
}

void report_progress_show(void *data, uint64_t bytes)
{
  struct report_progress *progress = data;
  char done[32], total[32];
  int64_t now = now_ms();

  progress->done += bytes;
  if (now - progress->shown_ms < INTERVAL_MS)
    return;
  progress->shown_ms = now;
  progress->shown = true;
  /* A job that still runs makes its log longer than it was. */
  if (progress->done > progress->total)
    progress->total = progress->done;
  fprintf(stderr, "\r\033[Kreading: %s of %s (%.0f %%)", cmd_format_bytes(progress->done, done, sizeof(done)),
          cmd_format_bytes(progress->total, total, sizeof(total)), report_percent(progress->done, progress->total));
}

void report_progress_end(struct report_progress *progress)
{
  if (progress && progress->shown)
    fprintf(stderr, "\r\033[K");
  free(progress);
}
