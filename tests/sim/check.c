/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/check.h"

#include <unistd.h>

static char trace_path[4096];

struct job job_start(void)
{
  struct job job = {.rank = sim_bootstrap_rank(), .size = sim_bootstrap_size()};
  CHECK_OK(cudaSetDevice(job.rank));
  CHECK_OK(cudaStreamCreateWithFlags(&job.stream, CU_STREAM_NON_BLOCKING));
  CHECK_OK(ncclCommInitRank(&job.comm, job.size, sim_bootstrap_id(job.rank), job.rank));
  return job;
}

void job_end(struct job *job)
{
  CHECK_OK(ncclCommDestroy(job->comm));
  CHECK_OK(cudaStreamDestroy(job->stream));
}

void *segment_create(size_t size)
{
  int device;
  CUmemGenericAllocationHandle handle;
  CUdeviceptr base;
  CHECK_OK(cudaGetDevice(&device));
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
  CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK_OK(cuMemCreate(&handle, size, &prop, 0));
  CHECK_OK(cuMemAddressReserve(&base, size, 0, 0, 0));
  CHECK_OK(cuMemMap(base, size, 0, handle, 0));
  CHECK_OK(cuMemSetAccess(base, size, &access, 1));
  CHECK_OK(cuMemRelease(handle));
  return (void *)(uintptr_t)base;
}

void segment_free(void *segment, size_t size)
{
  CHECK_OK(cuMemUnmap((uintptr_t)segment, size));
  CHECK_OK(cuMemAddressFree((uintptr_t)segment, size));
}

ncclWindow_t window_create(const struct job *job, void *segment, size_t size)
{
  ncclWindow_t window = NULL;
  CHECK_OK(ncclCommWindowRegister(job->comm, segment, size, &window, NCCL_WIN_COLL_SYMMETRIC));
  CHECK(window != NULL);
  return window;
}

int scenario_main(int argc, char **argv, const struct scenario *scenarios, size_t count)
{
  for (size_t i = 0; i < count && argc == 2; i++)
    if (strcmp(scenarios[i].name, argv[1]) == 0) {
      scenarios[i].run();
      return 0;
    }
  fprintf(stderr, "usage: %s SCENARIO\n", argv[0]);
  return 2;
}

void trace_start(void)
{
  const char *directory = getenv("SIM_RUN_DIR");
  char pattern[4096];
  snprintf(pattern, sizeof(pattern), "%s/trace.%%p", directory ? directory : "/tmp");
  snprintf(trace_path, sizeof(trace_path), "%s/trace.%d", directory ? directory : "/tmp", (int)getpid());
  setenv("SIM_TRACE", pattern, 1);
}

int trace_count(const char *text)
{
  char line[1024];
  int count = 0;
  FILE *file = fopen(trace_path, "re");
  CHECK(file != NULL);
  while (fgets(line, sizeof(line), file))
    count += strstr(line, text) != NULL;
  fclose(file);
  return count;
}
