/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proof from NCCL itself: the shim is an NCCL profiler plugin too, and hears on which kind of kernel a call went. Only
 * where the policy says `verify = on` and the job has no profiler of its own.
 *
 * The rule. A plain collective is a task of an ordinary kernel plan, for which NCCL raises a Coll event when it
 * launches it; one on symmetric memory leaves the list that these plans are made of before that, so it raises none:
 *   2.27.7  enqueue.cc:1409-1429 (never in plan->collTaskQueue), plugin/profiler.cc:235
 *   2.28.9  scheduler/symmetric_sched.cc:26-34 out of the list, plugin/profiler.cc:393
 *   2.29.7  the same at :37-45 and :433;  2.30.7  at :91-99 and :476
 * From interface version 5 on (2.28.3) each collective also raises an API event, before, on the caller's thread, and
 * the Coll event names it as its parent. Version 4 has none: that nothing was heard is all there is then.
 * Calls that copy engines carry out (CTAPolicy zero) raise no Coll either, and before 2.29 no API event: not known.
 *
 * Owns the plugin's symbols and NCCL_PROFILER_PLUGIN. On the way of a call it allocates nothing and takes no lock.
 */
#ifndef SYMMSHIM_VERIFY_H
#define SYMMSHIM_VERIFY_H

#include <stdbool.h>

enum observed { OBSERVED_unknown = 0, OBSERVED_symmetric, OBSERVED_plain };

/* "symmetric", "plain"; NULL for unknown. */
const char *verify_word(enum observed observed);

/* Before NCCL makes a communicator, which is when it looks for a plugin. */
void verify_prepare(void);

/* Before the real calls; what this thread's calls raise is noted from here on. */
void verify_begin(void);

/*
 * What became of the nth, from 0, of `count` collectives that this thread has made since. `launched`: they are not
 * merely queued, and NCCL does not put the telling off; else only what was heard counts, not what was not.
 */
enum observed verify_end(int nth, int count, bool launched);

#endif
