/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment and the host say: shared memory, settings of allocator and NCCL, other preloads, the policy. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tools/cmd.h"
#include "tools/cmd_doctor.h"

enum { SHM_ROOM = 16 << 20 /* boards and NCCL's own segments of some communicators */ };

/* A try, not a look: a mount may be read-only, a namespace may forbid it. */
static void check_shm(struct doctor *doctor)
{
  static const char todo[] = "Make /dev/shm writable for this user (docker run --ipc=host or --shm-size=1g).";
  char name[64], room[32];
  struct statvfs space;
  struct stat status;
  int fd;

  snprintf(name, sizeof(name), "/symmshim-doctor-%d", (int)getpid());
  fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0) {
    doctor_say(doctor, "shared_memory", DOCTOR_NO, todo, "no object can be made in /dev/shm: %s", strerror(errno));
    return;
  }
  shm_unlink(name);
  if (fstat(fd, &status) < 0 || (status.st_mode & 0777) != 0600 || fstatvfs(fd, &space) < 0)
    doctor_say(doctor, "shared_memory", DOCTOR_NO, todo, "objects in /dev/shm do not get the mode 0600");
  else if ((uint64_t)space.f_bavail * space.f_frsize < SHM_ROOM)
    doctor_say(doctor, "shared_memory", DOCTOR_NO, "Give it room: docker run --shm-size=1g, or remove what lies there.",
               "/dev/shm has only %s left",
               cmd_format_bytes((uint64_t)space.f_bavail * space.f_frsize, room, sizeof(room)));
  else
    doctor_say(doctor, "shared_memory", DOCTOR_OK, NULL, "/dev/shm is writable and has %s left",
               cmd_format_bytes((uint64_t)space.f_bavail * space.f_frsize, room, sizeof(room)));
  close(fd);
}

static bool in_container(void)
{
  const char *kind = getenv("container");

  return access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0 ||
         getenv("KUBERNETES_SERVICE_HOST") || (kind && kind[0] != '\0');
}

static void check_container(struct doctor *doctor)
{
  if (in_container())
    doctor_say(doctor, "container", DOCTOR_OK,
               "Start containers whose ranks are to be symmetric together with --ipc=host, or with one shared IPC.",
               "this is a container: all its ranks share its /dev/shm, those of other containers may not");
  else
    doctor_say(doctor, "container", DOCTOR_OK, NULL, "this is no container that is known by its marks");
}

/* PyTorch reads the first of these that is set. */
static void check_allocator(struct doctor *doctor)
{
  static const char *const names[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};

  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    const char *value = getenv(names[i]);

    if (!value)
      continue;
    if (strcasestr(value, "expandable_segments:true") || strcasestr(value, "backend:cudaMallocAsync")) {
      doctor_say(doctor, "allocator", DOCTOR_NO,
                 "Take expandable_segments and backend:cudaMallocAsync out of it: such memory cannot become a window.",
                 "%s=%.200s", names[i], value);
      return;
    }
  }
  doctor_say(doctor, "allocator", DOCTOR_OK, NULL, "no setting of PyTorch's allocator is in the way");
}

static bool is_rival(const char *path)
{
  static const char *const names[] = {"libmscclpp", "torch_memory_saver", "libnvshare", "libvgpu"};

  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
    if (strstr(path, names[i]))
      return true;
  return false;
}

static void check_preload(struct doctor *doctor)
{
  const char *list = getenv("LD_PRELOAD");

  if (!list || strspn(list, ": ") == strlen(list))
    doctor_say(doctor, "preload", DOCTOR_OK, NULL, "LD_PRELOAD is empty");
  else if (is_rival(list))
    doctor_say(doctor, "preload", DOCTOR_NO, "Take it out of LD_PRELOAD: it answers the same calls.",
               "LD_PRELOAD=%.200s", list);
  else
    doctor_say(doctor, "preload", DOCTOR_OK, "If a job behaves oddly, try without these first.", "LD_PRELOAD=%.200s",
               list);
}

/* Settings that keep NCCL's windows or what they rest on from working; NULL: whatever the value. */
static const struct {
  const char *name, *value, *what;
} bad_settings[] = {
    {"NCCL_WIN_ENABLE", "0", "switches windows off"},
    {"NCCL_CUMEM_ENABLE", "0", "switches off the memory that windows are made of"},
    {"NCCL_P2P_DISABLE", "1", "keeps GPUs from reaching each other"},
    {"NCCL_P2P_LEVEL", "LOC", "keeps GPUs from reaching each other"},
    {"NCCL_P2P_LEVEL", "0", "keeps GPUs from reaching each other"},
    {"NCCL_COMM_ID", NULL, "makes communicators look alike to the shim"},
    {"NCCL_SYM_KERNEL", NULL, "chooses a symmetric kernel for all calls"},
};
enum { BAD_SETTINGS = sizeof(bad_settings) / sizeof(bad_settings[0]) };

static int find_bad(const char *name, const char *value)
{
  for (int i = 0; i < BAD_SETTINGS; i++)
    if (strcmp(name, bad_settings[i].name) == 0 &&
        (!bad_settings[i].value || strcmp(value, bad_settings[i].value) == 0))
      return i;
  return -1;
}

static void check_variables(struct doctor *doctor)
{
  bool any = false;

  for (int i = 0; i < BAD_SETTINGS; i++) {
    const char *value = getenv(bad_settings[i].name);

    if (!value || find_bad(bad_settings[i].name, value) != i)
      continue;
    any = true;
    doctor_say(doctor, "nccl_settings", DOCTOR_NO, "Unset it.", "%s=%.100s %s", bad_settings[i].name, value,
               bad_settings[i].what);
  }
  if (!any)
    doctor_say(doctor, "nccl_settings", DOCTOR_OK, NULL, "no NCCL_* variable is in the way");
}

/* "NAME=VALUE" without blanks around; returns the bad setting's index, -1 for none. The line is cut up. */
static int judge_line(char *line)
{
  char *name = line + strspn(line, " \t"), *equals = strchr(name, '='), *value;

  if (*name == '#' || !equals)
    return -1;
  *equals = '\0';
  name[strcspn(name, " \t")] = '\0';
  value = equals + 1 + strspn(equals + 1, " \t");
  value[strcspn(value, " \t\r\n#")] = '\0';
  return find_bad(name, value);
}

/* Returns whether something in the file is in the way. */
static bool check_conf_file(struct doctor *doctor, const char *path)
{
  FILE *file = fopen(path, "re");
  char line[1024];
  bool any = false;

  if (!file)
    return false;
  for (int number = 1; fgets(line, sizeof(line), file); number++) {
    int bad = judge_line(line);

    if (bad < 0 || getenv(bad_settings[bad].name)) /* the environment comes first */
      continue;
    any = true;
    doctor_say(doctor, "nccl_conf", DOCTOR_NO, "Take the line out, or set the variable otherwise.", "%s:%d: %s %s",
               path, number, bad_settings[bad].name, bad_settings[bad].what);
  }
  fclose(file);
  return any;
}

static void check_conf(struct doctor *doctor)
{
  const char *home = getenv("HOME"), *named = getenv("NCCL_CONF_FILE");
  char path[PATH_MAX] = "";
  bool any;

  if (named && named[0] != '\0')
    snprintf(path, sizeof(path), "%s", named);
  else if (home)
    snprintf(path, sizeof(path), "%s/.nccl.conf", home);
  any = check_conf_file(doctor, path);
  any |= check_conf_file(doctor, "/etc/nccl.conf");
  if (!any)
    doctor_say(doctor, "nccl_conf", DOCTOR_OK, NULL, "no line of nccl.conf is in the way");
}

void doctor_host(struct doctor *doctor)
{
  check_shm(doctor);
  check_container(doctor);
  check_allocator(doctor);
  check_preload(doctor);
  check_variables(doctor);
  check_conf(doctor);
}

static bool moves_something(const struct policy *policy)
{
  for (int i = 0; i < POLICY_OP_COUNT; i++)
    if (policy->ops[i].path > POLICY_PATH_plain)
      return true;
  for (int i = 0; i < policy->rule_count; i++)
    if (policy->rules[i].action.path > POLICY_PATH_plain)
      return true;
  return false;
}

void doctor_policy(struct doctor *doctor)
{
  const char *mode = getenv("SYMMSHIM");
  struct policy_error error;
  struct policy policy;
  char path[CMD_MAX_PATH];
  int found = policy_find(path, sizeof(path));

  policy_default(&policy);
  if (mode && strcmp(mode, "off") == 0)
    doctor_say(doctor, "mode", DOCTOR_NO, "Unset SYMMSHIM, or set it to on.", "SYMMSHIM=off: the shim does nothing");
  if (found && policy_read(&policy, path, &error) < 0)
    doctor_say(doctor, "policy", DOCTOR_NO,
               "Mend it; 'symmshim check' says when it is good. Until then nothing is moved.", "%s:%d: %s", path,
               error.line, error.message);
  else if (!policy.arena || !moves_something(&policy))
    doctor_say(doctor, "policy", DOCTOR_NO, "Enable the arena, and give some op or rule another path than plain.",
               "%s moves no call", found ? path : "the built-in policy");
  else
    doctor_say(doctor, "policy", DOCTOR_OK, NULL, "%s, %d rules", found ? path : "the built-in one", policy.rule_count);
}
