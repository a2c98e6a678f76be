/* SPDX-License-Identifier: Apache-2.0 */
/* Which libsymmshim.so a command is about. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cmd.h"

#ifndef SYMMSHIM_LIBDIR
#error "the build defines SYMMSHIM_LIBDIR, the folder that libsymmshim.so is installed in"
#endif

int cmd_self_folder(char *folder, size_t size)
{
  ssize_t length = readlink("/proc/self/exe", folder, size - 1);
  char *slash;

  folder[length > 0 ? length : 0] = '\0';
  slash = strrchr(folder, '/');
  if (!slash)
    return -ENOENT;
  *slash = '\0';
  return 0;
}

/* libsymmshim.so of the build tree that this program runs from, else the installed one. Returns 0 or -errno. */
static int find_shim(char **argv, char shim[PATH_MAX])
{
  char self[PATH_MAX], near[PATH_MAX + 32];

  if (cmd_self_folder(self, sizeof(self)) == 0) {
    snprintf(near, sizeof(near), "%s/../shim/libsymmshim.so", self);
    if (realpath(near, shim))
      return 0;
  }
  snprintf(shim, PATH_MAX, "%s/libsymmshim.so", SYMMSHIM_LIBDIR);
  if (access(shim, F_OK) == 0)
    return 0;
  cmd_error(argv, "there is no libsymmshim.so in %s; name one with --shim", SYMMSHIM_LIBDIR);
  return -ENOENT;
}

int cmd_choose_shim(char **argv, const char *wanted, char *shim)
{
  if (!wanted) {
    int rc = find_shim(argv, shim);

    if (rc < 0)
      return rc;
  } else if (!realpath(wanted, shim)) {
    cmd_error(argv, "%s: %s", wanted, strerror(errno));
    return -ENOENT;
  }
  if (access(shim, R_OK) < 0) {
    cmd_error(argv, "%s: %s", shim, strerror(errno));
    return -EACCES;
  }
  /* The loader parts the list there, and cannot be told otherwise (ld.so(8)). */
  if (shim[strcspn(shim, ": \t\n")] != '\0') {
    cmd_error(argv, "LD_PRELOAD cannot hold a path with a colon or a blank in it: '%s'", shim);
    return -EINVAL;
  }
  return 0;
}
