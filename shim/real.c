/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/real.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

enum library { LIBRARY_CUDART, LIBRARY_NCCL, LIBRARY_CUDA };

static const char *const library_names[] = {
    [LIBRARY_CUDART] = "libcudart.so",
    [LIBRARY_NCCL] = "libnccl.so",
    [LIBRARY_CUDA] = "libcuda.so",
};

struct search {
  const char *name;
  const char *path; /* of the loaded object; owned by the link map, which outlives the search */
};

static int match_object(struct dl_phdr_info *info, size_t size, void *data)
{
  struct search *search = data;
  const char *slash = strrchr(info->dlpi_name, '/');
  const char *base = slash ? slash + 1 : info->dlpi_name;

  (void)size;
  if (strncmp(base, search->name, strlen(search->name)) != 0)
    return 0;
  search->path = info->dlpi_name;
  return 1;
}

static void *find_in_loaded(enum library library, const char *symbol)
{
  struct search search = {.name = library_names[library]};
  void *handle, *found;

  dl_iterate_phdr(match_object, &search);
  if (!search.path)
    return NULL;
  handle = dlopen(search.path, RTLD_LAZY | RTLD_NOLOAD);
  if (!handle)
    return NULL;
  found = dlsym(handle, symbol);
  /* A found function keeps its library loaded; the handle is then never closed. */
  if (!found)
    dlclose(handle);
  return found;
}

static void *find(enum library library, const char *symbol)
{
  int saved_errno = errno;
  void *found = dlsym(RTLD_NEXT, symbol);

  if (!found)
    found = find_in_loaded(library, symbol);
  errno = saved_errno;
  return found;
}

/* Behind each pointer stands, at first, a function of the same type that finds the real one and calls it. */
#define REAL_FIRST(library, name, ret, params, args, missing)                                                          \
  static ret first_##name params                                                                                       \
  {                                                                                                                    \
    union {                                                                                                            \
      void *object;                                                                                                    \
      ret(*function) params;                                                                                           \
    } found = {.object = find(LIBRARY_##library, #name)};                                                              \
                                                                                                                       \
    if (!found.object)                                                                                                 \
      return missing;                                                                                                  \
    __atomic_store_n(&real.name, found.function, __ATOMIC_RELAXED);                                                    \
    return found.function args;                                                                                        \
  }
HOOKS(REAL_FIRST)
CALLED(REAL_FIRST)

#define REAL_INITIAL(library, name, ret, params, args, missing) .name = first_##name,
struct real real = {HOOKS(REAL_INITIAL) CALLED(REAL_INITIAL)};

#define REAL_PLACE(library, name, ret, params, args, missing) {#name, LIBRARY_##library},
static const struct {
  const char *name;
  enum library library;
} places[] = {HOOKS(REAL_PLACE) CALLED(REAL_PLACE)};

bool real_exists(const char *name)
{
  for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
    if (strcmp(places[i].name, name) == 0)
      return find(places[i].library, name) != NULL;
  return false;
}

#define DRIVER_PLACE(name, params) {#name, offsetof(struct driver, name)},
static const struct {
  const char *name;
  size_t offset;
} driver_places[] = {ABI_DRIVER_FUNCTIONS(DRIVER_PLACE)};

const struct driver *real_driver(void)
{
  static const struct driver *ready;
  const struct driver *known = __atomic_load_n(&ready, __ATOMIC_ACQUIRE); /* pairs with the exchange below */
  struct driver *driver;

  if (known)
    return known;
  /* No lock of ours is held while the loader takes its own: a library's constructor may be calling us inside it. */
  driver = malloc(sizeof(*driver));
  for (size_t i = 0; driver && i < sizeof(driver_places) / sizeof(driver_places[0]); i++) {
    void *found = find(LIBRARY_CUDA, driver_places[i].name);
    if (!found) {
      free(driver);
      return NULL;
    }
    memcpy((char *)driver + driver_places[i].offset, &found, sizeof(found));
  }
  if (driver && !__atomic_compare_exchange_n(&ready, &known, driver, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    free(driver); /* another thread was first */
    return known;
  }
  return driver;
}
