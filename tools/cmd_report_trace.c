/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace that opens beside PyTorch's. Both have times of the same clock (CLOCK_REALTIME) in microseconds, and from
 * torch 2.4 on PyTorch takes them from a base that its file names, baseTimeNanoseconds: the last whole three months
 * since the epoch (libkineto's ChromeTraceBaseTime), so that a double holds nanoseconds. So does this file.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cmd_report.h"

enum { BASE_SECONDS = 7889238 /* three of libkineto's months of 2629746 s */ };

/* Threads of the process's row that no thread of the job has; Linux has none above 4194304. */
enum { CALLS_TRACK = 1000000000, SETUP_TRACK };

/* The first file in which a process number occurred: another host may have the same number. */
struct owner {
  int32_t pid, file;
  UT_hash_handle hh;
};
enum { ANOTHERS = 10000000 }; /* above all process numbers */

struct report_trace {
  FILE *file;
  struct owner *owners;
  double base;             /* seconds; 0: not known yet */
  bool any;                /* an event was written */
  int last_file, last_pid; /* whose tracks have names */
};

struct report_trace *report_trace_open(const char *path)
{
  struct report_trace *trace = calloc(1, sizeof(*trace));

  if (!trace)
    return NULL;
  trace->file = fopen(path, "we");
  if (!trace->file) {
    free(trace);
    return NULL;
  }
  return trace;
}

static void write_base(struct report_trace *trace, double time)
{
  trace->base = (double)((int64_t)time / BASE_SECONDS * BASE_SECONDS);
  fprintf(trace->file, "{\"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": %.0f, \"traceEvents\": [",
          trace->base * 1e9);
}

/* Takes the event over. */
static void write_event(struct report_trace *trace, json_t *event)
{
  if (!event)
    return;
  fputs(trace->any ? ",\n" : "\n", trace->file);
  json_dumpf(event, trace->file, JSON_COMPACT);
  json_decref(event);
  trace->any = true;
}

/* The number under which a process stands in the trace: its own, as in PyTorch's, unless that is taken. */
static json_int_t number_of(struct report_trace *trace, const struct report_process *process)
{
  struct owner *owner;

  HASH_FIND(hh, trace->owners, &process->key.pid, sizeof(process->key.pid), owner);
  if (!owner) {
    owner = calloc(1, sizeof(*owner));
    if (!owner)
      return process->key.pid;
    owner->pid = process->key.pid;
    owner->file = process->key.file;
    HASH_ADD(hh, trace->owners, pid, sizeof(owner->pid), owner);
  }
  return process->key.pid + (owner->file == process->key.file ? 0 : (json_int_t)process->key.file * ANOTHERS);
}

static void write_name(struct report_trace *trace, json_int_t pid, int track, const char *what, const char *name)
{
  write_event(trace, json_pack("{s:s, s:s, s:I, s:i, s:{s:s}}", "ph", "M", "name", what, "pid", pid, "tid", track,
                               "args", "name", name));
}

/* Each time that lines of another process follow: naming twice does no harm. */
static void name_tracks(struct report_trace *trace, const struct report_process *process)
{
  json_int_t pid = number_of(trace, process);
  char name[128];

  if (trace->last_file == process->key.file && trace->last_pid == process->key.pid)
    return;
  trace->last_file = process->key.file;
  trace->last_pid = process->key.pid;
  snprintf(name, sizeof(name), "rank %d%s%s, process %d", process->rank, process->host[0] ? " on " : "", process->host,
           process->key.pid);
  write_name(trace, pid, CALLS_TRACK, "process_name", name);
  snprintf(name, sizeof(name), "symmshim rank %d", process->rank);
  write_name(trace, pid, CALLS_TRACK, "thread_name", name);
  snprintf(name, sizeof(name), "symmshim rank %d, setting up", process->rank);
  write_name(trace, pid, SETUP_TRACK, "thread_name", name);
}

static double round_ns(double microseconds)
{
  return (double)(int64_t)(microseconds * 1000 + 0.5) / 1000;
}

/* The line was written when what it tells of was over. */
static void add_slice(struct report_trace *trace, const struct report_process *process, const json_t *record,
                      const char *name, const char *category, int track, uint64_t ns)
{
  double end = (json_number_value(json_object_get(record, "time")) - trace->base) * 1e6, length = (double)ns / 1000;
  json_t *arguments = json_deep_copy(record);

  for (const char *const *member = (const char *const[]){"schema", "event", "time", "pid", NULL}; *member; member++)
    json_object_del(arguments, *member);
  write_event(trace, json_pack("{s:s, s:s, s:s, s:I, s:i, s:f, s:f, s:o}", "ph", "X", "cat", category, "name", name,
                               "pid", number_of(trace, process), "tid", track, "ts",
                               round_ns(end > length ? end - length : 0), "dur", length, "args", arguments));
}

/* What the shim arranged and NCCL did not do: a mark that stands out of the whole process. */
static void add_alarm(struct report_trace *trace, const struct report_process *process, const json_t *record,
                      const char *op)
{
  double time = (json_number_value(json_object_get(record, "time")) - trace->base) * 1e6;

  write_event(trace, json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:f, s:s}", "ph", "i", "s", "p", "cat",
                               "symmshim_mismatch", "name", op, "pid", number_of(trace, process), "tid", CALLS_TRACK,
                               "ts", round_ns(time), "cname", "terrible"));
}

static void add_call(struct report_trace *trace, const struct report_process *process, const json_t *record)
{
  const char *op = report_get_string(record, "op"), *path = report_get_string(record, "path");
  const char *reason = report_get_string(record, "reason"), *observed = report_get_string(record, "observed");
  bool mismatched = path && strcmp(path, "plain") != 0 && observed && strcmp(observed, "plain") == 0;
  uint64_t ns = 0;
  char name[128];

  report_get_count(record, "host_ns", &ns);
  snprintf(name, sizeof(name), "%s %s%s%s%s%s%s", op ? op : "?", path ? path : "?", reason ? ": " : "",
           reason ? reason : "", observed ? ", seen " : "", observed ? observed : "", mismatched ? ": MISMATCH" : "");
  if (mismatched)
    add_alarm(trace, process, record, name);
  add_slice(trace, process, record, name, "symmshim", CALLS_TRACK, ns);
}

void report_trace_add(void *data, const struct report_process *process, const json_t *record)
{
  struct report_trace *trace = data;
  const char *event = report_get_string(record, "event");
  double time = json_number_value(json_object_get(record, "time"));
  bool call = strcmp(event, "call") == 0, window = strcmp(event, "window") == 0;
  uint64_t ns = 0;

  if (!(time > 0 && time < 1e12) || !(call || window || strcmp(event, "comm") == 0))
    return;
  if (trace->base == 0)
    write_base(trace, time);
  name_tracks(trace, process);
  report_get_count(record, "setup_ns", &ns);
  if (call)
    add_call(trace, process, record);
  else
    add_slice(trace, process, record, window ? "register window" : "set up communicator", "symmshim_setup", SETUP_TRACK,
              ns);
}

int report_trace_close(struct report_trace *trace)
{
  struct owner *owner, *next;
  int rc;

  if (trace->base == 0)
    write_base(trace, 0);
  fputs("\n]}\n", trace->file);
  rc = ferror(trace->file) ? -EIO : 0;
  if (fclose(trace->file) != 0 && rc == 0)
    rc = -errno;
  HASH_ITER(hh, trace->owners, owner, next)
  {
    HASH_DEL(trace->owners, owner);
    free(owner);
  }
  free(trace);
  return rc;
}
