/* SPDX-License-Identifier: Apache-2.0 */
/* The exported wrappers, generated from the table. The only file with default visibility. */
#include "shim/guard.h"
#include "shim/hooks.h"
#include "shim/real.h"

__thread struct guard guard __attribute__((tls_model("initial-exec")));

#define ENTRY_DEFINE(library, name, ret, params, args, missing)                                                        \
  __attribute__((visibility("default"))) ret name params;                                                              \
  ret name params                                                                                                      \
  {                                                                                                                    \
    struct real *outer = guard.real;                                                                                   \
    ret result;                                                                                                        \
                                                                                                                       \
    guard.real = real_of(__builtin_return_address(0));                                                                 \
    if (guard_enter(__builtin_return_address(0))) {                                                                    \
      result = hook_##name args;                                                                                       \
      guard_leave();                                                                                                   \
    } else {                                                                                                           \
      result = REAL(name) args;                                                                                        \
    }                                                                                                                  \
    guard.real = outer;                                                                                                \
    return result;                                                                                                     \
  }

HOOKS(ENTRY_DEFINE)
