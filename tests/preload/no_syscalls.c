/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call that was agreed before allocates nothing, takes no lock and enters the kernel only to wait for a rank that is
 * late. Two processes under the shim make such calls, at audit level change, with libraries that do nothing, behind a
 * seccomp filter that lets nothing through, and with this file's malloc and pthread_mutex_lock in place of libc's.
 *
 * Usage: no_syscalls SHIM. It starts itself again for each rank: no_syscalls DESCRIPTOR RANK.
 */
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/hooks.h"
#include "tools/bench/null.h"

#define DECLARE(library, name, ret, params, args, missing) ret name params;
HOOKS(DECLARE)

enum { NRANKS = 2, CALLS = 1000, WARM_UP = 100, SEGMENT = 16 << 20, COUNT = 1 << 18, SKIP = 77 };

enum kind { ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, KINDS };
static const struct {
  const char *name;
  bool agreed;
} kinds[KINDS] = {[ALL_REDUCE] = {"decided all-reduce", false},
                  [BROADCAST] = {"broadcast kept in order", false},
                  [ALL_GATHER] = {"agreed all-gather", true},
                  [REDUCE_SCATTER] = {"agreed and rewritten reduce-scatter", true}};

/* What was seen while a rank made its calls. */
struct seen {
  unsigned allocations, locks, waits, others, calls_without_wait;
  int first_other; /* number of the system call */
  unsigned on_child;
  bool done;
};

struct region {
  _Atomic uint32_t arrivals;
  uint64_t key;
  struct seen seen[NRANKS][KINDS];
};

static struct region *region;
static struct seen ignored;
static struct seen *volatile seen = &ignored; /* that of the calls being made; nothing else runs in the process then */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void __libc_free(void *old);

void *malloc(size_t size)
{
  seen->allocations++;
  return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
  seen->allocations++;
  return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
  seen->allocations++;
  return __libc_realloc(old, size);
}

void free(void *old)
{
  seen->allocations++;
  __libc_free(old);
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
  static int (*real)(pthread_mutex_t *);

  seen->locks++;
  if (!real)
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_lock");
  return real(mutex);
}

/* The call is not made; what the caller takes for its result does not matter to a wait, and the rest is a failure. */
static void on_system_call(int signal, siginfo_t *info, void *context)
{
  (void)signal;
  (void)context;
  if (info->si_syscall == SYS_sched_yield || info->si_syscall == SYS_clock_nanosleep ||
      info->si_syscall == SYS_nanosleep) {
    seen->waits++;
  } else if (seen->others++ == 0) {
    seen->first_other = info->si_syscall;
  }
}

/* From here on the thread can only return from the handler, and end. */
static bool shut_the_kernel(void)
{
  struct sock_filter lines[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog filter = {.len = sizeof(lines) / sizeof(lines[0]), .filter = lines};
  struct sigaction action = {.sa_sigaction = on_system_call, .sa_flags = SA_SIGINFO};

  return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/* The rank's side */

struct buffers {
  ncclComm_t comm;
  void *send, *recv;
};

static ncclResult_t call(enum kind kind, const struct buffers *b)
{
  switch (kind) {
  case ALL_REDUCE:
    return ncclAllReduce(b->send, b->recv, COUNT, ncclBfloat16, ncclSum, b->comm, NULL);
  case BROADCAST:
    return ncclBroadcast(b->send, b->recv, COUNT, ncclBfloat16, 0, b->comm, NULL);
  case ALL_GATHER:
    return ncclAllGather(b->send, b->recv, COUNT, ncclBfloat16, b->comm, NULL);
  case REDUCE_SCATTER:
    return ncclReduceScatter(b->send, b->recv, COUNT, ncclBfloat16, ncclAvg, b->comm, NULL);
  case KINDS:
    break;
  }
  return ncclInternalError;
}

static void meet(void)
{
  uint32_t arrived = atomic_fetch_add(&region->arrivals, 1), wanted = (arrived / NRANKS + 1) * NRANKS;

  while (atomic_load(&region->arrivals) < wanted)
    sched_yield();
}

/* Warms up by the same instructions: the shim looks up each place that calls it, once. */
__attribute__((noinline)) static void watch(enum kind kind, const struct buffers *buffers, int count, struct seen *mine)
{
  uint64_t on_child = null_calls_on_child();
  bool good = true;

  seen = mine;
  for (int i = 0; i < count; i++) {
    unsigned waits = mine->waits;
    good &= call(kind, buffers) == ncclSuccess;
    mine->calls_without_wait += mine->waits == waits;
  }
  seen = &ignored;
  mine->on_child = (unsigned)(null_calls_on_child() - on_child);
  mine->done = good;
}

static int run_rank(int rank)
{
  struct buffers buffers = {NULL, NULL, NULL};
  ncclUniqueId id = {{0}};

  alarm(100);
  memcpy(&id, &region->key, sizeof(region->key));
  null_meet = meet;
  if (cudaMalloc(&buffers.send, SEGMENT) != cudaSuccess || cudaMalloc(&buffers.recv, SEGMENT) != cudaSuccess ||
      ncclCommInitRank(&buffers.comm, NRANKS, id, rank) != ncclSuccess)
    return 1;
  for (int kind = 0; kind < KINDS; kind++) {
    struct seen warm_up = {0};
    watch((enum kind)kind, &buffers, WARM_UP, &warm_up);
    if (!warm_up.done)
      return 1;
  }
  meet();
  if (!shut_the_kernel())
    return 1;
  for (int kind = 0; kind < KINDS; kind++)
    watch((enum kind)kind, &buffers, CALLS, &region->seen[rank][kind]);
  _exit(0);
}

/* The parent's side */

/* Whether this machine can tell: a filter is allowed, and looking at a clock is no system call. 0, SKIP or 1. */
static int can_tell(void)
{
  pid_t pid = fork();
  int status = 1;

  if (pid == 0) {
    struct seen clocks = {0};
    struct timespec now;
    if (!shut_the_kernel())
      _exit(SKIP);
    seen = &clocks;
    clock_gettime(CLOCK_MONOTONIC, &now);
    clock_gettime(CLOCK_REALTIME, &now);
    if (clocks.others > 0)
      _exit(SKIP);
    sched_yield();
    syscall(SYS_getppid);
    _exit(clocks.waits == 1 && clocks.others == 1 && clocks.first_other == SYS_getppid ? 0 : 1);
  }
  return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int fail(int rank, enum kind kind, const char *what, unsigned count)
{
  fprintf(stderr, "rank %d, %u calls of kind \"%s\": %s: %u\n", rank, (unsigned)CALLS, kinds[kind].name, what, count);
  return 1;
}

static int judge(int rank, enum kind kind)
{
  const struct seen *s = &region->seen[rank][kind];
  bool agreed = kinds[kind].agreed;
  int failed = 0;

  if (!s->done)
    return fail(rank, kind, "the calls did not succeed, or were not all made", 0);
  if (s->on_child != (agreed ? CALLS : 0U))
    failed |= fail(rank, kind, "calls that went symmetric", s->on_child);
  if (s->allocations > 0)
    failed |= fail(rank, kind, "calls of malloc, calloc, realloc or free", s->allocations);
  if (s->locks > 0)
    failed |= fail(rank, kind, "locks", s->locks);
  if (s->others > 0) {
    fprintf(stderr, "the first is system call %d\n", s->first_other);
    failed |= fail(rank, kind, "system calls that are no waits", s->others);
  }
  if (!agreed && s->waits > 0)
    failed |= fail(rank, kind, "waits in a call that nobody is asked about", s->waits);
  /* On a busy machine most calls may wait; but who comes last does not. */
  if (s->calls_without_wait == 0)
    failed |= fail(rank, kind, "calls without a wait in the kernel", 0);
  return failed;
}

/* In a folder of the test's own, which is left as it was found. */
static int run_ranks(const char *self, const char *shim, const char *folder)
{
  char policy[256], audit[256], fd_word[16], rank_word[16];
  int fd = memfd_create("no_syscalls", 0), status, bad = 0;
  pid_t pids[NRANKS];
  FILE *file;

  snprintf(policy, sizeof(policy), "%s/policy", folder);
  snprintf(audit, sizeof(audit), "%s/audit", folder);
  file = fopen(policy, "w");
  if (!file || fd < 0 || ftruncate(fd, sizeof(*region)) < 0)
    return 1;
  fprintf(file, "[shim]\nagree_us = 10000000\nsetup_ms = 60000\nwarn_s = 0\naudit = change\n[arena]\ncallers = *\n"
                "[rule all_reduce]\nop = all_reduce\npath = plain\n"
                "[rule rest]\npath = window\nrewrite = post_scale\n");
  fclose(file);
  region = mmap(NULL, sizeof(*region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (region == MAP_FAILED)
    return 1;
  region->key = (uint64_t)getpid() << 32 | (uint64_t)time(NULL);
  setenv("SYMMSHIM", "on", 1);
  setenv("SYMMSHIM_POLICY", policy, 1);
  setenv("SYMMSHIM_AUDIT", audit, 1);
  setenv("LD_PRELOAD", shim, 1);
  unsetenv("NCCL_COMM_ID");
  snprintf(fd_word, sizeof(fd_word), "%d", fd);
  for (int rank = 0; rank < NRANKS; rank++) {
    snprintf(rank_word, sizeof(rank_word), "%d", rank);
    pids[rank] = fork();
    if (pids[rank] == 0) {
      execl(self, self, fd_word, rank_word, (char *)NULL);
      _exit(1);
    }
  }
  for (int rank = 0; rank < NRANKS; rank++) {
    if (pids[rank] > 0 && waitpid(pids[rank], &status, 0) == pids[rank] && WIFEXITED(status) &&
        WEXITSTATUS(status) == 0)
      continue;
    fprintf(stderr, "rank %d failed\n", rank);
    bad = 1;
    for (int other = rank + 1; other < NRANKS; other++)
      if (pids[other] > 0)
        kill(pids[other], SIGKILL);
  }
  unlink(policy);
  if (unlink(audit) < 0) {
    fprintf(stderr, "the shim wrote no audit log\n");
    bad = 1;
  }
  return bad;
}

int main(int argc, char **argv)
{
  char folder[] = "/tmp/symmshim-no-syscalls.XXXXXX";
  int status;

  if (argc == 3) {
    region = mmap(NULL, sizeof(*region), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[1]), 0);
    return region == MAP_FAILED ? 1 : run_rank(atoi(argv[2]));
  }
  if (argc != 2)
    return 2;
  status = can_tell();
  if (status != 0) {
    fprintf(stderr, "%s\n", status == SKIP ? "no seccomp here, or no clock without a system call" : "the filter leaks");
    return status;
  }
  if (!mkdtemp(folder))
    return 1;
  status = run_ranks(argv[0], argv[1], folder);
  rmdir(folder);
  for (int i = 0, ran = status == 0; ran && i < NRANKS * KINDS; i++)
    status |= judge(i / KINDS, (enum kind)(i % KINDS));
  for (int kind = 0; status == 0 && kind < KINDS; kind++)
    printf("%s: %u and %u of %d calls without entering the kernel\n", kinds[kind].name,
           region->seen[0][kind].calls_without_wait, region->seen[1][kind].calls_without_wait, CALLS);
  return status;
}
