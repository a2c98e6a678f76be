/* SPDX-License-Identifier: Apache-2.0 */
/* The assertion program of the matrix: the same calls however it came to its libraries. */
#ifndef SYMMSHIM_PRELOAD_MATRIX_H
#define SYMMSHIM_PRELOAD_MATRIX_H

/*
 * `scenario`: calls, threads, fork, wake. `label` names the run in its lines, and must be new for each run of a
 * process. Prints a line for each call of the program, in one write(2) each. Returns 0, or 1 when a result is wrong.
 */
int matrix_main(const char *scenario, const char *label);

#endif
