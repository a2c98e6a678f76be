/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The strict front end before libinih. libinih takes more than symmshim.conf(5) allows and says little about
 * it: lines that are too long are cut and handed on, indented lines continue the value above, " ;" cuts a value,
 * "key: value" and an empty key pass, sections are cut to 49 bytes. So each line is looked at before libinih
 * sees it, and section heads are kept here; libinih then splits keys from values.
 */
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy/internal.h"

enum { MAX_LINE = 190 /* libinih 55 is built for 200, ends included */ };

int policy_fail(struct policy_parser *parser, int line, const char *format, ...)
{
  va_list args;

  parser->failed = true;
  parser->error->line = line;
  va_start(args, format);
  vsnprintf(parser->error->message, sizeof(parser->error->message), format, args);
  va_end(args);
  return -EINVAL;
}

static bool is_blank(char c)
{
  return c == ' ' || c == '\t';
}

/* The head of a section, from its '['. */
static int read_head(struct policy_parser *parser, char *line)
{
  char *end = strchr(line, ']');
  char name[MAX_LINE];

  if (!end)
    return policy_fail(parser, parser->line, "the section's head has no ']'");
  if (end[1 + strspn(end + 1, " \t")] != '\0')
    return policy_fail(parser, parser->line, "nothing may follow the ']' of a section's head");
  snprintf(name, sizeof(name), "%.*s", (int)(end - line - 1), line + 1);
  if (policy_section_leave(parser) < 0)
    return -EINVAL;
  return policy_section_enter(parser, name);
}

/* A "key = value" line, as far as libinih is too lenient with it. */
static int check_setting(struct policy_parser *parser, const char *line)
{
  const char *equals = line + strcspn(line, "=:");

  if (*equals == '\0')
    return policy_fail(parser, parser->line, "'%.40s' is not 'key = value', a [section] or a # comment", line);
  if (*equals == ':')
    return policy_fail(parser, parser->line, "use '=' between key and value, not ':'");
  if (equals == line)
    return policy_fail(parser, parser->line, "there is no key before the '='");
  if (!parser->section)
    return policy_fail(parser, parser->line, "a key stands before the first section; write [shim] or another above it");
  for (const char *c = line + 1; *c != '\0'; c++)
    if ((*c == ';' || *c == '#') && is_blank(c[-1]))
      return policy_fail(parser, parser->line, "a comment must have a line of its own ('%c' after a blank)", *c);
  return 0;
}

/* `length` bytes at `line`, without the line's end; `line` has a NUL behind them. */
static int check_line(struct policy_parser *parser, char *line, size_t length)
{
  if (memchr(line, '\0', length))
    return policy_fail(parser, parser->line, "the line has a NUL byte; the file must be text");
  if (line[strspn(line, " \t")] == '\0')
    return 0;
  if (line[0] == '#' || line[0] == ';')
    return 0;
  if (is_blank(line[0]))
    return policy_fail(parser, parser->line, "the line starts with a blank; sections, keys and comments must not");
  for (size_t i = 0; i < length; i++)
    if ((line[i] < ' ' && line[i] != '\t') || line[i] > '~')
      return policy_fail(parser, parser->line, "the line has a byte that is not plain ASCII; only comments may");
  return line[0] == '[' ? read_head(parser, line) : check_setting(parser, line);
}

/* fgets() for libinih: hands out the next line that is fit to be seen, NULL at the end or after an error. */
static char *next_line(char *line, int size, void *stream)
{
  struct policy_parser *parser = stream;
  const char *newline;
  size_t length, taken;

  if (parser->failed || parser->left == 0)
    return NULL;
  newline = memchr(parser->text, '\n', parser->left);
  length = newline ? (size_t)(newline - parser->text) : parser->left;
  taken = newline ? length + 1 : length;
  parser->line++;
  if (length > 0 && parser->text[length - 1] == '\r')
    length--;
  if (length > MAX_LINE || length + 2 > (size_t)size) {
    policy_fail(parser, parser->line, "the line is longer than %d bytes", MAX_LINE);
    return NULL;
  }
  memcpy(line, parser->text, length);
  line[length] = '\0';
  parser->text += taken;
  parser->left -= taken;
  if (check_line(parser, line, length) < 0)
    return NULL;
  memcpy(line + length, "\n", 2);
  return line;
}

/* libinih's handler: nonzero is success. */
static int take_setting(void *user, const char *section, const char *name, const char *value)
{
  struct policy_parser *parser = user;

  (void)section;
  if (value[0] == '\0')
    return policy_fail(parser, parser->line, "'%.40s' has no value; leave the line out to keep the default", name) == 0;
  return policy_section_set(parser, name, value) == 0;
}

/* Parses on top of what the parser's policy holds. */
static int parse(struct policy_parser *parser, const char *text, size_t length)
{
  static const char bom[] = {'\xef', '\xbb', '\xbf'};
  int rc;

  if (length > POLICY_MAX_FILE)
    return policy_fail(parser, 0, "the file is larger than %d bytes", POLICY_MAX_FILE);
  if (length >= sizeof(bom) && memcmp(text, bom, sizeof(bom)) == 0) {
    text += sizeof(bom);
    length -= sizeof(bom);
  }
  parser->text = text;
  parser->left = length;
  rc = ini_parse_stream(next_line, parser, take_setting, parser);
  if (rc != 0 && !parser->failed)
    return policy_fail(parser, rc > 0 ? rc : 0, "the line cannot be understood");
  if (!parser->failed)
    policy_section_leave(parser);
  if (parser->failed)
    return -EINVAL;
  parser->policy.hash = policy_hash(&parser->policy);
  return 0;
}

void policy_default(struct policy *policy)
{
  struct policy_error error;
  struct policy_parser parser = {.error = &error};

  for (int op = 0; op < POLICY_OP_COUNT; op++)
    parser.policy.ops[op] = (struct policy_action){POLICY_UNSET, POLICY_UNSET};
  /* The tests see to it that this succeeds. Were it to fail, an empty policy has no arena: all stays plain. */
  if (parse(&parser, policy_default_conf, policy_default_conf_size) < 0)
    memset(&parser.policy, 0, sizeof(parser.policy));
  *policy = parser.policy;
}

int policy_parse(struct policy *policy, const char *text, size_t length, struct policy_error *error)
{
  struct policy_parser parser = {.error = error};

  policy_default(&parser.policy);
  if (parse(&parser, text, length) < 0)
    return -EINVAL;
  *policy = parser.policy;
  return 0;
}

static int file_error(struct policy_error *error, int rc, const char *what)
{
  char buffer[128];

  error->line = 0;
  snprintf(error->message, sizeof(error->message), "%s: %s", what, strerror_r(-rc, buffer, sizeof(buffer)));
  return rc;
}

/* Reads up to `size` bytes. Returns their number or a negative errno. */
static ssize_t read_all(int fd, char *text, size_t size)
{
  size_t length = 0;

  while (length < size) {
    ssize_t got = read(fd, text + length, size - length);

    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return -errno;
    if (got == 0)
      break;
    length += (size_t)got;
  }
  return (ssize_t)length;
}

static int read_open(struct policy *policy, int fd, struct policy_error *error)
{
  struct stat status;
  ssize_t length;
  char *text;
  int rc;

  if (fstat(fd, &status) < 0)
    return file_error(error, -errno, "cannot be read");
  if (!S_ISREG(status.st_mode)) {
    *error = (struct policy_error){.message = "is not a regular file"};
    return -EINVAL;
  }
  /* One byte more than may be there: a file that grows meanwhile is too large, not cut off. */
  text = malloc(POLICY_MAX_FILE + 1);
  if (!text)
    return file_error(error, -ENOMEM, "cannot be read");
  length = read_all(fd, text, POLICY_MAX_FILE + 1);
  rc =
      length < 0 ? file_error(error, (int)length, "cannot be read") : policy_parse(policy, text, (size_t)length, error);
  free(text);
  return rc;
}

int policy_read(struct policy *policy, const char *path, struct policy_error *error)
{
  /* Without O_NONBLOCK a FIFO would wait here for a writer. */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  int rc;

  if (fd < 0)
    return file_error(error, -errno, "cannot be opened");
  rc = read_open(policy, fd, error);
  close(fd);
  return rc;
}
