/* SPDX-License-Identifier: Apache-2.0 */
/* Calls captured into a graph, which is replayed several times with other calls in between. */
#include <unistd.h>

#include "tests/soak/soak.h"

enum { CAPTURED = 4, EAGER = 3, REPLAYS = 3 };

struct recording {
  struct call *calls[CAPTURED + EAGER];
  int captured, count, stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
};

/* A blocking communicator, or NULL. */
static struct team *draw_team(struct soak *soak)
{
  struct team *team = soak->teams[random_below(&soak->common, soak->team_count)];

  return team->nonblocking ? NULL : team;
}

static bool draw(struct soak *soak, struct recording *recording)
{
  int captured = 1 + random_below(&soak->common, CAPTURED), eager = random_below(&soak->common, EAGER + 1);

  for (int i = 0; i < captured + eager; i++) {
    struct team *team = draw_team(soak);
    struct call *call;
    if (!team)
      continue;
    call = calls_draw(soak, team);
    if (i < captured && call->redop == PREMULSUM)
      call->redop = ncclSum;
    if (i < captured)
      recording->captured++;
    recording->calls[recording->count++] = call;
  }
  recording->count = calls_place(soak, recording->calls, recording->count);
  if (recording->captured > recording->count)
    recording->captured = recording->count;
  return recording->captured > 0;
}

static void capture(struct soak *soak, struct recording *recording, bool group)
{
  cudaStream_t stream = soak->streams[recording->stream];
  CUstreamCaptureMode mode =
      random_chance(&soak->own, 50) ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

  CUDA_CHECK(cudaStreamBeginCapture(stream, mode));
  if (group)
    NCCL_CHECK(ncclGroupStart());
  for (int i = 0; i < recording->captured; i++) {
    recording->calls[i]->team->in_graphs = true; /* on all ranks, members or not */
    if (recording->calls[i]->team->comm) {
      recording->calls[i]->stream = recording->stream;
      calls_issue(soak, recording->calls[i]);
    }
  }
  if (group)
    NCCL_CHECK(ncclGroupEnd());
  CUDA_CHECK(cudaStreamEndCapture(stream, &recording->graph));
  CUDA_CHECK(cudaGraphInstantiate(&recording->exec, recording->graph, 0));
}

/* Eager calls before and after the launch; they settle with the rest, the captured ones here. */
static void replay(struct soak *soak, struct recording *recording, bool last)
{
  int before = random_below(&soak->common, recording->count - recording->captured + 1);
  cudaStream_t stream = soak->streams[recording->stream];

  soak_at(soak, "replaying a graph", recording->captured);
  for (int i = 0; i < recording->captured; i++) {
    recording->calls[i]->seed = random_next(&soak->common);
    if (recording->calls[i]->team->comm)
      calls_fill(soak, recording->calls[i], recording->stream);
  }
  if (last && before > 0)
    calls_run(soak, recording->calls + recording->captured, before, false);
  CUDA_CHECK(cudaGraphLaunch(recording->exec, stream));
  if (last && before < recording->count - recording->captured)
    calls_run(soak, recording->calls + recording->captured + before, recording->count - recording->captured - before,
              false);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  for (int i = 0; i < recording->captured; i++)
    if (recording->calls[i]->team->comm)
      values_check(soak, recording->calls[i]);
}

void graph_step(struct soak *soak)
{
  struct recording recording = {.stream = random_below(&soak->own, STREAMS - 1)};
  int replays = 1 + random_below(&soak->common, REPLAYS);
  bool group = random_chance(&soak->common, 30);

  if (!draw(soak, &recording)) {
    for (int i = 0; i < recording.count; i++)
      calls_free(recording.calls[i]);
    return;
  }
  calls_settle(soak); /* nothing else is at work while a stream is captured */
  capture(soak, &recording, group);
  for (int i = 0; i < replays; i++)
    replay(soak, &recording, i == replays - 1);
  CUDA_CHECK(cudaGraphExecDestroy(recording.exec));
  CUDA_CHECK(cudaGraphDestroy(recording.graph));
  for (int i = 0; i < recording.captured; i++)
    calls_free(recording.calls[i]);
  soak->graphs++;
}
