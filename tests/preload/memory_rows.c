/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of one device, on which nothing runs but what a row itself begins. */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "tests/preload/memory_table.h"

static void run_free(void)
{
  say("free", cudaFree(take()));
}

static void free_twice(void)
{
  void *memory = take();

  say("free", cudaFree(memory));
  say("again", cudaFree(memory));
}

static void free_interior(void)
{
  char *memory = take();

  say("interior", cudaFree(memory + 512));
  say("last", cudaFree(memory + LARGE - 1));
  say("memset", cudaMemset(memory, 1, LARGE));
  say("free", cudaFree(memory));
}

static void free_nothing(void)
{
  take();
  say("null", cudaFree(NULL));
}

static void free_foreign(void)
{
  void *host = NULL;
  int local = 0;

  take();
  say("stack", cudaFree(&local));
  say("malloc host", cudaMallocHost(&host, SMALL));
  say("free host", cudaFreeHost(host));
}

static void malloc_zero(void)
{
  void *memory = &memory;

  take();
  say("malloc", cudaMalloc(&memory, 0));
  say_number("null", memory == NULL);
}

static void malloc_nowhere(void)
{
  take();
  say("malloc", cudaMalloc(NULL, LARGE));
}

static void malloc_too_much(void)
{
  size_t free_bytes = 0, total = 0;
  void *memory = NULL;

  take();
  say("info", cudaMemGetInfo(&free_bytes, &total));
  say("more than all", cudaMalloc(&memory, total + LARGE));
  say("far more", cudaMalloc(&memory, (size_t)1 << 50));
  say("wraps", cudaMalloc(&memory, SIZE_MAX));
  say("free", cudaFree(take()));
}

/* A success does not touch what another call left. */
static void last_error_kept(void)
{
  void *memory;

  take();
  cudaSetDevice(999);
  memory = take();
  say("free", cudaFree(memory));
}

static void *free_there(void *memory)
{
  say("free", cudaFree(memory));
  return NULL;
}

static void free_on_thread(void)
{
  pthread_t thread;
  void *memory = take();

  pthread_create(&thread, NULL, free_there, memory);
  pthread_join(thread, NULL);
  say("again", cudaFree(memory));
}

static void say_attributes(const char *what, const void *pointer)
{
  union {
    struct cudaPointerAttributes attributes;
    char room[256]; /* CUDA 13's is longer */
  } got;

  memset(&got, 0, sizeof(got));
  say(what, cudaPointerGetAttributes(&got.attributes, pointer));
  say_number("type", got.attributes.type);
  say_number("device", got.attributes.device);
  say_number("device pointer", got.attributes.devicePointer == pointer);
  say_number("host pointer", got.attributes.hostPointer == pointer);
}

static void attributes(void)
{
  char *memory = take();

  say_attributes("base", memory);
  say_attributes("interior", memory + 12345);
  say_attributes("last", memory + LARGE - 1);
}

static void attributes_of_freed(void)
{
  char *memory = take();

  cudaFree(memory);
  say_attributes("freed", memory);
}

static size_t free_now(void)
{
  size_t free_bytes = 0, total = 0;

  cudaMemGetInfo(&free_bytes, &total);
  return free_bytes;
}

/* In units of 64 MiB, to the nearest: what contexts and page tables take is not the subject. */
static long units(size_t before, size_t after)
{
  const long unit = 64L * MIB;

  return ((long)before - (long)after + unit / 2) / unit;
}

static void info(void)
{
  void *memory[4];
  size_t before;

  take();
  before = free_now();
  for (int i = 0; i < 4; i++)
    say("malloc", cudaMalloc(&memory[i], (size_t)128 * MIB));
  say_number("taken", units(before, free_now()));
  for (int i = 0; i < 4; i++)
    say("free", cudaFree(memory[i]));
  say_number("left", units(before, free_now()));
}

static void free_as_host(void)
{
  void *memory = take();

  say("free host", cudaFreeHost(memory));
  say("free", cudaFree(memory));
}

static void host_unregister(void)
{
  union {
    void *object;
    cudaError_t (*function)(void *pointer);
  } unregister = {need("cudaHostUnregister")};
  char *memory = take();

  say("unregister", unregister.function(memory));
  say("interior", unregister.function(memory + 4096));
  say("free", cudaFree(memory));
}

static void host_register(void)
{
  union {
    void *object;
    cudaError_t (*function)(void *pointer, size_t size, unsigned int flags);
  } reg = {need("cudaHostRegister")};

  say("register", reg.function(take(), LARGE, 0));
}

static void host_pointer(void)
{
  union {
    void *object;
    cudaError_t (*function)(void **device, void *host, unsigned int flags);
  } get = {need("cudaHostGetDevicePointer")};
  void *device = NULL;

  say("pointer", get.function(&device, take(), 0));
}

static void managed(void)
{
  union {
    void *object;
    cudaError_t (*function)(void **pointer, size_t size, unsigned int flags);
  } allocate = {need("cudaMallocManaged")};
  void *memory = NULL;

  take();
  say("managed", allocate.function(&memory, LARGE, 1));
  say_attributes("it", memory);
  say("free", cudaFree(memory));
}

static void pitched(void)
{
  void *memory = NULL;
  size_t pitch = 0;

  take();
  say("pitched", cudaMallocPitch(&memory, &pitch, 1000, 4096));
  say_number("pitch", pitch >= 1000);
  say_attributes("it", memory);
  say("free", cudaFree(memory));
  say("again", cudaFree(memory));
}

static void copy_past_end(void)
{
  static char host[2 * LARGE];
  char *memory = take();

  say("whole", cudaMemcpy(memory, host, LARGE, 1));
  say("to", cudaMemcpy(memory, host, LARGE + 1, 1));
  say("from", cudaMemcpy(host, memory + LARGE - 1, 2, 2));
}

/* However tightly others lie around it. */
static void copy_into_next(void)
{
  static char host[2 * LARGE];
  char *memory[3] = {take(), take(), take()};

  for (int i = 0; i < 3; i++)
    say("to", cudaMemcpy(memory[i], host, LARGE + 1, 1));
}

static void odd_size(void)
{
  static char host[2 * LARGE];
  void *memory = NULL;

  take();
  say("malloc", cudaMalloc(&memory, LARGE - MIB + 512));
  say("whole", cudaMemcpy(memory, host, LARGE - MIB + 512, 1));
  say("beyond", cudaMemcpy(memory, host, LARGE - MIB + 8192, 1));
  say("free", cudaFree(memory));
}

static void reset(void)
{
  void *memory = take();

  say("reset", cudaDeviceReset());
  say("free the old", cudaFree(memory));
  memory = take();
  say("memset", cudaMemset(memory, 1, LARGE));
  say("free", cudaFree(memory));
  say("reset again", cudaDeviceReset());
}

static void reset_gives_back(void)
{
  void *memory = NULL;
  size_t before;

  take();
  cudaDeviceReset();
  take();
  before = free_now();
  for (int i = 0; i < 4; i++)
    say("malloc", cudaMalloc(&memory, (size_t)128 * MIB));
  say("reset", cudaDeviceReset());
  take();
  say_number("left", units(before, free_now()));
}

static void reset_first(void)
{
  say("reset", cudaDeviceReset());
  say("free", cudaFree(take()));
}

const struct row rows_alone[] = {
    {"free", run_free, 0, NULL},
    {"free_twice", free_twice, 0, NULL},
    {"free_interior", free_interior, 0, NULL},
    {"free_nothing", free_nothing, 0, NULL},
    {"free_foreign", free_foreign, 0, NULL},
    {"free_on_thread", free_on_thread, 0, NULL},
    {"malloc_zero", malloc_zero, 0, NULL},
    {"malloc_nowhere", malloc_nowhere, 0, NULL},
    {"malloc_too_much", malloc_too_much, 0, NULL},
    {"last_error_kept", last_error_kept, 0, NULL},
    {"attributes", attributes, 0, NULL},
    {"attributes_of_freed", attributes_of_freed, 0, NULL},
    {"info", info, 0, NULL},
    {"free_as_host", free_as_host, 0, NULL},
    {"host_unregister", host_unregister, 0, NULL},
    {"host_register", host_register, 0, NULL},
    {"host_pointer", host_pointer, 0,
     "cudaHostGetDevicePointer takes VMM memory for the host's and gives it back (driver 580, CUDA 13.0)"},
    {"managed", managed, 0, NULL},
    {"pitched", pitched, 0, NULL},
    {"copy_past_end", copy_past_end, 0, NULL},
    {"copy_into_next", copy_into_next, 0, NULL},
    {"odd_size", odd_size, 0, "the arena's memory comes in whole granules, 2 MiB, so a little beyond the end is there"},
    {"reset", reset, 0, NULL},
    {"reset_gives_back", reset_gives_back, 0, NULL},
    {"reset_first", reset_first, 0, NULL},
    {NULL, NULL, 0, NULL},
};
