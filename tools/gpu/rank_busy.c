/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tools/gpu/rank.h"

/*
 * A launch is as long as a wave of a matrix product's blocks: a collective's blocks find room when it ends. Enough are
 * queued that the stream does not run dry while the host makes a call.
 */
enum { THREADS = 256, LAUNCH_US = 50, IN_FLIGHT = 8, MAX_LAUNCHES = 1024, LEAST_LAUNCHES = 4, FIRST_TURNS = 1 << 14 };

extern const char symmshim_busy_ptx[]; /* embed.S */

static struct {
  CUresult (*load)(CUmodule *, const void *);
  CUresult (*get_function)(CUfunction *, CUmodule, const char *);
  CUresult (*get_attribute)(int *, CUdevice_attribute, CUdevice);
  CUresult (*get_blocks)(int *, CUfunction, int, size_t);
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                     void **, void **);
} driver;

static CUfunction kernel;
static cudaStream_t busy_stream;
static cudaEvent_t start, ends[MAX_LAUNCHES];
static int launched;
static unsigned blocks;
static unsigned long long turns;
static double alone_us; /* of a launch; 0: there is no such kernel here */

static bool find_driver(void)
{
  const struct {
    const char *name;
    void *target;
  } wanted[] = {{"cuModuleLoadData", &driver.load},
                {"cuModuleGetFunction", &driver.get_function},
                {"cuDeviceGetAttribute", &driver.get_attribute},
                {"cuOccupancyMaxActiveBlocksPerMultiprocessor", &driver.get_blocks},
                {"cuLaunchKernel", &driver.launch}};

  for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
    void *found = driver_symbol(wanted[i].name);
    if (!found)
      return false;
    memcpy(wanted[i].target, &found, sizeof(found));
  }
  return true;
}

static void launch_one(void)
{
  void *never = NULL, *params[] = {&never, &turns};

  if (driver.launch(kernel, blocks, 1, 1, THREADS, 1, 1, 0, (CUstream)busy_stream, params, NULL) != CUDA_SUCCESS)
    give_up("rank %d: the busy kernel could not be launched", rank);
  CUDA(cudaEventRecord(ends[launched++], busy_stream));
}

/* Microseconds of one of so many launches with nothing beside them. */
static double time_alone(int count)
{
  float ms = 0;

  launched = 0;
  CUDA(cudaStreamSynchronize(busy_stream));
  CUDA(cudaEventRecord(start, busy_stream));
  for (int i = 0; i < count; i++)
    launch_one();
  CUDA(cudaStreamSynchronize(busy_stream));
  CUDA(cudaEventElapsedTime(&ms, start, ends[count - 1]));
  return (double)ms * 1e3 / count;
}

void busy_open(void)
{
  CUmodule module;
  int processors = 0, each = 0;

  if (!region->busy || driver_symbol("sim_is_simulation"))
    return;
  if (!find_driver() || driver.load(&module, symmshim_busy_ptx) != CUDA_SUCCESS ||
      driver.get_function(&kernel, module, "symmshim_busy") != CUDA_SUCCESS ||
      driver.get_attribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, rank) != CUDA_SUCCESS ||
      driver.get_blocks(&each, kernel, THREADS, 0) != CUDA_SUCCESS)
    give_up("rank %d: the driver does not take the busy kernel", rank);
  blocks = (unsigned)(processors * each);
  CUDA(cudaStreamCreateWithFlags(&busy_stream, 1)); /* cudaStreamNonBlocking */
  CUDA(cudaEventCreate(&start));
  for (int i = 0; i < MAX_LAUNCHES; i++)
    CUDA(cudaEventCreate(&ends[i]));
  turns = FIRST_TURNS;
  time_alone(20); /* the clocks rise */
  turns = (unsigned long long)(FIRST_TURNS * (LAUNCH_US / time_alone(20))) + 1;
  alone_us = time_alone(100);
}

void busy_begin(void)
{
  if (alone_us <= 0)
    return;
  launched = 0;
  CUDA(cudaStreamSynchronize(busy_stream));
  CUDA(cudaEventRecord(start, busy_stream));
  busy_feed();
}

void busy_feed(void)
{
  while (alone_us > 0 && launched < MAX_LAUNCHES &&
         (launched < IN_FLIGHT || cudaEventQuery(ends[launched - IN_FLIGHT]) == cudaSuccess))
    launch_one();
}

/* Only launches that had ended when the calls had. */
double busy_end(cudaEvent_t last)
{
  float all = 0, ms = 0, beside = 0;
  int count = 0;

  if (alone_us <= 0)
    return 0;
  CUDA(cudaStreamSynchronize(busy_stream));
  CUDA(cudaEventElapsedTime(&all, start, last));
  for (; count < launched; count++) {
    CUDA(cudaEventElapsedTime(&ms, start, ends[count]));
    if (ms > all)
      break;
    beside = ms;
  }
  return count < LEAST_LAUNCHES ? 0 : (double)beside * 1e3 / count / alone_us;
}
