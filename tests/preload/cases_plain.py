# SPDX-License-Identifier: Apache-2.0
"""What goes plain: for a call's sake, for a communicator's, for another rank's. And waits, which all have an end."""

import os

from cases_calls import ALL, ops, three
from harness import NO_ARENA, Skip, case, check, equal, execute, job, only_rank, outcome, policy


def all_plain(reason):
    return three(reason, reason, reason)


# For a call's sake, on memory that has windows.

@case("plain", "job_registers_buffer", kind="buffer")
@case("plain", "job_registers_window", kind="window")
def job_registers(kind):
    result = job(2, "--op", ALL, "--calls", 6, "--register", kind, agree=False)
    outcome(result, 2, all_plain("job_registered"))
    equal(result.calls_of(0, "ncclCommSplit"), [], "splits")
    # With a window of its own the job's communicator goes symmetric, as it does without the shim.
    equal({symmetric for symmetric, _, _ in result.notes(0)}, {kind == "window"}, "symmetric")


@case("plain")
def another_device_is_current():
    """NCCL does not mind, so neither may the shim."""
    result = job(2, "--op", ALL, "--calls", 6, "--elsewhere", env={"SIM_DEVICES": "4"})
    equal(result.sequence(0), ["window"] * 6, "outcomes, in order")


# For a communicator's sake.

@case("plain", "shared_resources", reason="shared_resources", more=("--init", "shared"))
@case("plain", "grouped_init", reason="grouped_init", more=("--init", "grouped"))
@case("plain", "comm_id_env", reason="comm_id_env", more=(),
      env={"NCCL_COMM_ID": f"127.0.0.1:{20000 + os.getpid() % 40000}"})
@case("plain", "hidden_init", reason="unknown_comm", more=("--init", "hidden"))
def communicator(reason, more, env=None):
    result = ops(2, "fp32", *more, wanted=all_plain(reason), env=env)
    equal(result.calls_of(0, "ncclCommSplit"), [], "splits")


@case("plain")
def two_ranks_in_one_process():
    result = job(1, "--init", "all", "--devices", 2, "--op", ALL, "--calls", 6)
    outcome(result, 1, three("same_process", "same_process", "same_process", each=4))


@case("plain")
def shared_memory_is_not_to_be_had():
    mount = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro tmpfs /dev/shm && exec "$@"', "sh"]
    if execute([*mount, "true"], status=None, stderr=".*").status != 0:
        raise Skip("file systems cannot be mounted here")
    ops(2, "fp32", wanted=all_plain("board_failed"), wrap=mount,
        stderr=r"(\S+ \[\d+\] SYMMSHIM WARN communicator \w{16}: no shared memory [^\n]*\n){2}")


# For another rank's sake.

@case("plain", "rank_without_shim", script="unset LD_PRELOAD")
@case("plain", "rank_with_shim_off", script="export SYMMSHIM=off")
def rank_without(script):
    result = job(3, "--op", ALL, "--calls", 6, wrap=only_rank(1, script), agree=False)
    outcome(result, 3, all_plain("missing_ranks"), r1={})
    check("1" not in result.audit, "rank 1 writes no audit log")


@case("plain")
def rank_that_only_watches():
    result = job(3, "--op", ALL, "--calls", 6, wrap=only_rank(1, "export SYMMSHIM=audit"))
    outcome(result, 3, all_plain("missing_ranks"), r1=all_plain("audit_only"))


@case("plain")
def rank_with_bad_policy():
    result = job(3, "--op", ALL, "--calls", 3, wrap=only_rank(1, "export SYMMSHIM_POLICY={folder}/bad"),
                 files={"bad": "[shim]\nagree_us = soon\n"}, stderr=r"[^\n]*/bad:2: [^\n]*\n")
    outcome(result, 3, three(*["missing_ranks"] * 3, each=1), r1=three(*["bad_policy"] * 3, each=1))


@case("plain")
def rank_with_another_policy():
    ops(3, "fp32", wanted=all_plain("shim_differs"), wrap=only_rank(1, "export SYMMSHIM_POLICY={folder}/other"),
        files={"other": policy(agree_us=123)})


@case("plain")
def rank_with_another_audit_level():
    """That is each rank's own business."""
    result = job(2, "--op", ALL, "--calls", 6, wrap=only_rank(1, "export SYMMSHIM_POLICY={folder}/other"),
                 files={"other": policy(audit="change")}, agree=False)
    equal(result.outcomes(0), three("window", "window", "window"), "outcomes")


@case("plain")
def rank_on_another_host():
    """Another /dev/shm, as in another container."""
    script = 'exec unshare -m sh -c "mount -t tmpfs tmpfs /dev/shm && exec \\"\\$@\\"" sh "$@"'
    if execute(["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /dev/shm"], status=None, stderr=".*").status != 0:
        raise Skip("file systems cannot be mounted here")
    ops(3, "fp32", wanted=all_plain("missing_ranks"), wrap=only_rank(1, script))


@case("plain")
def rank_without_shareable_memory():
    """Its cudaMalloc is answered by the real one."""
    result = job(2, "--op", ALL, "--calls", 6, env={"SIM_FAIL": "cuMemCreate:*@rank1"},
                 stderr=NO_ARENA)
    outcome(result, 2, all_plain("peer_declined"), r1=all_plain("not_in_arena"))


@case("plain")
def rank_without_kernel():
    """A driver that does not take the device code is not asked again, and the others hear that it never will be."""
    result = job(2, "--op", ALL, "--calls", 6, env={"SIM_FAIL": "cuModuleLoadData:1@rank1"})
    for rank, rest in ((0, "peer_left"), (1, "no_kernel")):
        sequence = result.sequence(rank)
        check(sequence[0] in (rest, "peer_declined"), f"rank {rank}: the first call is {sequence[0]}")
        equal(sequence[1:], [rest] * 5, f"rank {rank}: outcomes, in order")
        equal(result.calls_of(rank, "ncclCommSplit"), [], "splits")


@case("plain")
def no_memory_for_a_child():
    ops(2, "fp32", wanted=all_plain("no_memory"), text=policy(child_memory="900G"))


@case("plain")
def no_memory_for_a_window():
    """The first window comes with the child; those after it are made while there is memory."""
    result = job(2, "--op", ALL, "--calls", 12, "--batch", 6, "--count", 100000, "--segment", 2 << 20,
                 text=policy(window_memory="900G"))
    counts = result.outcomes(0)
    check(any(reason == "no_memory" for _, reason in counts), "calls on other segments are plain")
    check(any(reason == "window" for _, reason in counts), "calls on the first segment are not")


@case("plain", "rank_without_memory_for_a_child", fail="cuMemGetInfo_v2:1@rank1")
@case("plain", "rank_without_event", fail="cuEventCreate:1@rank1")
def rank_without_memory(fail):
    """It is tried again, but not at every call."""
    result = job(2, "--op", "all_gather", "--count", 16, "--calls", 1010, "--batch", 10, env={"SIM_FAIL": fail})
    for rank, reason in ((0, "peer_declined"), (1, "no_memory")):
        sequence = result.sequence(rank)
        first = sequence.index("window")
        check(first >= 1000, f"rank {rank}: the call after which it is tried again is {first}")
        equal(sequence, [reason] * first + ["window"] * (1010 - first), f"rank {rank}: outcomes, in order")


@case("plain")
def split_fails_everywhere():
    result = ops(2, "fp32", wanted=all_plain("child_failed"), env={"SIM_FAIL": "ncclCommSplit:1"})
    equal(len(result.calls_of(0, "ncclCommSplit")), 1, "splits")


@case("plain")
def registration_fails_everywhere():
    result = ops(2, "fp32", wanted=all_plain("register_failed"), env={"SIM_FAIL": "ncclCommWindowRegister:1"})
    equal([line["reason"] for line in result.events(0, "comm")][:2], [None, "register_failed"], "states")


@case("plain", "no_windows_2_28", version="22809")
@case("plain", "no_windows_2_29", version="22902")
def registration_without_window(version):
    """Where NCCL cannot go symmetric, registration gives success all the same, and no window."""
    ops(2, "fp32", wanted=all_plain("register_failed"), env={"NCCL_WIN_ENABLE": "0", "SIM_NCCL_VERSION": version})


@case("plain")
def later_registration_fails_everywhere():
    """Windows that are there already go with the child; what lies in them stays usable."""
    result = job(2, "--op", ALL, "--calls", 12, "--batch", 6, "--count", 100000, "--segment", 2 << 20, "--streams", 2,
                 env={"SIM_FAIL": "ncclCommWindowRegister:3"})
    sequence = result.sequence(0)
    first = sequence.index("register_failed")
    check(first > 0, "the first call has its window")
    equal(sequence, ["window"] * first + ["register_failed"] * (12 - first), "outcomes, in order")


@case("plain", "split_hangs", function="ncclCommSplit", said="ncclCommSplit for the child communicator")
@case("plain", "registration_hangs", function="ncclCommWindowRegister", said=r"ncclCommWindowRegister of \d+ bytes")
def rank_leaves_the_others_in_nccl(function, said):
    """Nothing ends these waits of NCCL's, but the rank that waits says where."""
    job(2, "--op", "all_gather", text=policy(warn_s=1, setup_ms=300), status=124, seconds=4, agree=False,
        env={"SIM_FAIL": f"{function}:1@rank1"},
        stderr=rf"(\S+ \[-?\d\] SYMMSHIM WARN rank 0 of 2, communicator \w{{16}}: {said} has taken \d s so far\n)+")


# Waits.

@case("waits")
def late_rank():
    result = job(3, "--op", "all_gather", "--calls", 6, "--late", "1:2:2:1000", text=policy(agree_us=250000))
    for rank in range(3):
        equal(result.sequence(rank), ["window"] * 2 + ["agree_timeout"] + ["window"] * 3, f"rank {rank}: in order")


@case("waits")
def late_rank_within_patience():
    result = job(2, "--op", "all_gather", "--calls", 4, "--late", "1:1:2:300")
    equal(result.sequence(0), ["window"] * 4, "outcomes, in order")


@case("waits")
def pause_and_recovery():
    result = job(2, "--op", "all_gather", "--calls", 12, "--late", "1:2:3:1000",
                 text=policy(agree_us=250000, pause_after=2, pause_calls=4),
                 stderr=r"[^\n]*SYMMSHIM WARN rank 0 of 2, communicator \w+: waited for rank 1 to agree on a call[^\n]*\n")
    # The rank that comes late finds the pause begun.
    for rank, last in ((0, "agree_timeout"), (1, "paused")):
        equal(result.sequence(rank), ["window"] * 2 + ["agree_timeout", last] + ["paused"] * 4 + ["window"] * 4,
              f"rank {rank}: in order")


@case("waits")
def late_rank_at_the_split():
    result = job(2, "--op", "all_gather", "--calls", 4, "--late", "1:0:0:1000", text=policy(setup_ms=250))
    equal(result.sequence(0), ["agree_timeout"] + ["window"] * 3, "outcomes, in order")


@case("waits")
def late_rank_average():
    """The rank that came late makes a plain average too, not a sum that nobody scales."""
    result = job(3, "--op", "reduce_scatter", "--redop", "avg", "--calls", 6, "--late", "2:3:3:1000",
                 text=policy(agree_us=250000))
    equal(result.sequence(2), ["window"] * 3 + ["agree_timeout"] + ["window"] * 2, "outcomes, in order")


@case("waits")
def killed_rank():
    """The others go on as without the shim: to the call in NCCL that never ends."""
    result = job(3, "--op", "all_gather", "--calls", 6, "--kill", "1:3", text=policy(agree_us=300000), status=124,
                 seconds=3, agree=False)
    for rank in (0, 2):
        equal(result.sequence(rank), ["window"] * 3 + ["agree_timeout"], f"rank {rank}: outcomes, in order")
        equal(result.notes(rank)[-1][0], False, "the last call is plain")


@case("waits")
def killed_rank_before_the_first_call():
    result = job(3, "--op", "all_gather", "--kill", "1:0", text=policy(setup_ms=300), status=124, seconds=3,
                 agree=False)
    for rank in (0, 2):
        equal(result.sequence(rank), ["agree_timeout"], f"rank {rank}: outcomes")


@case("waits")
def abort_ends_the_wait():
    """One rank never comes; a watchdog of the other aborts while the shim waits with ten seconds to go."""
    job(2, "--op", "all_gather", "--calls", 3, "--late", "1:1:1:9000", "--abort-after", 300, agree=False,
        status=124, seconds=3,
        stdout="job: rank 0 of 2: aborted, the call gives 4\n")
