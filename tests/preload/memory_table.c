/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   memory_table [--preload LIST] [--json FILE] [--only ROW] [--list]
 *
 * Runs each row three times, without the shim, beside it (LIST preloaded, the memory plain all the same) and on the
 * arena's memory, and prints what came of it. Status 0: no row differs for which no reason is known.
 */
#include "tests/preload/memory_table.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT = 2048 };

enum kind { PLAIN, BESIDE, ARENA, KINDS };
static const char *const kind_names[KINDS] = {"plain", "beside", "arena"};
static enum kind wanted;

void say(const char *what, cudaError_t result)
{
  cudaError_t last = cudaPeekAtLastError();

  printf(" %s=%u", what, result);
  if (last != cudaSuccess)
    printf(" last=%u", last);
  if (cudaGetLastError() != last || cudaPeekAtLastError() != cudaSuccess)
    printf(" last error not cleared");
  fflush(stdout);
}

void say_number(const char *what, long number)
{
  printf(" %s=%ld", what, number);
  fflush(stdout);
}

static _Noreturn void leave(const char *why)
{
  printf("!%s", why);
  fflush(stdout);
  _exit(SKIPPED);
}

void *need(const char *function)
{
  void *found = dlsym(RTLD_DEFAULT, function);

  if (!found)
    leave("real GPU only");
  return found;
}

void use_device(int device)
{
  if (cudaSetDevice(device) != cudaSuccess)
    leave("the device cannot be used");
}

/* VMM memory has a handle, cudaMalloc's has none. */
static bool is_vmm(void *ptr)
{
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
  union {
    void *object;
    CUresult (*function)(CUmemGenericAllocationHandle *handle, void *address);
  } retain = {driver ? dlsym(driver, "cuMemRetainAllocationHandle") : NULL};
  union {
    void *object;
    CUresult (*function)(CUmemGenericAllocationHandle handle);
  } release = {driver ? dlsym(driver, "cuMemRelease") : NULL};
  CUmemGenericAllocationHandle handle;

  if (!retain.object || !release.object || retain.function(&handle, ptr) != CUDA_SUCCESS)
    return false;
  release.function(handle);
  return true;
}

char *take(void)
{
  void *memory = NULL;

  if (cudaMalloc(&memory, LARGE) != cudaSuccess || is_vmm(memory) != (wanted == ARENA)) {
    printf(" the memory is not of the kind that was asked for");
    fflush(stdout);
    _exit(1);
  }
  return memory;
}

static const struct row *const tables[] = {rows_alone, rows_ordered, rows_peers};
enum { TABLES = sizeof(tables) / sizeof(tables[0]) };

static int run_row(const char *name, const char *kind)
{
  int devices = 0;

  while (wanted < KINDS && strcmp(kind, kind_names[wanted]) != 0)
    wanted++;
  for (int i = 0; i < TABLES; i++)
    for (const struct row *row = tables[i]; row->name; row++)
      if (strcmp(row->name, name) == 0) {
        if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < (row->devices ? row->devices : 1))
          leave("needs more devices");
        use_device(0);
        row->run();
        return 0;
      }
  return 64;
}

struct answer {
  char text[TEXT];
  bool skipped;
};

struct settings {
  const char *preload, *json, *only;
  char policies[KINDS][32]; /* files; "": none */
};

static void become_row(const struct settings *settings, const char *name, enum kind kind)
{
  if (kind != PLAIN) {
    setenv("LD_PRELOAD", settings->preload, 1);
    setenv("SYMMSHIM_POLICY", settings->policies[kind], 1);
  }
  execl("/proc/self/exe", "memory_table", "--run", name, kind_names[kind], (char *)NULL);
  _exit(65);
}

static void ask(const struct settings *settings, const char *name, enum kind kind, struct answer *answer)
{
  size_t length = 0;
  ssize_t got;
  int ends[2], status = 0;
  pid_t child;

  if (pipe(ends) != 0 || (child = fork()) < 0)
    exit(71);
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    become_row(settings, name, kind);
  }
  close(ends[1]);
  while (length < TEXT - 64 && (got = read(ends[0], answer->text + length, TEXT - 64 - length)) > 0)
    length += (size_t)got;
  close(ends[0]);
  waitpid(child, &status, 0);
  answer->text[length] = '\0';
  answer->skipped = WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED;
  if (WIFSIGNALED(status))
    snprintf(answer->text + length, 64, " signal=%d", WTERMSIG(status));
  else if (!answer->skipped && WEXITSTATUS(status) != 0)
    snprintf(answer->text + length, 64, " status=%d", WEXITSTATUS(status));
}

struct counts {
  int same, known, differ, skipped;
};

static const char *judge(const struct row *row, const struct answer answers[], struct counts *counts)
{
  if (answers[PLAIN].skipped || answers[ARENA].skipped)
    return counts->skipped++, answers[PLAIN].text + strcspn(answers[PLAIN].text, "!") + 1;
  if (strcmp(answers[PLAIN].text, answers[BESIDE].text) == 0 && strcmp(answers[PLAIN].text, answers[ARENA].text) == 0)
    return counts->same++, "same";
  /* What is known of the arena's memory is no excuse for plain memory. */
  if (row->known && strcmp(answers[PLAIN].text, answers[BESIDE].text) == 0)
    return counts->known++, "known";
  return counts->differ++, "DIFFERS";
}

static void print_row(const struct row *row, const struct answer answers[], const char *verdict, FILE *json)
{
  printf("%-28s %s\n", row->name, verdict);
  for (int kind = 0; kind < KINDS && !answers[PLAIN].skipped; kind++)
    if (kind == PLAIN || strcmp(answers[kind].text, answers[PLAIN].text) != 0)
      printf("    %-7s%s\n", kind_names[kind], answers[kind].text);
  if (strcmp(verdict, "known") == 0)
    printf("    because %s\n", row->known);
  fflush(stdout);
  if (json)
    fprintf(
        json, "%s\n  {\"case\": \"%s\", \"plain\": \"%s\", \"beside\": \"%s\", \"arena\": \"%s\", \"verdict\": \"%s\"}",
        ftell(json) > 1 ? "," : "", row->name, answers[PLAIN].text, answers[BESIDE].text, answers[ARENA].text, verdict);
}

/* One line about each row. */
static int run_all(const struct settings *settings)
{
  struct counts counts = {0};
  FILE *json = settings->json ? fopen(settings->json, "w") : NULL;

  if (settings->json && !json) {
    fprintf(stderr, "memory_table: %s cannot be written\n", settings->json);
    return 73;
  }
  if (json)
    fputc('[', json);
  for (int i = 0; i < TABLES; i++)
    for (const struct row *row = tables[i]; row->name; row++) {
      struct answer answers[KINDS];
      if (settings->only && strcmp(settings->only, row->name) != 0)
        continue;
      for (int kind = 0; kind < KINDS; kind++)
        ask(settings, row->name, (enum kind)kind, &answers[kind]);
      print_row(row, answers, judge(row, answers, &counts), json);
    }
  if (json && (fputs("\n]\n", json), fclose(json) != 0))
    return 73;
  printf("%d same, %d differ for a known reason, %d differ, %d not here\n", counts.same, counts.known, counts.differ,
         counts.skipped);
  return counts.differ > 0 || counts.same == 0 ? 1 : 0;
}

static void write_policy(char path[32], const char *min_bytes)
{
  int file;

  strcpy(path, "/tmp/memory-table-XXXXXX");
  file = mkstemp(path);
  if (file < 0 || dprintf(file, "[arena]\ncallers = *\nmin_bytes = %s\n", min_bytes) < 0 || close(file) != 0)
    exit(73);
}

static int list(void)
{
  for (int i = 0; i < TABLES; i++)
    for (const struct row *row = tables[i]; row->name; row++)
      puts(row->name);
  return 0;
}

int main(int argc, char **argv)
{
  struct settings settings = {0};
  int status;

  if (argc == 4 && strcmp(argv[1], "--run") == 0)
    return run_row(argv[2], argv[3]);
  if (argc == 2 && strcmp(argv[1], "--list") == 0)
    return list();
  for (int i = 1; i + 1 < argc; i += 2)
    if (strcmp(argv[i], "--preload") == 0)
      settings.preload = argv[i + 1];
    else if (strcmp(argv[i], "--json") == 0)
      settings.json = argv[i + 1];
    else if (strcmp(argv[i], "--only") == 0)
      settings.only = argv[i + 1];
  if (!settings.preload || argc % 2 == 0) {
    fprintf(stderr, "Usage: memory_table --preload LIST [--json FILE] [--only ROW] | --list\n");
    return 64;
  }
  unsetenv("LD_PRELOAD");
  write_policy(settings.policies[BESIDE], "1G");
  write_policy(settings.policies[ARENA], "1M");
  status = run_all(&settings);
  unlink(settings.policies[BESIDE]);
  unlink(settings.policies[ARENA]);
  return status;
}
