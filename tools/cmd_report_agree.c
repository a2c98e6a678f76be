/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks' agreement, played through with what the logs of an audit-only run say: shim/layout.c's look at the buffers
 * and its ballot, the board's verdict, and what stage.c and child.c do after it, on windows that are only counted.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/cmd_report.h"

enum { SEND, RECV };
enum { WINDOW_MAX = 1024, WINDOW_ANY = WINDOW_MAX + 1, WINDOW_NEW_SHARED }; /* as in shim/window.h and layout.c */
enum { STAGE_SLOTS = 2, STAGE_SIZES = 24 };                                 /* as in shim/stage.h */
enum { BALLOT_WORDS = 6 };
static const uint64_t least_slot = UINT64_C(2) << 20;

/* A segment of one rank. */
struct segment_key {
  const struct report_member *member;
  uint64_t id;
};
struct segment {
  struct segment_key key;
  uint32_t window; /* number of the registration; 0: none */
  bool refused;
  UT_hash_handle hh;
};

struct report_agreement {
  struct report *report;
  uint64_t stage_max, slot_bytes, stage_total;
  int stage_sizes;
  uint32_t windows;
  bool child;
  struct segment *segments;
};

/* A call as one rank sees it. */
struct view {
  const struct report_foreseen *call;
  struct segment *segments[2]; /* NULL: in none */
  bool copied[2], apart;
  int reason; /* -1: it asks the others */
  uint64_t words[BALLOT_WORDS];
};

struct report_agreement *report_agreement_begin(struct report *report, struct report_comm *comm)
{
  struct report_agreement *agreement = calloc(1, sizeof(*agreement));

  if (!agreement)
    return NULL;
  agreement->report = report;
  for (const struct report_member *member = comm->members; member; member = member->next)
    agreement->stage_max = member->stage_max > agreement->stage_max ? member->stage_max : agreement->stage_max;
  return agreement;
}

void report_agreement_end(struct report_agreement *agreement)
{
  struct segment *segment, *next;

  HASH_ITER(hh, agreement->segments, segment, next)
  {
    HASH_DEL(agreement->segments, segment);
    free(segment);
  }
  free(agreement);
}

static struct segment *segment_of(struct report_agreement *agreement, const struct report_member *member,
                                  const struct report_buffer *buffer)
{
  struct segment_key key = {member, buffer->segment};
  struct segment *segment;

  if (buffer->segment == 0)
    return NULL;
  HASH_FIND(hh, agreement->segments, &key, sizeof(key), segment);
  if (segment)
    return segment;
  segment = calloc(1, sizeof(*segment));
  if (!segment)
    return NULL;
  segment->key = key;
  HASH_ADD(hh, agreement->segments, key, sizeof(key), segment);
  return segment;
}

static bool peers_touch(const struct view *view, int side)
{
  return view->call->signature->key.op != (side == SEND ? POLICY_OP_all_gather : POLICY_OP_reduce_scatter);
}

static bool is_captured(const struct view *view)
{
  return view->call->signature->key.capture;
}

static bool is_new(const struct view *view, int side)
{
  return !view->copied[side] && !(view->segments[side] && view->segments[side]->window);
}

static bool has_new(const struct view *view)
{
  return is_new(view, SEND) || is_new(view, RECV);
}

/* What keeps a rank from registering another window. */
static int window_obstacle(const struct report_agreement *agreement, const struct view *view)
{
  if (is_captured(view))
    return report_reason(agreement->report, "capturing");
  if (agreement->child && agreement->windows + 2 > WINDOW_MAX)
    return report_reason(agreement->report, "no_window_room");
  return -1;
}

/* A reduce-scatter's output, which has as many elements as the call says, needs a slot; an all-gather's input does not.
 */
static bool can_copy_alone(const struct report_agreement *agreement, const struct view *view, int side)
{
  const struct report_signature_key *key = &view->call->signature->key;
  int dtype = policy_dtype_value(key->dtype);

  if (peers_touch(view, side))
    return false;
  return side == SEND || (!key->capture && dtype >= 0 &&
                          key->count <= agreement->slot_bytes / policy_dtype_size((enum policy_dtype)dtype));
}

static void look_leniently(const struct report_agreement *agreement, struct view *view)
{
  for (int side = SEND; side <= RECV; side++) {
    int obstacle = view->call->buffers[side].obstacle;
    bool hopeless = obstacle < 0 && is_new(view, side) && view->segments[side] && view->segments[side]->refused;

    if (obstacle < 0 && !hopeless)
      continue;
    view->copied[side] = can_copy_alone(agreement, view, side);
    if (!view->copied[side] && obstacle >= 0)
      view->reason = obstacle;
  }
  if (view->reason < 0 && has_new(view) && agreement->child)
    view->reason = window_obstacle(agreement, view);
  if (view->reason < 0 || is_captured(view))
    return;
  view->apart = true;
  view->copied[SEND] = view->copied[RECV] = false;
  view->reason = -1;
}

/* shim/layout.c, layout_look(). */
static void look(struct report_agreement *agreement, const struct report_member *member, struct view *view)
{
  view->reason = view->call->reason;
  if (view->reason >= 0)
    return;
  for (int side = SEND; side <= RECV; side++)
    view->segments[side] = segment_of(agreement, member, &view->call->buffers[side]);
  view->apart = view->call->scaled;
  if (view->call->scaled)
    return;
  if (view->call->staged)
    look_leniently(agreement, view);
  else if (has_new(view))
    view->reason = window_obstacle(agreement, view);
  if (view->reason < 0 && is_captured(view) && !agreement->child)
    view->reason = report_reason(agreement->report, "capturing");
}

static void describe(struct view *view, int side, bool shares_new)
{
  const struct report_buffer *buffer = &view->call->buffers[side];
  bool touch = peers_touch(view, side), registers = is_new(view, side) && (touch || !shares_new);
  uint64_t *words = &view->words[side * BALLOT_WORDS / 2];

  words[0] = view->segments[side] ? view->segments[side]->window : 0;
  if (!registers && !touch)
    words[0] = WINDOW_ANY;
  if (registers && shares_new)
    words[0] = WINDOW_NEW_SHARED;
  words[1] = registers ? buffer->bytes : 0;
  words[2] = touch ? buffer->offset : 0;
}

/* shim/layout.c, layout_ballot(). */
static void fill_ballot(struct view *view)
{
  bool shared = view->segments[SEND] == view->segments[RECV];

  memset(view->words, 0, sizeof(view->words));
  if (view->apart)
    return;
  describe(view, SEND, shared && !peers_touch(view, SEND));
  describe(view, RECV, shared && peers_touch(view, SEND));
}

static bool is_strict(const struct view *view)
{
  return !view->apart && (!view->call->staged || is_captured(view));
}

static bool same_question(const struct view *a, const struct view *b)
{
  const struct report_signature_key *x = &a->call->signature->key, *y = &b->call->signature->key;

  return x->op == y->op && x->count == y->count && strcmp(x->dtype, y->dtype) == 0 && strcmp(x->redop, y->redop) == 0;
}

/* shim/board.c, compare(): REPORT_WINDOW is YES, REPORT_STAGED is MIXED, REPORT_PATHS is DIFFER. */
static int verdict(const struct view *views, int count)
{
  int path = views[0].apart ? REPORT_STAGED : REPORT_WINDOW;

  for (int i = 1; i < count; i++) {
    if (!same_question(&views[0], &views[i]) || is_strict(&views[0]) != is_strict(&views[i]))
      return REPORT_PATHS;
    if (!views[i].apart && !views[0].apart && memcmp(views[0].words, views[i].words, sizeof(views[0].words)) == 0)
      continue;
    if (is_strict(&views[0]))
      return REPORT_PATHS;
    path = REPORT_STAGED;
  }
  return path;
}

/* shim/layout.c, layout_new_segments(). */
static int new_segments(const struct view *view, struct segment *segments[2])
{
  int count = 0;

  if (view->apart)
    return 0;
  if (is_new(view, SEND) && view->segments[SEND])
    segments[count++] = view->segments[SEND];
  if (is_new(view, RECV) && view->segments[RECV] && (count == 0 || view->segments[RECV] != view->segments[SEND]))
    segments[count++] = view->segments[RECV];
  return count;
}

/* child.c, child_register(): all ranks register as many, so each registration has one number on all of them. */
static void register_new(struct report_agreement *agreement, const struct view *views, int count)
{
  uint32_t most = 0;

  for (int i = 0; i < count; i++) {
    struct segment *segments[2];
    uint32_t found = (uint32_t)new_segments(&views[i], segments);

    for (uint32_t at = 0; at < found; at++)
      segments[at]->window = agreement->windows + at + 1;
    most = found > most ? found : most;
  }
  agreement->windows += most;
}

/* shim/layout.c, layout_refused(). */
static void refuse(struct view *view)
{
  int alone = peers_touch(view, SEND) ? RECV : SEND;

  if (!view->apart && !peers_touch(view, alone) && is_new(view, alone) && view->segments[alone] &&
      view->segments[alone] != view->segments[1 - alone])
    view->segments[alone]->refused = true;
}

/* stage.c, stage_make(). Returns whether there are slots for so many bytes now. */
static bool make_slots(struct report_agreement *agreement, uint64_t bytes)
{
  uint64_t slot = least_slot;

  if (bytes <= agreement->slot_bytes)
    return true;
  while (slot < bytes && slot <= UINT64_MAX / 2)
    slot *= 2;
  if (slot > agreement->stage_max / STAGE_SLOTS || agreement->stage_total > agreement->stage_max - STAGE_SLOTS * slot ||
      agreement->stage_sizes == STAGE_SIZES || agreement->windows + 2 > WINDOW_MAX)
    return false;
  agreement->stage_sizes++;
  agreement->stage_total += STAGE_SLOTS * slot;
  agreement->slot_bytes = slot;
  agreement->windows++;
  return true;
}

static struct report_outcome decide(struct report_agreement *agreement, struct view *views, int count)
{
  int path;

  agreement->child = true;
  for (int i = 0; i < count; i++)
    fill_ballot(&views[i]);
  path = verdict(views, count);
  if (path == REPORT_WINDOW)
    register_new(agreement, views, count);
  if (path == REPORT_PATHS)
    return (struct report_outcome){path, report_reason(agreement->report, "ranks_differ")};
  if (path == REPORT_WINDOW)
    return (struct report_outcome){path, -1};
  for (int i = 0; i < count; i++)
    refuse(&views[i]);
  if (make_slots(agreement, views[0].call->signature->key.bytes))
    return (struct report_outcome){path, -1};
  return (struct report_outcome){REPORT_PATHS, report_reason(agreement->report, "no_slot")};
}

void report_agree(struct report_agreement *agreement, struct report_member *const *members,
                  const struct report_foreseen *const *calls, int count, struct report_outcome *outcomes)
{
  struct view *views = calloc((size_t)count, sizeof(*views));
  bool declined = false;
  struct report_outcome outcome = {REPORT_PATHS, report_reason(agreement->report, "peer_declined")};

  for (int i = 0; views && i < count; i++) {
    views[i].call = calls[i];
    look(agreement, members[i], &views[i]);
    declined |= views[i].reason >= 0;
  }
  if (views && !declined)
    outcome = decide(agreement, views, count);
  for (int i = 0; i < count; i++) {
    outcomes[i] = outcome;
    if (views && views[i].reason >= 0)
      outcomes[i] = (struct report_outcome){REPORT_PATHS, views[i].reason};
  }
  free(views);
}
