# SPDX-License-Identifier: Apache-2.0
"""Memory of the arena behaves as cudaMalloc's, and communicators come and go without a trace."""

import re

from cases_calls import ALL, ops, three
from harness import NO_ARENA, case, check, equal, execute, job, outcome, policy, setup


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
    result = probe("ipc", same=False, stderr=r"[^\n]*SYMMSHIM WARN cudaIpcGetMemHandle:[^\n]*`callers`[^\n]*\n")
    equal(re.findall(r"ipc of (.*): (\d)", result.stdout), [("small", "0"), ("large", "1"), ("large again", "1")],
          "results")


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


@case("memory")
def pressure():
    """Memory that is parked for windows' sake is given up before a job runs out of memory."""
    env = {"SIM_DEVICE_MEMORY": "128M"}
    job(2, "--op", "all_gather", "--calls", 6, "--pressure", env=env, shim="", agree=False)
    result = job(2, "--op", "all_gather", "--calls", 6, "--pressure", env=env)
    for rank in range(2):
        equal(result.sequence(rank), ["window"] * 3 + ["no_memory"] * 3, f"rank {rank}: outcomes, in order")
        equal(allocations(result, rank), 0, "allocations left")


@case("memory")
def pressure_on_one_rank():
    result = job(2, "--op", "all_gather", "--calls", 6, "--pressure", env={"SIM_DEVICE_MEMORY": "128M"},
                 wrap=["sh", "-c", 'if [ "$RANK" = 1 ]; then export SIM_DEVICE_MEMORY=1G; fi; exec "$@"', "sh"])
    equal(result.sequence(0), ["window"] * 3 + ["no_memory"] * 3, "outcomes of rank 0")
    equal(result.sequence(1), ["window"] * 3 + ["peer_left"] * 3, "outcomes of rank 1")
    for rank in range(2):
        equal(allocations(result, rank), 0, "allocations left")


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
    result = probe("capture", same=False)
    without = execute([setup.probe, "capture"])
    # What the driver says of the arena's memory is returned, but is not the runtime's last error.
    equal(re.sub("last .*", "", result.stdout), re.sub("last .*", "", without.stdout), "what the calls give")


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
