/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy: which calls are to go symmetric, how, and how long ranks wait for each other.
 *
 * Owns the file format (symmshim.conf(5)), its parser and its matcher. Plain C: knows neither CUDA nor
 * NCCL, starts nothing, prints nothing, and allocates only while a file is parsed.
 */
#ifndef SYMMSHIM_POLICY_H
#define SYMMSHIM_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The words of the file for each enumeration; the order of dtypes is NCCL's (ncclDataType_t, 2.28). */
#define POLICY_OPS(X) X(all_gather) X(reduce_scatter) X(all_reduce)
#define POLICY_DTYPES(X)                                                                                               \
  X(int8) X(uint8) X(int32) X(uint32) X(int64) X(uint64) X(fp16) X(fp32) X(fp64) X(bf16) X(fp8e4m3) X(fp8e5m2)
#define POLICY_REDOPS(X) X(sum) X(prod) X(max) X(min) X(avg) X(premulsum) X(none)
#define POLICY_PATHS(X) X(plain) X(window) X(staged)
#define POLICY_REWRITES(X) X(none) X(post_scale) X(pre_scale)
#define POLICY_AUDIT_LEVELS(X) X(summary) X(change) X(call)

#define POLICY_OP_ENUM(word) POLICY_OP_##word,
#define POLICY_DTYPE_ENUM(word) POLICY_DTYPE_##word,
#define POLICY_REDOP_ENUM(word) POLICY_REDOP_##word,
#define POLICY_PATH_ENUM(word) POLICY_PATH_##word,
#define POLICY_REWRITE_ENUM(word) POLICY_REWRITE_##word,
#define POLICY_AUDIT_ENUM(word) POLICY_AUDIT_##word,
enum policy_op { POLICY_OPS(POLICY_OP_ENUM) POLICY_OP_COUNT };
enum policy_dtype { POLICY_DTYPES(POLICY_DTYPE_ENUM) POLICY_DTYPE_COUNT };
enum policy_redop { POLICY_REDOPS(POLICY_REDOP_ENUM) POLICY_REDOP_COUNT }; /* none: the op does not reduce */
enum policy_path { POLICY_PATHS(POLICY_PATH_ENUM) POLICY_PATH_COUNT };
enum policy_rewrite { POLICY_REWRITES(POLICY_REWRITE_ENUM) POLICY_REWRITE_COUNT };
enum policy_audit_level { POLICY_AUDIT_LEVELS(POLICY_AUDIT_ENUM) POLICY_AUDIT_COUNT };

enum {
  POLICY_MAX_RULES = 64,
  POLICY_MAX_NAME = 32,      /* bytes of a rule's name, with the end */
  POLICY_MAX_CALLERS = 8,    /* object names in [arena] callers */
  POLICY_MAX_CALLER = 64,    /* bytes of one of them, with the end */
  POLICY_MAX_FILE = 64 << 10 /* bytes of a policy file */
};

/* What is known of a call before anything is decided: equal on every rank by NCCL's own contract. */
struct policy_request {
  enum policy_op op;
  enum policy_dtype dtype;
  enum policy_redop redop;
  int nranks;
  uint64_t bytes;   /* the large side: all-gather output, reduce-scatter input, all-reduce buffer */
  int nccl_version; /* as ncclGetVersion gives it: 22809 is 2.28.9 */
};

/* What a section wishes; UNSET leaves the word to the next section that matches (rule, op, default). */
enum { POLICY_UNSET = -1 };
struct policy_action {
  int path;    /* enum policy_path or POLICY_UNSET */
  int rewrite; /* enum policy_rewrite or POLICY_UNSET */
};

/* A [rule NAME] section. Masks hold 1 << value, 0 matches any; ranges are inclusive. */
struct policy_rule {
  char name[POLICY_MAX_NAME];
  uint32_t ops, dtypes, redops;
  int min_nranks, max_nranks;
  uint64_t min_bytes, max_bytes;
  int min_nccl, max_nccl;
  struct policy_action action;
};

struct policy {
  /* [shim] */
  uint32_t agree_us;       /* how long a rank waits for the others at an agreed call */
  uint32_t setup_ms;       /* how long it waits for them before and after a split or a registration */
  uint32_t pause_after;    /* time-outs in a row after which agreement pauses; 0: never */
  uint32_t pause_calls;    /* for so many calls */
  uint32_t warn_s;         /* a wait inside NCCL longer than this is named on stderr; 0: never */
  int min_nccl;            /* older NCCLs are left plain */
  uint32_t child_min_ctas; /* minCTAs and maxCTAs of the child communicator */
  uint32_t child_max_ctas;
  uint64_t child_memory;  /* bytes of device memory that must be free before a child is made */
  uint64_t window_memory; /* likewise before a window is registered */
  uint64_t stage_max;     /* bytes of a communicator's slots for staged calls; 0: none */
  bool require_abortable; /* yes: NCCLs whose symmetric kernels cannot be aborted are left plain */
  enum policy_audit_level audit_level;
  uint64_t audit_max; /* bytes of an audit log before it is put aside; 0: no limit */
  bool verify;        /* on: NCCL is asked which kernels it took */
  /* [arena] */
  bool arena;      /* no: cudaMalloc is left alone, nothing goes symmetric */
  bool any_caller; /* callers = * */
  int caller_count;
  char callers[POLICY_MAX_CALLERS][POLICY_MAX_CALLER]; /* base name of the calling object, up to its first dot */
  uint64_t arena_min_bytes;                            /* smaller requests are left alone */
  uint64_t arena_max_bytes;                            /* of the arena, per device */
  uint64_t arena_parked_max;                           /* of what is parked, per device; 0: no cap */
  /* [all_gather], [reduce_scatter], [all_reduce] */
  struct policy_action ops[POLICY_OP_COUNT];
  /* [rule NAME], in the order of the file */
  int rule_count;
  struct policy_rule rules[POLICY_MAX_RULES];
  /* of the effective settings, for the ranks to compare; equal settings have equal hashes */
  uint64_t hash;
};

struct policy_decision {
  enum policy_path path;
  enum policy_rewrite rewrite;
  /* the section that gave each: a rule's index, POLICY_FROM_OP or POLICY_FROM_DEFAULT */
  int path_from, rewrite_from;
};
enum { POLICY_FROM_OP = -1, POLICY_FROM_DEFAULT = -2 };

/* Where a file is wrong. */
struct policy_error {
  int line;          /* from 1; 0 when the file as a whole is meant */
  char message[288]; /* one line, says what to do; no newline at its end */
};

/* The settings in force without any file: exactly those of policy/default.conf. */
void policy_default(struct policy *policy);

/*
 * Parses `text` (need not end in a newline or NUL) on top of the built-in settings; a file with any rule
 * replaces the built-in rules. Returns 0; or -EINVAL with `error` filled and `policy` untouched: the first
 * error voids the whole text.
 */
int policy_parse(struct policy *policy, const char *text, size_t length, struct policy_error *error);

/*
 * Reads and parses a file. Returns 0; -EINVAL as above (also: not a regular file, larger than
 * POLICY_MAX_FILE); another negative errno when it cannot be opened or read, `error` filled too.
 */
int policy_read(struct policy *policy, const char *path, struct policy_error *error);

/*
 * Finds the file in force, in this order: $SYMMSHIM_POLICY (must exist), ~/.config/symmshim/symmshim.conf,
 * /etc/symmshim.conf. Returns 1 and its path, or 0 when the built-in policy is in force. Paths that do not
 * fit `size` are treated as absent, except $SYMMSHIM_POLICY, which is cut off (and then cannot be read).
 */
int policy_find(char *path, size_t size);

/* A pure function of its arguments: the first rule that matches and sets a word wins, then the op, then default. */
struct policy_decision policy_match(const struct policy *policy, const struct policy_request *request);

/* Words of the file; NULL for a number outside the enumeration. */
const char *policy_op_word(enum policy_op op);
const char *policy_dtype_word(enum policy_dtype dtype);
const char *policy_redop_word(enum policy_redop redop);
const char *policy_path_word(enum policy_path path);
const char *policy_rewrite_word(enum policy_rewrite rewrite);

/* The value of a word, or -EINVAL. */
int policy_op_value(const char *word);
int policy_dtype_value(const char *word);
int policy_redop_value(const char *word);

/* "64M" (K, M, G are powers of 1024; plain bytes without) and "2.28.9". Return 0 or -EINVAL (or -ERANGE). */
int policy_parse_bytes(const char *text, uint64_t *bytes);
int policy_parse_nccl(const char *text, int *version);

/* Bytes of one element. */
size_t policy_dtype_size(enum policy_dtype dtype);

#endif
