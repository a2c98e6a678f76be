/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/forecast.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/board.h"
#include "shim/comm.h"
#include "shim/group.h"
#include "shim/life.h"
#include "shim/shadow.h"

bool forecast_is_wanted(void)
{
  return life_passive_reason() == REASON_audit_only;
}

/* Of a boot of a host, which containers of it have in common; nothing where it cannot be read. */
static uint64_t hash_boot(void)
{
  char id[64];
  int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? 0 : read(file, id, sizeof(id));

  if (file >= 0)
    close(file);
  return comm_hash(0, id, length > 0 ? (size_t)length : 0);
}

uint64_t forecast_board(void)
{
  int saved_errno = errno;
  struct stat folder;
  uint64_t place = 0;

  if (stat(BOARD_FOLDER, &folder) == 0 && access(BOARD_FOLDER, W_OK) == 0) {
    uint64_t facts[] = {folder.st_dev, folder.st_ino};
    place = comm_hash(hash_boot(), facts, sizeof(facts));
  }
  errno = saved_errno;
  return place;
}

/* In the order in which a real run comes to them (call.c, decide() and agree()). */
static enum reason obstacle(struct comm *comm, const struct call *call, const struct plan *plan, struct layout *layout,
                            struct audit_forecast *forecast)
{
  enum reason foreseen;

  if (life_foreseen_reason() != REASON_none)
    return life_foreseen_reason();
  if (!comm)
    return REASON_unknown_comm;
  foreseen = __atomic_load_n(&comm->foreseen, __ATOMIC_RELAXED);
  if (foreseen != REASON_none)
    return foreseen;
  if (plan->path == POLICY_PATH_plain)
    return plan->reason;
  if (group_is_open() && !group_would_keep())
    return REASON_in_group;
  return layout_watch(comm, call, plan, layout, &forecast->send, &forecast->recv);
}

/* What would be a window is parked when it is freed. */
static void use(const struct buffer *buffer, enum reason obstacle)
{
  if (buffer->segment && obstacle == REASON_none)
    shadow_use(buffer->segment);
}

struct audit_forecast forecast_call(struct comm *comm, const struct call *call, const struct plan *plan,
                                    struct layout *layout)
{
  struct audit_forecast forecast = {.path = plan->path, .rewrite = plan->rewrite};

  forecast.reason = obstacle(comm, call, plan, layout, &forecast);
  if (forecast.reason != REASON_none)
    return (struct audit_forecast){.path = POLICY_PATH_plain, .reason = forecast.reason};
  use(&layout->send, forecast.send);
  use(&layout->recv, forecast.recv);
  return forecast;
}
