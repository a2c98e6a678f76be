/* SPDX-License-Identifier: Apache-2.0 */
/* A dry run: what a real one would have made of the calls that an audit-only run watched. */
#include <stdlib.h>
#include <string.h>

#include "tools/cmd_report.h"

static int reason_in(struct report *report, const json_t *object, const char *name)
{
  const char *code = report_get_string(object, name);

  return code ? report_reason(report, code) : -1;
}

/* Lines of one process follow each other, so it stands in front. */
static struct report_member *member_of(struct report_comm *comm, const struct report_process *process)
{
  struct report_member **at = &comm->members, *member;

  while (*at && (*at)->process != process)
    at = &(*at)->next;
  member = *at;
  if (member) {
    *at = member->next;
  } else {
    member = calloc(1, sizeof(*member));
    if (!member)
      return NULL;
    *member = (struct report_member){.process = process, .comm_rank = UINT64_MAX, .reason = -1};
  }
  member->next = comm->members;
  comm->members = member;
  return member;
}

static uint64_t digits_in(const json_t *object, const char *name)
{
  const char *digits = report_get_string(object, name);

  return digits ? strtoull(digits, NULL, 16) : 0;
}

void report_add_member(struct report *report, struct report_comm *comm, const struct report_process *process,
                       const json_t *record)
{
  const json_t *forecast = json_object_get(record, "forecast");
  struct report_member *member = json_is_object(forecast) ? member_of(comm, process) : NULL;
  uint64_t rank = UINT64_MAX;

  if (!member)
    return;
  report_get_count(record, "comm_rank", &rank);
  member->twice |= member->comm_rank != UINT64_MAX && member->comm_rank != rank;
  member->comm_rank = rank;
  member->reason = reason_in(report, forecast, "reason");
  member->compatibility = digits_in(forecast, "compatibility");
  member->board = digits_in(forecast, "board");
  report_get_count(forecast, "stage_max", &member->stage_max);
}

/* Room for one more call; NULL where there are too many. */
static struct report_foreseen *next_call(struct report *report, struct report_member *member)
{
  size_t room = member->room > 0 ? member->room * 2 : 256;
  struct report_foreseen *grown;

  if (member->count == REPORT_MAX_RANK_CALLS || report->foreseen == REPORT_MAX_FORESEEN)
    return NULL;
  if (member->count == member->room) {
    grown = realloc(member->calls, room * sizeof(*grown));
    if (!grown)
      return NULL;
    member->calls = grown;
    member->room = room;
  }
  report->foreseen++;
  return &member->calls[member->count++];
}

static struct report_buffer buffer_of(struct report *report, const json_t *record, const char *side)
{
  const json_t *place = json_object_get(record, side);
  struct report_buffer buffer = {.obstacle = reason_in(report, json_object_get(record, "forecast"), side)};

  report_get_count(place, "segment", &buffer.segment);
  report_get_count(place, "offset", &buffer.offset);
  report_get_count(place, "bytes", &buffer.bytes);
  return buffer;
}

static bool is_word(const json_t *object, const char *name, const char *word)
{
  const char *value = report_get_string(object, name);

  return value && strcmp(value, word) == 0;
}

void report_add_foreseen(struct report *report, struct report_comm *comm, const struct report_process *process,
                         struct report_signature *signature, const json_t *record)
{
  const json_t *forecast = json_object_get(record, "forecast");
  uint64_t seq = 0;
  bool known = json_is_object(forecast) && report_get_count(record, "seq", &seq) == 0 && seq > 0;
  struct report_member *member = known ? member_of(comm, process) : NULL;
  struct report_foreseen *call = member ? next_call(report, member) : NULL;

  report->unforeseen += json_is_object(forecast) && !call;
  if (!call)
    return;
  *call = (struct report_foreseen){.signature = signature,
                                   .seq = seq,
                                   .buffers = {buffer_of(report, record, "send"), buffer_of(report, record, "recv")},
                                   .reason = reason_in(report, forecast, "reason"),
                                   .staged = is_word(forecast, "path", "staged"),
                                   .scaled = is_word(forecast, "rewrite", "pre_scale")};
}

/* One communicator's calls, as its members' logs have them. */
struct merge {
  struct report *report;
  struct report_comm *comm;
  struct report_member **members;
  size_t *at; /* of each member: the next call */
  int count;
  int ranks;  /* that have logs */
  int reason; /* why all calls would be plain, as only the logs of all ranks tell; -1 */
};

static void note_place(struct report_signature *signature, const struct report_member *member,
                       const struct report_foreseen *call)
{
  const struct report_buffer *buffer = &call->buffers[signature->key.op == POLICY_OP_all_gather];
  struct report_place place = {member->process->rank, buffer->segment, buffer->offset};

  if (signature->differ_count == 2 || (signature->differ_count == 1 && signature->differ_seq != call->seq))
    return;
  if (signature->differ_count == 1 && place.segment == signature->differ[0].segment &&
      place.offset == signature->differ[0].offset)
    return;
  signature->differ_seq = call->seq;
  signature->differ[signature->differ_count++] = place;
}

static void count(struct merge *merge, const struct report_member *member, const struct report_foreseen *call,
                  struct report_outcome outcome)
{
  struct report_signature *signature = call->signature;
  struct report_op *op = &merge->comm->forecast[signature->key.op];

  op->calls++;
  op->bytes += signature->key.bytes;
  if (outcome.path != REPORT_PATHS) {
    op->path_calls[outcome.path]++;
    op->path_bytes[outcome.path] += signature->key.bytes;
    signature->would[outcome.path]++;
    return;
  }
  if (outcome.reason < 0) /* more reasons than are kept apart */
    return;
  op->plain[outcome.reason]++;
  op->plain_bytes[outcome.reason] += signature->key.bytes;
  signature->would_be_plain[outcome.reason]++;
  report_note_rank(signature, outcome.reason, member->process->rank);
  if (strcmp(merge->report->reasons[outcome.reason], "ranks_differ") == 0)
    note_place(signature, member, call);
}

/* What each rank says for itself, where they have nothing to agree on. */
static void count_alone(struct merge *merge, int i, const struct report_foreseen *call)
{
  int reason = merge->members[i]->reason >= 0 || merge->reason < 0 ? call->reason : merge->reason;

  count(merge, merge->members[i], call,
        (struct report_outcome){reason >= 0    ? REPORT_PATHS
                                : call->staged ? REPORT_STAGED
                                               : REPORT_WINDOW,
                                reason});
}

/* The lowest number of a call that is left; 0: none. */
static uint64_t next_seq(const struct merge *merge)
{
  uint64_t next = 0;

  for (int i = 0; i < merge->count; i++)
    if (merge->at[i] < merge->members[i]->count) {
      uint64_t seq = merge->members[i]->calls[merge->at[i]].seq;

      next = next == 0 || seq < next ? seq : next;
    }
  return next;
}

/* Takes the calls of this number out of each log; returns how many ranks have it. */
static int take(struct merge *merge, uint64_t seq, struct report_member **members, const struct report_foreseen **calls)
{
  int taken = 0;

  for (int i = 0; i < merge->count; i++) {
    const struct report_member *member = merge->members[i];

    if (merge->at[i] == member->count || member->calls[merge->at[i]].seq != seq)
      continue;
    members[taken] = merge->members[i];
    calls[taken++] = &member->calls[merge->at[i]++];
  }
  return taken;
}

/* The calls that all ranks have, in their order; what a log lacks, or has out of order, is left out. */
static void play(struct merge *merge, struct report_member **members, const struct report_foreseen **calls,
                 struct report_outcome *outcomes)
{
  struct report_agreement *agreement = report_agreement_begin(merge->report, merge->comm);
  uint64_t seq;

  while (agreement && (seq = next_seq(merge)) != 0) {
    int taken = take(merge, seq, members, calls);

    if (taken < merge->ranks) {
      merge->report->unforeseen += (uint64_t)taken;
      continue;
    }
    report_agree(agreement, members, calls, taken, outcomes);
    for (int i = 0; i < taken; i++)
      count(merge, members[i], calls[i], outcomes[i]);
  }
  if (agreement)
    report_agreement_end(agreement);
}

static void play_all(struct merge *merge)
{
  struct report_member **members = calloc((size_t)merge->count, sizeof(*members));
  const struct report_foreseen **calls = calloc((size_t)merge->count, sizeof(const struct report_foreseen *));
  struct report_outcome *outcomes = calloc((size_t)merge->count, sizeof(*outcomes));

  if (members && calls && outcomes)
    play(merge, members, calls, outcomes);
  free(members);
  free(calls);
  free(outcomes);
}

/* In the order of board.c, board_seal(); a rank that does not attend, or on another host, is missing to the others. */
static int reason_together(struct merge *merge)
{
  const struct report_member *first = NULL; /* that attends */
  bool incompatible = false, same_process = false, missing = false;

  for (int i = 0; i < merge->count; i++) {
    const struct report_member *one = merge->members[i];

    missing |= one->reason >= 0;
    if (one->reason >= 0 || one->comm_rank == UINT64_MAX) /* whose log begins later */
      continue;
    first = first ? first : one;
    incompatible |= one->compatibility != first->compatibility;
    same_process |= one->twice;
    missing |= one->board != first->board;
  }
  return incompatible   ? report_reason(merge->report, "shim_differs")
         : same_process ? report_reason(merge->report, "same_process")
         : missing      ? report_reason(merge->report, "missing_ranks")
                        : -1;
}

/* A rank whose log was put aside and begun anew has two, which stand side by side. */
static int count_ranks(const struct merge *merge)
{
  int ranks = 0;

  for (int i = 0; i < merge->count; i++)
    ranks += i == 0 || merge->members[i]->process->rank < 0 ||
             merge->members[i]->process->rank != merge->members[i - 1]->process->rank;
  return ranks;
}

static int compare_members(const void *a, const void *b)
{
  const struct report_process *x = (*(struct report_member *const *)a)->process;
  const struct report_process *y = (*(struct report_member *const *)b)->process;

  if (x->rank != y->rank)
    return x->rank < y->rank ? -1 : 1;
  if (x->key.file != y->key.file)
    return x->key.file < y->key.file ? -1 : 1;
  return (x->key.pid > y->key.pid) - (x->key.pid < y->key.pid);
}

static bool gather(struct merge *merge)
{
  int at = 0;

  for (const struct report_member *member = merge->comm->members; member; member = member->next)
    merge->count++;
  merge->members = calloc((size_t)merge->count, sizeof(struct report_member *));
  merge->at = calloc((size_t)merge->count, sizeof(*merge->at));
  if (!merge->members || !merge->at)
    return false;
  for (struct report_member *member = merge->comm->members; member; member = member->next)
    merge->members[at++] = member;
  qsort(merge->members, (size_t)merge->count, sizeof(struct report_member *), compare_members);
  return true;
}

static void forecast_comm(struct report *report, struct report_comm *comm)
{
  struct merge merge = {.report = report, .comm = comm};

  if (gather(&merge)) {
    bool known = report_has_identity(comm->id);

    merge.ranks = count_ranks(&merge);
    merge.reason = known ? reason_together(&merge) : -1;
    if (known && comm->nranks > merge.ranks && merge.reason < 0)
      report->absent += (uint64_t)(comm->nranks - merge.ranks);
    if (known && merge.reason < 0)
      play_all(&merge);
    for (int i = 0; (!known || merge.reason >= 0) && i < merge.count; i++)
      for (size_t at = 0; at < merge.members[i]->count; at++)
        count_alone(&merge, i, &merge.members[i]->calls[at]);
  }
  free(merge.members);
  free(merge.at);
}

/* What was only watched is plain for a reason that says nothing of the call. */
static void forget_watching(const struct report *report, int watching)
{
  for (struct report_signature *signature = report->signatures; signature; signature = signature->hh.next) {
    uint64_t foreseen = signature->would[REPORT_WINDOW] + signature->would[REPORT_STAGED];

    for (int reason = 0; reason < report->reason_count; reason++)
      foreseen += signature->would_be_plain[reason];
    signature->plain[watching] -=
        (uint32_t)(foreseen < signature->plain[watching] ? foreseen : signature->plain[watching]);
  }
}

void report_forecast(struct report *report)
{
  int watching;

  if (report->foreseen == 0)
    return;
  for (struct report_comm *comm = report->comms; comm; comm = comm->hh.next) {
    if (comm->members)
      forecast_comm(report, comm);
    for (int op = 0; op < POLICY_OP_COUNT; op++)
      report_op_add(&report->forecast[op], &comm->forecast[op]);
  }
  watching = report_reason(report, "audit_only");
  if (watching >= 0)
    forget_watching(report, watching);
}
