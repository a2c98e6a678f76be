/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/group.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { LATER_NS = 2 * 1000 * 1000 };

/* What runs in one thread. */
struct lane {
  struct group_task *tasks;
  ncclComm_t comm;
  enum group_phase phase;
  ncclResult_t result;
  pthread_t thread;
  bool threaded;
};

static __thread int depth;
static __thread ncclResult_t failure;
static __thread struct group_task *head;
static __thread struct group_task **tail;

void group_start(void)
{
  if (depth++ == 0) {
    failure = ncclSuccess;
    head = NULL;
    tail = &head;
  }
}

int group_depth(void)
{
  return depth;
}

void group_add(struct group_task *task)
{
  task->next = NULL;
  *tail = task;
  tail = &task->next;
  if (!task->lane)
    task->lane = task->comm;
  if (!task->owner)
    task->owner = task->comm;
  atomic_fetch_add(&task->comm->busy, 1);
  atomic_fetch_add(&task->lane->busy, 1);
}

void group_fail(ncclResult_t result)
{
  if (failure == ncclSuccess && result != ncclSuccess)
    failure = result;
}

static void task_free(struct group_task *task)
{
  atomic_fetch_sub(&task->comm->busy, 1);
  atomic_fetch_sub(&task->lane->busy, 1);
  if (task->discard)
    task->discard(task);
  free(task);
}

static void *lane_run(void *arg)
{
  struct lane *lane = arg;
  for (struct group_task *task = lane->tasks; task && lane->result == ncclSuccess; task = task->next) {
    if (task->lane != lane->comm || task->phase != lane->phase)
      continue;
    GPU->context_set_device(task->comm->device);
    lane->result = task->run(task);
  }
  return NULL;
}

/* The lanes that have tasks in the phase, in order of appearance. */
static size_t lanes_find(struct group_task *tasks, enum group_phase phase, struct lane **lanes)
{
  size_t count = 0;
  *lanes = NULL;
  for (struct group_task *task = tasks; task; task = task->next) {
    bool known = task->phase != phase;
    for (size_t i = 0; i < count && !known; i++)
      known = (*lanes)[i].comm == task->lane;
    if (known)
      continue;
    *lanes = realloc(*lanes, (count + 1) * sizeof(**lanes));
    (*lanes)[count++] = (struct lane){.tasks = tasks, .comm = task->lane, .phase = phase};
  }
  return count;
}

/* Several communicators wait for their peers at the same time, or one thread's ranks would wait for each other. */
static ncclResult_t phase_run(struct group_task *tasks, enum group_phase phase)
{
  struct lane *lanes;
  size_t count = lanes_find(tasks, phase, &lanes);
  bool threads = phase != GROUP_LAUNCH && count > 1;
  ncclResult_t result = ncclSuccess;
  for (size_t i = 0; i < count; i++) {
    lanes[i].threaded = threads && pthread_create(&lanes[i].thread, NULL, lane_run, &lanes[i]) == 0;
    if (!lanes[i].threaded)
      lane_run(&lanes[i]);
  }
  for (size_t i = 0; i < count; i++) {
    if (lanes[i].threaded)
      pthread_join(lanes[i].thread, NULL);
    if (result == ncclSuccess)
      result = lanes[i].result;
  }
  free(lanes);
  return result;
}

/* Sends and receives of one communicator must make progress together. */
static void tasks_merge(struct group_task *tasks)
{
  for (struct group_task *task = tasks; task; task = task->next) {
    struct group_task **at = &task->next;
    while (task->merge && *at) {
      struct group_task *more = *at;
      if (more->merge == task->merge && more->comm == task->comm && task->merge(task, more)) {
        *at = more->next;
        task_free(more);
      } else {
        at = &more->next;
      }
    }
  }
}

static void tasks_count_siblings(struct group_task *tasks)
{
  for (struct group_task *task = tasks; task; task = task->next)
    for (struct group_task *other = tasks; other; other = other->next)
      task->siblings += other->comm == task->comm && other->phase == GROUP_LAUNCH;
}

static void stream_follow(CUstream later, CUstream earlier)
{
  CUevent event;
  if (GPU->event_create(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    return;
  GPU->event_record(event, earlier, 0);
  GPU->event_wait(later, event, 0);
  GPU->event_destroy(event);
}

/* The launches of one communicator are one operation on all of their streams: before it these wait for each other, and
 * behind it too (NCCL's user guide, "Group calls"). */
static void streams_join(struct group_task *tasks)
{
  for (struct group_task *first = tasks; first; first = first->next) {
    bool leads = first->launches;
    for (struct group_task *at = tasks; at != first && leads; at = at->next)
      leads = !at->launches || at->comm != first->comm;
    for (int round = 0; round < 2 && leads; round++)
      for (struct group_task *at = first->next; at; at = at->next)
        if (at->launches && at->comm == first->comm && at->stream != first->stream)
          stream_follow(round ? at->stream : first->stream, round ? first->stream : at->stream);
  }
}

static ncclResult_t tasks_run(struct group_task *tasks)
{
  int device = GPU->context_device();
  ncclResult_t result = ncclSuccess;
  tasks_merge(tasks);
  tasks_count_siblings(tasks);
  for (int phase = 0; phase < GROUP_PHASES && result == ncclSuccess; phase++) {
    if (phase == GROUP_LAUNCH)
      streams_join(tasks);
    result = phase_run(tasks, (enum group_phase)phase);
  }
  if (result == ncclSuccess)
    streams_join(tasks);
  GPU->context_set_device(device);
  return result;
}

static void tasks_free(struct group_task *tasks)
{
  while (tasks) {
    struct group_task *next = tasks->next;
    task_free(tasks);
    tasks = next;
  }
}

static bool is_last_of_owner(const struct group_task *task)
{
  const struct group_task *later = task->next;
  while (later && later->owner != task->owner)
    later = later->next;
  return !later;
}

/*
 * A group of non-blocking communicators is carried out by a thread, whose capture mode is the default one. It begins
 * after the call has returned, so what the caller does next on the stream comes before the work. SIM_DELAY and
 * SIM_FAIL know it as `nonblocking`.
 */
static void *tasks_main(void *arg)
{
  struct group_task *tasks = arg;
  nanosleep(&(struct timespec){.tv_nsec = LATER_NS}, NULL);
  GPU->context_set_device(tasks->comm->device);
  ncclResult_t result = control_enter("nonblocking") ? control_injected() : tasks_run(tasks);
  for (struct group_task *task = tasks; task; task = task->next)
    if (is_last_of_owner(task)) /* who sees the state may begin something else at once */
      atomic_store(&task->owner->state, result);
  tasks_free(tasks);
  return NULL;
}

static ncclResult_t tasks_run_aside(struct group_task *tasks)
{
  pthread_t thread;
  pthread_attr_t attributes;
  for (struct group_task *task = tasks; task; task = task->next)
    atomic_store(&task->owner->state, ncclInProgress);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  int error = pthread_create(&thread, &attributes, tasks_main, tasks);
  pthread_attr_destroy(&attributes);
  return error ? ncclSystemError : ncclInProgress;
}

/* Closes a group: true at its outermost end, with the tasks it holds; else *result is the call's. */
static bool close_group(struct group_task **tasks, ncclResult_t *result)
{
  *result = depth == 0 ? ncclInvalidUsage : ncclSuccess;
  if (depth == 0 || --depth > 0)
    return false;
  *tasks = head;
  head = NULL;
  *result = failure;
  return true;
}

ncclResult_t group_drop(void)
{
  struct group_task *tasks;
  ncclResult_t result;
  if (close_group(&tasks, &result))
    tasks_free(tasks);
  return result;
}

ncclResult_t group_end(void)
{
  struct group_task *tasks;
  ncclResult_t result;
  if (!close_group(&tasks, &result))
    return result;
  bool blocking = false;
  bool nonblocking = false;
  for (struct group_task *task = tasks; task; task = task->next) {
    blocking |= task->owner->config.blocking != 0;
    nonblocking |= task->owner->config.blocking == 0;
  }
  if (result == ncclSuccess && blocking && nonblocking)
    result = ncclInvalidArgument;
  if (result != ncclSuccess) {
    for (struct group_task *task = tasks; task; task = task->next)
      if (task->phase == GROUP_MAKE)
        atomic_store(&task->owner->state, result);
    tasks_free(tasks);
    return result;
  }
  if (nonblocking)
    return tasks_run_aside(tasks);
  if (tasks)
    result = tasks_run(tasks);
  tasks_free(tasks);
  return result;
}
