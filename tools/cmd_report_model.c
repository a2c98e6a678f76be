/* SPDX-License-Identifier: Apache-2.0 */
/* What is known from the records so far. Tables do not grow beyond fixed numbers, whatever the logs hold. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cmd_report.h"

int report_get_count(const json_t *object, const char *name, uint64_t *count)
{
  const json_t *value = json_object_get(object, name);

  if (!json_is_integer(value) || json_integer_value(value) < 0)
    return -EINVAL;
  *count = (uint64_t)json_integer_value(value);
  return 0;
}

const char *report_get_string(const json_t *object, const char *name)
{
  return json_string_value(json_object_get(object, name));
}

/* Names are printed as they are, on terminals too. */
static bool is_word(const char *word)
{
  for (; *word; word++)
    if (*word < '!' || *word > '~')
      return false;
  return true;
}

/* Into `target`, whose rest stays zero, since keys are compared as bytes. Returns whether it fits. */
static bool take_word(char *target, size_t size, const char *word)
{
  size_t length = word ? strlen(word) : size;

  if (length >= size || !is_word(word))
    return false;
  memcpy(target, word, length);
  return true;
}

int report_reason(struct report *report, const char *code)
{
  size_t length = strlen(code);

  if (length == 0 || length >= REPORT_MAX_REASON || !is_word(code))
    return -EINVAL;
  for (int i = 0; i < report->reason_count; i++)
    if (strcmp(report->reasons[i], code) == 0)
      return i;
  if (report->reason_count == REPORT_MAX_REASONS)
    return -EINVAL;
  memcpy(report->reasons[report->reason_count], code, length + 1);
  return report->reason_count++;
}

/* Whether a table has room for one more, which is allocated; a record for which there is none is skipped. */
static void *more(struct report *report, unsigned have, unsigned most, size_t size)
{
  void *item = have < most ? calloc(1, size) : NULL;

  report->unassigned += !item;
  return item;
}

struct report_process *report_process_of(struct report *report, const json_t *record)
{
  struct report_process_key key = {.file = report->files};
  const json_t *time = json_object_get(record, "time");
  struct report_process *process;
  uint64_t pid, rank;

  if (report_get_count(record, "pid", &pid) < 0 || pid > INT32_MAX)
    return NULL;
  key.pid = (int32_t)pid;
  HASH_FIND(hh, report->processes, &key, sizeof(key), process);
  if (!process) {
    process = more(report, HASH_COUNT(report->processes), REPORT_MAX_PROCESSES, sizeof(*process));
    if (!process)
      return NULL;
    process->key = key;
    process->rank = -1;
    HASH_ADD(hh, report->processes, key, sizeof(key), process);
  }
  if (report_get_count(record, "rank", &rank) == 0 && rank <= INT32_MAX)
    process->rank = (int)rank;
  if (json_is_number(time) && json_number_value(time) > 0) {
    double now = json_number_value(time);

    process->first = process->first > 0 && process->first < now ? process->first : now;
    process->last = process->last > now ? process->last : now;
  }
  return process;
}

static struct report_comm *comm_of(struct report *report, const char *id)
{
  char key[REPORT_MAX_COMM] = "";
  struct report_comm *comm;

  if (!take_word(key, sizeof(key), id))
    return NULL;
  HASH_FIND(hh, report->comms, key, sizeof(key), comm);
  if (comm)
    return comm;
  comm = more(report, HASH_COUNT(report->comms), REPORT_MAX_PROCESSES / 16, sizeof(*comm));
  if (!comm)
    return NULL;
  memcpy(comm->id, key, sizeof(key));
  comm->reason = -1;
  HASH_ADD(hh, report->comms, id, sizeof(comm->id), comm);
  return comm;
}

static struct report_source *source_of(struct report *report, const struct report_process *process,
                                       const json_t *record)
{
  const char *op = report_get_string(record, "op");
  struct report_source_key key;
  struct report_source *source;

  memset(&key, 0, sizeof(key));
  key.process = process->key;
  key.op = op ? policy_op_value(op) : -1;
  if (key.op < 0 || !take_word(key.comm, sizeof(key.comm), report_get_string(record, "comm")))
    return NULL;
  HASH_FIND(hh, report->sources, &key, sizeof(key), source);
  if (source)
    return source;
  source = more(report, HASH_COUNT(report->sources), REPORT_MAX_SOURCES, sizeof(*source));
  if (!source)
    return NULL;
  source->key = key;
  source->process = process;
  HASH_ADD(hh, report->sources, key, sizeof(key), source);
  return source;
}

int report_add_start(struct report *report, struct report_process *process, const json_t *record)
{
  const char *mode = report_get_string(record, "mode"), *host = report_get_string(record, "host");

  if (mode && strcmp(mode, "audit") == 0)
    report->audit_only = true;
  if (host)
    snprintf(process->host, sizeof(process->host), "%s", host);
  return 0;
}

int report_add_comm(struct report *report, struct report_process *process, const json_t *record)
{
  const char *state = report_get_string(record, "state"), *code = report_get_string(record, "reason");
  const char *nccl = report_get_string(record, "nccl");
  struct report_comm *comm = comm_of(report, report_get_string(record, "comm"));
  uint64_t nranks, ns = 0;

  if (!comm || !state)
    return -EINVAL;
  if (strcmp(state, "ready") == 0)
    comm->ready++;
  else
    comm->plain++;
  if (code)
    comm->reason = report_reason(report, code);
  if (report_get_count(record, "nranks", &nranks) == 0 && nranks <= INT32_MAX)
    comm->nranks = (int)nranks;
  if (nccl)
    take_word(comm->nccl, sizeof(comm->nccl), nccl);
  report_get_count(record, "setup_ns", &ns);
  comm->child_ns += ns;
  process->child_ns += ns;
  report_add_member(report, comm, process, record);
  return 0;
}

int report_add_window(struct report *report, struct report_process *process, const json_t *record)
{
  struct report_comm *comm = comm_of(report, report_get_string(record, "comm"));
  uint64_t bytes, ns = 0;

  if (!comm || report_get_count(record, "bytes", &bytes) < 0)
    return -EINVAL;
  report_get_count(record, "setup_ns", &ns);
  comm->windows++;
  comm->window_ns += ns;
  process->windows++;
  process->window_bytes += bytes;
  process->window_ns += ns;
  return 0;
}

/* {CODE: calls, ...} */
static int read_plain(struct report *report, json_t *plain, struct report_op *op)
{
  const char *code;
  json_t *calls;

  if (!json_is_object(plain))
    return -EINVAL;
  json_object_foreach(plain, code, calls)
  {
    int reason = report_reason(report, code);

    if (reason < 0 || report_get_count(plain, code, &op->plain[reason]) < 0)
      return -EINVAL;
  }
  return 0;
}

/* Logs of older shims have none of these. */
static void read_observed(const json_t *record, struct report_observed *observed)
{
  report_get_count(record, "observed_symmetric_calls", &observed->symmetric);
  report_get_count(record, "observed_plain_calls", &observed->plain);
  report_get_count(record, "mismatched_calls", &observed->mismatched);
}

static void read_plain_bytes(struct report *report, const json_t *bytes, struct report_op *op)
{
  const char *code;
  json_t *value;

  json_object_foreach((json_t *)bytes, code, value)
  {
    int reason = report_reason(report, code);

    if (reason >= 0)
      report_get_count(bytes, code, &op->plain_bytes[reason]);
  }
}

static int read_counts(struct report *report, const json_t *record, struct report_op *op)
{
  if (report_get_count(record, "calls", &op->calls) < 0 || report_get_count(record, "bytes", &op->bytes) < 0 ||
      report_get_count(record, "window_calls", &op->path_calls[REPORT_WINDOW]) < 0 ||
      report_get_count(record, "window_bytes", &op->path_bytes[REPORT_WINDOW]) < 0)
    return -EINVAL;
  if (json_object_get(record, "staged_calls") &&
      (report_get_count(record, "staged_calls", &op->path_calls[REPORT_STAGED]) < 0 ||
       report_get_count(record, "staged_bytes", &op->path_bytes[REPORT_STAGED]) < 0))
    return -EINVAL;
  if (report_symmetric_calls(op) > op->calls || report_symmetric_bytes(op) > op->bytes)
    return -EINVAL;
  read_observed(record, &op->observed);
  read_plain_bytes(report, json_object_get(record, "plain_bytes"), op);
  return read_plain(report, json_object_get(record, "plain"), op);
}

int report_add_summary(struct report *report, struct report_process *process, const json_t *record)
{
  struct report_op op = {0};
  struct report_source *source;
  uint64_t calls, symmetric, lost;

  if (read_counts(report, record, &op) < 0)
    return -EINVAL;
  if (report_get_count(record, "lost", &lost) == 0 && lost > process->lost)
    process->lost = lost;
  source = source_of(report, process, record);
  if (!source || !comm_of(report, source->key.comm))
    return -EINVAL;
  calls = op.calls - (op.calls < source->summary.calls ? op.calls : source->summary.calls);
  symmetric = report_symmetric_calls(&op);
  symmetric -=
      symmetric < report_symmetric_calls(&source->summary) ? symmetric : report_symmetric_calls(&source->summary);
  report_timeline_add(&report->by_summary, json_number_value(json_object_get(record, "time")), source->key.op, calls,
                      symmetric);
  source->summary = op;
  source->has_summary = true;
  return 0;
}

static int path_of(const char *word)
{
  if (strcmp(word, "plain") == 0)
    return REPORT_PATHS;
  return strcmp(word, "staged") == 0 ? REPORT_STAGED : REPORT_WINDOW;
}

static void count_call(struct report_op *op, int path, uint64_t bytes, int reason)
{
  op->calls++;
  op->bytes += bytes;
  if (path == REPORT_PATHS) {
    op->plain[reason]++;
    op->plain_bytes[reason] += bytes;
  } else {
    op->path_calls[path]++;
    op->path_bytes[path] += bytes;
  }
}

static struct report_signature *signature_of(struct report *report, const struct report_source *source,
                                             const json_t *record, uint64_t bytes)
{
  const char *dtype = report_get_string(record, "dtype"), *redop = report_get_string(record, "redop");
  struct report_signature_key key;
  struct report_signature *signature;

  memset(&key, 0, sizeof(key));
  key.bytes = bytes;
  key.op = source->key.op;
  key.capture = json_is_true(json_object_get(record, "capture"));
  memcpy(key.comm, source->key.comm, sizeof(key.comm));
  take_word(key.dtype, sizeof(key.dtype), dtype ? dtype : "?");
  take_word(key.redop, sizeof(key.redop), redop ? redop : "");
  report_get_count(record, "count", &key.count);
  HASH_FIND(hh, report->signatures, &key, sizeof(key), signature);
  if (signature)
    return signature;
  signature = HASH_COUNT(report->signatures) < REPORT_MAX_SIGNATURES ? calloc(1, sizeof(*signature)) : NULL;
  if (!signature) {
    report->left_out++;
    return NULL;
  }
  signature->key = key;
  HASH_ADD(hh, report->signatures, key, sizeof(key), signature);
  return signature;
}

/* The side that the peers touch has to lie alike. */
static const json_t *shared_place(const json_t *record, int op)
{
  return json_object_get(record, op == POLICY_OP_all_gather ? "recv" : "send");
}

/* A verdict is one of all ranks, so the first differing call of a kind has one number on all of them. */
static void note_place(struct report_signature *signature, const struct report_process *process, const json_t *record)
{
  const json_t *object = shared_place(record, signature->key.op);
  struct report_place place = {.rank = process->rank};
  uint64_t seq;

  if (signature->differ_count == 2 || report_get_count(record, "seq", &seq) < 0 ||
      report_get_count(object, "segment", &place.segment) < 0 || report_get_count(object, "offset", &place.offset) < 0)
    return;
  if (signature->differ_count == 0)
    signature->differ_seq = seq;
  else if (seq != signature->differ_seq ||
           (place.segment == signature->differ[0].segment && place.offset == signature->differ[0].offset))
    return;
  signature->differ[signature->differ_count++] = place;
}

void report_note_rank(struct report_signature *signature, int reason, int rank)
{
  if (signature->plain[reason]++ == 0)
    signature->rank_of[reason] = rank;
  else if (signature->rank_of[reason] != rank)
    signature->rank_of[reason] = REPORT_SEVERAL_RANKS;
}

static void add_signature(struct report *report, const struct report_source *source, struct report_comm *comm,
                          const json_t *record, uint64_t bytes, int reason)
{
  struct report_signature *signature = signature_of(report, source, record, bytes);

  if (!signature)
    return;
  signature->calls++;
  report_add_foreseen(report, comm, source->process, signature, record);
  if (reason < 0) {
    signature->symmetric++;
    return;
  }
  report_note_rank(signature, reason, source->process->rank);
  if (strcmp(report->reasons[reason], "ranks_differ") == 0)
    note_place(signature, source->process, record);
}

static void count_observed(struct report_observed *observed, const char *word, bool symmetric)
{
  bool plain = word && strcmp(word, "plain") == 0;

  observed->symmetric += word && strcmp(word, "symmetric") == 0;
  observed->plain += plain;
  observed->mismatched += plain && symmetric;
}

int report_add_call(struct report *report, struct report_process *process, const json_t *record)
{
  const char *word = report_get_string(record, "path"), *code = report_get_string(record, "reason");
  int path = word ? path_of(word) : -EINVAL, reason = 0;
  struct report_source *source;
  struct report_comm *comm;
  uint64_t bytes, ns;

  if (path < 0 || report_get_count(record, "bytes", &bytes) < 0)
    return -EINVAL;
  if (path == REPORT_PATHS)
    reason = code ? report_reason(report, code) : -EINVAL;
  if (reason < 0)
    return -EINVAL;
  source = source_of(report, process, record);
  comm = source ? comm_of(report, source->key.comm) : NULL;
  if (!comm)
    return -EINVAL;
  count_call(&source->seen, path, bytes, reason);
  count_observed(&source->seen.observed, report_get_string(record, "observed"), path != REPORT_PATHS);
  add_signature(report, source, comm, record, bytes, path == REPORT_PATHS ? reason : -1);
  report_timeline_add(&report->by_call, json_number_value(json_object_get(record, "time")), source->key.op, 1,
                      path != REPORT_PATHS);
  if (report_get_count(record, "host_ns", &ns) == 0) {
    process->host_ns += ns;
    process->host_ns_calls++;
  }
  return 0;
}

void report_op_add(struct report_op *sum, const struct report_op *op)
{
  sum->calls += op->calls;
  sum->bytes += op->bytes;
  for (int i = 0; i < REPORT_PATHS; i++) {
    sum->path_calls[i] += op->path_calls[i];
    sum->path_bytes[i] += op->path_bytes[i];
  }
  for (int i = 0; i < REPORT_MAX_REASONS; i++) {
    sum->plain[i] += op->plain[i];
    sum->plain_bytes[i] += op->plain_bytes[i];
  }
  sum->observed.symmetric += op->observed.symmetric;
  sum->observed.plain += op->observed.plain;
  sum->observed.mismatched += op->observed.mismatched;
  sum->unfinished += op->unfinished;
}

const struct report_op *report_counts(const struct report_source *source)
{
  /* While the job runs, a log of every call is ahead of the last summary. */
  return source->has_summary && source->summary.calls >= source->seen.calls ? &source->summary : &source->seen;
}

void report_finish(struct report *report)
{
  struct report_source *source, *next;

  HASH_ITER(hh, report->sources, source, next)
  {
    struct report_comm *comm = comm_of(report, source->key.comm);
    struct report_op counts = *report_counts(source);

    counts.unfinished = !source->has_summary;
    report_op_add(&report->ops[source->key.op], &counts);
    if (!comm)
      continue;
    report_op_add(&comm->ops[source->key.op], &counts);
    report_op_add(&comm->seen[source->key.op], &source->seen);
    comm->processes[source->key.op]++;
  }
  report_forecast(report);
}

static void free_members(struct report *report)
{
  for (struct report_comm *comm = report->comms; comm; comm = comm->hh.next)
    while (comm->members) {
      struct report_member *member = comm->members;

      comm->members = member->next;
      free(member->calls);
      free(member);
    }
}

#define FREE_ALL(type, table)                                                                                          \
  do {                                                                                                                 \
    struct type *item, *next;                                                                                          \
    HASH_ITER(hh, table, item, next)                                                                                   \
    {                                                                                                                  \
      HASH_DEL(table, item);                                                                                           \
      free(item);                                                                                                      \
    }                                                                                                                  \
  } while (0)

void report_free(struct report *report)
{
  free_members(report);
  FREE_ALL(report_signature, report->signatures);
  FREE_ALL(report_source, report->sources);
  FREE_ALL(report_comm, report->comms);
  FREE_ALL(report_process, report->processes);
}
