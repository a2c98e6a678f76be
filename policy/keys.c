/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each section and key means. A key is one row of a table here, one entry in symmshim.conf(5), and, for
 * [shim] and [arena], one line in default.conf, which alone holds its default.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "policy/internal.h"

struct key {
  const char *name;
  int (*set)(struct policy_parser *parser, const struct key *key, void *field, const char *value);
  size_t offset; /* of its field in the section's target */
  uint32_t min, max;
};

struct policy_section {
  const char *name;
  const struct key *keys;
  int key_count;
  size_t offset; /* of its target in struct policy */
  int (*check)(struct policy_parser *parser);
};

static int set_number(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  uint64_t number;

  if (policy_parse_number(value, key->max, &number) < 0 || number < key->min)
    return policy_fail(parser, parser->line, "%s must be a whole number from %u to %u, not '%.40s'", key->name,
                       key->min, key->max, value);
  *(uint32_t *)field = (uint32_t)number;
  return 0;
}

static int set_bytes(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  uint64_t bytes;
  int rc = policy_parse_bytes(value, &bytes);

  if (rc == -ERANGE)
    return policy_fail(parser, parser->line, "%s is too large: '%.40s'", key->name, value);
  if (rc < 0)
    return policy_fail(parser, parser->line, "%s must be a number of bytes such as 4096, 64K, 2M or 1G, not '%.40s'",
                       key->name, value);
  *(uint64_t *)field = bytes;
  return 0;
}

static int set_nccl(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  int version;

  if (policy_parse_nccl(value, &version) < 0)
    return policy_fail(parser, parser->line, "%s must be a version such as 2.28.9, not '%.40s'", key->name, value);
  *(int *)field = version;
  return 0;
}

static int set_bool(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  bool yes = strcmp(value, "yes") == 0;

  if (!yes && strcmp(value, "no") != 0)
    return policy_fail(parser, parser->line, "%s must be yes or no, not '%.40s'", key->name, value);
  *(bool *)field = yes;
  return 0;
}

static int set_switch(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  bool on = strcmp(value, "on") == 0;

  if (!on && strcmp(value, "off") != 0)
    return policy_fail(parser, parser->line, "%s must be on or off, not '%.40s'", key->name, value);
  *(bool *)field = on;
  return 0;
}

static int unknown_word(struct policy_parser *parser, const struct policy_words *words, const char *word, size_t length)
{
  char known[128];

  policy_words_join(words, known, sizeof(known));
  return policy_fail(parser, parser->line, "unknown %s '%.*s'; known: %s", words->what, length < 40 ? (int)length : 40,
                     word, known);
}

/* One word of an enumeration, or -EINVAL after the error was told. */
static int find_word(struct policy_parser *parser, const struct policy_words *words, const char *word, size_t length)
{
  int value = policy_words_find(words, word, length);

  return value < 0 ? unknown_word(parser, words, word, length) : value;
}

static int set_action(struct policy_parser *parser, const struct policy_words *words, int *field, const char *value)
{
  int word = find_word(parser, words, value, strlen(value));

  if (word < 0)
    return word;
  *field = word;
  return 0;
}

static int set_path(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  (void)key;
  return set_action(parser, &policy_paths, field, value);
}

static int set_rewrite(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  (void)key;
  return set_action(parser, &policy_rewrites, field, value);
}

static int set_audit(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  int level = find_word(parser, &policy_audit_levels, value, strlen(value));

  (void)key;
  if (level < 0)
    return level;
  *(enum policy_audit_level *)field = (enum policy_audit_level)level;
  return 0;
}

/* The next word of a list that commas and blanks part, and its length; 0 at the end. */
static size_t next_word(const char **list)
{
  *list += strspn(*list, " \t,");
  return strcspn(*list, " \t,");
}

static int set_mask(struct policy_parser *parser, const struct key *key, const struct policy_words *words,
                    uint32_t *field, const char *value)
{
  uint32_t mask = 0;

  for (size_t length; (length = next_word(&value)) > 0; value += length) {
    int word = find_word(parser, words, value, length);

    if (word < 0)
      return word;
    mask |= (uint32_t)1 << word;
  }
  if (mask == 0)
    return policy_fail(parser, parser->line, "%s has no word in its list", key->name);
  *field = mask;
  return 0;
}

static int set_ops(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  return set_mask(parser, key, &policy_ops, field, value);
}

static int set_dtypes(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  return set_mask(parser, key, &policy_dtypes, field, value);
}

static int set_redops(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  return set_mask(parser, key, &policy_redops, field, value);
}

static int parse_nranks(const char *text, int *nranks)
{
  uint64_t number;

  if (policy_parse_number(text, INT_MAX, &number) < 0 || number < 1)
    return -EINVAL;
  *nranks = (int)number;
  return 0;
}

/*
 * "V", "V..W", "V.." or "..W". Writes only the sides that are there; returns 0, -EINVAL, or -ERANGE when the
 * lower side is above the upper one.
 */
static int parse_range(const char *value, int (*parse)(const char *text, int *number), int *min, int *max)
{
  const char *dots = strstr(value, "..");
  char low[32];

  if (!dots) {
    if (parse(value, min) < 0)
      return -EINVAL;
    *max = *min;
    return 0;
  }
  if ((dots == value && dots[2] == '\0') || dots - value >= (ptrdiff_t)sizeof(low))
    return -EINVAL;
  snprintf(low, sizeof(low), "%.*s", (int)(dots - value), value);
  if ((low[0] != '\0' && parse(low, min) < 0) || (dots[2] != '\0' && parse(dots + 2, max) < 0))
    return -EINVAL;
  return *min > *max ? -ERANGE : 0;
}

static int set_range(struct policy_parser *parser, const struct key *key, const char *value,
                     int (*parse)(const char *text, int *number), int *min, int *max, const char *example)
{
  int rc = parse_range(value, parse, min, max);

  if (rc == -ERANGE)
    return policy_fail(parser, parser->line, "%s: the range '%.40s' ends before it begins", key->name, value);
  if (rc < 0)
    return policy_fail(parser, parser->line, "%s must be a value or a range such as %s, not '%.40s'", key->name,
                       example, value);
  return 0;
}

static int set_nranks(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  struct policy_rule *rule = parser->rule;

  (void)field;
  return set_range(parser, key, value, parse_nranks, &rule->min_nranks, &rule->max_nranks, "8, 2..8, 2.. or ..8");
}

static int set_versions(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  struct policy_rule *rule = parser->rule;

  (void)field;
  return set_range(parser, key, value, policy_parse_nccl, &rule->min_nccl, &rule->max_nccl,
                   "2.28.9, 2.28.3..2.29.99 or 2.28.3..");
}

/* One name: the base name up to its first dot, so that libc10_cuda.so.1 is libc10_cuda. */
static int add_caller(struct policy_parser *parser, const char *name, size_t length)
{
  struct policy *policy = &parser->policy;
  size_t base = 0;

  if (memchr(name, '/', length))
    return policy_fail(parser, parser->line, "callers takes base names such as libc10_cuda.so, not the path '%.*s'",
                       length < 80 ? (int)length : 80, name);
  while (base < length && name[base] != '.')
    base++;
  if (base == 0 || base >= POLICY_MAX_CALLER)
    return policy_fail(parser, parser->line, "callers: a name must have 1 to %d bytes before its first dot",
                       POLICY_MAX_CALLER - 1);
  if (policy->caller_count == POLICY_MAX_CALLERS)
    return policy_fail(parser, parser->line, "callers takes at most %d names", POLICY_MAX_CALLERS);
  memset(policy->callers[policy->caller_count], 0, POLICY_MAX_CALLER);
  memcpy(policy->callers[policy->caller_count++], name, base);
  return 0;
}

static int set_callers(struct policy_parser *parser, const struct key *key, void *field, const char *value)
{
  struct policy *policy = &parser->policy;

  (void)field;
  policy->caller_count = 0;
  policy->any_caller = strcmp(value, "*") == 0;
  if (policy->any_caller)
    return 0;
  for (size_t length; (length = next_word(&value)) > 0; value += length) {
    if (value[0] == '*')
      return policy_fail(parser, parser->line, "callers: '*' must stand alone");
    if (add_caller(parser, value, length) < 0)
      return -EINVAL;
  }
  if (policy->caller_count == 0)
    return policy_fail(parser, parser->line, "%s has no word in its list", key->name);
  return 0;
}

static int check_shim(struct policy_parser *parser)
{
  const struct policy *policy = &parser->policy;

  if (policy->child_min_ctas > policy->child_max_ctas)
    return policy_fail(parser, parser->section_line, "[shim]: child_min_ctas (%u) is above child_max_ctas (%u)",
                       policy->child_min_ctas, policy->child_max_ctas);
  return 0;
}

static int check_arena(struct policy_parser *parser)
{
  const struct policy *policy = &parser->policy;

  if (policy->arena_max_bytes != 0 && policy->arena_min_bytes > policy->arena_max_bytes)
    return policy_fail(parser, parser->section_line, "[arena]: min_bytes is above max_bytes");
  return 0;
}

static int check_rule(struct policy_parser *parser)
{
  const struct policy_rule *rule = parser->rule;

  if (rule->min_bytes > rule->max_bytes)
    return policy_fail(parser, parser->section_line, "[rule %s]: min_bytes is above max_bytes", rule->name);
  if (rule->action.path == POLICY_UNSET && rule->action.rewrite == POLICY_UNSET)
    return policy_fail(parser, parser->section_line, "[rule %s] does nothing; give it path or rewrite", rule->name);
  return 0;
}

#define SHIM(field) offsetof(struct policy, field)
#define RULE(field) offsetof(struct policy_rule, field)
static const struct key shim_keys[] = {
    {"agree_us", set_number, SHIM(agree_us), 0, 10000000},
    {"setup_ms", set_number, SHIM(setup_ms), 1, 600000},
    {"pause_after", set_number, SHIM(pause_after), 0, 1000},
    {"pause_calls", set_number, SHIM(pause_calls), 1, 1000000},
    {"warn_s", set_number, SHIM(warn_s), 0, 86400},
    {"min_nccl", set_nccl, SHIM(min_nccl), 0, 0},
    {"child_min_ctas", set_number, SHIM(child_min_ctas), 1, 64},
    {"child_max_ctas", set_number, SHIM(child_max_ctas), 1, 64},
    {"child_memory", set_bytes, SHIM(child_memory), 0, 0},
    {"window_memory", set_bytes, SHIM(window_memory), 0, 0},
    {"stage_max", set_bytes, SHIM(stage_max), 0, 0},
    {"require_abortable", set_bool, SHIM(require_abortable), 0, 0},
    {"audit", set_audit, SHIM(audit_level), 0, 0},
    {"audit_max", set_bytes, SHIM(audit_max), 0, 0},
    {"verify", set_switch, SHIM(verify), 0, 0},
};
static const struct key arena_keys[] = {
    {"enable", set_bool, SHIM(arena), 0, 0},
    {"callers", set_callers, SHIM(callers), 0, 0},
    {"min_bytes", set_bytes, SHIM(arena_min_bytes), 0, 0},
    {"max_bytes", set_bytes, SHIM(arena_max_bytes), 0, 0},
    {"parked_max", set_bytes, SHIM(arena_parked_max), 0, 0},
};
static const struct key op_keys[] = {
    {"path", set_path, offsetof(struct policy_action, path), 0, 0},
    {"rewrite", set_rewrite, offsetof(struct policy_action, rewrite), 0, 0},
};
static const struct key rule_keys[] = {
    {"op", set_ops, RULE(ops), 0, 0},
    {"dtype", set_dtypes, RULE(dtypes), 0, 0},
    {"redop", set_redops, RULE(redops), 0, 0},
    {"nranks", set_nranks, RULE(min_nranks), 0, 0},
    {"min_bytes", set_bytes, RULE(min_bytes), 0, 0},
    {"max_bytes", set_bytes, RULE(max_bytes), 0, 0},
    {"nccl", set_versions, RULE(min_nccl), 0, 0},
    {"path", set_path, RULE(action.path), 0, 0},
    {"rewrite", set_rewrite, RULE(action.rewrite), 0, 0},
};

#define KEYS(keys) keys, sizeof(keys) / sizeof((keys)[0])
#define OP_SECTION(word) {#word, KEYS(op_keys), offsetof(struct policy, ops[POLICY_OP_##word]), NULL},
static const struct policy_section sections[] = {{"shim", KEYS(shim_keys), 0, check_shim},
                                                 {"arena", KEYS(arena_keys), 0, check_arena},
                                                 /* by way of the list, so that a new op has its section */
                                                 POLICY_OPS(OP_SECTION)};
static const struct policy_section rule_section = {"rule", KEYS(rule_keys), 0, check_rule};
enum { SECTION_COUNT = sizeof(sections) / sizeof(sections[0]) };

static int check_rule_name(struct policy_parser *parser, const char *name)
{
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
  size_t length = strlen(name);

  if (length == 0 || length >= POLICY_MAX_NAME || strspn(name, allowed) != length)
    return policy_fail(parser, parser->line, "'%.40s' is no name for a rule: 1 to %d of a-z, 0-9, '_' and '-'", name,
                       POLICY_MAX_NAME - 1);
  for (int i = 0; i < parser->policy.rule_count; i++)
    if (strcmp(parser->policy.rules[i].name, name) == 0)
      return policy_fail(parser, parser->line, "there is a [rule %s] above already; give this one another name", name);
  return 0;
}

static int enter_rule(struct policy_parser *parser, const char *name)
{
  struct policy *policy = &parser->policy;
  struct policy_rule *rule;

  if (!parser->has_rules)
    policy->rule_count = 0;
  parser->has_rules = true;
  if (check_rule_name(parser, name) < 0)
    return -EINVAL;
  if (policy->rule_count == POLICY_MAX_RULES)
    return policy_fail(parser, parser->line, "there are more than %d rules", POLICY_MAX_RULES);
  rule = &policy->rules[policy->rule_count++];
  *rule = (struct policy_rule){
      .max_nranks = INT_MAX,
      .max_bytes = UINT64_MAX,
      .max_nccl = INT_MAX,
      .action = {POLICY_UNSET, POLICY_UNSET},
  };
  snprintf(rule->name, sizeof(rule->name), "%s", name);
  parser->section = &rule_section;
  parser->target = rule;
  parser->rule = rule;
  return 0;
}

static int enter_section(struct policy_parser *parser, const char *name)
{
  for (int i = 0; i < SECTION_COUNT; i++) {
    if (strcmp(sections[i].name, name) != 0)
      continue;
    if (parser->seen_sections >> i & 1)
      return policy_fail(parser, parser->line, "there is a [%s] above already; put its keys there", name);
    parser->seen_sections |= (uint32_t)1 << i;
    parser->section = &sections[i];
    parser->target = (char *)&parser->policy + sections[i].offset;
    parser->rule = NULL;
    return 0;
  }
  return policy_fail(parser, parser->line,
                     "unknown section [%.40s]; known sections: [shim], [arena], [all_gather], [reduce_scatter], "
                     "[all_reduce], [rule NAME]",
                     name);
}

int policy_section_enter(struct policy_parser *parser, const char *name)
{
  parser->section_line = parser->line;
  parser->seen_keys = 0;
  if (strncmp(name, "rule ", 5) == 0)
    return enter_rule(parser, name + 5);
  return enter_section(parser, name);
}

int policy_section_leave(struct policy_parser *parser)
{
  return parser->section && parser->section->check ? parser->section->check(parser) : 0;
}

/* "[shim]" or "[rule NAME]" */
static void section_head(const struct policy_parser *parser, char *head, size_t size)
{
  snprintf(head, size, "[%s%s%s]", parser->section->name, parser->rule ? " " : "",
           parser->rule ? parser->rule->name : "");
}

static int unknown_key(struct policy_parser *parser, const char *name)
{
  char head[POLICY_MAX_NAME + 16], known[192] = "";
  size_t used = 0;

  section_head(parser, head, sizeof(head));
  for (int i = 0; i < parser->section->key_count && used < sizeof(known); i++)
    used +=
        (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "", parser->section->keys[i].name);
  return policy_fail(parser, parser->line, "unknown key '%.32s' in %s; known keys: %s", name, head, known);
}

int policy_section_set(struct policy_parser *parser, const char *name, const char *value)
{
  const struct policy_section *section = parser->section;
  char head[POLICY_MAX_NAME + 16];

  for (int i = 0; i < section->key_count; i++) {
    const struct key *key = &section->keys[i];

    if (strcmp(key->name, name) != 0)
      continue;
    if (parser->seen_keys >> i & 1) {
      section_head(parser, head, sizeof(head));
      return policy_fail(parser, parser->line, "'%s' is in %s twice; remove one", name, head);
    }
    parser->seen_keys |= (uint32_t)1 << i;
    return key->set(parser, key, (char *)parser->target + key->offset, value);
  }
  return unknown_key(parser, name);
}
