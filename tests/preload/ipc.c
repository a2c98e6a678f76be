/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA IPC between processes, step by step. Each argument is a step of one process, which is started at its first:
 *
 *   ipc "o alloc a 4194304" "o fill a 7" "o handle a 0 H" "c open x H" "c read x 0 7" "c close x"
 *
 * and its result is a line on stdout, without addresses, so that runs on plain and on the arena's memory can be
 * compared. A process is one letter; "n" is one without the shim. Steps of this process: "kill P", "end P", "stop P",
 * "go P", "sleep SECONDS", "alike H G", "flip H BYTE G" (a handle with one bit changed), "forge H BYTE G" (likewise,
 * but with a sum that fits).
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/check.h"

enum { NAMES = 512, NAME = 16, LINE = 512, HEX = 2 * sizeof(cudaIpcMemHandle_t), UNTIL_THE_END = 20, SUM_AT = 56 };

static void hex_of(char *text, const cudaIpcMemHandle_t *handle)
{
  for (size_t i = 0; i < sizeof(*handle); i++)
    sprintf(text + 2 * i, "%02x", (unsigned char)handle->reserved[i]);
}

static cudaIpcMemHandle_t handle_of(const char *text)
{
  cudaIpcMemHandle_t handle;

  for (size_t i = 0; i < sizeof(handle); i++) {
    unsigned int byte = 0;
    sscanf(text + 2 * i, "%2x", &byte);
    handle.reserved[i] = (char)byte;
  }
  return handle;
}

/* Things by their names: pointers in an agent, handles in the one that directs them. */
static struct named {
  char name[NAME];
  void *ptr;
  char hex[HEX + 1];
} things[NAMES];

static struct named *thing(const char *name)
{
  struct named *at = things;

  while (at->name[0] && strcmp(at->name, name) != 0)
    at++;
  if (at == &things[NAMES - 1])
    job_fail("too many names");
  snprintf(at->name, sizeof(at->name), "%s", name);
  return at;
}

/* The agent: a process that does what it is told. */

static char answer[LINE];

static void say(cudaError_t result)
{
  snprintf(answer, sizeof(answer), "%u, last %u", result, cudaGetLastError());
}

static int count_descriptors(void)
{
  DIR *folder = opendir("/proc/self/fd");
  int count = 0;

  while (folder && readdir(folder))
    count++;
  if (folder)
    closedir(folder);
  return count;
}

struct racer {
  pthread_t thread;
  cudaIpcMemHandle_t handle;
  int wrong;
};

static void *race(void *data)
{
  enum { ROUNDS = 50 };
  struct racer *racer = data;

  for (int i = 0; i < ROUNDS; i++) {
    char first = 0;
    void *ptr = NULL;
    racer->wrong += cudaIpcOpenMemHandle(&ptr, racer->handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess;
    racer->wrong += cudaMemcpy(&first, ptr, 1, 2) != cudaSuccess || first != 7;
    racer->wrong += cudaIpcCloseMemHandle(ptr) != cudaSuccess;
  }
  return NULL;
}

static void race_all(const char *hex)
{
  struct racer racers[8];
  int wrong = 0;

  for (int i = 0; i < 8; i++) {
    racers[i] = (struct racer){.handle = handle_of(hex)};
    pthread_create(&racers[i].thread, NULL, race, &racers[i]);
  }
  for (int i = 0; i < 8; i++) {
    pthread_join(racers[i].thread, NULL);
    wrong += racers[i].wrong;
  }
  snprintf(answer, sizeof(answer), "%d wrong", wrong);
}

/* Asks the owner as the shim does, but for the look at who it is. */
static void ask(const char *hex)
{
  cudaIpcMemHandle_t handle = handle_of(hex);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), status = 1;
  char control[CMSG_SPACE(sizeof(int))];
  struct iovec data = {&status, sizeof(status)};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
  uint64_t owner;

  memcpy(&owner, &handle.reserved[8], sizeof(owner));
  int length = sprintf(address.sun_path + 1, "symmshim-ipc-%016llx", (unsigned long long)owner);
  if (connect(fd, (struct sockaddr *)&address,
              (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)length) != 0) {
    snprintf(answer, sizeof(answer), "no connection: %s", strerror(errno));
  } else {
    int answered = send(fd, &handle, sizeof(handle), MSG_NOSIGNAL) > 0 && recvmsg(fd, &message, 0) > 0;
    snprintf(answer, sizeof(answer), answered ? "status %d%s" : "no answer", status,
             message.msg_controllen > 0 ? " and a descriptor" : "");
  }
  close(fd);
}

/* The child, in which CUDA does not work, lives until the whole run ends. */
static void fork_child(void)
{
  if (fork() == 0) {
    char byte;
    _exit(read(UNTIL_THE_END, &byte, 1) != 0);
  }
  snprintf(answer, sizeof(answer), "forked");
}

/* Other descriptors of the agent's than those that it was started with. */
static void close_all(void)
{
  int closed = 0;

  for (int fd = 3; fd < 100; fd++) {
    char path[64], name[64] = "";
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fd != UNTIL_THE_END && readlink(path, name, sizeof(name) - 1) > 0 && strncmp(name, "socket:", 7) == 0)
      closed += dup2(STDERR_FILENO, fd) == fd;
  }
  snprintf(answer, sizeof(answer), "closed %d", closed);
}

static void check_bytes(const char *ptr, size_t offset, size_t count, int value)
{
  char *bytes = malloc(count);
  size_t wrong = 0;

  CUDA_CHECK(cudaMemcpy(bytes, ptr + offset, count, 2));
  for (size_t i = 0; i < count; i++)
    wrong += bytes[i] != (char)value;
  free(bytes);
  snprintf(answer, sizeof(answer), "%zu wrong", wrong);
}

static void step_of_cuda(int count, char **words)
{
  struct named *first = count > 1 ? thing(words[1]) : NULL;
  size_t number = count > 2 ? strtoul(words[2], NULL, 10) : 0;

  if (strcmp(words[0], "alloc") == 0) {
    say(cudaMalloc(&first->ptr, number));
  } else if (strcmp(words[0], "free") == 0) {
    say(cudaFree(first->ptr));
  } else if (strcmp(words[0], "fill") == 0) {
    say(cudaMemset(first->ptr, (int)number, 1 << 20));
    CUDA_CHECK(cudaDeviceSynchronize());
  } else if (strcmp(words[0], "handle") == 0) {
    cudaIpcMemHandle_t handle = {{0}};
    say(cudaIpcGetMemHandle(&handle, (char *)first->ptr + number));
    size_t used = strlen(answer);
    answer[used] = ' ';
    hex_of(answer + used + 1, &handle);
  } else if (strcmp(words[0], "open") == 0) {
    say(cudaIpcOpenMemHandle(&first->ptr, handle_of(words[2]), count > 3 ? (unsigned int)atoi(words[3]) : 1));
  } else if (strcmp(words[0], "close") == 0) {
    say(cudaIpcCloseMemHandle((char *)first->ptr + number));
  } else if (strcmp(words[0], "read") == 0) {
    check_bytes(first->ptr, number, 4096, atoi(words[3]));
  } else if (strcmp(words[0], "same") == 0) {
    snprintf(answer, sizeof(answer), "%d", first->ptr == thing(words[2])->ptr);
  } else if (strcmp(words[0], "device") == 0) {
    say(cudaSetDevice(atoi(words[1])));
  } else {
    job_fail("%s is not understood", words[0]);
  }
}

static void step(int count, char **words)
{
  static int descriptors;

  if (strcmp(words[0], "fds") == 0) {
    int now = count_descriptors();
    snprintf(answer, sizeof(answer), "%d more", descriptors ? now - descriptors : 0);
    descriptors = now;
  } else if (strcmp(words[0], "user") == 0) {
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
      job_fail("cannot become another user");
    snprintf(answer, sizeof(answer), "another user");
  } else if (strcmp(words[0], "threads") == 0) {
    race_all(words[1]);
  } else if (strcmp(words[0], "ask") == 0) {
    ask(words[1]);
  } else if (strcmp(words[0], "fork") == 0) {
    fork_child();
  } else if (strcmp(words[0], "closeall") == 0) {
    close_all();
  } else {
    step_of_cuda(count, words);
  }
}

static int split(char *line, char **words, int most)
{
  int count = 0;

  for (char *word = strtok(line, " \n"); word && count < most; word = strtok(NULL, " \n"))
    words[count++] = word;
  return count;
}

static int agent(void)
{
  char line[LINE], *words[8];

  prctl(PR_SET_PDEATHSIG, SIGKILL);
  while (fgets(line, sizeof(line), stdin)) {
    memset(answer, 0, sizeof(answer));
    step(split(line, words, 8), words);
    puts(answer);
    fflush(stdout);
  }
  return 0;
}

/* The one that directs them; it makes no call of CUDA's. */

static struct process {
  pid_t pid;
  FILE *to, *from;
} processes[128];

static int until_the_end[2];

static struct process *process_of(char name)
{
  struct process *process = &processes[(unsigned char)name & 127];
  static int started;
  int to[2], from[2];
  char number[16];

  if (process->pid != 0)
    return process;
  if (pipe(to) != 0 || pipe(from) != 0)
    job_fail("no pipes");
  snprintf(number, sizeof(number), "%d", started++);
  process->pid = fork();
  if (process->pid == 0) {
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    dup2(until_the_end[0], UNTIL_THE_END);
    for (int fd = 3; fd < 256; fd++)
      if (fd != UNTIL_THE_END)
        close(fd);
    setenv("RANK", number, 1);
    if (name == 'n')
      unsetenv("LD_PRELOAD");
    execl("/proc/self/exe", "ipc", "--agent", (char *)NULL);
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  process->to = fdopen(to[1], "w");
  process->from = fdopen(from[0], "r");
  return process;
}

static void finish(struct process *process)
{
  int status = 0;

  if (process->pid == 0)
    return;
  fclose(process->to);
  fclose(process->from);
  waitpid(process->pid, &status, 0);
  if (WIFSIGNALED(status))
    printf("ended by signal %d\n", WTERMSIG(status));
  else if (status != 0)
    printf("ended with %d\n", WEXITSTATUS(status));
  process->pid = 0;
}

/* Gives `to` a handle that differs from `from` in a bit; with a sum that fits if it is to be a forgery. */
static void change(const char *from, int byte, const char *to, int forge)
{
  cudaIpcMemHandle_t handle = handle_of(thing(from)->hex);
  uint64_t sum = 0xcbf29ce484222325ULL;

  handle.reserved[byte] = (char)(handle.reserved[byte] ^ 1);
  for (int i = 0; forge && i < SUM_AT; i++)
    sum = (sum ^ (unsigned char)handle.reserved[i]) * 0x100000001b3ULL;
  if (forge)
    memcpy(&handle.reserved[SUM_AT], &sum, sizeof(sum));
  hex_of(thing(to)->hex, &handle);
}

static int direct_alone(char **words)
{
  if (strcmp(words[0], "kill") == 0) {
    kill(process_of(words[1][0])->pid, SIGKILL);
    finish(process_of(words[1][0]));
  } else if (strcmp(words[0], "end") == 0) {
    finish(process_of(words[1][0]));
  } else if (strcmp(words[0], "stop") == 0) {
    kill(process_of(words[1][0])->pid, SIGSTOP);
  } else if (strcmp(words[0], "go") == 0) {
    kill(process_of(words[1][0])->pid, SIGCONT);
  } else if (strcmp(words[0], "sleep") == 0) {
    sleep((unsigned int)atoi(words[1]));
  } else if (strcmp(words[0], "alike") == 0) {
    printf("%s and %s: %s\n", words[1], words[2],
           strcmp(thing(words[1])->hex, thing(words[2])->hex) == 0 ? "alike" : "different");
  } else if (strcmp(words[0], "flip") == 0 || strcmp(words[0], "forge") == 0) {
    change(words[1], atoi(words[2]), words[3], words[0][1] == 'o');
  } else {
    return 0;
  }
  return 1;
}

static void direct(const char *text)
{
  char copy[LINE], line[LINE], *words[8] = {NULL};
  struct process *process;
  int count;

  snprintf(copy, sizeof(copy), "%s", text);
  count = split(copy, words, 8);
  if (count < 2 || direct_alone(words))
    return;
  process = process_of(words[0][0]);
  for (int i = 1; i < count; i++) {
    /* Names of handles are capitals. */
    int is_handle = words[i][0] >= 'A' && words[i][0] <= 'Z' && strcmp(words[1], "handle") != 0;
    fprintf(process->to, "%s ", is_handle ? thing(words[i])->hex : words[i]);
  }
  fputs("\n", process->to);
  fflush(process->to);
  if (!fgets(line, sizeof(line), process->from))
    job_fail("%c has ended early in: %s", words[0][0], text);
  line[strcspn(line, "\n")] = '\0';
  if (strcmp(words[1], "handle") == 0 && strlen(line) > HEX) {
    char *hex = line + strlen(line) - HEX;
    snprintf(thing(words[4])->hex, HEX + 1, "%s", hex);
    hex[-1] = '\0';
  }
  printf("%s: %s\n", text, line);
  fflush(stdout);
}

int main(int argc, char **argv)
{
  if (argc == 2 && strcmp(argv[1], "--agent") == 0)
    return agent();
  if (pipe(until_the_end) != 0)
    return 1;
  for (int i = 1; i < argc; i++)
    direct(argv[i]);
  for (int i = 0; i < 128; i++)
    finish(&processes[i]);
  return 0;
}
