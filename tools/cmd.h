/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the commands of the symmshim tool share. A command is one cmd_NAME.c, one row in symmshim.c, and one
 * section of symmshim(1).
 */
#ifndef SYMMSHIM_CMD_H
#define SYMMSHIM_CMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "policy/policy.h"

/* Exit statuses of all commands; `run` has its command's instead. */
enum { CMD_OK = 0, CMD_NO = 1 /* the answer is no */, CMD_USAGE = 2 /* wrong use, or a file that cannot be read */ };

enum { CMD_MAX_PATH = 4096 };

/* The commands; argv[0] is "symmshim NAME", which getopt_long() puts before its messages. */
int cmd_bench(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_tune(int argc, char **argv);

/* "symmshim NAME: message" on stderr. */
void cmd_error(char **argv, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Likewise, with a hint at --help; returns CMD_USAGE. */
int cmd_usage_error(char **argv, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The escape sequence for SGR `code` ("1", "32", "0"), or "" where `stream` is no terminal or NO_COLOR is set. */
const char *cmd_style(FILE *stream, const char *code);

/* "FILE:LINE: message" on stderr, or "FILE: message" where no line is meant. */
void cmd_print_policy_error(const char *path, const struct policy_error *error);

/*
 * Reads the policy at `wanted`, or with NULL the one in force; `path` gets its name, "" for the built-in one.
 * Returns 0, or a negative errno after the error was printed as above.
 */
int cmd_load_policy(const char *wanted, struct policy *policy, char path[CMD_MAX_PATH]);

/* The folder that this program runs from. Returns 0 or -errno. */
int cmd_self_folder(char *folder, size_t size);

/*
 * The absolute path (PATH_MAX) of the shim named by `wanted`, or with NULL the one of this tool, known to be one that
 * LD_PRELOAD can hold. Returns 0, or a negative errno after the error was printed.
 */
int cmd_choose_shim(char **argv, const char *wanted, char *shim);

/* "64 MiB", "1.5 GiB", "17 B" */
const char *cmd_format_bytes(uint64_t bytes, char *text, size_t size);

#endif
