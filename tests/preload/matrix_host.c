/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program without CUDA and NCCL, which opens libraries and calls into them as its arguments say, one after the other:
 *
 *   local:FILE, global:FILE, deep:FILE   opens a library
 *   close                                closes the one opened last
 *   evict                                likewise, and takes the addresses that become free: a library that is opened
 *                                        again lies elsewhere, and what still points to its old place points to nothing
 *   run:LABEL, first:LABEL               makes the assertion program's calls, in the library opened last, or first
 *   weak                                 calls what the library opened last has weak references to
 *   find:NAME                            looks a function up with RTLD_DEFAULT, and calls it
 */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_OPEN = 8, MAX_RANGES = 512, PAGE = 4096 };

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

static struct range {
  uintptr_t start;
  size_t size;
} ranges[MAX_RANGES];
static int range_count;

/* Where the parts of an object lie. */
static int note_ranges(struct dl_phdr_info *info, size_t size, void *data)
{
  (void)size;
  (void)data;
  for (int i = 0; i < info->dlpi_phnum && range_count < MAX_RANGES; i++) {
    uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, end = start + info->dlpi_phdr[i].p_memsz;
    if (info->dlpi_phdr[i].p_type != PT_LOAD)
      continue;
    start &= ~(uintptr_t)(PAGE - 1);
    ranges[range_count++] = (struct range){start, (end - start + PAGE - 1) & ~(size_t)(PAGE - 1)};
  }
  return 0;
}

static int close_last(void)
{
  return count > 0 && dlclose(opened[--count]) == 0 ? 0 : refuse("close");
}

static int evict(void)
{
  int taken = 0;

  range_count = 0;
  dl_iterate_phdr(note_ranges, NULL);
  if (close_last() != 0)
    return 65;
  /* What is still loaded stays as it is: nothing is replaced. */
  for (int i = 0; i < range_count; i++)
    taken += mmap((void *)ranges[i].start, ranges[i].size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                  -1, 0) != MAP_FAILED;
  return taken > 0 ? 0 : refuse("evict: nothing was unloaded");
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
    return close_last();
  case 'e':
    return evict();
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
