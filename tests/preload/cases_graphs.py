# SPDX-License-Identifier: Apache-2.0
"""Calls captured into graphs, and what runs beside them. Every scene is right without the shim too."""

from cases_calls import ALL
from cases_groups import all_alike, play
from harness import case, check, equal, job

SMALL = {"SIM_DEVICE_MEMORY": "48M"}  # the scenes want 46 of it, while 4 are the job's


def no_wait_fails(result):
    """Such as one for an event of another capture."""
    for rank, lines in result.trace.items():
        failed = [line for line in lines if line.startswith("cuStreamWaitEvent") and not line.endswith("-> 0")]
        equal(failed, [], f"rank {rank}: waits that failed")


def kernels(result, rank):
    return len(result.calls_of(rank, "cuLaunchKernel"))


@case("graphs", "mode_global", words=("global",))
@case("graphs", "mode_thread_local", words=("thread_local",))
@case("graphs", "mode_relaxed", words=("relaxed",))
@case("graphs", "group_global", words=("global", "group"))
@case("graphs", "group_relaxed", words=("relaxed", "group"))
def modes(words):
    """On windows that are there; the average with its kernel."""
    result = play(2, "modes", *words)
    all_alike(result, 2, ["window"] * 9)
    equal([call["capture"] for call in result.events(0, "call")], [False] + [True] * 8, "marks of capture")
    equal(kernels(result, 0), 2, "scale kernels")
    no_wait_fails(result)


@case("graphs", "first_use", words=(), calls=0)
@case("graphs", "first_use_of_a_window", words=("window",), calls=1)
def first_use(words, calls):
    result = play(3, "first_use", *words)
    all_alike(result, 3, ["window"] * calls + ["capturing"] * 4 + ["window"] * 8)


@case("graphs")
def thousands_of_replays():
    """Two thousand, with eager calls of both lanes between them on the same stream and on others."""
    result = play(2, "replays", 2000)
    equal({reason for _, reason in result.outcomes(0)}, {"window", "not_in_arena"}, "outcomes")


@case("graphs", "keep_what_they_work_on", words=("exec",))
@case("graphs", "keep_what_instances_will_work_on", words=("graph",))
def kept(words):
    """Freed by the job and wanted elsewhere; when the graph is gone it can be had."""
    result = play(2, "kept", *words, env=SMALL, stock=False)
    all_alike(result, 2, ["window"] * 3)


@case("graphs", "abandoned")
def abandoned():
    """Captures that break, whose stream is destroyed, or of which nothing is made."""
    all_alike(play(2, "abandoned", env=SMALL), 2, ["window"] * 4)


@case("graphs", "two_streams", words=())
@case("graphs", "two_streams_job_first", words=("job_first",))
def two_streams(words):
    """A call of each lane in one capture: the second stream waits for the first, in each capture anew."""
    result = play(2, "two_streams", *words)
    all_alike(result, 2, ["window"] * 3)
    no_wait_fails(result)
    for rank in range(2):
        lines = result.trace[str(rank)]
        # Each capture waits for what is outside, once; and one stream for the other.
        waits = [line for line in lines if line.startswith("cuStreamWaitEvent")]
        check(len(waits) >= 4, f"rank {rank}: waits: {waits}")


@case("graphs", "before_eager_plain", words=("graph_first", "child"))
@case("graphs", "after_eager_plain", words=("eager_first", "child"))
@case("graphs", "of_plain_before_eager", words=("graph_first", "job"))
@case("graphs", "of_plain_after_eager", words=("eager_first", "job"))
@case("graphs", "older_than_the_child_before_eager", words=("graph_first", "job", "early"))
@case("graphs", "older_than_the_child_after_eager", words=("eager_first", "job", "early"))
def against_eager(words):
    """On two streams without an event the second reads what the first wrote: NCCL keeps one communicator's order."""
    result = play(2, "against_eager", *words)
    equal({reason for _, reason in result.outcomes(0)}, {"window"}, "outcomes")


@case("graphs", "of_plain_outlive_the_child", words=("broadcast",))
@case("graphs", "of_plain_calls_outlive_the_child", words=())
def dropped(words):
    """A graph that never touches the child does not keep it, and does not need it."""
    result = play(2, "dropped", *words, env=SMALL)
    for rank in range(2):
        # The child and no more: the job's own communicator ends by destroy.
        equal(len(result.calls_of(rank, "ncclCommAbort")), 1, f"rank {rank}: children that were given up")


@case("graphs")
def communicator_ends_before_its_graph():
    """NCCL waits for the graph."""
    all_alike(play(2, "outlived"), 2, ["window"] * 2)


@case("graphs")
def of_a_job():
    result = job(2, "--op", ALL, "--calls", 9, "--batch", 3, "--capture", 4)
    all_alike(result, 2, ["window"] * 9)
    equal([call["capture"] for call in result.events(0, "call")], [False] * 3 + [True] * 6, "marks of capture")


@case("graphs")
def of_a_job_with_averages():
    result = job(3, "--op", "reduce_scatter", "--redop", "avg", "--calls", 4, "--capture", 3)
    all_alike(result, 3, ["window"] * 4)
    equal(kernels(result, 0), 4, "scale kernels")
