/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where lines go so that nothing of it falls back on the job: no signal (SIGPIPE, SIGXFSZ), no wait for a pipe that is
 * full, nothing written into a file of the job's that got the number of a descriptor which the job had closed.
 *
 * Owns the audit log's descriptor and its name. No allocation, errno kept.
 */
#ifndef SYMMSHIM_SINK_H
#define SYMMSHIM_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opens the log, which is to stay below `max` bytes (0: no limit). Returns 0 or -errno. */
int sink_open(const char *path, uint64_t max);

/* Whether a log was opened. */
bool sink_is_wanted(void);

/* Writes a line that ends in a newline, and before which there is room for one more byte, or counts it as lost. */
void sink_write(char *line, size_t length);

/* A line that could not even be made. */
void sink_lose(void);

uint64_t sink_lost(void);

/* write(2), but for signals and waiting. Returns what it returns. */
long sink_write_quietly(int descriptor, const char *text, size_t length);

#endif
