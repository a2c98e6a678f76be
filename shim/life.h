/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the shim is awake. Nothing happens before the first interposed call of a process but the registration of a
 * fork handler, and without one nothing but a look, at the end, whether NCCL or CUDA was loaded all the same; a child
 * of a process in which the shim was awake is inert until it executes another program; SYMMSHIM=off never wakes.
 *
 * Owns the mode, the policy in force and what becomes of LD_PRELOAD for the programs that this one starts. Starts no
 * thread, makes no CUDA or NCCL call, never ends the process.
 */
#ifndef SYMMSHIM_LIFE_H
#define SYMMSHIM_LIFE_H

#include <stdbool.h>

#include "policy/policy.h"
#include "shim/reason.h"

enum life_mode {
  LIFE_ASLEEP = 0, /* no interposed call yet */
  LIFE_OFF,        /* SYMMSHIM=off, or a forked child: every call passes through unseen */
  LIFE_AUDIT,      /* SYMMSHIM=audit: calls are seen and logged, none is changed */
  LIFE_ON
};

extern enum life_mode life_state; /* read through life_mode() */

/* Wakes the shim at the first call: reads the environment and the policy. */
enum life_mode life_wake(void);

static inline enum life_mode life_mode(void)
{
  enum life_mode mode = __atomic_load_n(&life_state, __ATOMIC_ACQUIRE); /* pairs with life_wake()'s release */

  return mode == LIFE_ASLEEP ? life_wake() : mode;
}

/* Whether interposed calls go to their handlers at all. */
static inline bool life_active(void)
{
  return life_mode() > LIFE_OFF;
}

/* The policy in force; never changes after waking. */
const struct policy *life_policy(void);

/* Why every call passes through (audit_only, bad_policy), or REASON_none. */
enum reason life_passive_reason(void);

/* In an audit-only run, why every call would pass through in a real one (bad_policy), or REASON_none. */
enum reason life_foreseen_reason(void);

#endif
