/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/life.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim/audit.h"
#include "shim/log.h"
#include "shim/real.h"

enum life_mode life_state = LIFE_ASLEEP;

static struct policy policy;
static enum reason passive_reason;
static pthread_once_t once = PTHREAD_ONCE_INIT;

const struct policy *life_policy(void)
{
  return &policy;
}

enum reason life_passive_reason(void)
{
  return passive_reason;
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

static void wake(void)
{
  char path[4096];
  int saved_errno = errno;
  enum life_mode mode = wanted_mode();

  if (mode != LIFE_OFF) {
    const char *in_force = load_policy(path, sizeof(path));
    if (mode == LIFE_AUDIT)
      passive_reason = REASON_audit_only;
    audit_start(mode == LIFE_AUDIT ? "audit" : "on", in_force, policy.audit_level);
  }
  errno = saved_errno;
  /* Pairs with the acquire in life_mode(): whoever sees the mode sees the policy. */
  __atomic_store_n(&life_state, mode, __ATOMIC_RELEASE);
}

enum life_mode life_wake(void)
{
  pthread_once(&once, wake);
  return __atomic_load_n(&life_state, __ATOMIC_ACQUIRE);
}

/* CUDA cannot be used in a forked child of a process that used it, and the parent's windows are not the child's. */
static void fork_child(void)
{
  real_after_fork();
  if (life_state != LIFE_ASLEEP)
    __atomic_store_n(&life_state, LIFE_OFF, __ATOMIC_RELEASE);
}

__attribute__((constructor)) static void load(void)
{
  pthread_atfork(NULL, NULL, fork_child);
}
