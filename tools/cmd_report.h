/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Audit logs, added up. cmd_report_read.c reads lines (symmshim-audit(5), schema 1), cmd_report_model.c adds them to
 * what is known, in bounded memory; cmd_report_forecast.c and cmd_report_agree.c say of an audit-only run what a real
 * one would have made of its calls; cmd_report_gain.c and cmd_report_advice.c judge it; cmd_report.c and the files of
 * each form (_text, _json, _html, _trace) print it.
 */
#ifndef SYMMSHIM_CMD_REPORT_H
#define SYMMSHIM_CMD_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <uthash.h>

#include "policy/policy.h"

enum {
  REPORT_SCHEMA = 1,
  REPORT_MAX_LINE = 64 << 10,       /* bytes of a line, with its end */
  REPORT_MAX_REASONS = 128,         /* different reason codes in all files */
  REPORT_MAX_REASON = 32,           /* bytes of one, with the end */
  REPORT_MAX_COMM = 20,             /* bytes of a communicator's id, with the end */
  REPORT_MAX_WORD = 16,             /* bytes of a dtype or redop, with the end */
  REPORT_MAX_SOURCES = 1 << 16,     /* ops of communicators of processes */
  REPORT_MAX_PROCESSES = 1 << 16,   /* the same for communicators */
  REPORT_MAX_SIGNATURES = 16 << 10, /* kinds of calls that are told apart */
  REPORT_MAX_RANK_CALLS = 1 << 16,  /* of an audit-only run: foreseen calls of one rank on one communicator */
  REPORT_MAX_FORESEEN = 1 << 21,    /* and of all */
  REPORT_BUCKETS = 120,             /* of the time that the logs cover */
  REPORT_TICKS = 64,                /* of a second: the finest bucket */
  REPORT_TOP = 10,                  /* signatures that are shown */
  REPORT_SEVERAL_RANKS = -2
};

/* The paths that are symmetric. */
enum report_path { REPORT_WINDOW, REPORT_STAGED, REPORT_PATHS };

/* By NCCL's own word; the other calls it did not tell of. */
struct report_observed {
  uint64_t symmetric, plain;
  uint64_t mismatched; /* the shim put them on windows, and NCCL made them on plain kernels */
};

struct report_op {
  uint64_t calls, bytes; /* all calls of the op */
  uint64_t path_calls[REPORT_PATHS], path_bytes[REPORT_PATHS];
  uint64_t plain[REPORT_MAX_REASONS]; /* the others, by index of the reason */
  uint64_t plain_bytes[REPORT_MAX_REASONS];
  struct report_observed observed;
  uint64_t unfinished; /* communicators in processes that left no summary for the op */
};

/* A process is told by its file too: hosts have the same numbers. */
struct report_process_key {
  int32_t file, pid;
};
struct report_process {
  struct report_process_key key;
  int rank; /* -1: not known */
  char host[64];
  double first, last;              /* times of its lines; 0: none */
  uint64_t child_ns, window_ns;    /* setting up: children (and attempts), windows */
  uint64_t windows, window_bytes;  /* that were registered */
  uint64_t host_ns, host_ns_calls; /* of the call records */
  uint64_t lost;                   /* lines that it could not write */
  UT_hash_handle hh;
};

/* What a rank of an audit-only run says of a call: where its buffers, send and recv, lie, and what it sees alone. */
struct report_buffer {
  uint64_t segment, offset, bytes; /* 0: in none; the bytes are the segment's */
  int obstacle;                    /* index of the reason why it cannot be in a window; -1 */
};
struct report_foreseen {
  struct report_signature *signature;
  uint64_t seq;
  struct report_buffer buffers[2];
  int reason;          /* index of the reason why it would be plain; -1: this rank would ask the others */
  bool staged, scaled; /* it may go through a slot; it has to, since it is scaled on the way in */
};

/* A rank of a communicator in an audit-only run. */
struct report_member {
  const struct report_process *process;
  uint64_t comm_rank, compatibility, board, stage_max;
  int reason; /* index of the reason why the communicator would be plain, as this rank alone can tell; -1 */
  bool twice; /* another rank of it lives in the same process */
  struct report_foreseen *calls;
  size_t count, room;
  struct report_member *next;
};

struct report_comm {
  char id[REPORT_MAX_COMM];
  int nranks; /* 0: not known */
  char nccl[REPORT_MAX_WORD];
  int ready, plain;             /* processes that said so */
  int reason;                   /* index of the last that was given for plain; -1 */
  uint64_t windows;             /* registered on it, over all processes */
  uint64_t child_ns, window_ns; /* likewise */
  uint64_t processes[POLICY_OP_COUNT];
  struct report_op ops[POLICY_OP_COUNT];      /* by report_finish() */
  struct report_op seen[POLICY_OP_COUNT];     /* the call records of these */
  struct report_op forecast[POLICY_OP_COUNT]; /* of an audit-only run: what a real one would have made of them */
  struct report_member *members;              /* likewise */
  UT_hash_handle hh;
};

/* Whose calls: an op of a communicator in a process. Keys are compared as bytes, so they are zeroed first. */
struct report_source_key {
  struct report_process_key process;
  int32_t op;
  char comm[REPORT_MAX_COMM];
};
struct report_source {
  struct report_source_key key;
  const struct report_process *process;
  bool has_summary;
  struct report_op summary; /* the last one, which is cumulative */
  struct report_op seen;    /* the call records */
  UT_hash_handle hh;
};

struct report_signature_key {
  uint64_t bytes, count;
  int32_t op, capture;
  char comm[REPORT_MAX_COMM], dtype[REPORT_MAX_WORD], redop[REPORT_MAX_WORD];
};

/* Where a rank's buffer lay when the ranks' buffers differed. */
struct report_place {
  int rank;
  uint64_t segment, offset;
};
struct report_signature {
  struct report_signature_key key;
  uint64_t calls, symmetric; /* that were logged */
  uint32_t plain[REPORT_MAX_REASONS];
  int32_t rank_of[REPORT_MAX_REASONS]; /* the rank that says so, where it is one; REPORT_SEVERAL_RANKS */
  uint64_t differ_seq;                 /* the first call at which they differed; 0: none */
  int differ_count;                    /* of `differ`: this rank's, and the first other one's that lies elsewhere */
  struct report_place differ[2];
  /* of an audit-only run, by report_forecast(): */
  uint64_t would[REPORT_PATHS];
  uint32_t would_be_plain[REPORT_MAX_REASONS];
  /* by report_rank_signatures() */
  double about;   /* plain calls that could go symmetric, of all ranks, logged or not */
  double seconds; /* about what one rank would gain */
  int reason;     /* the most frequent that can be helped; -1 */
  UT_hash_handle hh;
};

/* Calls over time, in slices that are widened as time goes on. */
struct report_slice {
  uint64_t calls[POLICY_OP_COUNT], symmetric[POLICY_OP_COUNT];
};
struct report_timeline {
  int64_t width; /* ticks; 0: nothing yet */
  int64_t start; /* multiples of it since the epoch */
  int used;      /* slices from there on */
  struct report_slice slices[REPORT_BUCKETS];
};

struct report {
  struct report_op ops[POLICY_OP_COUNT];
  int reason_count;
  char reasons[REPORT_MAX_REASONS][REPORT_MAX_REASON];
  uint64_t records; /* understood lines */
  uint64_t skipped; /* lines that are malformed, cut off, too long, of an unknown schema, or too many to keep apart */
  uint64_t unknown_schema;
  uint64_t cut_off;    /* last lines without an end */
  uint64_t left_out;   /* call records of signatures beyond REPORT_MAX_SIGNATURES */
  uint64_t unassigned; /* records of processes or communicators beyond what is kept apart */
  int files;
  bool audit_only; /* a process only watched; then: */
  struct report_op forecast[POLICY_OP_COUNT];
  uint64_t foreseen;   /* calls that were kept to be foreseen */
  uint64_t unforeseen; /* calls of which nothing can be said: too many, or some rank's log does not have them */
  uint64_t absent;     /* ranks of communicators of which there is no log */
  struct report_process *processes;
  struct report_comm *comms;
  struct report_source *sources;
  struct report_signature *signatures;
  struct report_timeline by_call, by_summary; /* the records that each is made of */
  /* Called while reading, where set: after each piece of a file, and with each understood record. */
  void (*progress)(void *data, uint64_t bytes);
  void *progress_data;
  void (*see)(void *data, const struct report_process *process, const json_t *record);
  void *see_data;
};

/* Reading. Adds a file, line by line; malformed lines are counted, never fatal. Returns 0 or a negative errno. */
int report_read(struct report *report, const char *path);

/* The model. All return 0 or -EINVAL where the record does not say what it must, or there are too many. */
int report_add_start(struct report *report, struct report_process *process, const json_t *record);
int report_add_comm(struct report *report, struct report_process *process, const json_t *record);
int report_add_window(struct report *report, struct report_process *process, const json_t *record);
int report_add_call(struct report *report, struct report_process *process, const json_t *record);
int report_add_summary(struct report *report, struct report_process *process, const json_t *record);

/* Keeps what a call record of an audit-only run foresees; of other records nothing. */
void report_add_foreseen(struct report *report, struct report_comm *comm, const struct report_process *process,
                         struct report_signature *signature, const json_t *record);
/* Likewise of a communicator. */
void report_add_member(struct report *report, struct report_comm *comm, const struct report_process *process,
                       const json_t *record);

/* The process of a record, made when it is new; NULL when the record does not say, or there are too many. */
struct report_process *report_process_of(struct report *report, const json_t *record);

/* Marks which rank gives a reason for a signature's calls. */
void report_note_rank(struct report_signature *signature, int reason, int rank);

/* Index of a reason code, -EINVAL when it is none or there are too many. */
int report_reason(struct report *report, const char *code);

/* Counts calls at a time. */
void report_timeline_add(struct report_timeline *timeline, double time, int op, uint64_t calls, uint64_t symmetric);

/* The slices of whichever timeline has more of all calls; NULL when none has any. */
const struct report_timeline *report_timeline_best(const struct report *report);

/* When all files are read: adds up the sources, and foresees what can be. */
void report_finish(struct report *report);
void report_free(struct report *report);

/* What a real run would have made of an audit-only one's calls. */
void report_forecast(struct report *report);

/*
 * The ranks' agreement on a communicator's calls, one after the other, as the shim comes to it. What it cannot know is
 * left out: who comes too late, and where memory is too short.
 */
struct report_agreement;
struct report_agreement *report_agreement_begin(struct report *report, struct report_comm *comm); /* NULL: no memory */
/* One call, as the members that are named have it; into *outcomes REPORT_WINDOW, REPORT_STAGED or REPORT_PATHS and a
 * reason's index each. */
struct report_outcome {
  int path, reason;
};
void report_agree(struct report_agreement *agreement, struct report_member *const *members,
                  const struct report_foreseen *const *calls, int count, struct report_outcome *outcomes);
void report_agreement_end(struct report_agreement *agreement);

/* Communicators that were made out of sight are no one communicator. */
bool report_has_identity(const char *comm);

/* The kinds of calls that would go symmetric, those that gain most first; returns how many. Freed by the caller. */
size_t report_would_go(const struct report *report, struct report_signature ***sorted);
/* About how many seconds one rank would gain by a kind's calls that would go symmetric. */
double report_would_gain(const struct report *report, const struct report_signature *signature);

/* Of a record. */
int report_get_count(const json_t *object, const char *name, uint64_t *count);
const char *report_get_string(const json_t *object, const char *name);

/* Figures. */
uint64_t report_symmetric_calls(const struct report_op *op);
uint64_t report_symmetric_bytes(const struct report_op *op);
double report_percent(uint64_t part, uint64_t whole);    /* 0 of 0 is 0 */
double report_shown_percent(const struct report_op *op); /* of symmetric calls; 99.96 is not shown as 100 */
const struct report_op *report_counts(const struct report_source *source); /* the more complete ones */
void report_op_add(struct report_op *sum, const struct report_op *op);

/* The next reason, most frequent first, then by code; -1 when there is none. `done` marks those that were. */
int report_next_reason(const struct report *report, const struct report_op *op, const bool *done);

/*
 * About how many seconds a call of `bytes` is faster on symmetric kernels, from what was measured on two GPUs
 * (cmd_report_gain.c); `scaled`: an average that is made of a sum.
 */
double report_gain(enum policy_op op, uint64_t bytes, bool scaled);

/* Setting up against what it brought, of the process that it took longest. */
struct report_setup {
  double child_s, window_s;             /* of all processes */
  const struct report_process *slowest; /* NULL: none set anything up */
  double slowest_s;
  double gained_s;       /* about what one rank has gained so far */
  double calls_per_rank; /* symmetric calls of one rank, on average */
  double break_even;     /* symmetric calls of one rank that repay slowest_s; 0: not known */
};
void report_setup(const struct report *report, struct report_setup *setup);

/* The signatures that would gain most, best first; returns how many. */
int report_top(struct report *report, struct report_signature *top[REPORT_TOP]);

/* What to do about a reason; NULL for a code that this program does not know. */
const char *report_advice(const char *code);
/* Whether a call with this reason could go symmetric at all. */
bool report_can_help(const char *code);
/* "reduce_scatter avg bf16, 32 MiB", and its communicator where there are several. Returns `text`. */
const char *report_name(const struct report *report, const struct report_signature *signature, char *text, size_t size);
/* What keeps a signature plain, and what to do: one or two sentences. Returns `text`. */
const char *report_explain(const struct report *report, const struct report_signature *signature, char *text,
                           size_t size);

/* Where the ranks of a communicator say different things. */
struct report_difference {
  const char *comm;
  int op;
  const char *what; /* "calls", "symmetric" or the code of a reason */
  int processes;    /* that had calls of the op there */
  uint64_t least, most;
  int least_rank, most_rank; /* first ranks of these; -1: not known */
};
void report_differences(const struct report *report,
                        void (*visit)(void *data, const struct report_difference *difference), void *data);

/* Forms. */
void report_print_text(struct report *report, FILE *file);
json_t *report_json(struct report *report);
int report_write_html(struct report *report, const char *path); /* 0 or -errno */

/* The trace is written while the logs are read. */
struct report_trace;
struct report_trace *report_trace_open(const char *path); /* NULL: errno says why */
void report_trace_add(void *trace, const struct report_process *process, const json_t *record);
int report_trace_close(struct report_trace *trace); /* 0 or -errno */

/* One line on stderr while reading, where that is a terminal. */
struct report_progress;
struct report_progress *report_progress_begin(int count, char **paths); /* NULL: nothing is shown */
void report_progress_show(void *progress, uint64_t bytes);
void report_progress_end(struct report_progress *progress);

#endif
