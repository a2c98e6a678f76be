/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/verify.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/abi/profiler.h"
#include "shim/group.h"
#include "shim/life.h"
#include "shim/log.h"

#define VARIABLE "NCCL_PROFILER_PLUGIN"

enum {
  TICKETS = 4096,        /* API events told apart at a time; a power of two */
  NCCL_PATH_BYTES = 255, /* NCCL cuts longer names off (plugin_open.cc, 2.28.9) */
  TICKET_LAUNCHED = 1,   /* as an ordinary kernel */
  TICKET_READ = 2        /* the call's line was written */
};

/* What was heard of a collective; its address is the handle of the API event. */
static uint32_t tickets[TICKETS];
static uint32_t next_ticket;

static bool is_ours;                    /* NCCL was sent here */
static bool heard_v4, heard_newer;      /* which interface it took; two copies of NCCL may differ */
static char group_handle, comm_context; /* their addresses are handles */

/* What this thread's calls raised. */
static __thread struct {
  uint32_t calls, launches;
  uint16_t tickets[GROUP_CALLS];
} heard;

const char *verify_word(enum observed observed)
{
  static const char *const words[] = {NULL, "symmetric", "plain"};

  return words[observed];
}

void verify_begin(void)
{
  heard.calls = heard.launches = 0;
}

enum observed verify_end(int nth, int count, bool launched)
{
  if (heard.calls == (uint32_t)count) {
    uint32_t state = __atomic_fetch_or(&tickets[heard.tickets[nth]], TICKET_READ, __ATOMIC_RELAXED);

    if (state & TICKET_LAUNCHED)
      return OBSERVED_plain;
    return launched ? OBSERVED_symmetric : OBSERVED_unknown;
  }
  if (!__atomic_load_n(&heard_v4, __ATOMIC_RELAXED) || __atomic_load_n(&heard_newer, __ATOMIC_RELAXED))
    return OBSERVED_unknown;
  if (heard.launches == (uint32_t)count)
    return OBSERVED_plain;
  return launched && heard.launches == 0 ? OBSERVED_symmetric : OBSERVED_unknown;
}

/* The calls of one group are told apart by their order, in which NCCL raises their API events. */
static void *open_ticket(void)
{
  uint32_t at = __atomic_fetch_add(&next_ticket, 1, __ATOMIC_RELAXED) & (TICKETS - 1);

  __atomic_store_n(&tickets[at], 0, __ATOMIC_RELAXED);
  if (heard.calls < GROUP_CALLS)
    heard.tickets[heard.calls] = (uint16_t)at;
  heard.calls++;
  return &tickets[at];
}

/* With a graph about, NCCL may tell of a launch later, from a callback on a stream (hostStreamPlanCallback). */
static void note_launch(void *parent)
{
  uintptr_t offset = (uintptr_t)parent - (uintptr_t)tickets;

  heard.launches++;
  if (offset < sizeof(tickets) && offset % sizeof(tickets[0]) == 0 &&
      __atomic_fetch_or((uint32_t *)parent, TICKET_LAUNCHED, __ATOMIC_RELAXED) == TICKET_READ)
    log_warn_once("NCCL told of a plain kernel after the call had returned: some calls that the audit log says were "
                  "observed to be symmetric were not");
}

static ncclResult_t init(void **context, int *mask, bool *heard_version)
{
  bool ours = __atomic_load_n(&is_ours, __ATOMIC_ACQUIRE);

  *mask = ours ? ABI_PROFILE_COLL : 0;
  *context = ours ? &comm_context : NULL;
  if (ours)
    __atomic_store_n(heard_version, true, __ATOMIC_RELAXED);
  return ncclSuccess;
}

static ncclResult_t init_v4(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int nodes, int nranks,
                            int rank, abi_profile_log log)
{
  (void)comm_name, (void)comm_hash, (void)nodes, (void)nranks, (void)rank, (void)log;
  return init(context, mask, &heard_v4);
}

static ncclResult_t init_newer(void **context, uint64_t comm_hash, int *mask, const char *comm_name, int nodes,
                               int nranks, int rank, abi_profile_log log)
{
  (void)comm_name, (void)comm_hash, (void)nodes, (void)nranks, (void)rank, (void)log;
  return init(context, mask, &heard_newer);
}

/* NULL handles for what needs none: NCCL does not come back with them. */
static ncclResult_t start_v4(void *context, void **handle, struct abi_profile_event_v4 *event)
{
  (void)context;
  *handle = event->type == ABI_PROFILE_GROUP ? &group_handle : NULL;
  if (event->type == ABI_PROFILE_COLL)
    note_launch(NULL);
  return ncclSuccess;
}

static ncclResult_t start_newer(void *context, void **handle, struct abi_profile_event *event)
{
  (void)context;
  *handle = event->type == ABI_PROFILE_COLL_API ? open_ticket() : NULL;
  if (event->type == ABI_PROFILE_COLL)
    note_launch(event->parent);
  return ncclSuccess;
}

static ncclResult_t stop(void *handle)
{
  (void)handle;
  return ncclSuccess;
}

static ncclResult_t record(void *handle, int state, void *arguments)
{
  (void)handle, (void)state, (void)arguments;
  return ncclSuccess;
}

/*
 * A job whose own plugin is linked into it (STATIC_PLUGIN) and of an older version finds these first; they ask for
 * nothing then.
 */
#define EXPORTED __attribute__((visibility("default")))
extern const struct abi_profiler_v4 ncclProfiler_v4;
extern const struct abi_profiler ncclProfiler_v5, ncclProfiler_v6;
EXPORTED const struct abi_profiler_v4 ncclProfiler_v4 = {"symmshim", init_v4, start_v4, stop, record, stop};
EXPORTED const struct abi_profiler ncclProfiler_v5 = {"symmshim", init_newer, start_newer, stop, record, stop};
EXPORTED const struct abi_profiler ncclProfiler_v6 = {"symmshim", init_newer, start_newer, stop, record, stop};

/* Where the job may have named a profiler that is not in the environment yet: NCCL reads this file later. */
static bool is_in_file(const char *path)
{
  FILE *file = fopen(path, "re");
  char line[1024];
  bool found = false;

  while (file && !found && fgets(line, sizeof(line), file))
    found = strncmp(line, VARIABLE "=", sizeof(VARIABLE)) == 0;
  if (file)
    fclose(file);
  return found;
}

static bool job_has_one(const char *own)
{
  const char *value = getenv(VARIABLE), *file = getenv("NCCL_CONF_FILE"), *home = getenv("HOME");
  char path[PATH_MAX];

  if (value)
    return strcmp(value, own) != 0; /* of the process that started this one, it may be the shim */
  snprintf(path, sizeof(path), "%s%s", file ? file : home ? home : "", file ? "" : "/.nccl.conf");
  return is_in_file(path) || is_in_file("/etc/nccl.conf");
}

void verify_prepare(void)
{
  char path[PATH_MAX];
  Dl_info info;

  if (!life_policy()->verify || !dladdr(tickets, &info) || !info.dli_fname || !realpath(info.dli_fname, path))
    return;
  if (strlen(path) >= NCCL_PATH_BYTES) {
    log_warn_once("verify = on: NCCL takes no profiler whose path is as long as %s", path);
    return;
  }
  if (job_has_one(path)) {
    log_warn_once("verify = on: the job has a profiler of its own (" VARIABLE "), so nothing is observed");
    return;
  }
  setenv(VARIABLE, path, 0);
  __atomic_store_n(&is_ours, true, __ATOMIC_RELEASE);
}
