# SPDX-License-Identifier: Apache-2.0
"""Calls between ncclGroupStart and ncclGroupEnd. Every scene is right without the shim too."""

import re

from cases_calls import ALL
from harness import case, check, equal, job, policy, setup

WARM = ["window"] * 3


def play(nranks, *words, stock=True, **rest):
    """Without the shim, which says what is right, and with it."""
    if stock:
        without = {key: rest[key] for key in ("env", "stdout") if key in rest}
        job(nranks, *words, program=[setup.scenes], shim="", agree=False, **without)
    return job(nranks, *words, program=[setup.scenes], **rest)


def launches(result, rank):
    """What the library launched, in order."""
    found = (re.match(r"\[(?:Plain|Symmetric)\] (\w+) ", line) for line in result.trace[str(rank)])
    return [m[1] for m in found if m]


def all_alike(result, nranks, wanted):
    for rank in range(nranks):
        equal(result.sequence(rank), wanted, f"rank {rank}: outcomes, in order")


def none_together(result, nranks):
    """No symmetric call shares a group of NCCL's: what that makes of it depends on the others in the group."""
    for rank in range(nranks):
        depth = 0
        for line in result.trace[str(rank)]:
            depth += line.startswith("ncclGroupStart ") - line.startswith("ncclGroupEnd ")
            check(depth == 0 or not line.startswith("[Symmetric] "), f"rank {rank}: in a group: {line}")


@case("groups", "with_broadcast", what="broadcast", launch="Broadcast")
@case("groups", "with_send_and_receive", what="send_recv", launch="SendRecv")
@case("groups", "with_call_of_a_plain_kind", what="int32", launch="ReduceScatter", reason="dtype")
@case("groups", "with_communicator_out_of_sight", what="hidden", launch="AllGather", reason="unknown_comm")
@case("groups", "with_end_of_a_reduce_op", what="redop")
@case("groups", "with_registration", what="register")
@case("groups", "with_split", what="split")
def mixed(what, launch=None, reason=None):
    """A group that holds anything else too is left as it is, to the order in it; what follows is not."""
    result = play(3, "mixed", what)
    all_alike(result, 3, WARM + ["in_group"] * 2 + ([reason] if reason else []) + ["in_group", "window"])
    for rank in range(3):
        wanted = ["AllGather", "ReduceScatter", *([launch] if launch else []), "AllReduce", "ReduceScatter"]
        got = launches(result, rank)[3:]
        if what == "hidden":  # communicator by communicator
            got, wanted = sorted(got), sorted(wanted)
        equal(got, wanted, f"rank {rank}: launches, in order")
        starts = [line.split()[0] for line in result.trace[str(rank)]]
        if what in ("register", "split"):
            name = {"register": "ncclCommRegister", "split": "ncclCommSplit"}[what]
            last = len(starts) - 1 - starts[::-1].index(name)
            check("ncclAllReduce" in starts[last:], f"rank {rank}: the third call comes after {name}")
            check(starts[:last].count("ncclReduceScatter") == 2, f"rank {rank}: the second one before")


@case("groups", "of_64", count=64, reason="window")
@case("groups", "of_65", count=65, reason="in_group")
@case("groups", "of_130", count=130, reason="in_group")
def many(count, reason):
    result = play(2, "many", count)
    all_alike(result, 2, WARM + [reason] * count + ["window"])


@case("groups", "one_rank_groups_2", nranks=2)
@case("groups", "one_rank_groups_3", nranks=3)
def apart(nranks):
    """The others make the same calls one by one: the ranks agree all the same, on first uses too."""
    result = play(nranks, "apart")
    all_alike(result, nranks, ["window"] * 24)
    equal({len(result.events(rank, "window")) for rank in range(nranks)}, {2}, "windows")
    equal(len(result.calls_of(0, "cuLaunchKernel")), 12, "scale kernels")
    none_together(result, nranks)


@case("groups", "one_rank_copies_alone_2.27", version=22705)
@case("groups", "one_rank_copies_alone_2.28", version=22809)
def copied_alone(version):
    """What one rank copies by itself does not decide which calls share a group.

    NCCL 2.27 takes symmetric kernels for a call that is alone in its group, 2.28 for all of one; ranks must not differ.
    """
    staged = policy(rules="[rule all]\npath = staged\n")
    result = play(2, "copied_alone", text=staged, env={"SIM_NCCL_VERSION": str(version)})
    all_alike(result, 2, WARM + ["staged", "window"] + ["window"] * 6)  # a group is told of from its end
    check(result.calls_of(1, "cuMemcpyAsync"), "rank 1 copies")
    none_together(result, 2)


@case("groups")
def several_communicators():
    """Over three streams, named by the ranks in different order; averages among them; first use in a group."""
    result = play(3, "several")
    for rank in range(3):
        equal({reason for _, reason in result.outcomes(rank)}, {"window"}, f"rank {rank}: outcomes")
        equal(sum(result.outcomes(rank).values()), 27, f"rank {rank}: calls")
        equal(len(result.calls_of(rank, "ncclCommSplit")), 5, "splits: the job's, and three children")


@case("groups")
def several_communicators_over_differing_memory():
    """Not all of a communicator's calls go the same way."""
    result = play(2, "lanes", 0)
    all_alike(result, 2, WARM + ["window", "ranks_differ", "window"] * 3)


@case("groups")
def nested():
    """Nothing is done before the outermost end; the first use is there."""
    all_alike(play(2, "nested"), 2, ["window"] * 6)


@case("groups")
def simulated_end():
    """NCCL sees all of the group, and does nothing."""
    result = play(2, "simulated", agree=False)
    all_alike(result, 2, WARM + ["in_group"] * 2 + ["window"] * 3)


@case("groups")
def failing_end():
    """The error is the job's, and what was kept is not made."""
    result = play(2, "failing_end", env={"SIM_FAIL": "ncclGroupEnd:1"}, stock=False,
                  stdout=r"((result of the call: 0|result of the end: 2|job: [^\n]* all right)\n){6}")
    all_alike(result, 2, WARM + ["window"])


@case("groups", "wrong_root", what="root")
@case("groups", "wrong_dtype", what="dtype")
@case("groups", "wrong_redop", what="redop")
@case("groups", "wrong_communicator", what="comm")
def wrong_argument(what):
    """The call says so, and so does the end; nothing is done."""
    said = r"((result of [^\n]*|job: [^\n]* all right)\n){10}"
    without = job(2, "wrong_argument", what, program=[setup.scenes], shim="", agree=False, stdout=said)
    result = job(2, "wrong_argument", what, program=[setup.scenes], agree=False, stdout=said)
    equal(sorted(result.stdout.splitlines()), sorted(without.stdout.splitlines()), "results")
    sequence = [kind for kind in result.sequence(0) if kind not in ("empty", "user_redop", "unknown_comm", "dtype")]
    equal(sequence, WARM + ["in_group"] * 2 + ["window"], "outcomes, in order")


@case("groups")
def allocated_inside():
    """As PyTorch's coalescing manager: cudaMalloc between the start and the first call."""
    result = play(2, "allocated_inside")
    all_alike(result, 2, ["window"] * 9)
    equal(len(result.events(0, "window")), 3, "windows")


@case("groups", "new_window_inside", one_by_one=0)
@case("groups", "new_window_inside_of_one_rank", one_by_one=1)
def new_window(one_by_one):
    all_alike(play(2, "new_window_inside", one_by_one), 2, WARM + ["window"] * 4)


@case("groups", "window_fails_inside", one_by_one=0)
@case("groups", "window_fails_inside_of_one_rank", one_by_one=1)
def window_fails(one_by_one):
    """The first call of the group was agreed before, and is made; the others are plain."""
    result = play(2, "new_window_inside", one_by_one, env={"SIM_FAIL": "ncclCommWindowRegister:2"})
    for each in range(2):
        calls = [call["reason"] or call["path"] for call in sorted(result.events(each, "call"), key=lambda c: c["seq"])]
        equal(calls, WARM + ["window"] + ["register_failed"] * 3, f"rank {each}: outcomes")


@case("groups", "are_joined", how="")
@case("groups", "are_joined_with_averages", how="average")
@case("groups", "are_joined_when_partly_plain", how="plain")
def joined(how):
    """One operation on all of its streams."""
    result = play(2, "joined", how)
    check({"window"} <= {reason for _, reason in result.outcomes(0)}, "calls with windows")


@case("groups")
def aborted_inside():
    """A watchdog's abort while calls are kept: NCCL never sees the communicator again."""
    result = play(2, "aborted_inside", agree=False)
    for rank in range(2):
        equal(result.sequence(rank)[:3], WARM, f"rank {rank}: calls before")
        lines = [line.split()[0] for line in result.trace[str(rank)]]
        abort = lines.index("ncclCommAbort")
        check(not {"ncclAllGather", "ncclReduceScatter"} & set(lines[abort:]), "calls after the abort")


@case("groups", "nonblocking")
def nonblocking():
    """Calls of both lanes in one group of a non-blocking communicator."""
    result = play(2, "lanes", 1, env={"SIM_DELAY": "nonblocking:*=120"})
    all_alike(result, 2, WARM + ["window", "ranks_differ", "window"] * 3)


@case("groups", "of_a_job", nranks=3, more=("--batch", 3))
@case("groups", "of_a_job_over_streams", nranks=2, more=("--batch", 3, "--streams", 2, "--mixed"))
@case("groups", "of_a_job_finalized", nranks=2, more=("--batch", 6, "--end", "finalize", "--apart"))
def in_job(nranks, more):
    """Batches in groups: the child is made outside, or at the end of one."""
    result = job(nranks, "--op", ALL, "--calls", 12, "--group", *more)
    all_alike(result, nranks, ["window"] * 12)


@case("groups")
def of_a_job_differing():
    """The calls of one group go different ways."""
    result = job(3, "--op", "all_gather,reduce_scatter", "--calls", 24, "--batch", 6, "--group", "--diverge", "offset",
                 "--redop", "avg", "--streams", 2)
    equal({kind for _, kind in result.outcomes(0)}, {"window", "ranks_differ"}, "outcomes")
