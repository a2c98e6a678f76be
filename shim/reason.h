/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The closed list of reasons why a call went plain, as they stand in the audit log and in
 * symmshim-audit(5). Owns the list and its words, nothing else; knows neither CUDA nor NCCL.
 *
 * Add a reason here and nowhere else: code, meaning for people.
 */
#ifndef SYMMSHIM_REASON_H
#define SYMMSHIM_REASON_H

#define REASONS(X)                                                                                                     \
  /* the whole process */                                                                                              \
  X(audit_only, "SYMMSHIM=audit: calls are watched, none is changed")                                                  \
  X(bad_policy, "the policy file has an error, so everything passes through")                                          \
  /* a communicator, for its whole life */                                                                             \
  X(unknown_comm, "the communicator was made where the shim could not see it")                                         \
  X(single_rank, "the communicator has one rank")                                                                      \
  X(nccl_version, "this NCCL has no window registration, or the policy asks for a newer one")                          \
  X(not_abortable, "the policy wants symmetric kernels that can be aborted, and this NCCL has none")                   \
  X(nonblocking, "the communicator was split off a non-blocking one")                                                  \
  X(shared_resources, "the communicator shares its resources with what is split off it")                               \
  X(grouped_init, "the communicator was made inside ncclGroupStart/End")                                               \
  X(comm_id_env, "NCCL_COMM_ID is set, so communicators cannot be told apart by their id")                             \
  X(grown, "the communicator came from ncclCommGrow")                                                                  \
  X(same_process, "several ranks of the communicator live in one process")                                             \
  X(missing_ranks, "not every rank is on this host, in this container and under the shim")                             \
  X(shim_differs, "the ranks run different shims or different policies")                                               \
  X(board_failed, "the shared memory that the ranks agree through could not be set up")                                \
  X(child_failed, "the child communicator could not be made on every rank")                                            \
  X(register_failed, "a window could not be registered on every rank")                                                 \
  X(aborted, "the communicator was aborted, finalized or revoked")                                                     \
  X(suspended, "the communicator was suspended")                                                                       \
  /* a call, seen alike by every rank */                                                                               \
  X(policy, "the policy keeps calls of this kind plain")                                                               \
  X(empty, "the call moves no data")                                                                                   \
  X(dtype, "NCCL has no symmetric kernel for this data type")                                                          \
  X(redop, "NCCL has no symmetric kernel for this reduce op, and the policy does not rewrite it")                      \
  X(user_redop, "the reduce op was made by ncclRedOpCreatePreMulSum, and the policy does not rewrite it")              \
  /* a call, as one rank sees it: that rank declines, the others log peer_declined */                                  \
  X(call_config, "the call carries settings of its own (ncclCollConfig_t), which the child communicator has not")      \
  X(not_in_arena, "a buffer does not lie in the arena")                                                                \
  X(job_vmm, "a buffer lies in memory that the job's allocator maps itself, as expandable segments are")               \
  X(job_pool, "a buffer comes from a stream-ordered pool, as cudaMallocAsync's do")                                    \
  X(crosses_segment, "a buffer runs past the end of its segment")                                                      \
  X(job_registered, "the job registered the buffer itself")                                                            \
  X(in_group, "the call was made inside ncclGroupStart/End")                                                           \
  X(capturing, "the stream was being captured into a graph, and a buffer had no window yet")                           \
  X(other_device, "the buffers lie on another device than the communicator's")                                         \
  X(no_memory, "too little device memory was free for the child communicator")                                         \
  X(no_kernel, "the device code for the rewrite could not be loaded")                                                  \
  X(no_factor, "the factor of the reduce op lies in device memory")                                                    \
  X(no_window_room, "the communicator holds as many windows as the shim keeps track of")                               \
  X(given_up, "device memory was short on a rank, so the windows were given up; they are made anew later")             \
  /* a call, by the board's verdict */                                                                                 \
  X(ranks_differ, "the ranks' buffers lie at different offsets or in different segments")                              \
  X(peer_declined, "another rank declined; its own log says why")                                                      \
  X(agree_timeout, "a rank came later than the policy waits")                                                          \
  X(paused, "the ranks timed out repeatedly, or one is far behind, so agreement is paused for a while")                \
  X(no_slot, "slots large enough could not be made on every rank, or the policy does not allow them")                  \
  X(peer_left, "another rank gave up for good")

#define REASON_ENUM(code, meaning) REASON_##code,
enum reason { REASON_none, REASONS(REASON_ENUM) REASON_COUNT };
#undef REASON_ENUM

/* The code as it stands in the log ("ranks_differ"); NULL for REASON_none and for numbers outside the list. */
const char *reason_code(enum reason reason);

/* One line for people; NULL as above. */
const char *reason_meaning(enum reason reason);

#endif
