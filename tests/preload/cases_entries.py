# SPDX-License-Identifier: Apache-2.0
"""Functions that came with later versions of NCCL, an NCCL that is newer than the shim knows, and memory that comes
from elsewhere than cudaMalloc."""

import collections
import re

from harness import case, check, equal, job, policy, setup

WARM = ["window"] * 3
NEW = {"SIM_NCCL_VERSION": "23203"}
LINE = r"\S+ \[\d+\] SYMMSHIM "


def play(*words, nranks=2, without=True, **rest):
    """The scene gives the same without the shim."""
    rest.setdefault("env", NEW)
    if without:
        plain = {key: rest[key] for key in ("env", "stdout") if key in rest}
        job(nranks, *words, program=[setup.scenes], shim="", agree=False, **plain)
    return job(nranks, *words, program=[setup.scenes], **rest)


def all_alike(result, wanted, nranks=2):
    for rank in range(nranks):
        equal(result.sequence(rank), wanted, f"rank {rank}: outcomes, in order")


def noted(result, rank, word):
    """Of each launch that the library's record gives the word: symmetric or not."""
    return [line.startswith("[Symmetric]") for line in result.trace[str(rank)]
            if line.startswith("[") and re.search(rf" {word}\b", line)]


# Collectives with settings of their own.

@case("entries", "settings_none", what="none")
@case("entries", "settings_unset", what="unset")
@case("entries", "settings_of_2_31", what="first")
@case("entries", "settings_unforced", what="unforced")
@case("entries", "settings_without_name", what="no_name")
def settings_that_ask_for_nothing(what):
    all_alike(play("settings", what), WARM * 3)


@case("entries")
def tag_reaches_the_profiler():
    result = play("settings", "tag")
    all_alike(result, WARM * 3)
    equal(noted(result, 0, "tag=77"), [True] * 3, "launches with the tag")


@case("entries", "settings_ctas", what="ctas")
@case("entries", "settings_nvls_ctas", what="nvls_ctas")
@case("entries", "settings_cluster", what="cluster")
@case("entries", "settings_cta_policy", what="cta_policy")
@case("entries", "settings_algorithm", what="algorithm")
@case("entries", "settings_extension", what="extension")
@case("entries", "settings_event", what="event")
@case("entries", "settings_newer", what="newer")
def settings_that_ask_for_something(what):
    """NCCL gets them with the job's own call, and the calls after it go on as before."""
    result = play("settings", what)
    all_alike(result, WARM + ["call_config"] * 3 + WARM)
    if what == "ctas":
        equal(noted(result, 1, "ctas=4-4"), [False] * 3, "launches with the CTAs")


@case("entries", "settings_bad_magic", what="magic")
@case("entries", "settings_too_short", what="short")
@case("entries", "settings_bad_force", what="force")
def settings_that_nccl_refuses(what):
    said = "(result 4\n){3}job: [^\n]*: \\d+ calls, all right\n" * 2
    result = play("refused", what, stdout=said.replace("[^\n]", "[^\\n]"), agree=False)
    all_alike(result, WARM + ["call_config"] * 3 + WARM)


@case("entries")
def settings_before_2_31():
    """There are no such functions then, and a program that finds the shim's hears so."""
    result = play("refused", "unset", env={}, stdout="(result 5\n|job: [^\n]*: \\d+ calls, all right\n)*", agree=False)
    all_alike(result, WARM * 3)


@case("entries")
def settings_in_group():
    """The call is made at the group's end, when the job's configuration is gone."""
    result = play("settings_in_group", "unset")
    all_alike(result, WARM + ["window"] * 4 + WARM)
    for i in range(3):
        equal(noted(result, 0, f"tag={77 + i}"), [True], "launches with the tag")


@case("entries")
def settings_in_group_that_ask_for_something():
    """Such a call is NCCL's in the group, and with it the rest of the group."""
    result = play("settings_in_group", "ctas")
    all_alike(result, WARM + ["call_config"] * 3 + ["in_group"] + WARM)
    equal(noted(result, 0, "ctas=4-4"), [False] * 3, "launches with the CTAs")


@case("entries")
def settings_on_one_rank_only():
    """Against NCCL's rules, but the ranks stay in step."""
    wrap = ["sh", "-c", 'if [ "$RANK" = 1 ]; then shift; set -- "$1" settings ctas; else shift; set -- "$1" settings '
            'none; fi; exec "$@"', "sh", "-"]
    result = job(2, program=[setup.scenes], wrap=wrap, env=NEW)
    for rank, reason in enumerate(("peer_declined", "call_config")):
        equal(result.sequence(rank), WARM + [reason] * 3 + WARM, f"rank {rank}: outcomes, in order")


# What is never moved has its place in the order all the same.

@case("entries", "order_broadcast", what="broadcast")
@case("entries", "order_reduce", what="reduce")
@case("entries", "order_alltoall", what="alltoall")
@case("entries", "order_gather", what="gather")
@case("entries", "order_scatter", what="scatter")
@case("entries", "order_signal", what="signal")
@case("entries", "order_put", what="put")
@case("entries", "order_wait", what="wait")
def order(what):
    result = play("in_order", what)
    all_alike(result, WARM + ["window"])


# Configurations of communicators.

@case("entries")
def short_config():
    """What lies behind the configuration's own size is not read."""
    all_alike(play("short_config", env={}), WARM * 2)


# An NCCL that is newer than the shim knows.

def info(env):
    """Of a job with two communicators."""
    result = play("short_config", without=False, env={"SYMMSHIM_DEBUG": "INFO", **env}, stderr=".*")
    lines = re.findall(rf"{LINE}INFO ([^\n]*)\n", result.stderr)
    return result, lines


@case("entries")
def known_nccl():
    result, lines = info(NEW)
    check(not [line for line in lines if "newer" in line or "does not know" in line], "nothing is said")
    equal(result.events(0, "library"), [], "events")


@case("entries")
def newer_version():
    result, lines = info({"SIM_NCCL_VERSION": "24001"})
    told = [line for line in lines if "is newer than" in line]
    equal(told, ["NCCL 2.40.1 is newer than 2.32.3, the newest that this symmshim was checked against"] * 2, "lines")
    for rank in range(2):
        (event,) = result.events(rank, "library")
        equal((event["nccl"], event["newest"], event["unknown"], event["unknown_count"]), ("2.40.1", "2.32.3", [], 0),
              "event")
        check(event["library"].endswith("/libnccl.so.2"), f"library: {event['library']}")


@case("entries", "unknown_functions", more={})
@case("entries", "unknown_functions_in_newer_version", more={"SIM_NCCL_VERSION": "24001"})
def unknown_functions(more):
    result, lines = info({**NEW, "LD_LIBRARY_PATH": f"{setup.matrix}/newer:{setup.sim}", **more})
    told = [line for line in lines if "does not know" in line]
    equal(len(told), 2, "lines")
    said = r"\S+/newer/libnccl\.so\.2 has 1 function that this symmshim does not know: ncclAllGatherV; "
    check(re.match(said, told[0]), f"line: {told[0]}")
    for rank in range(2):
        (event,) = result.events(rank, "library")
        equal((event["unknown"], event["unknown_count"]), (["ncclAllGatherV"], 1), "event")
    all_alike(result, WARM * 2)


# Memory from elsewhere.

TOLD = {
    "mapped": r"a buffer lies in memory that the job's allocator maps itself \(PYTORCH_CUDA_ALLOC_CONF has "
              r"expandable_segments:True, [^\n]*",
    "pooled": r"a buffer comes from a stream-ordered pool \(PYTORCH_CUDA_ALLOC_CONF has "
              r"backend:cudaMallocAsync\)[^\n]*",
}
REASON = {"mapped": "job_vmm", "pooled": "job_pool"}


@case("entries", "all_mapped", kind="mapped")
@case("entries", "all_pooled", kind="pooled")
def all_elsewhere(kind):
    """One warning a process, coverage nothing, with a reason of its own; and the driver is asked once a block."""
    result = play("elsewhere", kind, env={}, stderr=rf"({LINE}WARN {TOLD[kind]}\n){{2}}")
    for rank in range(2):
        equal(set(result.sequence(rank)), {REASON[kind]}, f"rank {rank}: outcomes")
        totals = collections.Counter()
        for line in result.events(rank, "summary"):
            totals.update({"window": line["window_calls"], "staged": line["staged_calls"], **line["plain"]})
        equal(+totals, {REASON[kind]: 12}, f"rank {rank}: counts")
        # The segment's pieces are two blocks, or three where it does not begin at a block.
        asked = result.calls_of(rank, "cuPointerGetAttribute")
        check(0 < len([line for line in asked if "attribute=17" in line]) <= 3, f"rank {rank}: {asked}")
        kept = [line for line in result.calls_of(rank, "cuMemRetainAllocationHandle") if line.endswith("-> 0")]
        equal(len(kept), len(result.calls_of(rank, "cuMemRelease")), f"rank {rank}: handles retained and released")


@case("entries", "some_mapped", kind="mapped")
@case("entries", "some_pooled", kind="pooled")
def some_elsewhere(kind):
    """No warning where the arena is in use: INFO, once."""
    result = play("elsewhere", kind, "mixed", env={})
    all_alike(result, WARM + [REASON[kind]] * 12)
    result = play("elsewhere", kind, "mixed", without=False, env={"SYMMSHIM_DEBUG": "INFO"}, stderr=".*")
    equal(len(re.findall(rf"INFO {TOLD[kind]}", result.stderr)), 2, "lines")


@case("entries", "staged_mapped", kind="mapped")
@case("entries", "staged_pooled", kind="pooled")
def staged_elsewhere(kind):
    """Slots do not care where a buffer lies."""
    rules = "[rule all]\npath = staged\n"
    result = play("elsewhere", kind, env={}, text=policy(rules=rules, stage_max="8M"),
                  stderr=rf"({LINE}WARN {TOLD[kind]}\n){{2}}")
    equal(set(result.sequence(0)), {"staged"}, "outcomes")
