/* SPDX-License-Identifier: Apache-2.0 */
/* Which NCCL and which PyTorch a program gets. Libraries are opened in child processes, Python is asked for paths only.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/cmd.h"
#include "tools/cmd_doctor.h"

enum { MAX_COPIES = 16, FIRST_USABLE = 22705 /* as in shim/plan.c */ };

struct copies {
  int count;
  char paths[MAX_COPIES][PATH_MAX];
  bool by_torch[MAX_COPIES];
};

static void add_copy(struct copies *copies, const char *path, bool by_torch)
{
  char real[PATH_MAX];

  if (copies->count == MAX_COPIES || !realpath(path, real))
    return;
  for (int i = 0; i < copies->count; i++)
    if (strcmp(copies->paths[i], real) == 0) {
      copies->by_torch[i] |= by_torch;
      return;
    }
  snprintf(copies->paths[copies->count], PATH_MAX, "%s", real);
  copies->by_torch[copies->count++] = by_torch;
}

static void add_from_environment(struct copies *copies)
{
  const char *list = getenv("LD_LIBRARY_PATH");

  while (list && *list) {
    size_t length = strcspn(list, ":");
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%.*s/libnccl.so.2", (int)length, list);
    if (length > 0)
      add_copy(copies, path, false);
    list += length + (list[length] != '\0');
  }
}

/* A command's output by lines, with its errors thrown away. */
static void each_line(const char *command, void (*visit)(void *data, char *line), void *data)
{
  FILE *pipe = popen(command, "re");
  char line[PATH_MAX + 64];

  if (!pipe)
    return;
  while (fgets(line, sizeof(line), pipe)) {
    line[strcspn(line, "\n")] = '\0';
    visit(data, line);
  }
  pclose(pipe);
}

static void take_cached(void *data, char *line)
{
  char *path = strstr(line, "=> ");

  if (path && strstr(line, "libnccl.so.2 "))
    add_copy(data, path + 3, false);
}

struct python {
  char program[PATH_MAX];
  char torch[PATH_MAX], version[64]; /* "": none */
  char runtime[64];                  /* CUDA's, that it was built for */
  struct copies *copies;
};

static bool is_python(const char *path)
{
  const char *slash = strrchr(path, '/');

  return strncmp(slash ? slash + 1 : path, "python", 6) == 0;
}

/* The file that the shell would start. */
static bool find_program(const char *name, char *path)
{
  const char *list = getenv("PATH");

  if (strchr(name, '/')) {
    snprintf(path, PATH_MAX, "%s", name);
    return access(path, X_OK) == 0;
  }
  while (list && *list) {
    size_t length = strcspn(list, ":");

    snprintf(path, PATH_MAX, "%.*s/%s", (int)length, list, name);
    if (access(path, X_OK) == 0)
      return true;
    list += length + (list[length] != '\0');
  }
  return false;
}

/* torchrun and the like are scripts whose first line names their Python. */
static bool python_of_script(const char *path, char *program)
{
  FILE *file = fopen(path, "re");
  char line[PATH_MAX] = "", *word;

  if (!file)
    return false;
  if (!fgets(line, sizeof(line), file))
    line[0] = '\0';
  fclose(file);
  if (strncmp(line, "#!", 2) != 0)
    return false;
  word = line + 2 + strspn(line + 2, " ");
  if (strncmp(word, "/usr/bin/env ", 13) == 0)
    word += 13;
  word[strcspn(word, " \n")] = '\0';
  return is_python(word) && find_program(word, program);
}

static bool find_python(const struct doctor *doctor, char *program)
{
  const char *environment = getenv("VIRTUAL_ENV");
  char path[PATH_MAX];

  if (doctor->command && find_program(doctor->command[0], path)) {
    if (is_python(path)) {
      snprintf(program, PATH_MAX, "%s", path);
      return true;
    }
    if (python_of_script(path, program))
      return true;
  }
  snprintf(program, PATH_MAX, "%s/bin/python", environment ? environment : "");
  return (environment && access(program, X_OK) == 0) || find_program("python3", program);
}

static void take_found(void *data, char *line)
{
  struct python *python = data;
  char *value = strchr(line, '=');

  if (!value)
    return;
  *value++ = '\0';
  if (strcmp(line, "torch") == 0)
    snprintf(python->torch, sizeof(python->torch), "%s", value);
  else if (strcmp(line, "version") == 0)
    snprintf(python->version, sizeof(python->version), "%.63s", value);
  else if (strcmp(line, "nccl") == 0)
    add_copy(python->copies, value, true);
}

/* Without importing it, which would take seconds and open libraries. */
static void ask_python(struct python *python)
{
  static const char script[] = "import glob,importlib.util as u,os,re,site,sys\n"
                               "s=u.find_spec(\"torch\")\n"
                               "t=os.path.dirname(s.origin) if s and s.origin else None\n"
                               "if t:\n"
                               "  print(\"torch=\"+t)\n"
                               "  try:\n"
                               "    m=re.search(r\"__version__ *= *.([^\\\"\\x27]+)\",open(t+\"/version.py\").read())\n"
                               "    print(\"version=\"+m[1])\n"
                               "  except (OSError,TypeError): pass\n"
                               "r=[t+\"/lib\"] if t else []\n"
                               "r+=[p for d in sys.path for p in glob.glob(d+\"/nvidia/nccl/lib\")]\n"
                               "for d in r:\n"
                               "  for p in glob.glob(d+\"/libnccl.so.2\"): print(\"nccl=\"+p)\n";

  char *command;

  /* The script has no single quote but as \x27. */
  if (strchr(python->program, '\'') || asprintf(&command, "'%s' -c '%s' 2>/dev/null", python->program, script) < 0)
    return;
  each_line(command, take_found, python);
  free(command);
}

static void say_links(struct doctor *doctor, const struct python *python)
{
  static const char todo[] = "Use a build of PyTorch with shared NCCL and CUDA runtime, as the wheels have: calls "
                             "inside one library cannot be seen.";
  char path[PATH_MAX + 32];
  struct doctor_elf elf;
  int rc;

  snprintf(path, sizeof(path), "%s/lib/libtorch_cuda.so", python->torch);
  rc = doctor_elf_read(path, &elf);
  if (rc < 0)
    doctor_say(doctor, "pytorch_links", rc == -ENOENT ? DOCTOR_NO : DOCTOR_UNKNOWN,
               rc == -ENOENT ? "Install a build of PyTorch for CUDA." : "See whether PyTorch is whole.", "%s: %s", path,
               rc == -ENOENT ? "not there: this PyTorch is for other devices" : strerror(-rc));
  else if (!elf.needed_nccl[0] || !elf.needed_cudart[0])
    doctor_say(doctor, "pytorch_links", DOCTOR_NO, todo, "libtorch_cuda.so does not load %s%s",
               elf.needed_nccl[0] ? "CUDA's runtime" : "NCCL",
               elf.has_nccl || elf.has_cudart ? ", and has it inside" : "; it may have it inside");
  else
    doctor_say(doctor, "pytorch_links", DOCTOR_OK, NULL, "libtorch_cuda.so loads %s and %s", elf.needed_nccl,
               elf.needed_cudart);
}

static void say_torch(struct doctor *doctor, const struct python *python)
{
  if (!python->program[0])
    doctor_say(doctor, "pytorch", DOCTOR_UNKNOWN, "Activate the program's environment, or name its command.",
               "no Python was found");
  else if (!python->torch[0])
    doctor_say(doctor, "pytorch", DOCTOR_OK,
               "If the program uses PyTorch, activate its environment or name its command.", "%s has no PyTorch",
               python->program);
  else
    doctor_say(doctor, "pytorch", DOCTOR_OK, NULL, "%s in %s", python->version[0] ? python->version : "some version",
               python->torch);
  if (python->torch[0])
    say_links(doctor, python);
}

static void say_version(struct doctor *doctor, const char *path, int version, bool has_windows)
{
  char text[32];
  struct policy policy;
  struct policy_error error;
  char file[CMD_MAX_PATH];
  int least = FIRST_USABLE;

  policy_default(&policy);
  if (!policy_find(file, sizeof(file)) || policy_read(&policy, file, &error) == 0)
    least = policy.min_nccl > least ? policy.min_nccl : least;
  snprintf(text, sizeof(text), "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  if (version < least || !has_windows)
    doctor_say(doctor, "nccl", DOCTOR_NO, "Use a newer NCCL, or see min_nccl in the policy.", "%s is %s: %s", path,
               text, has_windows ? "older than the policy and the shim take" : "it has no windows");
  else
    doctor_say(doctor, "nccl", DOCTOR_OK, NULL, "%s in %s", text, path);
}

static void probe_nccl(struct doctor *doctor, void *data)
{
  const char *path = data;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  unsigned int (*get_version)(int *version);
  int version = 0;

  if (!library) {
    doctor_say(doctor, "nccl", DOCTOR_UNKNOWN, "See whether the libraries that it needs are there.",
               "%s cannot be loaded: %s", path, dlerror());
    return;
  }
  *(void **)&get_version = dlsym(library, "ncclGetVersion");
  if (!get_version || get_version(&version) != 0)
    doctor_say(doctor, "nccl", DOCTOR_UNKNOWN, "See whether the file is NCCL.", "%s does not tell its version", path);
  else
    say_version(doctor, path, version, dlsym(library, "ncclCommWindowRegister") != NULL);
}

void doctor_nccl(struct doctor *doctor)
{
  static struct copies copies;
  static struct python python;

  python.copies = &copies;
  if (!find_python(doctor, python.program))
    python.program[0] = '\0';
  else
    ask_python(&python);
  say_torch(doctor, &python);
  /* Of PyTorch's wheels the loader takes their own copy, whatever the environment says (DT_RPATH). */
  if (copies.count == 0) {
    add_from_environment(&copies);
    each_line("PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null", take_cached, &copies);
  }
  for (int i = 0; i < copies.count; i++)
    doctor_in_child(doctor, "nccl", probe_nccl, copies.paths[i]);
  if (copies.count == 0)
    doctor_say(doctor, "nccl", DOCTOR_NO, "Install NCCL, or name its folder in LD_LIBRARY_PATH.",
               "no libnccl.so.2 is in the program's Python, LD_LIBRARY_PATH or the loader's cache");
}
