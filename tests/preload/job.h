/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYMMSHIM_PRELOAD_JOB_H
#define SYMMSHIM_PRELOAD_JOB_H

/* The whole job; what main() returns. Exported, so that it can also be brought in by dlopen. */
int job_main(int argc, char **argv);

#endif
