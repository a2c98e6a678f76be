/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Per-thread depth. NCCL calls its own exported functions through its PLT (2.28.9: ncclBcast to ncclBroadcast,
 * ncclCommWindowRegister to ncclCommRegister), and handlers call real functions that may do the same: whatever
 * arrives while a handler runs on this thread passes through.
 *
 * Owns one thread-local variable; calls nothing. initial-exec, because __tls_get_addr may allocate.
 */
#ifndef SYMMSHIM_GUARD_H
#define SYMMSHIM_GUARD_H

#include <stdbool.h>

#include "shim/life.h"

struct real;

struct guard {
  int depth;
  void *caller;      /* return address of the interposed call being handled */
  struct real *real; /* the real functions as that caller would reach them, or those of its communicator's maker */
};

extern __thread struct guard guard __attribute__((tls_model("initial-exec")));

/* true: the caller must run the handler and then guard_leave(). */
static inline bool guard_enter(void *caller)
{
  if (guard.depth > 0 || !life_active())
    return false;
  guard.depth = 1;
  guard.caller = caller;
  return true;
}

static inline void guard_leave(void)
{
  guard.depth = 0;
}

#endif
