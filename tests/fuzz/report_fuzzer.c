/* SPDX-License-Identifier: Apache-2.0 */
/* The report's reader: any bytes are an audit log, each of whose lines is either understood or counted as skipped. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tools/cmd_report.h"

/* A file without a folder, rewritten for each input; its path opens it anew. */
static const char *path_of(const uint8_t *data, size_t size)
{
  static char path[64];
  static int fd = -1;

  if (fd < 0) {
    fd = memfd_create("report", MFD_CLOEXEC);
    MUST(fd >= 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  }
  MUST(ftruncate(fd, 0) == 0);
  MUST(pwrite(fd, data, size, 0) == (ssize_t)size);
  return path;
}

static uint64_t lines_with_bytes(const uint8_t *data, size_t size)
{
  uint64_t lines = 0;

  for (size_t i = 0; i < size; i++)
    lines += data[i] != '\n' && (i == 0 || data[i - 1] == '\n');
  return lines;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static struct report report;

  report_free(&report);
  memset(&report, 0, sizeof(report));
  MUST(report_read(&report, path_of(data, size)) == 0);
  MUST(report.records + report.skipped == lines_with_bytes(data, size));
  MUST(report.unknown_schema <= report.skipped);
  MUST(report.cut_off <= 1 && report.cut_off <= report.skipped);
  report_finish(&report);
  MUST(report.reason_count >= 0 && report.reason_count <= REPORT_MAX_REASONS);
  for (int i = 0; i < report.reason_count; i++)
    MUST(report.reasons[i][0] != '\0' && memchr(report.reasons[i], '\0', REPORT_MAX_REASON));
  for (int i = 0; i < POLICY_OP_COUNT; i++)
    for (int reason = report.reason_count; reason < REPORT_MAX_REASONS; reason++)
      MUST(report.ops[i].plain[reason] == 0);
  return 0;
}
