/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the policy library share. parse.c owns the text (lines, sections' heads), keys.c owns what
 * each key means, words.c the words and numbers, hash.c the hash. Nothing outside policy/ includes this.
 */
#ifndef SYMMSHIM_POLICY_INTERNAL_H
#define SYMMSHIM_POLICY_INTERNAL_H

#include "policy/policy.h"

/* The words of one enumeration; a word's index is its value. */
struct policy_words {
  const char *what; /* the name that messages use */
  const char *const *words;
  int count;
};
extern const struct policy_words policy_ops, policy_dtypes, policy_redops, policy_paths, policy_rewrites,
    policy_audit_levels;

/* The value of the `length` bytes at `word`, or -EINVAL. */
int policy_words_find(const struct policy_words *words, const char *word, size_t length);

/* All of them, "a, b, c", cut off where `size` ends. */
void policy_words_join(const struct policy_words *words, char *text, size_t size);

/* A whole decimal number without sign or blanks. Returns 0, -EINVAL, or -ERANGE when above `max`. */
int policy_parse_number(const char *text, uint64_t max, uint64_t *number);

struct policy_section; /* a section's keys: keys.c */

/* A text on its way into a policy. */
struct policy_parser {
  struct policy policy; /* what the text says so far */
  struct policy_error *error;
  bool failed;      /* `error` is filled; nothing more is read */
  const char *text; /* what is left of it */
  size_t left;
  int line; /* the line that is being read, from 1 */
  /* the section that is being read */
  const struct policy_section *section; /* NULL before the first */
  int section_line;
  void *target;             /* where its keys' offsets start */
  struct policy_rule *rule; /* NULL outside of [rule NAME] */
  uint32_t seen_keys;       /* bits by the index of the key */
  uint32_t seen_sections;   /* likewise */
  bool has_rules;           /* the text has one of its own, so the built-in ones are gone */
};

/* Records an error, at `line`, after which nothing more is read; returns -EINVAL. */
int policy_fail(struct policy_parser *parser, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Begins the section whose head is [name]; the one before must have been left. Returns 0 or -EINVAL. */
int policy_section_enter(struct policy_parser *parser, const char *name);

/* Sets a key of the current section. Returns 0 or -EINVAL. */
int policy_section_set(struct policy_parser *parser, const char *name, const char *value);

/* Checks what can only be checked when the section is complete; nothing to do before the first. */
int policy_section_leave(struct policy_parser *parser);

uint64_t policy_hash(const struct policy *policy);

/* policy/default.conf, embedded by the build; no NUL at its end. */
extern const char policy_default_conf[];
extern const size_t policy_default_conf_size;

#endif
