# SPDX-License-Identifier: Apache-2.0
"""A dry run: what the report of an audit-only run foresees, against a real run of the same program."""

import collections
import json
import os
import re

from cases_calls import ALL
from cases_staging import SAID, SCALED, STAGED, differ, synced
from harness import NO_ARENA, Skip, case, check, equal, execute, job, only_rank, policy, setup

DEVICES = {"SIM_DEVICES": "4"}
KIND = ("op", "dtype", "redop", "count", "bytes", "capture")


def report(folder):
    tool = os.path.join(os.path.dirname(setup.job), "../../tools/symmshim")
    logs = [str(path) for path in sorted(folder.glob("audit.*"))]
    return json.loads(execute([tool, "report", "--json", *logs], stdout=".*", stderr=".*").stdout)


def made(result, nranks):
    """What became of the calls of each kind, on all ranks together."""
    kinds = collections.defaultdict(collections.Counter)
    for rank in range(nranks):
        for call in result.events(rank, "call"):
            kinds[tuple(call[key] for key in KIND)][call["reason"] or call["path"]] += 1
    return dict(kinds)


def foreseen(answer):
    kinds = collections.defaultdict(collections.Counter)
    for call in answer["forecast"]["calls"]:
        kinds[tuple(call[key] for key in KIND)].update(
            {**call["plain"], "window": call["window_calls"], "staged": call["staged_calls"]})
    return {kind: +outcomes for kind, outcomes in kinds.items()}


def dry_run(nranks, *arguments, **rest):
    """Nothing is moved, and the report's answer."""
    answers = []
    rest["env"] = {**rest.get("env", {}), "SYMMSHIM": "audit"}
    result = job(nranks, *arguments, after=lambda folder, _: answers.append(report(folder)), **rest)
    for rank in range(nranks):
        equal({call["path"] for call in result.events(rank, "call")} - {"plain"}, set(), f"rank {rank}: paths")
        equal(len(result.calls_of(rank, "cuMemCreate")), 0, f"rank {rank}: VMM allocations")
    return answers[0]


def agrees_with(nranks, *arguments, **rest):
    """Returns what became of the calls."""
    answer = dry_run(nranks, *arguments, **rest)
    real = made(job(nranks, *arguments, **rest), nranks)
    said = foreseen(answer)
    for kind in {*real, *said}:
        equal(dict(said.get(kind, {})), dict(real.get(kind, {})), f"foreseen of {kind}")
    equal(answer["forecast"]["unforeseen_calls"], 0, "calls of which nothing is foreseen")
    equal(answer["forecast"]["absent_ranks"], 0, "ranks without a log")
    return sum(real.values(), collections.Counter())


def one_alike(*arguments, nranks=2, wanted=None, **rest):
    """`wanted`: the outcomes that have to occur, so that the comparison is about something."""
    outcomes = agrees_with(nranks, *arguments, **rest)
    equal(set(outcomes), wanted or {"window"}, "outcomes that occur")


for n in (2, 3):
    for how, plain in (("offset", {"window", "ranks_differ"}), ("size", {"ranks_differ"}),
                       ("malloc", {"window", "ranks_differ"}), ("plain", {"peer_declined", "not_in_arena"}),
                       ("window", {"window", "ranks_differ"}), ("batch", {"window", "ranks_differ"})):
        for name, rules, wanted in (("window", None, plain), ("staged", SCALED, None)):
            case("forecast", f"diverge_{how}_{name}_{n}")(
                lambda n=n, how=how, rules=rules, wanted=wanted: one_alike(
                    "--op", ALL, "--calls", 12, "--diverge", how, nranks=n, text=policy(rules=rules),
                    stderr=f"({NO_ARENA})*", wanted=wanted or (
                        {"window", "staged"} if how not in ("size", "plain") else {"staged"})))

for word, more, wanted in (
        ("bf16", ["--dtype", "bf16"], {"window"}),
        ("int32", ["--dtype", "int32"], {"window", "dtype"}),
        ("average", ["--dtype", "bf16", "--redop", "avg"], {"window", "redop"}),
        ("premulsum", ["--redop", "premulsum"], {"window", "user_redop"}),
        ("inplace", ["--inplace"], {"window"}),
        ("empty", ["--count", 0], {"empty"}),
        ("two_segments", ["--apart"], {"window"}),
        ("small_output", ["--small-recv"], {"window", "not_in_arena"}),
        ("streams", ["--streams", 2, "--batch", 3, "--mixed"], {"window"}),
        ("captured", ["--capture", 2], {"window"}),
        ("freed", ["--free", 2], {"window"}),
        ("freed_before_a_capture", ["--free", 1, "--capture", 2], {"window"}),
        ("freed_differing", ["--free", 2, "--diverge", "offset"], {"window", "ranks_differ"}),
        ("grouped", ["--group", "--batch", 3], {"window"}),
        ("grouped_mixed", ["--group", "--batch", 3, "--mixed"], {"window"}),
        ("registered_by_the_job", ["--register", "buffer"], {"job_registered"}),
        ("elsewhere", ["--elsewhere"], {"window"}),
        ("made_in_a_group", ["--init", "grouped"], {"grouped_init"}),
        ("nonblocking", ["--init", "nonblocking"], {"window"}),
        ("sharing", ["--init", "shared"], {"shared_resources"}),
        ("out_of_sight", ["--init", "hidden"], {"unknown_comm"}),
        ("errors", ["--errors", "--group", "--batch", 3], {"window"}),
        ("split", ["--derive", "split"], {"window"}),
        ("split_grouped", ["--derive", "split", "--group", "--batch", 3], {"window"}),
        ("twins", ["--derive", "twins"], {"window"}),
):
    case("forecast", word)(lambda more=more, wanted=wanted: one_alike("--op", ALL, "--calls", 12, *more,
                                                                      wanted=wanted, env=DEVICES,
                                                                      stderr=f"({NO_ARENA})*"))


@case("forecast")
def halves():
    one_alike("--op", ALL, "--calls", 6, "--derive", "halves", nranks=4)
    one_alike("--op", ALL, "--calls", 6, "--derive", "halves", nranks=2, wanted={"single_rank"})


@case("forecast", "thresholds", wanted={"window", "policy"}, text=policy(
    rules="[rule a]\nop = all_gather\nmin_bytes = 64K\npath = window\n[rule b]\nop = all_reduce\nmax_bytes = 64K\n"
          "path = staged\n[rule c]\nop = reduce_scatter\nnranks = 3\npath = window\n"))
@case("forecast", "nothing_wished", wanted={"policy"}, text=policy(rules="[rule no]\npath = plain\n"))
@case("forecast", "no_arena", wanted={"not_in_arena"}, text=policy(arena="enable = no\n"))
@case("forecast", "small_allocations", wanted={"not_in_arena"},
      text=policy().replace("min_bytes = 1M", "min_bytes = 1G"))
@case("forecast", "other_callers", wanted={"not_in_arena"},
      text=policy().replace("callers = *", "callers = libc10_cuda.so"))
@case("forecast", "full_arena", wanted={"window", "not_in_arena"}, text=policy(arena="max_bytes = 12M\n"))
@case("forecast", "full_arena_of_odd_sizes", wanted={"window", "not_in_arena"}, segment=3 << 20,
      text=policy(arena="max_bytes = 7M\n"))
@case("forecast", "newer_nccl_wished", wanted={"nccl_version"}, text=policy(min_nccl="2.30.0"))
def policies(text, wanted, segment=8 << 20):
    one_alike("--op", ALL, "--calls", 12, "--batch", 12, "--count", 80000, "--streams", 2, "--segment", segment, text=text,
              wanted=wanted, stderr=f"({NO_ARENA})*")


@case("forecast", "scene_mixed", scene=("mixed", "int32"), wanted={"window", "in_group", "dtype"})
@case("forecast", "scene_mixed_by_the_end_of_a_reduce_op", scene=("mixed", "redop"), wanted={"window", "in_group"})
@case("forecast", "scene_64", scene=("many", 64), wanted={"window"})
@case("forecast", "scene_65", scene=("many", 65), wanted={"window", "in_group"})
@case("forecast", "scene_new_window_inside", scene=("new_window_inside", 1), wanted={"window"})
@case("forecast", "scene_lanes", scene=("lanes", 0), wanted={"window", "ranks_differ"})
@case("forecast", "scene_several", scene=("several",), wanted={"window"})
@case("forecast", "scene_nested", scene=("nested",), wanted={"window"})
@case("forecast", "scene_captured_first", scene=("first_use",), wanted={"window", "capturing"})
@case("forecast", "scene_captured_new", scene=("first_use", "window"), wanted={"window", "capturing"})
@case("forecast", "scene_captured", scene=("modes", "global", "group"), wanted={"window"})
def scenes(scene, wanted):
    one_alike(*scene, program=[setup.scenes], wanted=wanted)


MIB = 1 << 20
LARGE = (1, 600_000, 70_000)


@case("forecast", "slots", wanted={"staged"}, steps=[differ("all_reduce", count=count) for count in LARGE])
@case("forecast", "slots_too_small", wanted={"staged", "no_slot"}, keys={"stage_max": "4M"},
      steps=[differ("all_reduce", count=count) for count in LARGE])
@case("forecast", "no_slots", wanted={"ranks_differ"}, keys={"stage_max": 0}, steps=[differ("all_gather")])
@case("forecast", "one_rank_in_two_segments", wanted={"window", "staged"},
      steps=["repeat=5", f"all_gather,send=0@0/1@0,recv=0@{MIB}"])
@case("forecast", "new_on_one_rank", wanted={"window", "staged"},
      steps=["all_gather,send=0@0,recv=1@0", "sync", "repeat=4", "all_gather,send=2@0/0@0,recv=1@0"])
@case("forecast", "copied_output", wanted={"window", "staged"},
      steps=["reduce_scatter,send=0@0,recv=1@0", "sync", "repeat=3", "reduce_scatter,send=0@0,recv=loose/1@0"])
@case("forecast", "scaled", wanted={"staged"}, steps=["reduce_scatter,redop=avg", "all_reduce,redop=premulsum"])
@case("forecast", "not_scaled", wanted={"redop", "user_redop"}, rules=STAGED,
      steps=["reduce_scatter,redop=avg", "all_reduce,redop=premulsum"])
def staged(steps, wanted, keys=None, rules=SCALED):
    one_alike(*synced(*steps), program=[setup.staging], stdout=SAID, text=policy(rules=rules, **(keys or {})),
              wanted=wanted)


@case("forecast", "rank_with_other_settings", script="export NCCL_P2P_LEVEL=NVL", wanted={"shim_differs"})
@case("forecast", "rank_with_bad_policy", script="export SYMMSHIM_POLICY=/absent", wanted={"missing_ranks", "bad_policy"})
@case("forecast", "rank_with_other_shared_memory", wanted={"missing_ranks"},
      script='exec unshare -m sh -c "mount -t tmpfs tmpfs /dev/shm && exec \\"\\$@\\"" sh "$@"')
def apart(script, wanted):
    if "unshare" in script and execute(["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /dev/shm"], status=None,
                                       stderr=".*").status != 0:
        raise Skip("file systems cannot be mounted here")
    one_alike("--op", ALL, "--calls", 3, nranks=3, wrap=only_rank(1, script), wanted=wanted, stderr=".*")


@case("forecast", "shared_memory_cannot_be_written")
def no_board():
    mount = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro tmpfs /dev/shm && exec "$@"', "sh"]
    if execute([*mount, "true"], status=None, stderr=".*").status != 0:
        raise Skip("file systems cannot be mounted here")
    one_alike("--op", ALL, "--calls", 6, wrap=mount, wanted={"board_failed"}, stderr=".*")


# What cannot be foreseen, and what is said then.

@case("forecast")
def late_rank():
    """The calls of a rank that comes late are foreseen as if it came in time."""
    arguments = ("--op", "all_gather", "--calls", 6, "--late", "1:3:3:1000")
    said = foreseen(dry_run(2, *arguments))
    real = made(job(2, *arguments, text=policy(agree_us=250000)), 2)
    equal([dict(outcomes) for outcomes in said.values()], [{"window": 12}], "foreseen")
    equal([set(outcomes) for outcomes in real.values()], [{"window", "agree_timeout"}], "made")


@case("forecast")
def missing_log():
    answers = []

    def one(folder, result):
        (folder / "audit.1").unlink()
        answers.append(report(folder))

    job(2, "--op", "all_gather", "--calls", 6, env={"SYMMSHIM": "audit"}, after=one)
    equal(answers[0]["forecast"]["absent_ranks"], 1, "ranks without a log")
    equal(answers[0]["forecast"]["ops"]["all_gather"]["symmetric_calls"], 6, "calls foreseen of the other one")


@case("forecast")
def no_single_calls():
    answer = dry_run(2, "--op", ALL, text=policy(audit="summary"), agree=False)
    equal((answer["audit_only"], answer["forecast"]), (True, None), "audit only, forecast")


@case("forecast")
def every_call_is_logged():
    """At the level `change` too, since the ranks are compared call by call; a real run has the changes only."""
    text = policy(audit="change")
    counts = [len(job(2, "--op", "all_gather", "--calls", 6, text=text, agree=False, env=env).events(0, "call"))
              for env in ({"SYMMSHIM": "audit"}, {})]
    equal(counts, [6, 1], "lines")


@case("forecast")
def for_people():
    """The report names what would go symmetric, and why the rest would not."""
    texts = []

    def show(folder, _):
        tool = os.path.join(os.path.dirname(setup.job), "../../tools/symmshim")
        logs = [str(path) for path in sorted(folder.glob("audit.*"))]
        texts.append(execute([tool, "report", *logs], stdout=".*").stdout)
        # what is required is still what was done
        execute([tool, "report", "--require", "1", *logs], stdout=".*", stderr=r"[^\n]*all ops: 0 % symmetric[^\n]*\n",
                status=1)

    job(2, "--op", "all_gather", "--calls", 6, "--diverge", "malloc", env={"SYMMSHIM": "audit"}, after=show)
    for line in (r"all_gather +12 +938\.2 KiB +6 +50\.0 % +469\.1 KiB", r"  ranks_differ +6 +50\.0 %",
                 r" 1  all_gather fp32, 78\.2 KiB: 6 of 12 calls, about \S+ ms a rank",
                 r"  not foreseen: ranks that come late, and device memory that runs short"):
        check(re.search(f"^{line}$", texts[0], re.M), f"no line {line!r} in {texts[0]}")
