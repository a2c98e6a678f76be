/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/preload/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int from_environment(const char *name, int otherwise)
{
  const char *text = getenv(name);

  return text && *text ? atoi(text) : otherwise;
}

int job_rank(void)
{
  return from_environment("RANK", 0);
}

int job_size(void)
{
  return from_environment("WORLD_SIZE", 1);
}

void job_fail(const char *format, ...)
{
  char text[512];
  va_list args;

  va_start(args, format);
  vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  fprintf(stderr, "job: rank %d: %s\n", job_rank(), text);
  _exit(2);
}
