/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver says, asked in a child process: a context that the probe makes goes with it. The driver is opened at
 * run time, so that the tool runs where there is none. Nothing here makes a multicast object: a probe of NVLS in use by
 * a job is not harmless.
 */
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "tools/cmd_doctor.h"

enum {
  ATTRIBUTE_VMM = 102,
  ATTRIBUTE_POSIX_HANDLE = 103,
  ATTRIBUTE_MULTICAST = 132,
  P2P_NATIVE_ATOMICS = 3, /* over NVLink, not over PCIe */
  HANDLE_POSIX = 1,
  HANDLE_FABRIC = 8,
  OLDEST_DRIVER = 11020 /* whose NCCL-shareable allocations are whole */
};

/* Of cuda.h, of which nothing is needed to build this. */
typedef unsigned int result_t;
struct location {
  unsigned int type;
  int id;
};
struct properties {
  unsigned int type, handles;
  struct location location;
  void *unused;
  unsigned char flags[8];
};
_Static_assert(sizeof(struct properties) == 32, "CUmemAllocationProp has another size");

#define DRIVER(X)                                                                                                      \
  X(cuInit, (unsigned int))                                                                                            \
  X(cuDriverGetVersion, (int *))                                                                                       \
  X(cuDeviceGetCount, (int *))                                                                                         \
  X(cuDeviceGetName, (char *, int, int))                                                                               \
  X(cuDeviceGetAttribute, (int *, unsigned int, int))                                                                  \
  X(cuDevicePrimaryCtxRetain, (void **, int))                                                                          \
  X(cuDevicePrimaryCtxRelease_v2, (int))                                                                               \
  X(cuCtxPushCurrent_v2, (void *))                                                                                     \
  X(cuCtxPopCurrent_v2, (void **))                                                                                     \
  X(cuMemGetAllocationGranularity, (size_t *, const struct properties *, unsigned int))                                \
  X(cuMemCreate, (unsigned long long *, size_t, const struct properties *, unsigned long long))                        \
  X(cuMemExportToShareableHandle, (void *, unsigned long long, unsigned int, unsigned long long))                      \
  X(cuMemRelease, (unsigned long long))                                                                                \
  X(cuDeviceCanAccessPeer, (int *, int, int))                                                                          \
  X(cuDeviceGetP2PAttribute, (int *, unsigned int, int, int))

#define MEMBER(name, parameters) result_t(*name) parameters;
static struct {
  DRIVER(MEMBER)
} driver;

static void load(void *library)
{
#define LOAD(name, parameters) *(void **)&driver.name = dlsym(library, #name);
  DRIVER(LOAD)
}

/* Whether all are there but those that only tell how GPUs are connected. */
static bool is_whole(void)
{
  return driver.cuInit && driver.cuDriverGetVersion && driver.cuDeviceGetCount && driver.cuDeviceGetName &&
         driver.cuDeviceGetAttribute && driver.cuDevicePrimaryCtxRetain && driver.cuDevicePrimaryCtxRelease_v2 &&
         driver.cuCtxPushCurrent_v2 && driver.cuCtxPopCurrent_v2 && driver.cuMemGetAllocationGranularity &&
         driver.cuMemCreate && driver.cuMemExportToShareableHandle && driver.cuMemRelease;
}

/* Number of GPUs, 0 when there is nothing to go on with. */
static int check_driver(struct doctor *doctor)
{
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  int version = 0, count = 0;
  result_t result;

  if (!library) {
    doctor_say(doctor, "driver", DOCTOR_NO,
               "Install NVIDIA's driver; in a container, start it with GPUs (docker run --gpus all).",
               "libcuda.so.1 cannot be loaded: %s", dlerror());
    return 0;
  }
  load(library);
  if (!is_whole()) {
    doctor_say(doctor, "driver", DOCTOR_NO, "Use a driver of CUDA 11.2 or newer.",
               "libcuda.so.1 lacks functions of CUDA's virtual memory management");
    return 0;
  }
  result = driver.cuInit(0);
  if (result != 0) {
    doctor_say(doctor, "driver", DOCTOR_NO, "See whether nvidia-smi works for this user, here.",
               "cuInit failed with error %u", result);
    return 0;
  }
  driver.cuDriverGetVersion(&version);
  driver.cuDeviceGetCount(&count);
  doctor_say(doctor, "driver", version >= OLDEST_DRIVER ? DOCTOR_OK : DOCTOR_NO,
             version >= OLDEST_DRIVER ? NULL : "Use a driver of CUDA 11.2 or newer.", "CUDA %d.%d%s", version / 1000,
             version % 1000 / 10, dlsym(library, "sim_is_simulation") ? " (simulated)" : "");
  return count;
}

static void check_count(struct doctor *doctor, int count)
{
  char name[96] = "?";

  driver.cuDeviceGetName(name, sizeof(name), 0);
  if (count < 2)
    doctor_say(doctor, "gpus", DOCTOR_NO, "Nothing is exchanged on one GPU; see CUDA_VISIBLE_DEVICES.",
               "%d is visible: %s", count, name);
  else
    doctor_say(doctor, "gpus", DOCTOR_OK, NULL, "%d, the first is %s", count, name);
}

static void check_peers(struct doctor *doctor, int count)
{
  int pairs = 0, apart = 0, atomics = 0, first = 0, second = 0;

  if (!driver.cuDeviceCanAccessPeer) {
    doctor_say(doctor, "peer_access", DOCTOR_UNKNOWN, "See nvidia-smi topo -p2p r.", "this driver does not tell");
    return;
  }
  for (int a = 0; a < count; a++)
    for (int b = 0; b < count; b++) {
      int can = 0, native = 0;

      if (a == b)
        continue;
      pairs++;
      if (driver.cuDeviceCanAccessPeer(&can, a, b) != 0 || !can) {
        first = apart++ == 0 ? a : first;
        second = apart == 1 ? b : second;
      } else if (driver.cuDeviceGetP2PAttribute &&
                 driver.cuDeviceGetP2PAttribute(&native, P2P_NATIVE_ATOMICS, a, b) == 0) {
        atomics += native != 0;
      }
    }
  if (pairs == 0)
    return;
  if (apart > 0)
    doctor_say(
        doctor, "peer_access", DOCTOR_NO,
        "Use GPUs that reach each other (nvidia-smi topo -p2p r); IOMMU, ACS and virtual machines can forbid it.",
        "GPU %d cannot reach the memory of GPU %d (%d of %d pairs cannot)", first, second, apart, pairs);
  else
    doctor_say(doctor, "peer_access", DOCTOR_OK, NULL, "every GPU reaches the memory of every other");
  /* NCCL has symmetric kernels over PCIe too, but the policy's figures are from NVLink. */
  if (apart == 0 && atomics == pairs)
    doctor_say(doctor, "nvlink", DOCTOR_OK, NULL, "every pair of GPUs has native atomics, as over NVLink");
  else if (apart == 0)
    doctor_say(doctor, "nvlink", DOCTOR_UNKNOWN,
               "Measure before relying on the built-in policy, which was measured on NVLink.",
               "%d of %d pairs of GPUs have native atomics, as over NVLink; the rest may be on PCIe", atomics, pairs);
}

/* A tiny allocation that is given back at once. Returns CUDA's error. */
static result_t try_create(int device, unsigned int handles)
{
  struct properties properties = {.type = 1, .handles = handles, .location = {1, device}};
  unsigned long long handle;
  size_t size = 0;
  int fd = -1;
  result_t result = driver.cuMemGetAllocationGranularity(&size, &properties, 0);

  if (result == 0)
    result = driver.cuMemCreate(&handle, size, &properties, 0);
  if (result != 0)
    return result;
  if (handles == HANDLE_POSIX)
    result = driver.cuMemExportToShareableHandle(&fd, handle, HANDLE_POSIX, 0);
  if (fd >= 0)
    close(fd);
  driver.cuMemRelease(handle);
  return result;
}

static result_t probe_device(int device, result_t *fabric)
{
  void *context;
  result_t result = driver.cuDevicePrimaryCtxRetain(&context, device);

  if (result != 0)
    return result;
  result = driver.cuCtxPushCurrent_v2(context);
  if (result == 0) {
    result = try_create(device, HANDLE_POSIX);
    *fabric = try_create(device, HANDLE_FABRIC);
    driver.cuCtxPopCurrent_v2(&context);
  }
  driver.cuDevicePrimaryCtxRelease_v2(device);
  return result;
}

static void check_memory(struct doctor *doctor, int count)
{
  result_t fabric = 0;

  for (int device = 0; device < count; device++) {
    result_t result;
    int vmm = 0, posix = 0;

    driver.cuDeviceGetAttribute(&vmm, ATTRIBUTE_VMM, device);
    driver.cuDeviceGetAttribute(&posix, ATTRIBUTE_POSIX_HANDLE, device);
    result = vmm && posix ? probe_device(device, &fabric) : 0;
    if (vmm && posix && result == 0)
      continue;
    if (result == 2)
      doctor_say(doctor, "vmm", DOCTOR_UNKNOWN, "Ask again when the GPU has memory free.",
                 "GPU %d has no memory free for a probe", device);
    else
      doctor_say(doctor, "vmm", DOCTOR_NO,
                 "Use GPUs and a driver with CUDA's virtual memory management; some virtual GPUs have none.",
                 "GPU %d %s (error %u)", device, vmm && posix ? "cannot share an allocation" : "does not support it",
                 result);
    return;
  }
  doctor_say(doctor, "vmm", DOCTOR_OK, NULL, "an allocation can be shared by file descriptor on every GPU");
  if (fabric == 0)
    doctor_say(doctor, "fabric", DOCTOR_OK, NULL, "fabric handles work too");
  else
    doctor_say(doctor, "fabric", DOCTOR_OK, NULL, "fabric handles are refused (error %u), and not needed", fabric);
}

static void check_multicast(struct doctor *doctor, int count)
{
  int all = count;

  for (int device = 0; device < count; device++) {
    int supported = 0;

    driver.cuDeviceGetAttribute(&supported, ATTRIBUTE_MULTICAST, device);
    all -= !supported;
  }
  if (all == count)
    doctor_say(doctor, "nvls", DOCTOR_OK, NULL, "multicast is supported by every GPU");
  else
    doctor_say(doctor, "nvls", DOCTOR_OK, NULL,
               "%d of %d GPUs support multicast: NCCL takes kernels that load and store", all, count);
}

static void probe(struct doctor *doctor, void *data)
{
  int count = check_driver(doctor);

  (void)data;
  if (doctor->checks[doctor->count - 1].answer != DOCTOR_OK)
    return;
  check_count(doctor, count);
  if (count == 0)
    return;
  check_peers(doctor, count);
  check_memory(doctor, count);
  check_multicast(doctor, count);
}

void doctor_gpu(struct doctor *doctor)
{
  doctor_in_child(doctor, "driver", probe, NULL);
}
