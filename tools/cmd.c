/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cmd.h"

#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

static void print_error(char **argv, const char *format, va_list args) __attribute__((format(printf, 2, 0)));

static void print_error(char **argv, const char *format, va_list args)
{
  fprintf(stderr, "%s: ", argv[0]);
  vfprintf(stderr, format, args);
}

void cmd_error(char **argv, const char *format, ...)
{
  va_list args;

  va_start(args, format);
  print_error(argv, format, args);
  va_end(args);
  fputc('\n', stderr);
}

int cmd_usage_error(char **argv, const char *format, ...)
{
  va_list args;

  va_start(args, format);
  print_error(argv, format, args);
  va_end(args);
  fprintf(stderr, " (see %s --help)\n", argv[0]);
  return CMD_USAGE;
}

const char *cmd_style(FILE *stream, const char *code)
{
  static char sequences[4][12];
  static unsigned next;
  const char *no_color = getenv("NO_COLOR");
  char *sequence = sequences[next++ % 4];

  if ((no_color && no_color[0] != '\0') || !isatty(fileno(stream)))
    return "";
  snprintf(sequence, sizeof(sequences[0]), "\033[%sm", code);
  return sequence;
}

void cmd_print_policy_error(const char *path, const struct policy_error *error)
{
  if (error->line > 0)
    fprintf(stderr, "%s:%d: %s\n", path, error->line, error->message);
  else
    fprintf(stderr, "%s: %s\n", path, error->message);
}

int cmd_load_policy(const char *wanted, struct policy *policy, char path[CMD_MAX_PATH])
{
  struct policy_error error;
  int rc;

  if (wanted) {
    snprintf(path, CMD_MAX_PATH, "%s", wanted);
  } else if (policy_find(path, CMD_MAX_PATH) == 0) {
    policy_default(policy);
    path[0] = '\0';
    return 0;
  }
  rc = policy_read(policy, path, &error);
  if (rc < 0)
    cmd_print_policy_error(path, &error);
  return rc;
}

const char *cmd_format_bytes(uint64_t bytes, char *text, size_t size)
{
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;

  while (unit < 6 && bytes >> (10 * (unit + 1)) > 0)
    unit++;
  if ((bytes & (((uint64_t)1 << (10 * unit)) - 1)) == 0)
    snprintf(text, size, "%llu %s", (unsigned long long)(bytes >> (10 * unit)), units[unit]);
  else
    snprintf(text, size, "%.1f %s", (double)bytes / (double)((uint64_t)1 << (10 * unit)), units[unit]);
  return text;
}
