# SPDX-License-Identifier: Apache-2.0
"""Memory of the arena behaves as cudaMalloc's, and communicators come and go without a trace."""

import functools
import re

from cases_calls import ALL, ops, three
from cases_hostile import steps
from harness import NO_ARENA, Failure, case, check, equal, execute, job, only_rank, outcome, policy, setup


def probe(name, *, env=None, stderr=None, same=True):
    """What the calls give, under the shim and without it."""
    without = execute([setup.probe, name], env=env)
    under = execute([setup.probe, name], shim=setup.shim, env=env, stderr=stderr)
    if same:
        equal(under.stdout, without.stdout, "what the calls give")
    return under


def allocations(result, rank):
    made = [line for line in result.calls_of(rank, "cuMemCreate") if line.endswith("-> 0")]
    return len(made) - len(result.calls_of(rank, "cuMemRelease"))


@case("memory")
def free():
    result = probe("free")
    equal(len(result.calls_of("none", "cudaMalloc")), 2, "real cudaMalloc")
    # Interior and foreign pointers, small memory, and what was freed before: all but the arena's own.
    equal(len([line for line in result.calls_of("none", "cudaFree") if "(nil)" not in line]), 6, "real cudaFree")
    equal(allocations(result, "none"), 0, "allocations left")


@case("memory")
def out_of_memory():
    result = probe("oom", env={"SIM_DEVICE_MEMORY": "64M"})
    check("blocks: 16\n" in result.stdout, "all of the memory was to be had")
    equal(allocations(result, "none"), 0, "allocations left")


@case("memory")
def out_of_arena():
    """Beyond the policy's cap memory is the real one's."""
    result = execute([setup.probe, "oom"], shim=setup.shim, env={"SIM_DEVICE_MEMORY": "64M"},
                     text=policy(arena="max_bytes = 16M\n"))
    check("blocks: 16\n" in result.stdout, "all of the memory was to be had")
    equal(len([line for line in result.calls_of("none", "cuMemMap")]), 4, "mappings")


@case("memory")
def ipc():
    """Within one process; cases of `ipc` have several."""
    result = probe("ipc")
    equal(len(result.calls_of("none", "cudaIpcGetMemHandle")), 1, "real calls")


@case("memory")
def peer_access():
    probe("peer", env={"SIM_DEVICES": "2"})


@case("memory")
def copy_without_peer_access():
    """The job enabled none, and the copy works all the same, as one of cudaMalloc's memory does."""
    probe("staged", env={"SIM_DEVICES": "2"})


@case("memory")
def threads():
    equal(allocations(probe("threads"), "none"), 0, "allocations left")


@case("memory")
def freed_and_taken_again():
    """A freed segment that is a window stays one for the next cudaMalloc of its size."""
    result = job(2, "--op", ALL, "--calls", 12, "--free", 2)
    outcome(result, 2, three("window", "window", "window", each=4))
    for rank in range(2):
        equal(len(result.calls_of(rank, "ncclCommWindowRegister")), 1, "registrations")
        equal(result.calls_of(rank, "cudaFree"), [], "real cudaFree")
        equal(allocations(result, rank), 0, "allocations left")


@case("memory")
def freed_on_one_rank_only():
    """Rank 1 gets another segment where rank 0 keeps its own."""
    result = job(2, "--op", ALL, "--calls", 12, "--free", 4, "--diverge", "size")
    outcome(result, 2, three("ranks_differ", "ranks_differ", "ranks_differ", each=4))


@case("memory", "pressure", lonely=False)
@case("memory", "pressure_on_one_rank", lonely=True)
def pressure(lonely):
    """Memory that is parked for windows' sake is given up before a job runs out of memory, by all ranks."""
    env = {"SIM_DEVICE_MEMORY": "128M"}
    job(2, "--op", "all_gather", "--calls", 6, "--pressure", env=env, shim="", agree=False)
    result = job(2, "--op", "all_gather", "--calls", 6, "--pressure", env=env,
                 wrap=only_rank(1, "export SIM_DEVICE_MEMORY=1G") if lonely else ())
    for rank in range(2):
        sequence = result.sequence(rank)
        # A rank may be in its next call already when the other one runs short.
        check(sequence[3] in ("given_up", "ranks_differ", "peer_declined"), f"rank {rank}: {sequence[3]}")
        equal(sequence[:3] + sequence[4:], ["window"] * 3 + ["given_up"] * 2, f"rank {rank}: outcomes, in order")
        equal(allocations(result, rank), 0, "allocations left")


def timely(function):
    """What has to come about within the shim's fifth of a second may take longer on a busy machine, but not always."""

    @functools.wraps(function)
    def several_times(**arguments):
        for attempt in range(4):
            try:
                return function(**arguments)
            except Failure:
                if attempt == 3:
                    raise
        return None

    return several_times


# Rank 1 has room for 40 MiB. The others have more, so that it alone is short.
SHORT = only_rank(1, "export SIM_DEVICE_MEMORY=40M")
PARKED = "comm take:A=8 take:B=8 gather:0,A gather:0,B gather:0,A give:B meet "


def given_up(result, nranks, before=3, after=1):
    for rank in range(nranks):
        equal(result.sequence(rank), ["window"] * before + ["given_up"] * after, f"rank {rank}: outcomes, in order")
        equal(allocations(result, rank), 0, f"rank {rank}: allocations left")


@case("memory", "short_on_one_rank", nranks=2)
@case("memory", "short_on_one_of_three", nranks=3)
@timely
def short(nranks):
    """
    What the others have mapped of its memory comes back when they hear of it at their next call, for which the rank
    waits a while.
    """
    result = steps(f"{PARKED} 1@take:C=32 0@sleep:60 2@sleep:60 gather:0,A", nranks, wrap=SHORT)
    given_up(result, nranks)


@case("memory")
def short_on_one_rank_while_the_others_do_not_call():
    """They do not hear of it in time: out of memory it is, as usual, and later on there is memory."""
    result = steps(f"{PARKED} 1@take:C=32 0@sleep:700 meet gather:0,A meet 1@take:C=32 gather:0,A", 2, wrap=SHORT,
                   stdout=r"hostile: rank 1: C: 2, last 2\n(hostile: rank \d: all right\n){2}")
    given_up(result, 2, after=2)


@case("memory")
@timely
def short_on_one_rank_as_a_caching_allocator():
    """It frees what it has cached only when cudaMalloc has said no, which is not to be before the windows are gone."""
    line = "comm take:A=8 take:B=8 gather:0,A gather:0,B gather:0,A meet {} 0@sleep:60 gather:0,A"
    # With what is cached it does not fit, without it does; the windows are in the way of neither.
    once = r"hostile: rank 1: C once more\n(hostile: rank \d: all right\n){2}"
    steps(line.format("1@cached:C=32/B"), 2, shim="", wrap=SHORT, stdout=once, agree=False)
    given_up(steps(line.format("1@cached:C=32/B"), 2, wrap=SHORT, stdout=once), 2)
    given_up(steps(line.format("1@give:B 1@cached:C=32/A"), 2, wrap=SHORT), 2)


@case("memory")
@timely
def short_on_two_ranks_at_once():
    """Neither waits for a call of the other's."""
    for line in ("take:C=32", "1@sleep:20 take:C=32"):
        result = steps(f"{PARKED} {line} gather:0,A", 2, env={"SIM_DEVICE_MEMORY": "40M"})
        given_up(result, 2)


@case("memory")
@timely
def short_while_another_rank_is_inside_a_call():
    """It waits for the one that is short, which waits for it to let go."""
    for text in (policy(), policy(agree_us=100_000)):
        result = steps(f"{PARKED} 0@gather:0,A 1@sleep:40 1@take:C=32 1@gather:0,A gather:0,A", 2, wrap=SHORT,
                       text=text)
        for rank in range(2):
            equal(result.sequence(rank)[:3], ["window"] * 3, f"rank {rank}: before")
            equal(result.sequence(rank)[4:], ["given_up"], f"rank {rank}: after the call that they were inside")
            check(result.sequence(rank)[3] in ("ranks_differ", "agree_timeout", "given_up", "peer_declined"),
                  f"rank {rank}: {result.sequence(rank)[3]}")


@case("memory", "short_with_several_communicators", then="0@sleep:60 gather:0,A gather:1,A gather:2,A")
@case("memory", "short_with_several_communicators_that_call_once", then="0@sleep:60 gather:1,A 0@sleep:300 gather:0,A "
                                                                     "gather:2,A")
@timely
def short_with_several(then):
    """A segment comes back when no communicator of any rank has a window on it."""
    line = "comm comm comm take:A=8 take:B=8 " + "".join(f"gather:{i},A gather:{i},B " for i in range(3))
    result = steps(f"{line} give:B meet 1@take:C=32 {then}", 2, wrap=SHORT)
    given_up(result, 2, before=6, after=3)
    equal({line["comm"] for line in result.events(0, "call") if line["reason"] == "given_up"},
          {line["comm"] for line in result.events(0, "call")}, "communicators that gave their windows up")


def first_again(result, rank, after):
    """The number of the call from which on all are symmetric again."""
    sequence = result.sequence(rank)
    found = sequence.index("window", after)
    check(set(sequence[after:found]) <= {"given_up", "peer_declined"}, f"rank {rank}: outcomes in between")
    equal(set(sequence[found:found + 5]), {"window"}, f"rank {rank}: outcomes from then on")
    return found


@case("memory")
@timely
def recovery():
    """Some calls later all ranks make the child anew together, and twice as many the next time."""
    press = "meet 1@take:C=32 1@give:C 0@sleep:60"
    line = f"{PARKED} {press} gather:0,A*1010 take:B=8 gather:0,B give:B {press} gather:0,A*2010"
    result = steps(line, 2, wrap=SHORT)
    again = {first_again(result, rank, 3) for rank in range(2)}
    check(len(again) == 1 and 1000 <= min(again) - 3 <= 1003, f"calls until it is tried again: {again}")
    twice = {first_again(result, rank, 1014) for rank in range(2)}
    check(len(twice) == 1 and 2000 <= min(twice) - 1014 <= 2003, f"calls until it is tried once more: {twice}")
    for rank in range(2):
        made = sum(line["reason"] is None for line in result.events(rank, "comm"))
        check(made >= 3, f"rank {rank}: children in all: {made}")


@case("memory")
@timely
def recovery_from_pressure_on_all_ranks():
    """That several ranks run short together counts once."""
    result = steps(f"{PARKED} take:C=32 give:C meet gather:0,A*1010", 3, env={"SIM_DEVICE_MEMORY": "40M"})
    again = {first_again(result, rank, 3) for rank in range(3)}
    check(len(again) == 1 and 990 <= min(again) - 3 <= 1003, f"calls until it is tried again: {again}")


@case("memory", "parked_too_much", who="")
@case("memory", "parked_too_much_on_one_rank", who="1@")
def parked_too_much(who):
    """More is parked than the policy allows: windows are given up, on all ranks."""
    text = policy(arena="parked_max = 12M\n")
    line = "comm take:A=8 take:B=8 take:C=8 gather:0,A gather:0,B gather:0,C "
    result = steps(f"{line} {who}give:B meet gather:0,A", 2, text=text)
    given_up(result, 2, before=4, after=0)
    result = steps(f"{line} {who}give:B {who}give:C meet gather:0,A", 2, text=text)
    given_up(result, 2)
    result = steps(f"{line} {who}give:B {who}give:C meet gather:0,A", 2, text=policy(arena="parked_max = 0\n"))
    given_up(result, 2, before=4, after=0)


TO_FIT = "comm take:A=8 gather:0,A take:B=8 gather:0,B give:B give:A meet take:C=32 give:C "


@case("memory", "fits_as_without", line=TO_FIT)
@case("memory", "fits_as_without_twice", line=f"{TO_FIT} meet take:A=16 take:B=16 gather:0,A gather:0,B")
@case("memory", "fits_as_without_small", line="comm take:A=8 gather:0,A take:B=14 give:A meet take:C=18 gather:0,C")
@timely
def fits(line):
    """The cap is the job's own peak and what NCCL takes, 8 MiB a communicator, and not a granule more."""
    env = {"SIM_COMM_MEMORY": "8M", "SIM_DEVICE_MEMORY": "38M"}
    less = steps(line, 2, shim="", env=env, status=None, stdout=".*", stderr=".*", agree=False)
    check(": 2, last 2" in less.stdout, "with less it does not fit without the shim either")
    env = {"SIM_COMM_MEMORY": "8M", "SIM_DEVICE_MEMORY": "40M"}
    steps(line, 2, shim="", env=env, agree=False)
    result = steps(line, 2, env=env, text=policy(child_memory="8M"))
    for rank in range(2):
        check("window" in result.sequence(rank), f"rank {rank}: there were windows")
        equal(allocations(result, rank), 0, f"rank {rank}: allocations left")


@case("memory")
def made_again_at_the_same_address():
    """It is another segment: windows of the old one went with it."""
    result = steps("comm take:A=8 gather:0,A*2 meet take:C=1000 meet gather:0,A give:A again:A=8 gather:0,A*1010", 2,
                   env={"SIM_DEVICE_MEMORY": "64M"},
                   stdout=r"(hostile: rank \d: C: 2, last 2\n|hostile: rank \d: all right\n){4}")
    for rank in range(2):
        placed = [(line["send"]["segment"], line["reason"]) for line in result.events(rank, "call")]
        check(placed[0][0] != placed[-1][0] and placed[-1][1] is None, f"rank {rank}: the last call: {placed[-1]}")
        equal([line["segment"] for line in result.events(rank, "window")], [placed[0][0], placed[-1][0]],
              f"rank {rank}: segments registered")


@case("memory")
def calls_keep_errno_and_last_error():
    delay = "ncclCommSplit:1@rank1=300,ncclCommWindowRegister:1@rank0=300"
    for more in ((), ("--diverge", "offset"), ("--diverge", "plain"), ("--redop", "avg")):
        # A rank that waits for another one inside NCCL comes back with another errno.
        job(2, "--op", ALL, "--calls", 9, "--errors", *more, stderr=f"({NO_ARENA})?",
            env={"SIM_DEVICE_MEMORY": "1G", "SIM_DELAY": delay})


@case("memory")
def free_in_capture():
    """An error, as without the shim; and the memory is still there afterwards."""
    probe("capture")


# Communicators.

@case("ends", "config", more=("--init", "config"))
@case("ends", "scalable", more=("--init", "scalable"))
@case("ends", "split", more=("--derive", "split"))
@case("ends", "finalize", more=("--end", "finalize"))
@case("ends", "abort", more=("--end", "abort"))
@case("ends", "revoke", more=("--end", "revoke"))
@case("ends", "exit", more=("--end", "exit"))
@case("ends", "split_finalize", more=("--derive", "split", "--end", "finalize"))
@case("ends", "split_abort", more=("--derive", "split", "--end", "abort"))
def ending(more):
    result = ops(3, "bf16", *more)
    for rank in range(3):
        counts = [(line["calls"], line["window_calls"]) for line in result.events(rank, "summary")]
        equal(counts, [(2, 2)] * 3, "counts at the end")
        names = [line.split(" ", 1)[0] for line in result.trace[str(rank)]]
        if "ncclCommFinalize" in names:
            check(names.index("ncclCommWindowDeregister") < names.index("ncclCommFinalize"),
                  "windows go before the communicator is finalized")


@case("ends")
def halves():
    """Two communicators from one split, side by side; what differs in one is no business of the other."""
    result = job(4, "--op", ALL, "--calls", 6, "--derive", "halves")
    outcome(result, 4, three("window", "window", "window"))
    ids = [{call["comm"] for call in result.events(rank, "call")} for rank in range(4)]
    check(ids[0] == ids[2] != ids[1] == ids[3], f"ids of the communicators: {ids}")


@case("ends")
def shrink():
    result = job(3, "--op", ALL, "--calls", 6, "--derive", "shrink")
    outcome(result, 3, three("window", "window", "window"), r2={})


@case("ends")
def shrink_to_one():
    result = job(2, "--op", ALL, "--calls", 6, "--derive", "shrink")
    outcome(result, 2, three("single_rank", "single_rank", "single_rank"), r1={})


@case("ends")
def killed_at_the_start():
    """The name of the shared memory goes with the init of the others, or with the rank that waits no longer."""
    job(2, "--op", "all_gather", "--kill", "0:0", status=124, seconds=2, agree=False, text=policy(setup_ms=200))


@case("ends")
def many_communicators():
    result = execute([setup.ranks, "-n", "2", "-t", "100", "--", setup.cycles, "300", "20"], shim=setup.shim,
                     env={"SIM_DEVICES": "2"}, text=policy(audit="summary"), stdout=r"(cycles: [^\n]*\n){2}")
    for line in result.stdout.splitlines():
        numbers = list(map(int, re.findall(r"(?<=[a-z] )-?\d+", line.split(": ", 2)[2])))
        check(numbers[0] <= 0 and numbers[1] <= 4, f"the process grew: {line}")
    for rank in range(2):
        counts = {(line["calls"], line["window_calls"]) for line in result.events(rank, "summary")}
        equal(counts, {(1, 1)}, "calls of each communicator")
        equal(len(result.events(rank, "summary")), 300, "communicators")
