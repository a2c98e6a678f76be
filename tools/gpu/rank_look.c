/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/gpu/rank.h"
#include "tools/gpu/tuning.h"

/* What the last of the new lines that name channels says; -1: none does. */
static int read_on(FILE *log)
{
  char *line = NULL;
  size_t room = 0;
  int channels = -1;

  clearerr(log); /* of the end that was read up to the last time */
  while (getline(&line, &room, log) > 0) {
    int found = tuning_channels(line);
    channels = found >= 0 ? found : channels;
  }
  free(line);
  return channels;
}

static int look_at(const struct gpu_case *what, const struct lane *lane, FILE *log)
{
  if (log)
    read_on(log);
  meet();
  for (int i = 0; i < 2; i++) /* the first one may have to register windows */
    NCCL(make_call(what, lane));
  CUDA(cudaStreamSynchronize(stream));
  return log ? read_on(log) : -1;
}

void look(const struct lane lanes[])
{
  /* Only the first rank of a communicator logs this. NCCL makes the file at its first line, and ends each by a flush.
   */
  const char *path = getenv("NCCL_DEBUG_FILE");
  FILE *log = rank == 0 && path ? fopen(path, "r") : NULL;

  for (int i = 0; i < region->case_count; i++) {
    for (int way = 0; way < GPU_HAND + region->child_count; way++) {
      struct gpu_figures *figures = &region->figures[i][way];
      int channels;
      if (!applies(&region->cases[i], way))
        continue;
      if (rank == 0)
        atomic_store(&region->way, (uint32_t)way);
      channels = look_at(&region->cases[i], &lanes[way], log);
      if (rank != 0)
        continue;
      /* Copy engines log nothing, which says something only where others do. */
      if (channels < 0 && way >= GPU_HAND && region->children[way - GPU_HAND].copy_engine &&
          region->figures[i][GPU_STOCK].sms_known)
        channels = 0;
      figures->sms_known = channels >= 0;
      figures->sms = channels >= 0 ? channels : 0;
    }
    if (rank == 0)
      atomic_fetch_add(&region->done, 1);
  }
  if (log)
    fclose(log);
}
