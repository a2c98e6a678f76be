/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that has neither the CUDA runtime nor NCCL: both come in with a plugin, as with Python's extension
 * modules. Arguments: how the plugin is opened (local, global, deep), the plugin, then the job's own.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
  union {
    void *object;
    int (*function)(int argc, char **argv);
  } entry = {NULL};
  int how = argc < 3            ? 0
            : argv[1][0] == 'g' ? RTLD_GLOBAL
            : argv[1][0] == 'd' ? RTLD_LOCAL | RTLD_DEEPBIND
                                : RTLD_LOCAL;
  void *plugin = argc < 3 ? NULL : dlopen(argv[2], RTLD_NOW | how);

  if (plugin)
    entry.object = dlsym(plugin, "job_main");
  if (!entry.object) {
    fprintf(stderr, "host: %s\n", dlerror());
    return 65;
  }
  return entry.function(argc - 2, argv + 2);
}
