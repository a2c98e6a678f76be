/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/life.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim/audit.h"
#include "shim/ipc.h"
#include "shim/log.h"
#include "shim/real.h"

enum life_mode life_state = LIFE_ASLEEP;

static struct policy policy;
static enum reason passive_reason, foreseen_reason;
static pthread_once_t once = PTHREAD_ONCE_INIT;

const struct policy *life_policy(void)
{
  return &policy;
}

enum reason life_passive_reason(void)
{
  return passive_reason;
}

enum reason life_foreseen_reason(void)
{
  return foreseen_reason;
}

/* SYMMSHIM: on when unset or empty; an unknown word is named and means off, the harmless reading. */
static enum life_mode wanted_mode(void)
{
  const char *word = getenv("SYMMSHIM");

  if (!word || !*word || strcmp(word, "on") == 0)
    return LIFE_ON;
  if (strcmp(word, "audit") == 0)
    return LIFE_AUDIT;
  if (strcmp(word, "off") != 0)
    log_warn("SYMMSHIM=%s is none of on, audit, off: taken as off", word);
  return LIFE_OFF;
}

/* A file with an error is named in one line; the job then runs as without the shim. Returns the path in force. */
static const char *load_policy(char *path, size_t size)
{
  struct policy_error error;

  policy_default(&policy);
  if (!policy_find(path, size))
    return NULL;
  if (policy_read(&policy, path, &error) == 0)
    return path;
  passive_reason = REASON_bad_policy;
  log_warn("%s:%d: %s (every call passes through)", path, error.line, error.message);
  return path;
}

static const char *file_name(const char *path)
{
  const char *slash = strrchr(path, '/');

  return slash ? slash + 1 : path;
}

/*
 * Takes the shim out of a list as ld.so takes it, with blanks and colons, in place: another thread may be reading the
 * environment, which setenv() would move under it.
 */
static void remove_from_list(char *list, const char *name)
{
  char *to = list;

  while (*list) {
    size_t length = strcspn(list, ": ");
    const char *slash = memrchr(list, '/', length);
    const char *base = slash ? slash + 1 : list;
    bool ours = strlen(name) == (size_t)(list + length - base) && memcmp(base, name, strlen(name)) == 0;
    size_t step = length + (list[length] != '\0');

    if (!ours) {
      memmove(to, list, step);
      to += step;
    }
    list += step;
  }
  *to = '\0';
}

/*
 * SYMMSHIM_CHILDREN=off: programs that this one starts do not get the shim. Only now, since a launcher, which makes no
 * call of CUDA's, has to hand it on.
 */
static void respect_children(void)
{
  const char *word = getenv("SYMMSHIM_CHILDREN");
  char *list = getenv("LD_PRELOAD");
  Dl_info info;

  if (!word || !*word || strcmp(word, "on") == 0)
    return;
  if (strcmp(word, "off") != 0)
    log_warn("SYMMSHIM_CHILDREN=%s is neither on nor off: taken as on", word);
  else if (list && dladdr(&life_state, &info) && info.dli_fname)
    remove_from_list(list, file_name(info.dli_fname));
}

static void wake(void)
{
  char path[4096];
  int saved_errno = errno;
  enum life_mode mode = wanted_mode();

  if (mode != LIFE_OFF) {
    const char *in_force = load_policy(path, sizeof(path));
    if (mode == LIFE_AUDIT) {
      foreseen_reason = passive_reason;
      passive_reason = REASON_audit_only;
    }
    audit_start(mode == LIFE_AUDIT ? "audit" : "on", in_force, &policy);
  }
  respect_children();
  errno = saved_errno;
  /* Pairs with the acquire in life_mode(): whoever sees the mode sees the policy. */
  __atomic_store_n(&life_state, mode, __ATOMIC_RELEASE);
}

enum life_mode life_wake(void)
{
  pthread_once(&once, wake);
  return __atomic_load_n(&life_state, __ATOMIC_ACQUIRE);
}

static bool forked;

/* CUDA cannot be used in a forked child of a process that used it, and the parent's windows are not the child's. */
static void fork_child(void)
{
  forked = true;
  real_after_fork();
  ipc_after_fork();
  if (life_state != LIFE_ASLEEP)
    __atomic_store_n(&life_state, LIFE_OFF, __ATOMIC_RELEASE);
}

__attribute__((constructor)) static void load(void)
{
  pthread_atfork(NULL, NULL, fork_child);
}

/*
 * Calls that pass the shim by leave no trace in it, and a program that only loads NCCL, as `import torch` does, looks
 * the same from here as one whose calls are out of sight. Hence a fact, for those who ask.
 */
__attribute__((destructor)) static void tell_unseen(void)
{
  enum life_mode mode = __atomic_load_n(&life_state, __ATOMIC_ACQUIRE);
  const char *path = forked || mode == LIFE_OFF ? NULL : real_uncalled();

  if (path && (mode != LIFE_ASLEEP || wanted_mode() != LIFE_OFF))
    log_info("no NCCL call was seen, though %s is loaded: there was none, or it went past the shim, which does not see "
             "calls through handles (dlsym), by other names (pncclX), from libraries opened with RTLD_DEEPBIND, and "
             "to NCCL linked statically",
             path);
}
