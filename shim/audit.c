/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/audit.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shim/log.h"
#include "shim/sink.h"

enum { AUDIT_LINE = 2048, AUDIT_SCHEMA = 1 };

static enum policy_audit_level wanted_level;

struct line {
  size_t used;
  bool full;
  char before; /* for sink_write() */
  char text[AUDIT_LINE];
};

__attribute__((format(printf, 2, 3))) static void add(struct line *line, const char *format, ...)
{
  size_t room = sizeof(line->text) - line->used;
  va_list args;
  int length;

  va_start(args, format);
  length = vsnprintf(line->text + line->used, room, format, args);
  va_end(args);
  if (length < 0 || (size_t)length >= room)
    line->full = true;
  else
    line->used += (size_t)length;
}

/* A JSON string, or null. */
static void add_string(struct line *line, const char *name, const char *value)
{
  if (!value) {
    add(line, ",\"%s\":null", name);
    return;
  }
  add(line, ",\"%s\":\"", name);
  for (const unsigned char *c = (const unsigned char *)value; *c; c++) {
    if (*c == '"' || *c == '\\')
      add(line, "\\%c", *c);
    else if (*c < 0x20)
      add(line, "\\u%04x", *c);
    else
      add(line, "%c", *c);
  }
  add(line, "\"");
}

static void begin(struct line *line, const char *event)
{
  struct timespec now;
  int rank = log_rank();

  line->used = 0;
  line->full = false;
  clock_gettime(CLOCK_REALTIME, &now);
  add(line, "{\"schema\":%d,\"event\":\"%s\",\"time\":%lld.%06ld,\"pid\":%d", AUDIT_SCHEMA, event,
      (long long)now.tv_sec, now.tv_nsec / 1000, (int)getpid());
  if (rank >= 0)
    add(line, ",\"rank\":%d", rank);
  else
    add(line, ",\"rank\":null");
}

static void add_comm(struct line *line, uint64_t comm)
{
  add(line, ",\"comm\":\"%016llx\"", (unsigned long long)comm);
}

/* One write a line, so that lines of several processes do not mix and a kill loses nothing that was said. */
static void end(struct line *line)
{
  add(line, "}\n");
  if (!line->full) {
    sink_write(line->text, line->used);
    return;
  }
  sink_lose();
  log_warn_once("an audit line was longer than %d bytes and was left out", AUDIT_LINE);
}

/* Under which the scheduler knows the job, so that logs of several jobs are told apart. */
static const char *job_id(void)
{
  static const char *const names[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID"};
  const char *id = NULL;

  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !id; i++)
    id = getenv(names[i]);
  return id;
}

void audit_start(const char *mode, const char *policy_path, const struct policy *policy)
{
  const char *pattern = getenv("SYMMSHIM_AUDIT");
  char path[4096], host[64] = "?";
  struct line line;
  int error;

  if (!pattern || !*pattern)
    return;
  if (!log_expand(path, sizeof(path), pattern)) {
    log_warn("SYMMSHIM_AUDIT is too long for a file name: no audit log is written");
    return;
  }
  wanted_level = policy->audit_level;
  error = sink_open(path, policy->audit_max);
  if (error) {
    log_warn("%s: %s (SYMMSHIM_AUDIT wants a regular file of this user, or none yet, in an existing folder)", path,
             strerror(-error));
    return;
  }
  gethostname(host, sizeof(host) - 1);
  begin(&line, "start");
  add_string(&line, "host", host);
  add_string(&line, "version", SYMMSHIM_VERSION);
  add_string(&line, "mode", mode);
  add_string(&line, "policy", policy_path);
  add_string(&line, "job", job_id());
  end(&line);
}

bool audit_wants(enum policy_audit_level level)
{
  return sink_is_wanted() && level <= wanted_level;
}

static void add_version(struct line *line, const char *name, int version)
{
  add(line, ",\"%s\":\"%d.%d.%d\"", name, version / 10000, version / 100 % 100, version % 100);
}

void audit_library(const char *library, int nccl_version, int newest, const char *const names[], size_t size,
                   size_t count)
{
  struct line line;

  if (!audit_wants(POLICY_AUDIT_summary))
    return;
  begin(&line, "library");
  add_string(&line, "library", library);
  add_version(&line, "nccl", nccl_version);
  add_version(&line, "newest", newest);
  add(&line, ",\"unknown\":[");
  for (size_t i = 0; i < size && i < count; i++)
    add(&line, "%s\"%s\"", i > 0 ? "," : "", names[i]);
  add(&line, "],\"unknown_count\":%zu", count);
  end(&line);
}

/* What the ranks have to have in common, which only the report of all of them can compare. */
static void add_foresight(struct line *line, const struct audit_comm *comm)
{
  if (!comm->watched) {
    add(line, ",\"forecast\":null");
    return;
  }
  add(line, ",\"forecast\":{\"state\":\"%s\"", comm->foreseen == REASON_none ? "ready" : "plain");
  add_string(line, "reason", reason_code(comm->foreseen));
  add(line, ",\"compatibility\":\"%016llx\",\"board\":\"%016llx\",\"stage_max\":%llu}",
      (unsigned long long)comm->compatibility, (unsigned long long)comm->board, (unsigned long long)comm->stage_max);
}

void audit_comm(const struct audit_comm *comm)
{
  struct line line;
  Dl_info info;

  if (!audit_wants(POLICY_AUDIT_summary))
    return;
  begin(&line, "comm");
  add_comm(&line, comm->comm);
  add(&line, ",\"comm_rank\":%d,\"nranks\":%d", comm->rank, comm->nranks);
  add_version(&line, "nccl", comm->nccl_version);
  add_string(&line, "library", comm->library && dladdr(comm->library, &info) ? info.dli_fname : NULL);
  add_string(&line, "state", comm->reason == REASON_none ? "ready" : "plain");
  add_string(&line, "reason", reason_code(comm->reason));
  add(&line, ",\"setup_ns\":%llu", (unsigned long long)comm->setup_ns);
  add_foresight(&line, comm);
  end(&line);
}

void audit_window(uint64_t comm, uint64_t segment, size_t bytes, uint64_t setup_ns)
{
  struct line line;

  if (!audit_wants(POLICY_AUDIT_summary))
    return;
  begin(&line, "window");
  add_comm(&line, comm);
  add(&line, ",\"segment\":%llu,\"bytes\":%zu,\"setup_ns\":%llu", (unsigned long long)segment, bytes,
      (unsigned long long)setup_ns);
  end(&line);
}

void audit_drop(uint64_t comm, enum reason reason, uint64_t retry_at)
{
  struct line line;

  if (!audit_wants(POLICY_AUDIT_summary))
    return;
  begin(&line, "drop");
  add_comm(&line, comm);
  add_string(&line, "reason", reason_code(reason));
  add(&line, ",\"retry_at\":%llu", (unsigned long long)retry_at);
  end(&line);
}

static void add_place(struct line *line, const char *name, const struct audit_place *place)
{
  if (place->segment == 0)
    add(line, ",\"%s\":null", name);
  else
    add(line, ",\"%s\":{\"segment\":%llu,\"offset\":%llu", name, (unsigned long long)place->segment,
        (unsigned long long)place->offset);
  if (place->segment != 0 && place->bytes != 0)
    add(line, ",\"bytes\":%llu", (unsigned long long)place->bytes);
  if (place->segment != 0)
    add(line, "}");
}

static const char *rewrite_word(enum policy_rewrite rewrite)
{
  return rewrite == POLICY_REWRITE_none ? NULL : policy_rewrite_word(rewrite);
}

static void add_forecast(struct line *line, const struct audit_call *call)
{
  const struct audit_forecast *forecast = &call->forecast;

  if (!call->watched) {
    add(line, ",\"forecast\":null");
    return;
  }
  add(line, ",\"forecast\":{\"path\":\"%s\"", policy_path_word(forecast->path));
  add_string(line, "rewrite", rewrite_word(forecast->rewrite));
  add_string(line, "reason", reason_code(forecast->reason));
  add_string(line, "send", reason_code(forecast->send));
  add_string(line, "recv", reason_code(forecast->recv));
  add(line, "}");
}

/* The clock that only moves on, as nanoseconds since the epoch. */
static uint64_t wall_clock(uint64_t clock)
{
  struct timespec now;

  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec - (audit_clock() - clock);
}

void audit_call(const struct audit_call *call)
{
  const struct policy_request *request = &call->request;
  struct line line;

  begin(&line, "call");
  add_comm(&line, call->comm);
  add(&line, ",\"seq\":%llu", (unsigned long long)call->sequence);
  add_string(&line, "op", policy_op_word(request->op));
  add_string(&line, "dtype", policy_dtype_word(request->dtype));
  add_string(&line, "redop", request->redop == POLICY_REDOP_none ? NULL : policy_redop_word(request->redop));
  add(&line, ",\"count\":%zu,\"bytes\":%llu,\"capture\":%s", call->count, (unsigned long long)request->bytes,
      call->capturing ? "true" : "false");
  add_string(&line, "path", policy_path_word(call->path));
  add_string(&line, "rewrite", rewrite_word(call->rewrite));
  add_string(&line, "reason", reason_code(call->reason));
  add(&line, ",\"start_ns\":%llu,\"host_ns\":%llu,\"call_ns\":%llu,\"since\":%llu",
      (unsigned long long)wall_clock(call->start_ns), (unsigned long long)call->host_ns,
      (unsigned long long)call->call_ns, (unsigned long long)call->since);
  add_string(&line, "observed", verify_word(call->observed));
  add_place(&line, "send", &call->send);
  add_place(&line, "recv", &call->recv);
  add_forecast(&line, call);
  end(&line);
}

struct tally tally_read(const struct tally *tally)
{
  enum { WORDS = sizeof(*tally) / sizeof(uint64_t) };
  const uint64_t *from = (const uint64_t *)tally;
  struct tally read;
  uint64_t *to = (uint64_t *)&read;

  for (int i = 0; i < WORDS; i++)
    to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
  return read;
}

static void count(uint64_t *counter, uint64_t more)
{
  __atomic_store_n(counter, *counter + more, __ATOMIC_RELAXED);
}

/* Numbers by reason, of those that occurred. */
static void add_reasons(struct line *line, const char *name, const struct tally *tally, const uint64_t *numbers)
{
  const char *separator = "";

  add(line, ",\"%s\":{", name);
  for (int reason = 0; reason < REASON_COUNT; reason++)
    if (tally->plain[reason] != 0) {
      add(line, "%s\"%s\":%llu", separator, reason_code((enum reason)reason), (unsigned long long)numbers[reason]);
      separator = ",";
    }
  add(line, "}");
}

void audit_summary(uint64_t comm, int nranks, enum policy_op op, const struct tally *tally)
{
  struct tally read = tally_read(tally);
  struct line line;

  if (read.calls == 0 || !audit_wants(POLICY_AUDIT_summary))
    return;
  begin(&line, "summary");
  add_comm(&line, comm);
  add(&line, ",\"nranks\":%d", nranks);
  add_string(&line, "op", policy_op_word(op));
  add(&line, ",\"calls\":%llu,\"bytes\":%llu,\"window_calls\":%llu,\"window_bytes\":%llu",
      (unsigned long long)read.calls, (unsigned long long)read.bytes, (unsigned long long)read.window_calls,
      (unsigned long long)read.window_bytes);
  add(&line, ",\"staged_calls\":%llu,\"staged_bytes\":%llu,\"host_ns\":%llu", (unsigned long long)read.staged_calls,
      (unsigned long long)read.staged_bytes, (unsigned long long)read.host_ns);
  add(&line, ",\"observed_symmetric_calls\":%llu,\"observed_plain_calls\":%llu,\"mismatched_calls\":%llu",
      (unsigned long long)read.observed_symmetric_calls, (unsigned long long)read.observed_plain_calls,
      (unsigned long long)read.mismatched_calls);
  add(&line, ",\"lost\":%llu", (unsigned long long)sink_lost());
  add_reasons(&line, "plain", &read, read.plain);
  add_reasons(&line, "plain_bytes", &read, read.plain_bytes);
  end(&line);
}

void tally_add(struct tally *tally, const struct audit_call *call)
{
  uint64_t bytes = call->request.bytes;

  count(&tally->calls, 1);
  count(&tally->bytes, bytes);
  count(&tally->host_ns, call->host_ns);
  if (call->path == POLICY_PATH_plain) {
    count(&tally->plain[call->reason], 1);
    count(&tally->plain_bytes[call->reason], bytes);
  } else if (call->path == POLICY_PATH_staged) {
    count(&tally->staged_calls, 1);
    count(&tally->staged_bytes, bytes);
  } else {
    count(&tally->window_calls, 1);
    count(&tally->window_bytes, bytes);
  }
  if (call->observed == OBSERVED_symmetric)
    count(&tally->observed_symmetric_calls, 1);
  else if (call->observed == OBSERVED_plain)
    count(&tally->observed_plain_calls, 1);
  if (call->observed == OBSERVED_plain && call->path != POLICY_PATH_plain)
    count(&tally->mismatched_calls, 1);
}

uint64_t audit_clock(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
