/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: how they are made and how they end. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/sim/bootstrap.h"
#include "tests/soak/soak.h"

enum init { INIT_RANK, INIT_CONFIG, INIT_NONBLOCKING, INIT_SHARED, INIT_GROUPED, INIT_SCALABLE, INIT_COUNT };
enum ending { END_DESTROY, END_FINALIZE, END_ABORT, END_REVOKE, END_COUNT };

void team_settle(const struct team *team)
{
  ncclResult_t state = ncclInProgress;

  if (!team->comm || !team->nonblocking)
    return;
  for (;;) {
    NCCL_CHECK(ncclCommGetAsyncError(team->comm, &state));
    if (state != ncclInProgress)
      break;
    usleep(200);
  }
  NCCL_CHECK(state);
}

static struct team *add(struct soak *soak)
{
  struct team *team = calloc(1, sizeof(*team));

  if (!team)
    soak_fail("no host memory");
  team->me = -1;
  soak->teams[soak->team_count++] = team;
  soak->teams_made++;
  return team;
}

static void add_member(const struct soak *soak, struct team *team, int rank)
{
  if (rank == soak->rank)
    team->me = team->size;
  team->members[team->size++] = rank;
}

void team_world(struct soak *soak)
{
  static const int weights[INIT_COUNT] = {40, 25, 12, 6, 5, 12};
  enum init init = (enum init)random_weighted(&soak->common, weights, INIT_COUNT);
  ncclConfig_t config = SIM_NCCL_CONFIG_INITIALIZER;
  struct team *team = add(soak);
  ncclUniqueId id = sim_bootstrap_id(soak->rank);
  int rank = soak->rank, size = soak->size;

  for (int i = 0; i < size; i++)
    add_member(soak, team, i);
  team->nonblocking = init == INIT_NONBLOCKING;
  team->shares = init == INIT_SHARED;
  config.blocking = team->nonblocking ? 0 : 1;
  config.splitShare = team->shares ? 1 : 0;
  if (init == INIT_RANK)
    NCCL_CHECK(ncclCommInitRank(&team->comm, size, id, rank));
  else if (init == INIT_SCALABLE)
    NCCL_CHECK(ncclCommInitRankScalable(&team->comm, size, rank, 1, &id, &config));
  else {
    if (init == INIT_GROUPED)
      NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclCommInitRankConfig(&team->comm, size, id, rank, &config));
    if (init == INIT_GROUPED)
      NCCL_CHECK(ncclGroupEnd());
  }
  team_settle(team);
}

/* The members of one colour; in the parent's order, or the other way round. */
static struct team *add_part(struct soak *soak, const struct team *parent, const int *colours, int colour,
                             bool backwards)
{
  struct team *team = NULL;

  for (int i = 0; i < parent->size; i++) {
    int at = backwards ? parent->size - 1 - i : i;
    if (colours[at] != colour)
      continue;
    team = team ? team : add(soak);
    add_member(soak, team, parent->members[at]);
  }
  return team;
}

static void split(struct soak *soak, const struct team *parent)
{
  int colours[MAX_MEMBERS], key = parent->me;
  bool backwards = random_chance(&soak->common, 30), configured = random_chance(&soak->common, 50);
  bool nonblocking = random_chance(&soak->common, 15), all_in_one = random_chance(&soak->common, 40);
  ncclConfig_t config = SIM_NCCL_CONFIG_INITIALIZER;
  struct team *parts[2];
  ncclComm_t made = NULL;

  for (int i = 0; i < parent->size; i++) {
    colours[i] = all_in_one ? 0 : random_below(&soak->common, 5) / 2;
    if (colours[i] == 2)
      colours[i] = NCCL_SPLIT_NOCOLOR;
  }
  for (int colour = 0; colour < 2; colour++) {
    parts[colour] = add_part(soak, parent, colours, colour, backwards);
    if (parts[colour])
      parts[colour]->nonblocking = configured ? nonblocking : parent->nonblocking;
  }
  if (parent->me < 0)
    return;
  config.blocking = nonblocking ? 0 : 1;
  NCCL_CHECK(
      ncclCommSplit(parent->comm, colours[parent->me], backwards ? -key : key, &made, configured ? &config : NULL));
  team_settle(parent);
  if (colours[parent->me] == NCCL_SPLIT_NOCOLOR)
    return;
  parts[colours[parent->me]]->comm = made;
  team_settle(parts[colours[parent->me]]);
}

static void shrink(struct soak *soak, struct team *parent)
{
  int left_out = random_below(&soak->common, parent->size);
  struct team *team = add(soak);

  parent->shrunk = true;
  for (int i = 0; i < parent->size; i++)
    if (i != left_out)
      add_member(soak, team, parent->members[i]);
  if (team->me >= 0)
    NCCL_CHECK(ncclCommShrink(parent->comm, &left_out, 1, &team->comm, NULL, 0));
}

/* Splitting may make two. A parent in use elsewhere is nobody's business: calls go on. */
void team_make(struct soak *soak)
{
  struct team *parent = soak->teams[random_below(&soak->common, soak->team_count)];
  int kind = random_below(&soak->common, 10);

  soak_at(soak, "making a communicator", kind);
  if (soak->team_count + 2 > MAX_TEAMS)
    return;
  if (soak->options.whole || kind < 3)
    team_world(soak);
  else if (kind < 9 || parent->size < 3 || parent->nonblocking || parent->shares || parent->shrunk)
    split(soak, parent);
  else
    shrink(soak, parent);
}

static void end(struct team *team, enum ending ending)
{
  if (ending == END_FINALIZE || (ending == END_DESTROY && team->nonblocking)) {
    NCCL_CHECK(ncclCommFinalize(team->comm));
    team_settle(team);
  }
  if (ending == END_REVOKE)
    NCCL_CHECK(ncclCommRevoke(team->comm, 0));
  if (ending == END_ABORT)
    NCCL_CHECK(ncclCommAbort(team->comm));
  else
    NCCL_CHECK(ncclCommDestroy(team->comm));
}

/* All work is done before, on all ranks where the end would cut it short. */
void team_end(struct soak *soak, int at)
{
  static const int weights[END_COUNT] = {50, 20, 20, 10};
  enum ending ending = (enum ending)random_weighted(&soak->common, weights, END_COUNT);
  struct team *team = soak->teams[at];
  char name[32];

  soak_at(soak, "ending a communicator", at);
  calls_settle(soak);
  if (ending == END_REVOKE && team->in_graphs)
    ending = END_DESTROY;
  if (ending == END_ABORT || ending == END_REVOKE) {
    snprintf(name, sizeof(name), "end%d", soak->barriers++);
    sim_bootstrap_barrier(name);
  }
  if (team->comm)
    end(team, ending);
  free(team);
  soak->teams[at] = soak->teams[--soak->team_count];
}

void team_end_all(struct soak *soak)
{
  while (soak->team_count > 0)
    team_end(soak, soak->team_count - 1);
}
