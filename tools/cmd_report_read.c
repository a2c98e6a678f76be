/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/cmd_report.h"

enum { PROGRESS_BYTES = 4 << 20 };

static const struct {
  const char *event;
  int (*add)(struct report *report, struct report_process *process, const json_t *record);
} events[] = {{"start", report_add_start},
              {"comm", report_add_comm},
              {"window", report_add_window},
              {"call", report_add_call},
              {"summary", report_add_summary}};

/* Events that this program does not know are fine: schema 1 may get more of them. */
static int read_record(struct report *report, const json_t *record)
{
  const char *event = report_get_string(record, "event");
  struct report_process *process;
  int rc;

  if (!event)
    return -EINVAL;
  for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
    if (strcmp(event, events[i].event) != 0)
      continue;
    process = report_process_of(report, record);
    if (!process)
      return -EINVAL;
    rc = events[i].add(report, process, record);
    if (rc == 0 && report->see)
      report->see(report->see_data, process, record);
    return rc;
  }
  return 0;
}

/* Returns whether the line was understood. */
static bool read_line(struct report *report, const char *line, size_t length)
{
  json_t *record = json_loadb(line, length, JSON_REJECT_DUPLICATES, NULL);
  json_t *schema = json_object_get(record, "schema");
  bool known = json_is_integer(schema) && json_integer_value(schema) == REPORT_SCHEMA;
  bool good = known && read_record(report, record) == 0;

  report->unknown_schema += json_is_integer(schema) && !known;
  report->records += good;
  report->skipped += !good;
  json_decref(record);
  return good;
}

/* What is left of a file, and how far it was read. */
struct reader {
  FILE *file;
  bool ended; /* the line had an end */
  uint64_t bytes;
};

/* One line into `line`; what does not fit is only counted in `length`. Returns whether there was one. */
static bool get_line(struct reader *reader, char *line, size_t size, size_t *length)
{
  int c;

  *length = 0;
  while ((c = getc_unlocked(reader->file)) != EOF && c != '\n') {
    if (*length < size)
      line[*length] = (char)c;
    ++*length;
  }
  reader->ended = c == '\n';
  reader->bytes += *length + reader->ended;
  return reader->ended || *length > 0;
}

static bool next_line(struct report *report, struct reader *reader, char *line)
{
  size_t length;
  bool good = true;

  if (!get_line(reader, line, REPORT_MAX_LINE, &length))
    return false;
  if (length >= REPORT_MAX_LINE) {
    report->skipped++;
    good = false;
  } else if (length > 0) {
    good = read_line(report, line, length);
  }
  report->cut_off += !good && !reader->ended;
  return true;
}

static void tell(const struct report *report, struct reader *reader, bool at_end)
{
  if (!report->progress || (!at_end && reader->bytes < PROGRESS_BYTES))
    return;
  report->progress(report->progress_data, reader->bytes);
  reader->bytes = 0;
}

int report_read(struct report *report, const char *path)
{
  static char line[REPORT_MAX_LINE];
  struct reader reader = {.file = fopen(path, "re")};
  int rc;

  if (!reader.file)
    return -errno;
  report->files++;
  errno = 0;
  while (next_line(report, &reader, line))
    tell(report, &reader, false);
  tell(report, &reader, true);
  rc = ferror(reader.file) ? -(errno != 0 ? errno : EIO) : 0;
  fclose(reader.file);
  return rc;
}
