/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the real functions. Each is looked for at its first call, never earlier: torch brings libnccl in long after the
 * shim was loaded. RTLD_NEXT first; where the library was opened RTLD_LOCAL (as torch does with libnccl) that finds
 * nothing, and the calling object's own dependencies are asked, which also tells two copies of a library apart; at last
 * the loaded object whose file name begins with libcudart.so, libnccl.so or libcuda.so. What is not found is looked for
 * again at the next call.
 *
 * Owns the function pointers, one set for each calling object. Never opens a library that is not already loaded, but
 * keeps what it found from being unloaded; keeps errno.
 */
#ifndef SYMMSHIM_REAL_H
#define SYMMSHIM_REAL_H

#include <stdbool.h>

#include "shim/guard.h"
#include "shim/hooks.h"

#define REAL_MEMBER(library, name, ret, params, args, missing) ret(*name) params;
struct real {
  HOOKS(REAL_MEMBER)
  CALLED(REAL_MEMBER)
};
#undef REAL_MEMBER

/* The functions as the object that an address lies in reaches them; never NULL. */
struct real *real_of(const void *caller);

/*
 * The real function as this thread's outermost caller reaches it, or, inside a communicator (comm_enter()), of the copy
 * of NCCL that made that. Always callable: where it does not exist it returns its row's last column.
 */
#define REAL(name) __atomic_load_n(&guard.real->name, __ATOMIC_RELAXED)

/* In a forked child: a lock of ours may have been held by a thread that is not there any more. */
void real_after_fork(void);

/* Whether it exists here and now. */
#define REAL_EXISTS(name) real_exists(#name)
bool real_exists(const char *name);

/* If no NCCL call ever came: the file of NCCL, or else of CUDA's driver, if that is loaded. NULL otherwise. */
const char *real_uncalled(void);

#define DRIVER_MEMBER(name, params) CUresult(*name) params;
struct driver {
  ABI_DRIVER_FUNCTIONS(DRIVER_MEMBER)
};
#undef DRIVER_MEMBER

/* The driver's functions; NULL while libcuda is not loaded or lacks one of them. */
const struct driver *real_driver(void);

#endif
