/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User objects: something of the host program's that graphs keep alive. When the last reference goes, a thread of
 * the driver's own calls back, one object after the other; in there no call of CUDA's is allowed.
 */
#include <limits.h>
#include <stdlib.h>

#include "tests/sim/gpu.h"

struct CUuserObject_st {
  struct CUuserObject_st *next; /* in the list of the living, or of those to be destroyed */
  unsigned int refs;
  CUhostFn destroy;
  void *data;
};

struct gpu_object_hold {
  CUuserObject object;
  unsigned int count;
};

static CUuserObject living;
static CUuserObject doomed;
static CUuserObject *doomed_end = &doomed;
static bool started;
static pthread_cond_t doomed_cond = PTHREAD_COND_INITIALIZER;
static __thread bool in_callback;

bool gpu_object_callback(void)
{
  return in_callback;
}

static void *destroyer_main(void *unused)
{
  (void)unused;
  in_callback = true;
  pthread_mutex_lock(&gpu_lock);
  for (;;) {
    CUuserObject object = doomed;
    if (!object) {
      pthread_cond_wait(&doomed_cond, &gpu_lock);
      continue;
    }
    doomed = object->next;
    if (!doomed)
      doomed_end = &doomed;
    pthread_mutex_unlock(&gpu_lock);
    object->destroy(object->data);
    free(object);
    pthread_mutex_lock(&gpu_lock);
  }
  return NULL;
}

static bool count_valid(unsigned int count)
{
  return count > 0 && count <= INT_MAX;
}

/* An object that is no more: with the real driver this is undefined. */
static CUuserObject *object_at(CUuserObject object)
{
  CUuserObject *at = &living;
  while (*at && *at != object)
    at = &(*at)->next;
  if (!*at)
    control_die("use of a user object (%p) that has no references left", (void *)object);
  return at;
}

static void object_take(CUuserObject object, unsigned int count)
{
  (*object_at(object))->refs += count;
}

static void object_drop(CUuserObject object, unsigned int count)
{
  CUuserObject *at = object_at(object);
  if (count > object->refs)
    control_die("%u references to a user object (%p) are released, and there are %u", count, (void *)object,
                object->refs);
  object->refs -= count;
  if (object->refs > 0)
    return;
  *at = object->next;
  object->next = NULL;
  *doomed_end = object;
  doomed_end = &object->next;
  if (!started)
    gpu_thread_start(destroyer_main, NULL);
  started = true;
  pthread_cond_signal(&doomed_cond);
}

CUresult gpu_object_create(CUuserObject *object, void *data, CUhostFn destroy, unsigned int count, unsigned int flags)
{
  if (!object || !destroy || !count_valid(count) || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  CUuserObject new = malloc(sizeof(*new));
  pthread_mutex_lock(&gpu_lock);
  *new = (struct CUuserObject_st){.next = living, .refs = count, .destroy = destroy, .data = data};
  living = new;
  pthread_mutex_unlock(&gpu_lock);
  *object = new;
  return CUDA_SUCCESS;
}

CUresult gpu_object_retain(CUuserObject object, unsigned int count)
{
  if (!object || !count_valid(count))
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gpu_lock);
  object_take(object, count);
  pthread_mutex_unlock(&gpu_lock);
  return CUDA_SUCCESS;
}

CUresult gpu_object_release(CUuserObject object, unsigned int count)
{
  if (!object || !count_valid(count))
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&gpu_lock);
  object_drop(object, count);
  pthread_mutex_unlock(&gpu_lock);
  return CUDA_SUCCESS;
}

void gpu_objects_add(struct gpu_objects *objects, CUuserObject object, unsigned int count)
{
  object_at(object);
  objects->holds = realloc(objects->holds, (objects->count + 1) * sizeof(*objects->holds));
  objects->holds[objects->count++] = (struct gpu_object_hold){object, count};
}

/* False: there are not so many in one piece. */
bool gpu_objects_remove(struct gpu_objects *objects, CUuserObject object, unsigned int count)
{
  for (size_t i = 0; i < objects->count; i++) {
    struct gpu_object_hold *hold = &objects->holds[i];
    if (hold->object != object || hold->count < count)
      continue;
    hold->count -= count;
    if (hold->count == 0)
      *hold = objects->holds[--objects->count];
    object_drop(object, count);
    return true;
  }
  return false;
}

void gpu_objects_copy(struct gpu_objects *to, const struct gpu_objects *from)
{
  for (size_t i = 0; i < from->count; i++) {
    object_take(from->holds[i].object, from->holds[i].count);
    gpu_objects_add(to, from->holds[i].object, from->holds[i].count);
  }
}

void gpu_objects_clear(struct gpu_objects *objects)
{
  for (size_t i = 0; i < objects->count; i++)
    object_drop(objects->holds[i].object, objects->holds[i].count);
  free(objects->holds);
  *objects = (struct gpu_objects){0};
}
