# SPDX-License-Identifier: Apache-2.0
"""Lives of communicators: non-blocking ones, errors in the background, watchdogs, ends in any order."""

from cases_calls import ALL, three
from cases_groups import all_alike, play
from harness import case, check, equal, job, outcome

LATE = {"SIM_DELAY": "nonblocking:*=20"}  # every launch of a non-blocking communicator comes later than its call


@case("life", "nonblocking", words=())
@case("life", "nonblocking_finalize", words=("finalize",))
@case("life", "nonblocking_late", words=("finalize",), env=LATE)
@case("life", "nonblocking_by_environment", words=("finalize",), env={"NCCL_COMM_BLOCKING": "0"})
@case("life", "nonblocking_by_environment_late", words=("finalize",), env={"NCCL_COMM_BLOCKING": "0", **LATE})
def nonblocking(words, env=None):
    """Calls of both lanes on three streams keep their order, though NCCL launches some of them later on."""
    result = play(2, "nonblocking", *words, env=env or {})
    all_alike(result, 2, ["window"] * 12)
    equal(len(result.calls_of(0, "cuLaunchKernel")), 1, "scale kernels")


@case("life", "nonblocking_with_one_late_launch", env={"SIM_DELAY": "nonblocking:3@rank1=200"})
@case("life", "nonblocking_average", env={"NCCL_COMM_BLOCKING": "0", **LATE}, more=("--redop", "avg"))
@case("life", "nonblocking_over_streams", env=LATE, more=("--streams", 2, "--mixed"))
@case("life", "nonblocking_chain", env=LATE, more=("--chain", "--streams", 2), kinds={"window", "not_in_arena"})
def nonblocking_job(env, more=(), kinds=None):
    result = job(3, "--op", ALL, "--calls", 6, "--init", "nonblocking", *more, env=env)
    for rank in range(3):
        kinds = kinds or ({"window", "redop"} if "avg" in more else {"window"})
        equal({reason for _, reason in result.outcomes(rank)}, kinds, f"rank {rank}: outcomes")


@case("life")
def offspring_of_a_nonblocking_one():
    """NCCL hands out its handle when nobody tells the shim."""
    result = play(2, "nonblocking_offspring")
    for rank in range(2):
        sequence = result.sequence(rank)
        check(set(sequence[:4]) <= {"nonblocking", "unknown_comm"}, f"rank {rank}: outcomes {sequence}")
        equal(sequence[4:], ["window"] * 4, f"rank {rank}: outcomes of the parent")


SAID = r"((error: {error} after {calls} calls|job: [^\n]* all right)\n){{4}}"


@case("life")
def error_of_the_child():
    """It is the communicator's, for all that the job can tell."""
    result = play(2, "background_error", env={"SIM_ASYNC_ERROR": "child:2"}, stock=False, agree=False,
                  stdout=SAID.format(error=6, calls=2))
    all_alike(result, 2, ["window"] * 2)


@case("life")
def error_of_the_child_with_another_code():
    play(2, "background_error", env={"SIM_ASYNC_ERROR": "child:3=2"}, stock=False, agree=False,
         stdout=SAID.format(error=2, calls=3))


@case("life", "watched", words=(0,))
@case("life", "watched_nonblocking", words=(1,))
def watched(words):
    """A thread asks for errors all the time."""
    all_alike(play(2, "watched", *words), 2, ["window"] * 80)


@case("life")
def watched_out_of_memory():
    """No child ends under the eyes of a thread that looks at it."""
    result = play(2, "watched_out_of_memory", env={"SIM_DELAY": "ncclCommGetAsyncError:*=5"})
    all_alike(result, 2, ["window"] * 4)


@case("life", "aborted_inside_a_call", words=(), before=["window"])
@case("life", "aborted_inside_the_first_call", words=("first",), before=[])
def aborted(words, before):
    """The call comes back, with an error, and NCCL does not see the communicator again."""
    result = play(2, "aborted", *words, stock=False, agree=False,
                  stdout=r"((result: (success|an error)|job: [^\n]* all right)\n){4}")
    equal(result.sequence(0), before + ["agree_timeout"], "outcomes, in order")
    lines = [line.split()[0] for line in result.trace["0"]]
    check("ncclAllGather" not in lines[lines.index("ncclCommAbort"):], "calls after the abort")


@case("life")
def suspended():
    """The child goes with it, and does not come back."""
    result = play(2, "suspended", env={"SIM_NCCL_VERSION": "22907"})
    all_alike(result, 2, ["window"] * 4 + ["suspended"] * 4)
    for rank in range(2):
        names = [line.split()[0] for line in result.trace[str(rank)]]
        check("ncclCommAbort" in names[:names.index("ncclCommSuspend")], "the child ends before")


@case("life")
def splits_without_colour():
    all_alike(play(3, "no_colour"), 3, ["window"] * 8)


@case("life", "any_order", words=("parents",))
@case("life", "any_order_mixed", words=("mixed",))
@case("life", "any_order_some_left", words=("mixed", "exit"))
def any_order(words):
    """Four communicators over the same memory, in which each has windows of its own."""
    result = play(2, "any_order", *words)
    for rank in range(2):
        equal({reason for _, reason in result.outcomes(rank)}, {"window"}, f"rank {rank}: outcomes")
        equal(len(result.events(rank, "window")), 4, f"rank {rank}: windows")
        equal(len({call["comm"] for call in result.events(rank, "call")}), 4, f"rank {rank}: communicators' ids")


@case("life", "calls_while_another_thread_is_out_of_memory", words=())
@case("life", "broadcast_while_another_thread_is_out_of_memory", words=("broadcast",))
def out_of_memory_aside(words):
    """The child is given up; the order of what was issued on it and of what comes after is not."""
    result = play(2, "out_of_memory_aside", *words)
    check(set(result.sequence(0)) <= {"window", "given_up", "peer_declined"}, f"outcomes: {result.sequence(0)}")


@case("life", "shrink_and_abort", more=("--derive", "shrink", "--end", "abort"))
@case("life", "shrink_and_exit", more=("--derive", "shrink", "--end", "exit"))
@case("life", "halves_and_exit", more=("--derive", "halves", "--end", "exit"))
@case("life", "nonblocking_exit", more=("--init", "nonblocking", "--end", "exit"))
@case("life", "nonblocking_abort", more=("--init", "nonblocking", "--end", "abort"))
@case("life", "nonblocking_revoke", more=("--init", "nonblocking", "--end", "revoke"))
@case("life", "nonblocking_finalize_job", more=("--init", "nonblocking", "--end", "finalize"))
def ends(more):
    nranks = 4 if "halves" in more else 3
    result = job(nranks, "--op", ALL, "--calls", 6, *more, stdout=r"(job: rank \d of \d: \d calls, all right\n){%d}" %
                 nranks)
    if "shrink" in more:
        outcome(result, 2, three("window", "window", "window"))
    else:
        outcome(result, nranks, three("window", "window", "window"))
