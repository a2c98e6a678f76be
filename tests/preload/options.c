/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/preload/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const op_words[OP_COUNT] = {"all_gather", "reduce_scatter", "all_reduce"};
static const char *const dtype_words[ncclNumTypes] = {"int8", "uint8", "int32", "uint32", "int64",   "uint64",
                                                      "fp16", "fp32",  "fp64",  "bf16",   "fp8e4m3", "fp8e5m2"};
static const char *const redop_words[ncclNumOps] = {"sum", "prod", "max", "min", "avg"};
static const char *const diverge_words[DIVERGE_COUNT] = {"none",  "offset", "size", "malloc",
                                                         "plain", "window", "batch"};
static const char *const init_words[INIT_COUNT] = {"rank",        "config", "scalable", "grouped",
                                                   "nonblocking", "shared", "hidden",   "all"};
static const char *const derive_words[DERIVE_COUNT] = {"none", "split", "halves", "twins", "shrink"};
static const char *const ending_words[END_COUNT] = {"destroy", "finalize", "abort", "revoke", "exit"};
static const char *const register_words[REGISTER_COUNT] = {"none", "buffer", "window"};

const char *op_name(enum op op)
{
  return op_words[op];
}

static void refuse(const char *name, const char *value)
{
  fprintf(stderr, "job: --%s %s is not understood\n", name, value);
  exit(64);
}

static int word(const char *const *words, int count, const char *name, const char *value)
{
  for (int i = 0; i < count; i++)
    if (strcmp(words[i], value) == 0)
      return i;
  refuse(name, value);
  return 0;
}

static long number(const char *name, const char *value)
{
  char *end;
  long result = strtol(value, &end, 10);

  if (*end != '\0' || result < 0)
    refuse(name, value);
  return result;
}

static void parse_ops(struct options *options, char *list)
{
  char *rest = NULL;

  options->op_count = 0;
  for (char *item = strtok_r(list, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
    if (options->op_count == MAX_OPS)
      refuse("op", item);
    options->ops[options->op_count++] = (enum op)word(op_words, OP_COUNT, "op", item);
  }
}

enum letter {
  ARG_OP = 1,
  ARG_DTYPE,
  ARG_REDOP,
  ARG_COUNT,
  ARG_CALLS,
  ARG_BATCH,
  ARG_INPLACE,
  ARG_STREAMS,
  ARG_DIVERGE,
  ARG_INIT,
  ARG_DERIVE,
  ARG_END,
  ARG_REGISTER,
  ARG_GROUP,
  ARG_CAPTURE,
  ARG_FREE,
  ARG_MIXED,
  ARG_CHAIN,
  ARG_SMALL_RECV,
  ARG_PRESSURE,
  ARG_ERRORS,
  ARG_LATE,
  ARG_KILL,
  ARG_DEVICES,
  ARG_STATUS,
  ARG_SEGMENT,
  ARG_ELSEWHERE,
  ARG_APART,
  ARG_FORK,
  ARG_ABORT
};

static const struct option table[] = {{"op", 1, NULL, ARG_OP},
                                      {"dtype", 1, NULL, ARG_DTYPE},
                                      {"redop", 1, NULL, ARG_REDOP},
                                      {"count", 1, NULL, ARG_COUNT},
                                      {"calls", 1, NULL, ARG_CALLS},
                                      {"batch", 1, NULL, ARG_BATCH},
                                      {"inplace", 0, NULL, ARG_INPLACE},
                                      {"streams", 1, NULL, ARG_STREAMS},
                                      {"diverge", 1, NULL, ARG_DIVERGE},
                                      {"init", 1, NULL, ARG_INIT},
                                      {"derive", 1, NULL, ARG_DERIVE},
                                      {"end", 1, NULL, ARG_END},
                                      {"register", 1, NULL, ARG_REGISTER},
                                      {"group", 0, NULL, ARG_GROUP},
                                      {"capture", 1, NULL, ARG_CAPTURE},
                                      {"free", 1, NULL, ARG_FREE},
                                      {"mixed", 0, NULL, ARG_MIXED},
                                      {"chain", 0, NULL, ARG_CHAIN},
                                      {"small-recv", 0, NULL, ARG_SMALL_RECV},
                                      {"pressure", 0, NULL, ARG_PRESSURE},
                                      {"errors", 0, NULL, ARG_ERRORS},
                                      {"late", 1, NULL, ARG_LATE},
                                      {"kill", 1, NULL, ARG_KILL},
                                      {"devices", 1, NULL, ARG_DEVICES},
                                      {"status", 1, NULL, ARG_STATUS},
                                      {"segment", 1, NULL, ARG_SEGMENT},
                                      {"elsewhere", 0, NULL, ARG_ELSEWHERE},
                                      {"apart", 0, NULL, ARG_APART},
                                      {"fork", 0, NULL, ARG_FORK},
                                      {"abort-after", 1, NULL, ARG_ABORT},
                                      {NULL, 0, NULL, 0}};

static void set_word(struct options *options, enum letter letter, const char *value)
{
  switch ((int)letter) {
  case ARG_OP: {
    char list[128];
    snprintf(list, sizeof(list), "%s", value);
    parse_ops(options, list);
    break;
  }
  case ARG_DTYPE:
    options->dtype = (ncclDataType_t)word(dtype_words, ncclNumTypes, "dtype", value);
    break;
  case ARG_REDOP:
    options->redop = strcmp(value, "premulsum") == 0 ? REDOP_PREMULSUM : word(redop_words, ncclNumOps, "redop", value);
    break;
  case ARG_DIVERGE:
    options->diverge = (enum divergence)word(diverge_words, DIVERGE_COUNT, "diverge", value);
    break;
  case ARG_INIT:
    options->init = (enum init)word(init_words, INIT_COUNT, "init", value);
    break;
  case ARG_DERIVE:
    options->derive = (enum derive)word(derive_words, DERIVE_COUNT, "derive", value);
    break;
  case ARG_END:
    options->ending = (enum ending)word(ending_words, END_COUNT, "end", value);
    break;
  case ARG_REGISTER:
    options->registering = (enum registering)word(register_words, REGISTER_COUNT, "register", value);
    break;
  case ARG_LATE:
    if (sscanf(value, "%d:%d:%d:%d", &options->late_rank, &options->late_first, &options->late_last,
               &options->late_ms) != 4)
      refuse("late", value);
    break;
  case ARG_KILL:
    if (sscanf(value, "%d:%d", &options->kill_rank, &options->kill_call) != 2)
      refuse("kill", value);
    break;
  default:
    break;
  }
}

static void set_flag(struct options *options, enum letter letter)
{
  options->inplace |= letter == ARG_INPLACE;
  options->group |= letter == ARG_GROUP;
  options->mixed |= letter == ARG_MIXED;
  options->chain |= letter == ARG_CHAIN;
  options->small_recv |= letter == ARG_SMALL_RECV;
  options->apart |= letter == ARG_APART;
  options->fork |= letter == ARG_FORK;
  options->elsewhere |= letter == ARG_ELSEWHERE;
  options->pressure |= letter == ARG_PRESSURE;
  options->errors |= letter == ARG_ERRORS;
}

static void set_number(struct options *options, enum letter letter, const char *name, const char *value)
{
  int *place = letter == ARG_CALLS     ? &options->calls
               : letter == ARG_BATCH   ? &options->batch
               : letter == ARG_STREAMS ? &options->streams
               : letter == ARG_CAPTURE ? &options->capture
               : letter == ARG_FREE    ? &options->free_every
               : letter == ARG_DEVICES ? &options->devices
               : letter == ARG_STATUS  ? &options->status
               : letter == ARG_ABORT   ? &options->abort_ms
                                       : NULL;

  if (place)
    *place = (int)number(name, value);
  else if (letter == ARG_COUNT)
    options->count = (size_t)number(name, value);
  else if (letter == ARG_SEGMENT)
    options->segment_bytes = (size_t)number(name, value);
}

void options_parse(struct options *options, int argc, char **argv)
{
  int letter, index;

  *options = (struct options){.ops = {OP_ALL_GATHER},
                              .op_count = 1,
                              .dtype = ncclFloat32,
                              .count = 10007, /* not a multiple of anything */
                              .calls = 6,
                              .batch = 1,
                              .streams = 1,
                              .devices = 2,
                              .late_rank = -1,
                              .kill_rank = -1,
                              .segment_bytes = 8 << 20};
  optind = 1;
  while ((letter = getopt_long(argc, argv, "", table, &index)) != -1) {
    if (letter == '?')
      exit(64);
    if (!table[index].has_arg) {
      set_flag(options, (enum letter)letter);
      continue;
    }
    set_word(options, (enum letter)letter, optarg);
    set_number(options, (enum letter)letter, table[index].name, optarg);
  }
  if (optind != argc)
    refuse("", argv[optind]);
}
