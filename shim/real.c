/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/real.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shim/log.h"

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

/* `symbol` as `path`, which is loaded, and its dependencies have it. */
static void *find_from(const char *path, const char *symbol)
{
  void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD), *found = NULL;

  if (!handle)
    return NULL;
  found = dlsym(handle, symbol);
  dlclose(handle);
  return found;
}

static const char *loaded_path(enum library library)
{
  struct search search = {.name = library_names[library]};

  dl_iterate_phdr(match_object, &search);
  return search.path;
}

static void *find_in_loaded(enum library library, const char *symbol)
{
  const char *path = loaded_path(library);

  return path ? find_from(path, symbol) : NULL;
}

/* A function that is kept must not lose its library: a caller may be unloaded and loaded again. */
static const char *pin(void *function)
{
  Dl_info info;

  if (!dladdr(function, &info) || !dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD))
    return NULL;
  return info.dli_fname;
}

/* More than one copy of NCCL is worth a line: a communicator stays with the copy that made it. */
static void tell_copies(enum library library, const char *path)
{
  static const char *first;
  static bool told;
  const char *none = NULL;

  if (library != LIBRARY_NCCL || !path ||
      __atomic_compare_exchange_n(&first, &none, path, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return;
  if (strcmp(none, path) != 0 && !__atomic_exchange_n(&told, true, __ATOMIC_RELAXED))
    log_info("two copies of NCCL are in use: %s and %s; each communicator stays with its own", none, path);
}

static bool nccl_called; /* the first call looks for its function */

/* `object` is an address in the object that calls, or NULL. */
static void *find(const void *object, enum library library, const char *symbol)
{
  int saved_errno = errno;
  void *found = dlsym(RTLD_NEXT, symbol);
  Dl_info info;

  if (library == LIBRARY_NCCL)
    __atomic_store_n(&nccl_called, true, __ATOMIC_RELAXED);
  if (!found && object && dladdr(object, &info))
    found = find_from(info.dli_fname, symbol);
  if (!found)
    found = find_in_loaded(library, symbol);
  if (found)
    tell_copies(library, pin(found));
  errno = saved_errno;
  return found;
}

/* The functions of one calling object. */
struct scope {
  struct real real; /* first: a scope is told from its functions */
  const void *object;
};

static const void *object_of(const struct real *real)
{
  return ((const struct scope *)(const void *)real)->object;
}

/* Behind each pointer stands, at first, a function of the same type that finds the real one and calls it. */
#define REAL_FIRST(library, name, ret, params, args, missing)                                                          \
  static ret first_##name params                                                                                       \
  {                                                                                                                    \
    union {                                                                                                            \
      void *object;                                                                                                    \
      ret(*function) params;                                                                                           \
    } found = {.object = find(object_of(guard.real), LIBRARY_##library, #name)};                                       \
                                                                                                                       \
    if (!found.object)                                                                                                 \
      return missing;                                                                                                  \
    __atomic_store_n(&guard.real->name, found.function, __ATOMIC_RELAXED);                                             \
    return found.function args;                                                                                        \
  }
HOOKS(REAL_FIRST)
CALLED(REAL_FIRST)

#define REAL_INITIAL(library, name, ret, params, args, missing) .name = first_##name,
#define SCOPE_INITIAL                                                                                                  \
  {                                                                                                                    \
    .real = { HOOKS(REAL_INITIAL) CALLED(REAL_INITIAL) }                                                               \
  }

enum {
  SCOPES = 64,   /* calling objects that are told apart; the rest share the first scope, which is nobody's */
  CALLERS = 4096 /* return addresses remembered; a power of two */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* writers of the tables; the loader is not called under it */
static struct scope scopes[SCOPES] = {SCOPE_INITIAL};
static int scope_count = 1;
static struct caller {
  const void *address; /* NULL: free */
  struct real *real;
} callers[CALLERS];

void real_after_fork(void)
{
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

static struct real *scope_of(const void *object)
{
  static const struct scope initial = SCOPE_INITIAL;
  struct scope *scope = &scopes[0];
  int i = 1;

  pthread_mutex_lock(&lock);
  while (i < scope_count && scopes[i].object != object)
    i++;
  if (i < SCOPES)
    scope = &scopes[i];
  if (i == scope_count && i < SCOPES) {
    *scope = initial;
    scope->object = object;
    scope_count++;
  }
  pthread_mutex_unlock(&lock);
  return &scope->real;
}

static void remember(struct caller *slot, const void *address, struct real *real)
{
  pthread_mutex_lock(&lock);
  if (!slot->address) {
    slot->real = real;
    __atomic_store_n(&slot->address, address, __ATOMIC_RELEASE); /* pairs with the acquire in real_of() */
  }
  pthread_mutex_unlock(&lock);
}

struct real *real_of(const void *caller)
{
  enum { PROBES = 8 };
  uint32_t at = (uint32_t)((uintptr_t)caller * 0x9e3779b97f4a7c15ULL >> 32);
  struct caller *free_slot = NULL;
  struct real *real = &scopes[0].real;
  int saved_errno = errno;
  Dl_info info;

  for (uint32_t i = 0; i < PROBES && !free_slot; i++) {
    struct caller *slot = &callers[(at + i) & (CALLERS - 1)];
    const void *address = __atomic_load_n(&slot->address, __ATOMIC_ACQUIRE);
    if (address == caller)
      return slot->real;
    if (!address)
      free_slot = slot;
  }
  if (dladdr(caller, &info))
    real = scope_of(info.dli_fbase);
  if (free_slot)
    remember(free_slot, caller, real);
  errno = saved_errno;
  return real;
}

#define REAL_PLACE(library, name, ret, params, args, missing) {#name, LIBRARY_##library},
static const struct {
  const char *name;
  enum library library;
} places[] = {HOOKS(REAL_PLACE) CALLED(REAL_PLACE)};

bool real_exists(const char *name)
{
  for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
    if (strcmp(places[i].name, name) == 0)
      return find(object_of(guard.real), places[i].library, name) != NULL;
  return false;
}

const char *real_uncalled(void)
{
  const char *path = loaded_path(LIBRARY_NCCL);

  if (__atomic_load_n(&nccl_called, __ATOMIC_RELAXED))
    return NULL;
  return path ? path : loaded_path(LIBRARY_CUDA);
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
    void *found = find(NULL, LIBRARY_CUDA, driver_places[i].name);
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
