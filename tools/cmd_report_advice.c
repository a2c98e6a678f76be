/* SPDX-License-Identifier: Apache-2.0 */
/* What to do about a plain call, reason by reason. */
#include <string.h>

#include "shim/reason.h"
#include "tools/cmd.h"
#include "tools/cmd_report.h"

/* `help`: whether such a call could go symmetric at all. */
static const struct {
  bool help;
  const char *text;
} advice[REASON_COUNT] = {
    [REASON_audit_only] = {true, "Start the job without SYMMSHIM=audit (symmshim run without --audit-only) to have "
                                 "such calls moved; which would be, the report's dry run says."},
    [REASON_bad_policy] = {true, "Run 'symmshim check' on the policy file and mend the line that it names."},
    [REASON_unknown_comm] = {true, "Start the whole job under the shim: LD_PRELOAD set before the launcher; 'symmshim "
                                   "doctor' says whether the program's NCCL can be seen."},
    [REASON_single_rank] = {false, "Nothing to do: one rank has nobody to exchange with."},
    [REASON_nccl_version] = {true, "Use NCCL 2.27.5 or newer, and see min_nccl in the policy."},
    [REASON_not_abortable] = {true, "Use NCCL 2.29 or newer, or lift the policy's demand for one whose symmetric "
                                    "kernels can be aborted."},
    [REASON_nonblocking] = {true, "Split it off a blocking communicator: with PyTorch, leave "
                                  "TORCH_NCCL_USE_COMM_NONBLOCKING unset."},
    [REASON_shared_resources] = {true, "Make the communicator without splitShare, and leave "
                                       "NCCL_COMM_SPLIT_SHARE_RESOURCES unset."},
    [REASON_grouped_init] = {true, "Make the communicator outside ncclGroupStart/End, one a process."},
    [REASON_comm_id_env] = {true, "Unset NCCL_COMM_ID; launchers such as torchrun need none."},
    [REASON_grown] = {true, "Make the communicator with ncclCommInitRank instead of growing one."},
    [REASON_same_process] = {true, "Start one process a GPU, as torchrun --nproc-per-node does."},
    [REASON_missing_ranks] = {true, "All ranks must be on one host, share /dev/shm (docker run --ipc=host) and be "
                                    "started under the shim; communicators that span hosts stay plain."},
    [REASON_shim_differs] = {true, "Give all ranks the same symmshim, policy file and NCCL_* variables."},
    [REASON_board_failed] = {true, "Make /dev/shm writable and give it some MiB of room (docker run --shm-size); "
                                   "'symmshim doctor' looks at it."},
    [REASON_child_failed] = {true, "Run once with NCCL_DEBUG=WARN and see what NCCL says; too little free device "
                                   "memory is the usual cause."},
    [REASON_register_failed] = {true, "Run once with NCCL_DEBUG=WARN and see what NCCL says; NCCL_WIN_ENABLE and "
                                      "NCCL_CUMEM_ENABLE must not be 0."},
    [REASON_aborted] = {false, "Nothing to do if the job was ending; else see why it aborted the communicator."},
    [REASON_suspended] = {false, "Nothing to do: the job suspended the communicator itself."},
    [REASON_policy] = {true, "'symmshim explain' names the section that says so; where symmetric kernels were measured "
                             "to be faster on these GPUs, add a [rule] with path = window."},
    [REASON_empty] = {false, "Nothing to do: no data is moved."},
    [REASON_dtype] = {false, "Nothing to do but another data type: reductions in fp32, bf16, fp16 and fp8 have "
                             "symmetric kernels."},
    [REASON_redop] = {true, "Let the policy rewrite averages (rewrite = post_scale, or pre_scale with path = staged); "
                            "max, min and prod have no symmetric kernel."},
    [REASON_call_config] = {true, "Leave the members of ncclCollConfig_t at their initial values where the shim is to "
                                  "move the call; CTAs of symmetric calls are set by the policy."},
    [REASON_user_redop] = {true, "Let the policy rewrite it (path = staged, rewrite = pre_scale), or use the plain "
                                 "average: in FSDP2, leave gradient divide factors at their default."},
    [REASON_no_factor] = {false, "Nothing to do unless the job can make the reduce op with a factor in host memory."},
    [REASON_not_in_arena] = {true, "The buffer came from another allocator: see callers, min_bytes and max_bytes in "
                                   "the policy's [arena], and whether the job has a static CUDA runtime."},
    [REASON_job_vmm] = {true, "Take expandable_segments out of PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF), so that "
                              "PyTorch allocates with cudaMalloc, or cover such calls with path = staged."},
    [REASON_job_pool] = {true, "Take backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF), so "
                               "that PyTorch allocates with cudaMalloc, or cover such calls with path = staged."},
    [REASON_crosses_segment] = {true,
                                "Keep the buffer in one allocation; with PyTorch, leave expandable_segments off."},
    [REASON_job_registered] = {false, "Nothing to do: the job registers this buffer with NCCL itself."},
    [REASON_in_group] = {true, "Make the call outside ncclGroupStart/End; in PyTorch, outside a coalescing manager."},
    [REASON_capturing] =
        {true, "Run the step once with these buffers before it is captured, so that they have windows by then."},
    [REASON_other_device] = {true, "Choose the rank's own GPU (torch.cuda.set_device) before any tensor is made."},
    [REASON_no_memory] = {true, "Leave more device memory free (child_memory and window_memory in the policy say how "
                                "much), for example with a smaller batch."},
    [REASON_no_kernel] = {true, "The driver refused the embedded device code: update it, or set rewrite = none."},
    [REASON_no_window_room] = {true, "Make fewer and larger allocations, so that fewer segments become windows."},
    [REASON_ranks_differ] = {true, "Let the ranks allocate alike before this call (no extra tensors on one of them, "
                                   "the same batch shapes), or cover such calls with path = staged."},
    [REASON_peer_declined] = {true, "See the log of the rank that declined."},
    [REASON_agree_timeout] = {true, "One rank comes late: even its work out, or raise agree_us in the policy."},
    [REASON_paused] = {true, "Ranks come late again and again: even their work out, or raise agree_us in the policy."},
    [REASON_given_up] = {true,
                         "Leave more device memory free (child_memory and window_memory in the policy say how much)."},
    [REASON_no_slot] = {true, "Leave more device memory free for staging, or allow larger slots in the policy."},
    [REASON_peer_left] = {true,
                          "See the log of the rank that gave up; too little free device memory is the usual cause."},
};

static enum reason find(const char *code)
{
  for (int i = REASON_none + 1; i < REASON_COUNT; i++)
    if (strcmp(reason_code((enum reason)i), code) == 0)
      return (enum reason)i;
  return REASON_none;
}

const char *report_advice(const char *code)
{
  return advice[find(code)].text;
}

bool report_can_help(const char *code)
{
  return advice[find(code)].help;
}

/* "rank 1's buffer lies 148 MiB behind rank 0's at call 17; ", or nothing. */
static void explain_places(const struct report_signature *signature, char *text, size_t size)
{
  const struct report_place *a = &signature->differ[0], *b = &signature->differ[1];
  char distance[32];

  text[0] = '\0';
  if (signature->differ_count < 2)
    return;
  if (a->offset > b->offset) {
    a = &signature->differ[1];
    b = &signature->differ[0];
  }
  cmd_format_bytes(b->offset - a->offset, distance, sizeof(distance));
  if (a->segment != b->segment)
    snprintf(text, size, "at call %llu rank %d's buffer lies in its segment %llu, rank %d's in its segment %llu; ",
             (unsigned long long)signature->differ_seq, b->rank, (unsigned long long)b->segment, a->rank,
             (unsigned long long)a->segment);
  else
    snprintf(text, size, "at call %llu rank %d's buffer lies %s behind rank %d's: it has allocated more before; ",
             (unsigned long long)signature->differ_seq, b->rank, distance, a->rank);
}

const char *report_name(const struct report *report, const struct report_signature *signature, char *text, size_t size)
{
  const struct report_signature_key *key = &signature->key;
  bool several = HASH_COUNT(report->comms) > 1;
  char bytes[32];

  snprintf(text, size, "%s%s%s %s, %s%s%s%s", policy_op_word((enum policy_op)key->op), key->redop[0] ? " " : "",
           key->redop, key->dtype, cmd_format_bytes(key->bytes, bytes, sizeof(bytes)), key->capture ? ", captured" : "",
           several ? ", communicator " : "", several ? key->comm : "");
  return text;
}

/* Who says so, where it is one rank of several. */
static void explain_rank(const struct report_signature *signature, char *text, size_t size)
{
  int rank = signature->reason >= 0 ? signature->rank_of[signature->reason] : -1;

  text[0] = '\0';
  if (rank >= 0 && signature->plain[signature->reason] < signature->calls)
    snprintf(text, size, "rank %d declines: ", rank);
}

const char *report_explain(const struct report *report, const struct report_signature *signature, char *text,
                           size_t size)
{
  const char *code = signature->reason >= 0 ? report->reasons[signature->reason] : "";
  const char *meaning = reason_meaning(find(code)), *what = report_advice(code);
  char places[192] = "";

  if (strcmp(code, "ranks_differ") == 0)
    explain_places(signature, places, sizeof(places));
  else
    explain_rank(signature, places, sizeof(places));
  snprintf(text, size, "%s: %s%s. %s", code, places, meaning ? meaning : "a reason of a newer symmshim",
           what ? what : "");
  return text;
}
