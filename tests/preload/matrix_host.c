/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program without CUDA and NCCL, which opens libraries and calls into them as its arguments say, one after the other:
 *
 *   local:FILE, global:FILE, deep:FILE   opens a library
 *   close                                closes the one opened last
 *   run:LABEL, first:LABEL               makes the assertion program's calls, in the library opened last, or first
 *   weak                                 calls what the library opened last has weak references to
 *   find:NAME                            looks a function up with RTLD_DEFAULT, and calls it
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPEN = 8 };

static void *opened[MAX_OPEN];
static int count;

static int refuse(const char *what)
{
  const char *error = dlerror();

  fprintf(stderr, "host: %s: %s\n", what, error ? error : "not understood");
  return 65;
}

static int open_library(const char *path, int how)
{
  void *handle = count < MAX_OPEN ? dlopen(path, RTLD_NOW | how) : NULL;

  if (!handle)
    return refuse(path);
  opened[count++] = handle;
  return 0;
}

static int run(int which, const char *label)
{
  union {
    void *object;
    int (*function)(const char *scenario, const char *label);
  } entry = {which >= 0 ? dlsym(opened[which], "matrix_main") : NULL};

  return entry.object ? entry.function("calls", label) : refuse(label);
}

static int weak(void)
{
  union {
    void *object;
    int (*function)(void);
  } entry = {count > 0 ? dlsym(opened[count - 1], "matrix_weak") : NULL};

  return entry.object ? entry.function() : refuse("weak");
}

/* With so many zeros, whatever its parameters are. */
static int find(const char *name)
{
  union {
    void *object;
    unsigned (*function)(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l,
                         long m, long n, long o, long p, long q, long r, long s, long t, long u, long v, long w,
                         long x);
  } found = {dlsym(RTLD_DEFAULT, name)};

  if (found.object)
    printf("%s: %u\n", name,
           found.function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  else
    printf("%s: none\n", name);
  fflush(stdout);
  return 0;
}

static int step(const char *word)
{
  const char *colon = strchr(word, ':'), *rest = colon ? colon + 1 : "";

  switch (word[0]) {
  case 'l':
    return open_library(rest, RTLD_LOCAL);
  case 'g':
    return open_library(rest, RTLD_GLOBAL);
  case 'd':
    return open_library(rest, RTLD_LOCAL | RTLD_DEEPBIND);
  case 'c':
    return count > 0 && dlclose(opened[--count]) == 0 ? 0 : refuse(word);
  case 'r':
    return run(count - 1, rest);
  case 'w':
    return weak();
  default:
    return strncmp(word, "find", 4) == 0 ? find(rest) : run(count > 0 ? 0 : -1, rest);
  }
}

int main(int argc, char **argv)
{
  int status = 0;

  for (int i = 1; i < argc && status == 0; i++)
    status = step(argv[i]);
  return status;
}
