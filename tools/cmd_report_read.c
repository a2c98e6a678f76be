/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "tools/cmd_report.h"

/* Whose calls: an op of a communicator in a process. Compared as bytes, so it must be zeroed first. */
struct source_key {
  int64_t pid;
  int32_t op;
  char comm[20]; /* 16 hex digits */
};

/* What one source says: in its last summary, which is cumulative, and in its call records. */
struct source {
  struct source_key key;
  bool has_summary;
  struct report_op summary;
  struct report_op seen;
  UT_hash_handle hh;
};

/* A file that is being read. */
struct reader {
  struct report *report;
  struct source *sources; /* uthash */
};

/* Returns the index of a reason code, -EINVAL when it is none or there are too many. */
static int find_reason(struct report *report, const char *code)
{
  size_t length = strlen(code);

  if (length == 0 || length >= REPORT_MAX_REASON)
    return -EINVAL;
  for (int i = 0; i < report->reason_count; i++)
    if (strcmp(report->reasons[i], code) == 0)
      return i;
  if (report->reason_count == REPORT_MAX_REASONS)
    return -EINVAL;
  memcpy(report->reasons[report->reason_count], code, length + 1);
  return report->reason_count++;
}

/* A member that must be a whole number from 0 on. */
static int get_count(const json_t *object, const char *name, uint64_t *count)
{
  const json_t *value = json_object_get(object, name);

  if (!json_is_integer(value) || json_integer_value(value) < 0)
    return -EINVAL;
  *count = (uint64_t)json_integer_value(value);
  return 0;
}

static const char *get_string(const json_t *object, const char *name)
{
  return json_string_value(json_object_get(object, name));
}

/* The source that a record is of, made when it is new; NULL when the record does not say. */
static struct source *get_source(struct reader *reader, const json_t *record)
{
  const char *comm = get_string(record, "comm");
  const char *op = get_string(record, "op");
  struct source_key key;
  struct source *source;
  uint64_t pid;

  memset(&key, 0, sizeof(key));
  if (!comm || !op || strlen(comm) >= sizeof(key.comm) || get_count(record, "pid", &pid) < 0)
    return NULL;
  key.pid = (int64_t)pid;
  key.op = policy_op_value(op);
  if (key.op < 0)
    return NULL;
  memcpy(key.comm, comm, strlen(comm));
  HASH_FIND(hh, reader->sources, &key, sizeof(key), source);
  if (source)
    return source;
  source = calloc(1, sizeof(*source));
  if (!source)
    return NULL;
  source->key = key;
  HASH_ADD(hh, reader->sources, key, sizeof(key), source);
  return source;
}

/* {CODE: calls, ...} */
static int read_plain(struct report *report, json_t *plain, struct report_op *op)
{
  const char *code;
  json_t *calls;

  if (!json_is_object(plain))
    return -EINVAL;
  json_object_foreach(plain, code, calls)
  {
    int reason = find_reason(report, code);

    if (reason < 0 || get_count(plain, code, &op->plain[reason]) < 0)
      return -EINVAL;
  }
  return 0;
}

static int read_summary(struct reader *reader, const json_t *record)
{
  struct report_op op = {0};
  struct source *source;

  if (get_count(record, "calls", &op.calls) < 0 || get_count(record, "bytes", &op.bytes) < 0 ||
      get_count(record, "window_calls", &op.window_calls) < 0 ||
      get_count(record, "window_bytes", &op.window_bytes) < 0 || op.window_calls > op.calls ||
      op.window_bytes > op.bytes || read_plain(reader->report, json_object_get(record, "plain"), &op) < 0)
    return -EINVAL;
  source = get_source(reader, record);
  if (!source)
    return -EINVAL;
  source->summary = op;
  source->has_summary = true;
  return 0;
}

static int read_call(struct reader *reader, const json_t *record)
{
  const char *path = get_string(record, "path");
  bool plain = path && strcmp(path, "plain") == 0;
  struct source *source;
  uint64_t bytes;
  int reason = 0;

  if (!path || get_count(record, "bytes", &bytes) < 0)
    return -EINVAL;
  if (plain) {
    const char *code = get_string(record, "reason");

    reason = code ? find_reason(reader->report, code) : -EINVAL;
    if (reason < 0)
      return -EINVAL;
  }
  source = get_source(reader, record);
  if (!source)
    return -EINVAL;
  source->seen.calls++;
  source->seen.bytes += bytes;
  source->seen.window_calls += !plain;
  source->seen.window_bytes += plain ? 0 : bytes;
  source->seen.plain[reason] += plain;
  return 0;
}

/* Events that this program does not know are fine: schema 1 may get more of them. */
static int read_record(struct reader *reader, const json_t *record)
{
  const char *event = get_string(record, "event");

  if (!event)
    return -EINVAL;
  if (strcmp(event, "summary") == 0)
    return read_summary(reader, record);
  if (strcmp(event, "call") == 0)
    return read_call(reader, record);
  return 0;
}

static void read_line(struct reader *reader, const char *line, size_t length)
{
  json_t *record = json_loadb(line, length, JSON_REJECT_DUPLICATES, NULL);
  json_t *schema = json_object_get(record, "schema");

  if (!json_is_integer(schema)) {
    reader->report->skipped++;
  } else if (json_integer_value(schema) != REPORT_SCHEMA) {
    reader->report->skipped++;
    reader->report->unknown_schema++;
  } else if (read_record(reader, record) < 0) {
    reader->report->skipped++;
  } else {
    reader->report->records++;
  }
  json_decref(record);
}

/* One line into `line`; what does not fit is only counted in `length`. Returns whether there was one. */
static bool get_line(FILE *file, char *line, size_t size, size_t *length)
{
  int c;

  *length = 0;
  while ((c = getc_unlocked(file)) != EOF && c != '\n') {
    if (*length < size)
      line[*length] = (char)c;
    ++*length;
  }
  return c != EOF || *length > 0;
}

static bool next_line(FILE *file, struct reader *reader, char *line)
{
  size_t length;

  if (!get_line(file, line, REPORT_MAX_LINE, &length))
    return false;
  if (length >= REPORT_MAX_LINE)
    reader->report->skipped++;
  else if (length > 0)
    read_line(reader, line, length);
  return true;
}

static void add_op(struct report_op *sum, const struct report_op *op)
{
  sum->calls += op->calls;
  sum->bytes += op->bytes;
  sum->window_calls += op->window_calls;
  sum->window_bytes += op->window_bytes;
  for (int i = 0; i < REPORT_MAX_REASONS; i++)
    sum->plain[i] += op->plain[i];
}

/* Adds up and frees the file's sources. */
static void end_file(struct reader *reader)
{
  struct source *source, *next;

  HASH_ITER(hh, reader->sources, source, next)
  {
    struct report_op *op = &reader->report->ops[source->key.op];

    add_op(op, source->has_summary ? &source->summary : &source->seen);
    op->unfinished += !source->has_summary;
    HASH_DEL(reader->sources, source);
    free(source);
  }
}

int report_read(struct report *report, const char *path)
{
  static char line[REPORT_MAX_LINE];
  struct reader reader = {.report = report};
  FILE *file = fopen(path, "re");
  int rc;

  if (!file)
    return -errno;
  errno = 0;
  while (next_line(file, &reader, line))
    ;
  rc = ferror(file) ? -(errno != 0 ? errno : EIO) : 0;
  fclose(file);
  end_file(&reader);
  return rc;
}
