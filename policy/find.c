/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "policy/policy.h"

static bool is_set(const char *value)
{
  return value && value[0] != '\0';
}

int policy_find(char *path, size_t size)
{
  const char *name = getenv("SYMMSHIM_POLICY");
  const char *home = getenv("HOME");
  int length;

  if (is_set(name)) {
    /* Whoever names a file wants that one: one that is not there is an error, which policy_read() tells. */
    snprintf(path, size, "%s", name);
    return 1;
  }
  if (is_set(home)) {
    length = snprintf(path, size, "%s/.config/symmshim/symmshim.conf", home);
    if (length > 0 && (size_t)length < size && access(path, F_OK) == 0)
      return 1;
  }
  length = snprintf(path, size, "%s", "/etc/symmshim.conf");
  if (length > 0 && (size_t)length < size && access(path, F_OK) == 0)
    return 1;
  if (size > 0)
    path[0] = '\0';
  return 0;
}
