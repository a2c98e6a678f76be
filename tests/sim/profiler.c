/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/profiler.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { GROUP = 1 << 0, COLL = 1 << 1, GROUP_API = 1 << 8, COLL_API = 1 << 9 };
enum { PROXIES = 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 }; /* what needs events of collectives as its parents */
enum { VERSION_5 = 22800, VERSION_6 = 22900, NAME_BYTES = 255 };

/* Version 4. What lies behind the head is poisoned: a plugin that reads a field of another version's finds that. */
struct event_v4 {
  uint8_t type;
  void *parent;
  int rank;
  uint64_t number;
  const char *function;
  unsigned char poison[80];
};

struct event_v5 {
  uint64_t type;
  void *parent;
  int rank;
  union {
    struct {
      const char *function;
      size_t count;
      const char *type;
      int root;
      void *stream;
      bool captured;
    } api;
    struct {
      uint64_t number;
      const char *function;
      const void *send;
      void *recv;
      size_t count;
    } coll;
    unsigned char poison[104];
  };
};

typedef void logger(int, unsigned long, const char *, int, const char *, ...);

struct plugin_v4 {
  const char *name;
  ncclResult_t (*init)(void **, int *, const char *, uint64_t, int, int, int, logger *);
  ncclResult_t (*start)(void *, void **, struct event_v4 *);
  ncclResult_t (*stop)(void *);
  ncclResult_t (*record)(void *, int, void *);
  ncclResult_t (*finalize)(void *);
};

struct plugin_v5 {
  const char *name;
  ncclResult_t (*init)(void **, uint64_t, int *, const char *, int, int, int, logger *);
  ncclResult_t (*start)(void *, void **, struct event_v5 *);
  ncclResult_t (*stop)(void *);
  ncclResult_t (*record)(void *, int, void *);
  ncclResult_t (*finalize)(void *);
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;
static bool failed; /* it is not tried again then */
static void *library;
static const struct plugin_v4 *older;
static const struct plugin_v5 *newer;
static int mask; /* one for all communicators */

static void nothing_to_log(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
  (void)level, (void)flags, (void)file, (void)line, (void)format;
}

/* The newest interface first that this version knows. */
static bool look(void)
{
  if (nccl_version() >= VERSION_6)
    newer = dlsym(library, "ncclProfiler_v6");
  if (!newer && nccl_version() >= VERSION_5)
    newer = dlsym(library, "ncclProfiler_v5");
  if (!newer)
    older = dlsym(library, "ncclProfiler_v4");
  control_note("profiler v%d", older ? 4 : !newer ? 0 : nccl_version() >= VERSION_6 ? 6 : 5);
  return older || newer;
}

static void load(void)
{
  char name[NAME_BYTES];
  const char *wanted = getenv("NCCL_PROFILER_PLUGIN");
  if (wanted && strcasecmp(wanted, "none") == 0) {
    failed = true;
    return;
  }
  snprintf(name, sizeof(name), "%s", wanted && *wanted ? wanted : "libnccl-profiler.so");
  library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  failed = !library || !look();
  if (failed && library)
    dlclose(library);
}

void profiler_begin(ncclComm_t comm)
{
  pthread_mutex_lock(&lock);
  if (!failed && users == 0)
    load();
  if (!failed)
    users++;
  pthread_mutex_unlock(&lock);
  if (failed)
    return;
  comm->profiled = true;
  if (older)
    older->init(&comm->profiler, &mask, "sim", comm->serial, 1, comm->nranks, comm->rank, nothing_to_log);
  else
    newer->init(&comm->profiler, comm->serial, &mask, "sim", 1, comm->nranks, comm->rank, nothing_to_log);
}

void profiler_end(ncclComm_t comm)
{
  if (!comm->profiled)
    return;
  if (older)
    older->finalize(comm->profiler);
  else if (comm->profiler)
    newer->finalize(comm->profiler);
  pthread_mutex_lock(&lock);
  if (--users == 0) {
    dlclose(library);
    older = NULL;
    newer = NULL;
  }
  pthread_mutex_unlock(&lock);
}

static struct event_v5 event_new(uint64_t type, const struct operation *op)
{
  struct event_v5 event = {.type = type, .rank = op->comm->rank};
  memset(event.poison, 0xa5, sizeof(event.poison));
  return event;
}

void *profiler_call(const struct operation *op)
{
  void *group = NULL;
  void *handle = NULL;
  if (!op->comm->profiled || !newer || !(mask & (COLL_API | COLL | PROXIES)))
    return NULL;
  struct event_v5 event = event_new(GROUP_API, op);
  newer->start(op->comm->profiler, &group, &event);
  if (group)
    newer->stop(group);
  event = event_new(COLL_API, op);
  event.parent = group;
  event.api.function = operation_name(op->function);
  event.api.count = op->count;
  newer->start(op->comm->profiler, &handle, &event);
  if (handle)
    newer->stop(handle);
  return handle;
}

/* Without a handle of the group there are no events of what is in it. */
static void launch_v4(const struct operation *op)
{
  void *group = NULL;
  void *handle = NULL;
  struct event_v4 event = {.type = GROUP, .rank = op->comm->rank};
  older->start(op->comm->profiler, &group, &event);
  if (!group)
    return;
  event = (struct event_v4){.type = COLL, .parent = group, .function = operation_name(op->function)};
  memset(event.poison, 0xa5, sizeof(event.poison));
  older->start(op->comm->profiler, &handle, &event);
  if (handle)
    older->stop(handle);
  older->stop(group);
}

void profiler_launch(const struct operation *op)
{
  void *group = NULL;
  void *handle = NULL;
  if (!op->comm->profiled || !(mask & (COLL | PROXIES)))
    return;
  if (older) {
    launch_v4(op);
    return;
  }
  struct event_v5 event = event_new(GROUP, op);
  newer->start(op->comm->profiler, &group, &event);
  event = event_new(COLL, op);
  event.parent = op->api_event;
  event.coll.function = operation_name(op->function);
  event.coll.send = op->send;
  event.coll.recv = op->recv;
  event.coll.count = op->count;
  newer->start(op->comm->profiler, &handle, &event);
  if (handle)
    newer->stop(handle);
  if (group)
    newer->stop(group);
}
