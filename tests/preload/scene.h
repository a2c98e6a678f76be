/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What scenes are made of: a job in small, that puts its calls where a case wants them and looks at every element.
 * Knows nothing of the shim. All communicators have all ranks, in the same order.
 */
#ifndef SYMMSHIM_PRELOAD_SCENE_H
#define SYMMSHIM_PRELOAD_SCENE_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/preload/check.h"
#include "tests/preload/data.h"

enum { SCENE_STREAMS = 3, SCENE_SEGMENT = 4 << 20 };

/* What a call can be besides the ops of options.h. */
enum { ACT_BROADCAST = OP_COUNT, ACT_SEND_RECV };

struct scene {
  int rank, nranks;
  ncclComm_t comm;
  cudaStream_t streams[SCENE_STREAMS];
  char *segment; /* where buffers are taken from */
  size_t used;
  int calls;
  bool wrong;
};

/* A call, its buffers, and what is in them. */
struct act {
  struct scene *scene;
  int kind;
  size_t count, send_count, recv_count;
  ncclComm_t comm;
  cudaStream_t stream;
  void *send, *recv;
  struct data data;
};

/* The words behind the scene's name; "" and 0 where there is none. */
const char *scene_word(int at);
int scene_number(int at);

/* Makes a communicator, and streams that do not wait for each other. With `nonblocking` it is one of those, settled. */
struct scene scene_open(bool nonblocking);
void scene_settle(ncclComm_t comm);
ncclComm_t scene_split(const struct scene *scene);
void scene_close(struct scene *scene);

/* From now on buffers are taken from a new segment; or each is a small allocation of its own. */
void scene_segment(struct scene *scene);
void scene_loose(struct scene *scene);

/* A call of fp32 on the scene's communicator and first stream, which can be changed; sums where it reduces. */
struct act act_lay(struct scene *scene, int kind);
/* The same with the average. */
struct act act_average(struct scene *scene);

/* New input, and rubbish where the output will be. */
void act_put(struct act *act);
ncclResult_t act_try(struct act *act);
void act_issue(struct act *act);
/* Waits for the call's stream, or another one only, and looks at the output. */
void act_check(struct act *act);
void act_check_on(struct act *act, cudaStream_t stream);
/* The output is as it was put. */
void act_untouched(struct act *act);
/* All of it, outside any group. */
void act_do(struct act *act);

/* What comes after it on the stream comes late. */
void scene_slow(cudaStream_t stream);

struct scene_entry {
  const char *name;
  void (*play)(void);
};
extern const struct scene_entry scenes_groups[], scenes_graphs[], scenes_life[], scenes_entries[]; /* each ends with no name */

#endif
