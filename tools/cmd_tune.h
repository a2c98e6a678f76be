/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of `symmshim tune`. cmd_tune.c measures; what follows from the figures is pure: cmd_tune_choose.c chooses
 * and makes rules, cmd_tune_write.c writes the policy file.
 */
#ifndef SYMMSHIM_CMD_TUNE_H
#define SYMMSHIM_CMD_TUNE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "policy/policy.h"
#include "tools/gpu/region.h"

struct tune_figure {
  bool measured; /* and the call went the way that is meant */
  double us, spread;
};

/* A call, and what was measured. Each way stands beside stock's figure of the same run. */
struct tune_case {
  struct gpu_case what;
  struct tune_figure stock, hand[GPU_MAX_CHILDREN]; /* windows by hand, one for each number of CTAs */
  struct tune_figure window_stock, window;          /* through the shim, with the CTAs that were chosen */
  struct tune_figure staged_stock, staged;          /* likewise, every call through slots */
  enum policy_path choice;
};

/* Calls for which one path was chosen. */
struct tune_rule {
  enum policy_op op;
  enum policy_redop redop;
  uint32_t dtypes; /* 1 << value; 0: any */
  uint64_t min_bytes, max_bytes;
  enum policy_path path;
};

struct tune {
  int nranks, nccl_version;
  bool simulation;
  char gpu[128];
  int ctas_count, ctas[GPU_MAX_CHILDREN]; /* the candidates, from the fewest */
  int max_ctas;
  int chosen_ctas; /* an index */
  int case_count;
  struct tune_case cases[GPU_MAX_CASES]; /* those of a kind side by side, from the smallest */
  int rule_count;
  struct tune_rule rules[POLICY_MAX_RULES];
};

/* Whether `other` is faster by more than the noise: twice the spread of either, and 2 %. */
bool tune_is_faster(const struct tune_figure *stock, const struct tune_figure *other);

/* The fewest CTAs with which all calls together save about as much time as with any: index of a candidate. */
int tune_choose_ctas(const struct tune *tune);

/* Sets the choice of each case. */
void tune_choose_paths(struct tune *tune);

/* Merges the choices into rules. Returns 0, or -ENOSPC when there are more than a policy may have. */
int tune_make_rules(struct tune *tune);

/* The policy file, with the figures in comments. */
void tune_write(const struct tune *tune, FILE *out);

/* What every call is to do while the candidates are measured through the shim. */
void tune_write_trial(const struct tune *tune, enum policy_path path, FILE *out);

/* Whether the next case is one of another kind (op, dtype, redop), or there is none. */
bool tune_ends_kind(const struct tune *tune, int index);

#endif
