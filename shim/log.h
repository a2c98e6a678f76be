/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages for people, in NCCL's own line shape so that both logs interleave:
 *   host:pid:tid [device] SYMMSHIM WARN text
 * SYMMSHIM_DEBUG=WARN|INFO|TRACE (default WARN) chooses how much; SYMMSHIM_DEBUG_FILE (%h host, %p pid, %r rank)
 * where, else stderr.
 *
 * Owns the descriptor. One write(2) a line, no allocation, errno kept; never writes to stdout. A line for which there
 * is no reader, or no room in the pipe, is left out (sink.h).
 */
#ifndef SYMMSHIM_LOG_H
#define SYMMSHIM_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_WARN = 1, LOG_INFO, LOG_TRACE };

/* Whether lines of a level are written at all. */
bool log_wants(enum log_level level);

void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_trace(...) log_write(LOG_TRACE, __VA_ARGS__)

/* The same warning only once per process and place. */
#define log_warn_once(...)                                                                                             \
  do {                                                                                                                 \
    static int said;                                                                                                   \
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))                                                              \
      log_warn(__VA_ARGS__);                                                                                           \
  } while (0)

/* Fills in %h, %p and %r of a file name ("%%" is a percent sign, others stay). False when it does not fit. */
bool log_expand(char *path, size_t size, const char *pattern);

/* Opens a file to append to: 0600, regular, ours, no symbolic link. Returns the descriptor or -errno. */
int log_open(const char *path);

/* The job's rank as its launcher says (RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID), or -1. */
int log_rank(void);

#endif
