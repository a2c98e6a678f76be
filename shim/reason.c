/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/reason.h"

#include <stddef.h>

#define REASON_CODE(code, meaning) [REASON_##code] = #code,
#define REASON_MEANING(code, meaning) [REASON_##code] = meaning,

static const char *const codes[REASON_COUNT] = {REASONS(REASON_CODE)};
static const char *const meanings[REASON_COUNT] = {REASONS(REASON_MEANING)};

const char *reason_code(enum reason reason)
{
  return (unsigned)reason < REASON_COUNT ? codes[reason] : NULL;
}

const char *reason_meaning(enum reason reason)
{
  return (unsigned)reason < REASON_COUNT ? meanings[reason] : NULL;
}
