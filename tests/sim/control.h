/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults on demand, delays, and the record of calls: owns SIM_FAIL, SIM_DELAY, SIM_ASYNC_ERROR and SIM_TRACE. Compiled
 * into each of the three libraries (a function lives in one of them, so each counts its own).
 */
#ifndef SYMMSHIM_SIM_CONTROL_H
#define SYMMSHIM_SIM_CONTROL_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Wraps the body of an exported function: SIM_CALL(name, what it does, format, arguments...). The format sees the
 * arguments as they came in, never a result: C does not say that the call runs first.
 */
#define SIM_CALL(name, call, ...) control_leave(#name, control_enter(#name) ? control_injected() : (call), __VA_ARGS__)

/* Counts the call and sleeps where SIM_DELAY says so. True: fail it with control_injected(). */
bool control_enter(const char *name);
unsigned int control_injected(void);

/* Counts work on a communicator of that kind. From the time on that SIM_ASYNC_ERROR names: the code, else 0. */
unsigned int control_async(const char *kind);

/* Records the call; gives `result` back. */
unsigned int control_leave(const char *name, unsigned int result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A line of the record that is not a call. */
void control_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Says "sim: ..." on stderr and aborts: for what the real thing answers with a crash. */
_Noreturn void control_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A size from the environment ("8G", "512M", "4096"), or `otherwise` where it is not set. */
size_t control_env_size(const char *name, size_t otherwise);

#endif
