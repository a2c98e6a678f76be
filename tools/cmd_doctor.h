/* SPDX-License-Identifier: Apache-2.0 */
/*
 * symmshim doctor: each part looks at something and says what it found. cmd_doctor.c prints; _gpu.c asks the driver,
 * _nccl.c looks for NCCL and PyTorch, _elf.c reads what they are linked to, _host.c looks at the environment and the
 * host, _job.c starts the command for a while.
 */
#ifndef SYMMSHIM_CMD_DOCTOR_H
#define SYMMSHIM_CMD_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

#include "policy/policy.h"

enum doctor_answer { DOCTOR_OK, DOCTOR_NO, DOCTOR_UNKNOWN };

enum { DOCTOR_MAX_CHECKS = 64, DOCTOR_MAX_TEXT = 512, DOCTOR_PROBE_SECONDS = 60 };

struct doctor_check {
  char name[24];
  enum doctor_answer answer;
  char reason[DOCTOR_MAX_TEXT];
  char todo[DOCTOR_MAX_TEXT]; /* "": nothing */
};

struct doctor {
  int count;
  struct doctor_check checks[DOCTOR_MAX_CHECKS];
  char **command; /* NULL: none was given */
  int seconds;
  char **argv;      /* of the tool, for its own messages */
  const char *shim; /* as --shim names it; NULL: this tool's */
};

/* Adds a check; the last argument with its format is the reason. `todo` may be NULL where the answer is ok. */
void doctor_say(struct doctor *doctor, const char *name, enum doctor_answer answer, const char *todo,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

/*
 * Runs `probe` in a child process, which is ended after DOCTOR_PROBE_SECONDS, and takes over what it said: what a
 * library leaves behind, goes with it. Without an answer, says `name` is unknown.
 */
void doctor_in_child(struct doctor *doctor, const char *name, void (*probe)(struct doctor *doctor, void *data),
                     void *data);

void doctor_gpu(struct doctor *doctor);
void doctor_host(struct doctor *doctor);
void doctor_policy(struct doctor *doctor);
void doctor_nccl(struct doctor *doctor);
void doctor_job(struct doctor *doctor);

/* What a shared object needs and has. */
struct doctor_elf {
  char needed_nccl[64], needed_cudart[64]; /* "": not needed */
  bool has_nccl, has_cudart;               /* defines ncclAllGather, cudaMalloc itself */
};
int doctor_elf_read(const char *path, struct doctor_elf *elf); /* 0 or -errno */

#endif
