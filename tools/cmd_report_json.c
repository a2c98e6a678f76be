/* SPDX-License-Identifier: Apache-2.0 */
/* The report as one JSON object, as symmshim(1) describes it. */
#include "tools/cmd_json.h"
#include "tools/cmd_report.h"

static json_t *integer(uint64_t value)
{
  return json_integer((json_int_t)value);
}

static json_t *number_or_null(int value, bool known)
{
  return known ? json_integer(value) : json_null();
}

static json_t *json_of_plain(const struct report *report, const struct report_op *op)
{
  bool done[REPORT_MAX_REASONS] = {false};
  json_t *plain = json_object();

  for (int reason; (reason = report_next_reason(report, op, done)) >= 0; done[reason] = true)
    json_object_set_new(plain, report->reasons[reason], integer(op->plain[reason]));
  return plain;
}

static json_t *json_of_plain_bytes(const struct report *report, const struct report_op *op)
{
  json_t *bytes = json_object();

  for (int reason = 0; reason < report->reason_count; reason++)
    if (op->plain_bytes[reason] > 0)
      json_object_set_new(bytes, report->reasons[reason], integer(op->plain_bytes[reason]));
  return bytes;
}

/* null where NCCL was not asked. */
static json_t *json_of_observed(const struct report_observed *observed)
{
  if (observed->symmetric + observed->plain == 0)
    return json_null();
  return json_pack("{s:o, s:o, s:o}", "symmetric_calls", integer(observed->symmetric), "plain_calls",
                   integer(observed->plain), "mismatched_calls", integer(observed->mismatched));
}

static json_t *json_of_path(uint64_t calls, uint64_t bytes)
{
  return json_pack("{s:o, s:o}", "calls", integer(calls), "bytes", integer(bytes));
}

static json_t *json_of_op(const struct report *report, const struct report_op *op)
{
  uint64_t calls = report_symmetric_calls(op), bytes = report_symmetric_bytes(op);
  json_t *paths =
      json_pack("{s:o, s:o, s:o}", "window", json_of_path(op->path_calls[REPORT_WINDOW], op->path_bytes[REPORT_WINDOW]),
                "staged", json_of_path(op->path_calls[REPORT_STAGED], op->path_bytes[REPORT_STAGED]), "plain",
                json_of_path(op->calls - calls, op->bytes - bytes));

  return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "calls", integer(op->calls), "bytes",
                   integer(op->bytes), "symmetric_calls", integer(calls), "symmetric_bytes", integer(bytes),
                   "symmetric_percent", op->calls > 0 ? json_real(report_percent(calls, op->calls)) : json_null(),
                   "paths", paths, "plain", json_of_plain(report, op), "plain_bytes", json_of_plain_bytes(report, op),
                   "observed", json_of_observed(&op->observed), "incomplete", op->unfinished > 0);
}

static json_t *json_of_ops(const struct report *report, const struct report_op *ops, bool all)
{
  json_t *object = json_object();

  for (int i = 0; i < POLICY_OP_COUNT; i++)
    if (all || ops[i].calls > 0)
      json_object_set_new(object, policy_op_word((enum policy_op)i), json_of_op(report, &ops[i]));
  return object;
}

static json_t *json_of_comm(const struct report *report, const struct report_comm *comm)
{
  return json_pack("{s:o, s:o, s:o, s:i, s:i, s:o, s:o, s:f, s:f, s:o}", "comm", cmd_json_path(comm->id), "nranks",
                   number_or_null(comm->nranks, comm->nranks > 0), "nccl",
                   comm->nccl[0] ? cmd_json_path(comm->nccl) : json_null(), "ready_processes", comm->ready,
                   "plain_processes", comm->plain, "reason",
                   comm->reason >= 0 ? json_string(report->reasons[comm->reason]) : json_null(), "windows",
                   integer(comm->windows), "child_s", (double)comm->child_ns / 1e9, "window_s",
                   (double)comm->window_ns / 1e9, "ops", json_of_ops(report, comm->ops, false));
}

static json_t *json_of_comms(const struct report *report)
{
  json_t *comms = json_array();

  for (const struct report_comm *comm = report->comms; comm; comm = comm->hh.next)
    json_array_append_new(comms, json_of_comm(report, comm));
  return comms;
}

static void add_difference(void *data, const struct report_difference *difference)
{
  json_t *side[2];

  for (int i = 0; i < 2; i++) {
    int rank = i == 0 ? difference->least_rank : difference->most_rank;

    side[i] = json_pack("{s:o, s:o}", "rank", number_or_null(rank, rank >= 0), "calls",
                        integer(i == 0 ? difference->least : difference->most));
  }
  json_array_append_new(data, json_pack("{s:o, s:s, s:s, s:o, s:o}", "comm", cmd_json_path(difference->comm), "op",
                                        policy_op_word((enum policy_op)difference->op), "what", difference->what,
                                        "least", side[0], "most", side[1]));
}

static json_t *json_of_differences(const struct report *report)
{
  json_t *differences = json_array();

  report_differences(report, add_difference, differences);
  return differences;
}

static json_t *json_of_setup(const struct report *report)
{
  struct report_setup setup;

  report_setup(report, &setup);
  return json_pack(
      "{s:f, s:f, s:o, s:f, s:f, s:f, s:o}", "child_s", setup.child_s, "window_s", setup.window_s, "slowest_rank",
      setup.slowest ? number_or_null(setup.slowest->rank, setup.slowest->rank >= 0) : json_null(), "slowest_s",
      setup.slowest_s, "estimated_gain_s", setup.gained_s, "symmetric_calls_per_rank", setup.calls_per_rank,
      "break_even_calls", setup.break_even > 0 ? json_real(setup.break_even) : json_null());
}

static json_t *json_of_signature(const struct report *report, const struct report_signature *signature)
{
  const struct report_signature_key *key = &signature->key;
  const char *code = signature->reason >= 0 ? report->reasons[signature->reason] : NULL;
  char text[1024];

  return json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:b, s:f, s:f, s:o, s:o, s:o}", "comm", cmd_json_path(key->comm),
                   "op", policy_op_word((enum policy_op)key->op), "dtype", cmd_json_path(key->dtype), "redop",
                   key->redop[0] ? cmd_json_path(key->redop) : json_null(), "count", integer(key->count), "bytes",
                   integer(key->bytes), "capture", key->capture, "plain_calls", signature->about, "estimated_gain_s",
                   signature->seconds, "reason", code ? json_string(code) : json_null(), "why",
                   cmd_json_path(report_explain(report, signature, text, sizeof(text))), "advice",
                   code && report_advice(code) ? json_string(report_advice(code)) : json_null());
}

static json_t *json_of_signatures(struct report *report)
{
  struct report_signature *top[REPORT_TOP];
  json_t *signatures = json_array();
  int count = report_top(report, top);

  for (int i = 0; i < count; i++)
    json_array_append_new(signatures, json_of_signature(report, top[i]));
  return signatures;
}

/* Of one kind of calls. */
static json_t *json_of_would_be_plain(const struct report *report, const struct report_signature *signature)
{
  json_t *plain = json_object();

  for (int reason = 0; reason < report->reason_count; reason++)
    if (signature->would_be_plain[reason] > 0)
      json_object_set_new(plain, report->reasons[reason], integer(signature->would_be_plain[reason]));
  return plain;
}

static json_t *json_of_foreseen(const struct report *report, const struct report_signature *signature)
{
  const struct report_signature_key *key = &signature->key;

  return json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:o, s:f}", "comm", cmd_json_path(key->comm),
                   "op", policy_op_word((enum policy_op)key->op), "dtype", cmd_json_path(key->dtype), "redop",
                   key->redop[0] ? cmd_json_path(key->redop) : json_null(), "count", integer(key->count), "bytes",
                   integer(key->bytes), "capture", key->capture, "calls", integer(signature->calls), "window_calls",
                   integer(signature->would[REPORT_WINDOW]), "staged_calls", integer(signature->would[REPORT_STAGED]),
                   "plain", json_of_would_be_plain(report, signature), "estimated_gain_s",
                   report_would_gain(report, signature));
}

/* null where nothing was foreseen. */
static json_t *json_of_forecast(const struct report *report)
{
  json_t *calls;

  if (report->foreseen == 0)
    return json_null();
  calls = json_array();
  for (const struct report_signature *signature = report->signatures; signature; signature = signature->hh.next)
    json_array_append_new(calls, json_of_foreseen(report, signature));
  return json_pack("{s:o, s:o, s:o, s:o}", "ops", json_of_ops(report, report->forecast, true), "calls", calls,
                   "unforeseen_calls", integer(report->unforeseen), "absent_ranks", integer(report->absent));
}

json_t *report_json(struct report *report)
{
  return json_pack("{s:i, s:i, s:I, s:b, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "schema", 1, "files", report->files,
                   "skipped_lines", (json_int_t)report->skipped, "cut_off", report->cut_off > 0, "audit_only",
                   report->audit_only, "ops", json_of_ops(report, report->ops, true), "forecast",
                   json_of_forecast(report), "communicators", json_of_comms(report), "differences",
                   json_of_differences(report), "setup", json_of_setup(report), "signatures",
                   json_of_signatures(report));
}
