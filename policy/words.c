/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/internal.h"

#define WORD(word) #word,
static const char *const op_words[] = {POLICY_OPS(WORD)};
static const char *const dtype_words[] = {POLICY_DTYPES(WORD)};
static const char *const redop_words[] = {POLICY_REDOPS(WORD)};
static const char *const path_words[] = {POLICY_PATHS(WORD)};
static const char *const rewrite_words[] = {POLICY_REWRITES(WORD)};
static const char *const audit_words[] = {POLICY_AUDIT_LEVELS(WORD)};

const struct policy_words policy_ops = {"op", op_words, POLICY_OP_COUNT};
const struct policy_words policy_dtypes = {"dtype", dtype_words, POLICY_DTYPE_COUNT};
const struct policy_words policy_redops = {"redop", redop_words, POLICY_REDOP_COUNT};
const struct policy_words policy_paths = {"path", path_words, POLICY_PATH_COUNT};
const struct policy_words policy_rewrites = {"rewrite", rewrite_words, POLICY_REWRITE_COUNT};
const struct policy_words policy_audit_levels = {"audit level", audit_words, POLICY_AUDIT_COUNT};

int policy_words_find(const struct policy_words *words, const char *word, size_t length)
{
  for (int i = 0; i < words->count; i++)
    if (strlen(words->words[i]) == length && memcmp(words->words[i], word, length) == 0)
      return i;
  return -EINVAL;
}

void policy_words_join(const struct policy_words *words, char *text, size_t size)
{
  size_t used = 0;

  text[0] = '\0';
  for (int i = 0; i < words->count && used < size; i++) {
    int more = snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", words->words[i]);

    used += more > 0 ? (size_t)more : 0;
  }
}

static const char *word_of(const struct policy_words *words, int value)
{
  return value >= 0 && value < words->count ? words->words[value] : NULL;
}

const char *policy_op_word(enum policy_op op)
{
  return word_of(&policy_ops, (int)op);
}

const char *policy_dtype_word(enum policy_dtype dtype)
{
  return word_of(&policy_dtypes, (int)dtype);
}

const char *policy_redop_word(enum policy_redop redop)
{
  return word_of(&policy_redops, (int)redop);
}

const char *policy_path_word(enum policy_path path)
{
  return word_of(&policy_paths, (int)path);
}

const char *policy_rewrite_word(enum policy_rewrite rewrite)
{
  return word_of(&policy_rewrites, (int)rewrite);
}

int policy_op_value(const char *word)
{
  return policy_words_find(&policy_ops, word, strlen(word));
}

int policy_dtype_value(const char *word)
{
  return policy_words_find(&policy_dtypes, word, strlen(word));
}

int policy_redop_value(const char *word)
{
  return policy_words_find(&policy_redops, word, strlen(word));
}

static bool is_digit(char c)
{
  return c >= '0' && c <= '9';
}

/* strtoull() alone would take blanks, signs and the locale's digits. */
static int parse_digits(const char *text, uint64_t *number, const char **ret_end)
{
  char *end;

  if (!is_digit(text[0]))
    return -EINVAL;
  errno = 0;
  *number = strtoull(text, &end, 10);
  *ret_end = end;
  return errno == ERANGE ? -ERANGE : 0;
}

int policy_parse_number(const char *text, uint64_t max, uint64_t *number)
{
  const char *end;
  uint64_t value;
  int rc = parse_digits(text, &value, &end);

  if (rc == -EINVAL || *end != '\0')
    return -EINVAL;
  if (rc < 0 || value > max)
    return -ERANGE;
  *number = value;
  return 0;
}

int policy_parse_bytes(const char *text, uint64_t *bytes)
{
  static const char units[] = "KMG";
  const char *end, *unit;
  uint64_t value;
  int rc = parse_digits(text, &value, &end);

  if (rc == -EINVAL)
    return rc;
  unit = *end != '\0' ? strchr(units, *end) : NULL;
  if (end[0] != '\0' && (!unit || end[1] != '\0'))
    return -EINVAL;
  if (rc < 0 || (unit && __builtin_mul_overflow(value, (uint64_t)1 << (10 * (unit - units + 1)), &value)))
    return -ERANGE;
  *bytes = value;
  return 0;
}

int policy_parse_nccl(const char *text, int *version)
{
  uint64_t part[3];

  for (int i = 0; i < 3; i++) {
    int rc = parse_digits(text, &part[i], &text);

    if (rc == -EINVAL || *text != (i < 2 ? '.' : '\0'))
      return -EINVAL;
    if (rc < 0 || part[i] > 99)
      return -ERANGE;
    text++;
  }
  /* NCCL_VERSION() of nccl.h: the thousands became ten thousands with 2.9. */
  *version = (int)(part[0] * (part[0] <= 2 && part[1] <= 8 ? 1000 : 10000) + part[1] * 100 + part[2]);
  return 0;
}

size_t policy_dtype_size(enum policy_dtype dtype)
{
  static const unsigned char sizes[POLICY_DTYPE_COUNT] = {
      [POLICY_DTYPE_int8] = 1,  [POLICY_DTYPE_uint8] = 1,  [POLICY_DTYPE_int32] = 4,   [POLICY_DTYPE_uint32] = 4,
      [POLICY_DTYPE_int64] = 8, [POLICY_DTYPE_uint64] = 8, [POLICY_DTYPE_fp16] = 2,    [POLICY_DTYPE_fp32] = 4,
      [POLICY_DTYPE_fp64] = 8,  [POLICY_DTYPE_bf16] = 2,   [POLICY_DTYPE_fp8e4m3] = 1, [POLICY_DTYPE_fp8e5m2] = 1,
  };

  return (unsigned)dtype < POLICY_DTYPE_COUNT ? sizes[dtype] : 0;
}
