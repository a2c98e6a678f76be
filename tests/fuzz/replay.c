/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives a fuzz target the inputs named on the command line, or found in folders named there, without libFuzzer. Each
 * gets a heap block of just its size, so that a sanitizer sees a read past its end.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum { MOST_SECONDS = 20 /* for one input; it takes milliseconds */ };

static const char *current;

static void fail(const char *path, const char *why)
{
  fprintf(stderr, "%s: %s\n", path, why);
  exit(1);
}

static void replay_file(const char *path)
{
  FILE *file = fopen(path, "re");
  struct stat status;
  uint8_t *data;

  if (!file || fstat(fileno(file), &status) != 0)
    fail(path, strerror(errno));
  data = malloc((size_t)status.st_size);
  if (!data && status.st_size > 0)
    fail(path, "no memory");
  if (fread(data, 1, (size_t)status.st_size, file) != (size_t)status.st_size)
    fail(path, "cannot be read");
  fclose(file);
  current = path;
  alarm(MOST_SECONDS);
  LLVMFuzzerTestOneInput(data, (size_t)status.st_size);
  alarm(0);
  free(data);
}

/* Returns the number of inputs. */
static int replay(const char *path)
{
  DIR *folder = opendir(path);
  struct dirent *entry;
  int inputs = 0;

  if (!folder && errno != ENOTDIR)
    fail(path, strerror(errno));
  if (!folder) {
    replay_file(path);
    return 1;
  }
  while ((entry = readdir(folder)) != NULL) {
    char file[PATH_MAX];

    if (entry->d_name[0] == '.')
      continue;
    snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
    replay_file(file);
    inputs++;
  }
  closedir(folder);
  return inputs;
}

/* A target that fails aborts: say with which input. */
static void name_input(int signal_number)
{
  static const char text[] = ": with this input\n";
  ssize_t ignored = write(STDERR_FILENO, current, strlen(current));

  ignored = write(STDERR_FILENO, text, sizeof(text) - 1);
  (void)ignored;
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

int main(int argc, char **argv)
{
  int inputs = 0;

  signal(SIGABRT, name_input);
  signal(SIGALRM, name_input);
  for (int i = 1; i < argc; i++)
    inputs += replay(argv[i]);
  printf("%d inputs\n", inputs);
  return inputs > 0 ? 0 : 1; /* an empty corpus tests nothing */
}
