/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/control.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A second copy of a library in one process keeps its record apart. */
#ifndef CONTROL_TRACE
#define CONTROL_TRACE "SIM_TRACE"
#endif

enum { MAX_RULES = 32, DEFAULT_CODE = 2, DEFAULT_ASYNC_CODE = 6 };

enum rule_kind { RULE_FAIL, RULE_DELAY, RULE_ASYNC };

/* DEFAULT_CODE is out of memory for CUDA, and ncclSystemError for NCCL; DEFAULT_ASYNC_CODE is ncclRemoteError. */
struct rule {
  char function[48];
  unsigned long nth; /* 0: every call */
  enum rule_kind kind;
  long value; /* the code, or milliseconds */
  atomic_ulong calls;
};

static pthread_once_t control_once = PTHREAD_ONCE_INIT;
static struct rule rules[MAX_RULES];
static size_t rule_count;
static int trace_fd = -1;
static __thread unsigned int injected;

void control_die(const char *format, ...)
{
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  dprintf(STDERR_FILENO, "sim: %s\n", text);
  abort();
}

/* One "func:nth[@rankR][=value]". A rule for another rank is dropped here. */
static void rule_parse(const char *text, const char *variable, enum rule_kind kind)
{
  struct rule *rule = &rules[rule_count];
  const char *colon = strchr(text, ':');
  if (!colon || colon == text || (size_t)(colon - text) >= sizeof(rule->function))
    control_die("%s: \"%s\" is not func:nth[@rankR][=value]", variable, text);
  if (rule_count == MAX_RULES)
    control_die("%s: more than %d rules", variable, MAX_RULES);

  memcpy(rule->function, text, (size_t)(colon - text));
  rule->function[colon - text] = '\0';
  rule->kind = kind;
  rule->value = kind == RULE_ASYNC ? DEFAULT_ASYNC_CODE : DEFAULT_CODE;

  char *at = (char *)colon + 1;
  if (*at == '*')
    at++;
  else
    rule->nth = strtoul(at, &at, 10);
  bool ours = true;
  if (*at == '@') {
    at += strncmp(at, "@rank", 5) == 0 ? 5 : 1;
    long rank = strtol(at, &at, 10);
    const char *own = getenv("RANK");
    ours = own && strtol(own, NULL, 10) == rank;
  }
  if (*at == '=')
    rule->value = strtol(at + 1, &at, 10);
  else if (kind == RULE_DELAY)
    control_die("%s: \"%s\" has no =milliseconds", variable, text);
  if (*at != '\0')
    control_die("%s: \"%s\" is not func:nth[@rankR][=value]", variable, text);
  if (ours)
    rule_count++;
  else
    memset(rule->function, 0, sizeof(rule->function));
}

static void rules_parse(const char *variable, enum rule_kind kind)
{
  const char *text = getenv(variable);
  if (!text || !*text)
    return;
  char *copy = strdup(text);
  char *rest = NULL;
  for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest))
    rule_parse(item, variable, kind);
  free(copy);
}

/* With %p for the process and %r for the rank. */
static void trace_open(void)
{
  const char *pattern = getenv(CONTROL_TRACE);
  if (!pattern || !*pattern)
    return;
  char path[4096];
  size_t used = 0;
  for (const char *at = pattern; *at && used < sizeof(path) - 16; at++) {
    const char *rank = getenv("RANK");
    if (at[0] == '%' && at[1] == 'p' && at++)
      used += (size_t)snprintf(path + used, 16, "%ld", (long)getpid());
    else if (at[0] == '%' && at[1] == 'r' && at++)
      used += (size_t)snprintf(path + used, 16, "%s", rank ? rank : "none");
    else
      path[used++] = *at;
  }
  path[used] = '\0';
  trace_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (trace_fd < 0)
    control_die(CONTROL_TRACE ": cannot open \"%s\": %s", path, strerror(errno));
}

static void control_start(void)
{
  rules_parse("SIM_FAIL", RULE_FAIL);
  rules_parse("SIM_DELAY", RULE_DELAY);
  rules_parse("SIM_ASYNC_ERROR", RULE_ASYNC);
  trace_open();
}

bool control_enter(const char *name)
{
  pthread_once(&control_once, control_start);
  bool fail = false;
  for (size_t i = 0; i < rule_count; i++) {
    struct rule *rule = &rules[i];
    if (rule->kind == RULE_ASYNC || strcmp(rule->function, name) != 0)
      continue;
    unsigned long call = atomic_fetch_add_explicit(&rule->calls, 1, memory_order_relaxed) + 1;
    if (rule->nth != 0 && rule->nth != call)
      continue;
    if (rule->kind == RULE_DELAY) {
      nanosleep(&(struct timespec){.tv_sec = rule->value / 1000, .tv_nsec = rule->value % 1000 * 1000000}, NULL);
    } else {
      injected = (unsigned int)rule->value;
      fail = true;
    }
  }
  return fail;
}

unsigned int control_async(const char *kind)
{
  pthread_once(&control_once, control_start);
  unsigned int code = 0;
  for (size_t i = 0; i < rule_count; i++) {
    struct rule *rule = &rules[i];
    if (rule->kind != RULE_ASYNC || strcmp(rule->function, kind) != 0)
      continue;
    unsigned long call = atomic_fetch_add_explicit(&rule->calls, 1, memory_order_relaxed) + 1;
    if (call >= rule->nth)
      code = (unsigned int)rule->value;
  }
  return code;
}

unsigned int control_injected(void)
{
  return injected;
}

/* One write(2) a line, so that lines of several processes and threads never mix. */
static void trace_write(char *line, size_t size, size_t used)
{
  if (used > size - 2)
    used = size - 2;
  line[used++] = '\n';
  ssize_t written = write(trace_fd, line, used);
  (void)written;
}

unsigned int control_leave(const char *name, unsigned int result, const char *format, ...)
{
  if (trace_fd < 0)
    return result;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  size_t used = (size_t)snprintf(line, sizeof(line), "%s ", name);
  used += (size_t)vsnprintf(line + used, sizeof(line) - used, format, arguments);
  va_end(arguments);
  if (used < sizeof(line))
    used += (size_t)snprintf(line + used, sizeof(line) - used, " -> %u", result);
  trace_write(line, sizeof(line), used);
  return result;
}

void control_note(const char *format, ...)
{
  pthread_once(&control_once, control_start);
  if (trace_fd < 0)
    return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  size_t used = (size_t)vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  trace_write(line, sizeof(line), used);
}

size_t control_env_size(const char *name, size_t otherwise)
{
  const char *text = getenv(name);
  if (!text || !*text)
    return otherwise;
  char *end;
  unsigned long long value = strtoull(text, &end, 10);
  switch (*end) {
  case 'G':
    value <<= 10;
    /* fall through */
  case 'M':
    value <<= 10;
    /* fall through */
  case 'K':
    value <<= 10;
    end++;
    break;
  default:
    break;
  }
  if (end == text || *end != '\0')
    control_die("%s: \"%s\" is not a size", name, text);
  return (size_t)value;
}
