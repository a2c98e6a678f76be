/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1, and with -DFAKE_NCCL a libnccl.so.2, that answer as FAKE_GPU says, a list of words: what `symmshim
 * doctor` makes of machines that are not at hand. Contexts taken and given back are written to the file FAKE_LOG.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wmissing-declarations"

static int says(const char *word)
{
  const char *words = getenv("FAKE_GPU");

  return words && strstr(words, word) != NULL;
}

#ifdef FAKE_NCCL
unsigned int ncclGetVersion(int *version)
{
  *version = says("old_nccl") ? 22603 : 22809;
  return says("nccl_fails");
}
void ncclCommWindowRegister(void)
{
}
#else
static void note(const char *what)
{
  int fd = open(getenv("FAKE_LOG") ? getenv("FAKE_LOG") : "/dev/null", O_WRONLY | O_APPEND | O_CREAT, 0600);

  dprintf(fd, "%s\n", what);
  close(fd);
}
unsigned int cuInit(unsigned int flags)
{
  if (says("hangs_up"))
    abort();
  return flags != 0 || says("no_device") ? 100 : 0;
}
unsigned int cuDriverGetVersion(int *version)
{
  *version = says("old_driver") ? 10020 : 12040;
  return 0;
}
unsigned int cuDeviceGetCount(int *count)
{
  *count = says("one_gpu") ? 1 : 2;
  return 0;
}
unsigned int cuDeviceGetName(char *name, int size, int device)
{
  (void)device;
  snprintf(name, (size_t)size, "Fake GPU");
  return 0;
}
unsigned int cuDeviceGetAttribute(int *value, unsigned int attribute, int device)
{
  (void)device;
  *value = attribute == 132 ? says("nvls") : !says("no_vmm");
  return 0;
}
unsigned int cuDevicePrimaryCtxRetain(void **context, int device)
{
  (void)device;
  note("retain");
  *context = NULL;
  return 0;
}
unsigned int cuDevicePrimaryCtxRelease_v2(int device)
{
  (void)device;
  note("release");
  return 0;
}
unsigned int cuCtxPushCurrent_v2(void *context)
{
  (void)context;
  return 0;
}
unsigned int cuCtxPopCurrent_v2(void **context)
{
  *context = NULL;
  return 0;
}
unsigned int cuMemGetAllocationGranularity(size_t *size, const void *properties, unsigned int option)
{
  (void)properties;
  (void)option;
  *size = 2 << 20;
  return 0;
}
unsigned int cuMemCreate(unsigned long long *handle, size_t size, const unsigned int *properties,
                         unsigned long long flags)
{
  (void)flags;
  if (size != 2 << 20)
    return 1;
  *handle = 7;
  note("create");
  return says("full") ? 2 : properties[1] == 8 && !says("fabric") ? 800 : 0;
}
unsigned int cuMemExportToShareableHandle(int *fd, unsigned long long handle, unsigned int type,
                                          unsigned long long flags)
{
  (void)flags;
  (void)type;
  *fd = open("/dev/null", O_RDONLY);
  return says("no_export") ? 1 : handle != 7;
}
unsigned int cuMemRelease(unsigned long long handle)
{
  note("free");
  return handle != 7;
}
unsigned int cuMulticastCreate(void)
{
  note("multicast");
  return 0;
}
unsigned int cuDeviceCanAccessPeer(int *can, int a, int b)
{
  *can = a != b && !says("apart");
  return 0;
}
unsigned int cuDeviceGetP2PAttribute(int *value, unsigned int attribute, int a, int b)
{
  (void)a;
  (void)b;
  *value = attribute == 3 && !says("pcie");
  return 0;
}
#endif
