# SPDX-License-Identifier: Apache-2.0
"""
Every real call fails once: the list comes from the record of a full run, each is made to fail in turn, on one rank and
on all, with the errors that it can give.

What the job called itself gives the job what it gives without the shim. What only the shim called is not to be seen:
right results, no wait without an end, nothing left over, and the next call works.
"""

import concurrent.futures
import difflib
import functools
import pathlib
import re

from cases_matrix import program, spoken
from harness import Failure, agrees, case, check, equal, execute, further, policy, setup

WORKERS = 6
NRANKS = 2
# A failing call must not look like a rank that is merely late: nobody's patience ends on a busy machine.
TEXT = policy(agree_us=8_000_000, setup_ms=3_000, warn_s=1)
LIMIT_S = 30

# Codes, likeliest first. The first is tried on every call, the others on the first and the last call of a function.
CODES = {
    "cudaMalloc": (2, 1, 700), "cudaFree": (1, 700, 719), "cudaDeviceEnablePeerAccess": (704, 101),
    "cudaIpcGetMemHandle": (1, 801), "cudaGetLastError": (2,),
    "cuMemCreate": (2, 1, 800, 801, 999), "cuMemMap": (1, 2, 999), "cuMemSetAccess": (1, 2, 800),
    "cuMemAddressReserve": (2, 1, 801), "cuMemGetAllocationGranularity": (1, 801), "cuMemRelease": (1, 400),
    "cuMemUnmap": (1, 700), "cuMemAddressFree": (1,), "cuMemGetInfo_v2": (201, 700),
    "cuDeviceGetAttribute": (1, 201), "cuDeviceTotalMem_v2": (1, 201), "cuPointerGetAttribute": (1, 700),
    "cuCtxGetCurrent": (201, 3), "cuCtxGetDevice": (201, 3), "cuCtxPushCurrent_v2": (201, 1),
    "cuCtxPopCurrent_v2": (201,), "cuCtxSynchronize": (700, 719, 201), "cuThreadExchangeStreamCaptureMode": (1, 201),
    "cuStreamIsCapturing": (400, 700, 906), "cuStreamWaitEvent": (400, 700), "cuEventCreate": (2, 201),
    "cuEventRecord": (400, 700), "cuEventQuery": (400, 700), "cuEventSynchronize": (700, 719, 400),
    "cuEventDestroy_v2": (400, 700), "cuModuleLoadData": (2, 200, 218, 801), "cuModuleGetFunction": (500, 2),
    "cuModuleUnload": (400,), "cuLaunchKernel": (701, 700, 719, 999),
}
NCCL_CODES = (1, 2, 3)  # CUDA's error, the system's, NCCL's own
NCCL_CODES_OF_USE = (5, 4, 6)  # invalid usage, invalid argument, another rank
NCCL_OF_USE = re.compile(r"nccl(Group|RedOp|Comm(Register|Window|Deregister))")


def codes_of(function):
    if function.startswith("nccl"):
        return NCCL_CODES_OF_USE if NCCL_OF_USE.match(function) else NCCL_CODES
    check(function in CODES, f"no codes are known for {function}")
    return CODES[function]


# What the log may say besides what it says of an undisturbed run, by the function that failed.
ELSEWHERE = {"peer_declined", "ranks_differ"}
REASONS = {
    "cuMem(Create|Map|SetAccess|AddressReserve|GetAllocationGranularity)|cuDevice": {"not_in_arena"} | ELSEWHERE,
    "cudaFree|cudaMalloc": {"not_in_arena", "no_memory", "peer_left"} | ELSEWHERE,
    # A call that one rank makes once more is one more on its side, so the ranks are out of step from then on.
    "ncclAllGather|ncclReduceScatter|ncclAllReduce": {"agree_timeout"} | ELSEWHERE,
    # Ranks that do not attend the same board, since one of them came twice.
    "ncclCommInitRank": {"missing_ranks", "peer_left"},
    "cuCtxGet|cuCtxP": {"not_in_arena", "other_device", "no_memory", "no_kernel"} | ELSEWHERE,
    "cuMemGetInfo|cuEventCreate": {"no_memory"} | ELSEWHERE,
    "cuModule|cuDeviceGetAttribute": {"no_kernel"} | ELSEWHERE,
    "cuStreamIsCapturing": {"capturing"} | ELSEWHERE,
    "ncclCommSplit": {"child_failed", "missing_ranks", "peer_left"},
    "ncclCommWindowRegister|ncclCommRegister|cuPointerGetAttribute": {"register_failed"},
    "ncclComm(Count|UserRank)": {"board_failed", "peer_left"} | ELSEWHERE,
    "ncclGetVersion": {"nccl_version", "shim_differs", "peer_left"} | ELSEWHERE,
}


def allowed_reasons(function):
    found = set()
    for pattern, reasons in REASONS.items():
        if re.match(pattern, function):
            found |= reasons
    return found


def launch(shim, fault=None, leave=False, seconds=LIMIT_S, stderr=".*"):
    env = {"SIM_DEVICES": str(NRANKS)}
    if fault:
        env["SIM_FAIL"] = fault
    if leave:
        env["MATRIX_LEAVE"] = "1"
    options = ["-k"] if leave else []
    command = [setup.ranks, *options, "-n", str(NRANKS), "-t", str(seconds), "--", program("matrix"), "calls"]
    return execute(command, shim=setup.shim if shim else "", text=TEXT, env=env, status=None, stdout=".*",
                   stderr=stderr, timeout=seconds + 30)


@functools.lru_cache(maxsize=None)
def undisturbed(shim):
    result = launch(shim, stderr="")
    equal(result.status, 0, "status of the undisturbed run")
    return result


@functools.lru_cache(maxsize=None)
def without_shim(fault, leave):
    return launch(False, fault, leave)


def calls_of(result, rank):
    """The record: (function, number, arguments without addresses, result)."""
    seen = {}
    for line in result.trace[str(rank)]:
        matched = re.match(r"(\w+) (.*)-> (\d+)$", line)
        if matched:
            seen[matched[1]] = seen.get(matched[1], 0) + 1
            yield matched[1], seen[matched[1]], re.sub(r"0x[0-9a-f]+|\(nil\)|\bop=\d", "P", matched[2]), matched[3]


def golden():
    return set(pathlib.Path(__file__).with_name("exports.golden").read_text().split())


class Target:
    """A call of the record; `own`: its number without the shim, where the job made it itself."""

    def __init__(self, function, number, own):
        self.function, self.number, self.own = function, number, own

    def __str__(self):
        return f"{self.function}:{self.number}"


@functools.lru_cache(maxsize=None)
def targets():
    """The calls that the shim makes or passes on."""
    under, without = ([*calls_of(undisturbed(shim), 0)] for shim in (True, False))
    own = {}
    shapes = [[(call[0], call[2]) for call in calls] for calls in (under, without)]
    for block in difflib.SequenceMatcher(None, *shapes, autojunk=False).get_matching_blocks():
        for i in range(block.size):
            own[under[block.a + i][:2]] = without[block.b + i][1]
    passed_by = {call[0] for call in without} - golden()
    return [Target(call[0], call[1], own.get(call[:2])) for call in under if call[0] not in passed_by]


def wrong(result):
    return [line for line in result.stdout.splitlines() if line.endswith("wrong") and ": 0 elements" not in line]


def balance(result, rank):
    """What was taken successfully is to be given back, whether or not that succeeds."""
    pairs = {"cuMemCreate": "cuMemRelease", "cuMemMap": "cuMemUnmap", "cuEventCreate": "cuEventDestroy_v2",
             "ncclCommWindowRegister": "ncclCommWindowDeregister"}
    lines = [line for line in result.trace[str(rank)] if "comm=(nil)" not in line]
    for take, give in pairs.items():
        taken = sum(line.startswith(f"{take} ") and line.endswith("-> 0") for line in lines)
        equal(sum(line.startswith(f"{give} ") for line in lines), taken, f"rank {rank}: {take}, given back")
    good = [line.split(" ", 1)[0] for line in lines if line.endswith("-> 0")]
    equal(good.count("ncclCommDestroy") + good.count("ncclCommAbort"),
          good.count("ncclCommInitRank") + good.count("ncclCommSplit"), f"rank {rank}: communicators, ended")


def reasons_of(result, rank):
    return {reason for _, reason in result.outcomes(rank)} if str(rank) in result.audit else set()


def normal(result, target, who):
    """An end with everything right, whether or not a call failed on the way."""
    equal(wrong(result), [], "wrong results")
    equal(result.status, 0, "status")
    known = reasons_of(undisturbed(True), 0) | allowed_reasons(target.function)
    for rank in range(NRANKS):
        odd = reasons_of(result, rank) - known
        check(not odd, f"rank {rank}: the log has other reasons: {sorted(odd)}")
        # A call to give something back that fails by force has given nothing back.
        if not re.match(r"nccl.*(Deregister|Abort|Destroy)$", target.function) or target.own:
            balance(result, rank)
    foreign = [line for line in result.stderr.splitlines() if "SYMMSHIM WARN" not in line]
    equal(foreign, [], "lines on stderr")


def says(said, wanted, what):
    """Compares what a rank said; tells the lines that differ."""
    differs = [line for line in difflib.ndiff(wanted or [], said or []) if line[0] in "+-"]
    check(said == wanted, f"{what}: said (+) and not said (-): {differs}")


# What cannot be given back stays taken, and the program sees that at its end.
KEEPS = re.compile(r"cuMem(Unmap|Release|AddressFree)|ncclCommWindowDeregister|ncclCommAbort")


def as_undisturbed(result, target):
    for key, wanted in spoken(undisturbed(True)).items():
        said = spoken(result).get(key)
        if KEEPS.fullmatch(target.function) and said and re.fullmatch(r"memory left: \d+", said[-1]):
            said[-1] = wanted[-1]
        says(said, wanted, f"rank {key[0]}")


def as_without(result, fault, leave):
    """The job's own call failed: each rank that lived on says the same as without the shim."""
    reference = without_shim(fault, leave)
    equal(result.status, reference.status, "status")
    said, wanted = spoken(result), spoken(reference)
    for key in wanted:
        if leave and key[0] != "1" and reference.status != 0:  # was killed at some moment
            shorter = min(len(said.get(key, [])), len(wanted[key]))
            says(said.get(key, [])[:shorter], wanted[key][:shorter], f"rank {key[0]} up to its end")
        else:
            says(said.get(key), wanted[key], f"rank {key[0]}")


# Calls of the shim whose failure the job is told of: the output is a sum already, or the memory's fate is not known.
TOLD = {"cuLaunchKernel": "average: 1, last 0"}


def told(result, target, leave):
    text = TOLD[target.function]
    check(text in spoken(result)["1", "main.-1"], f"the call is told to have failed: {text}")
    if leave:
        equal(result.status, 3, "status")
    else:
        equal(wrong(result), [], "wrong results")
        equal(result.status, 0, "status")


def hangs(target, leave):
    """Inside NCCL, where the other ranks wait for the one that failed."""
    return leave and not target.own and target.function in ("ncclCommSplit", "ncclCommWindowRegister",
                                                            "ncclCommRegister")


def inject(target, code, leave):
    where = "@rank1" if leave else ""
    fault = f"{target}{where}={code}"
    if hangs(target, leave):
        result = launch(True, fault, leave, seconds=3)
        equal(result.status, 124, "status")
        check(re.search(r"SYMMSHIM WARN rank 0 of 2, communicator \w{16}: nccl(CommSplit|CommWindowRegister)\b[^\n]* "
                        r"has taken \d s so far\n", result.stderr), "the rank that waits says where")
        return
    result = launch(True, fault, leave)
    if target.function == "cuCtxSynchronize":  # within cudaFree, which gives what the driver said
        same_free(result, target, code, leave)
    elif target.function == "cudaMalloc" and code == 2 and holds_something(target):
        as_undisturbed(result, target)
        normal(result, target, leave)
    elif target.own:
        as_without(result, f"{target.function}:{target.own}{where}={code}", leave)
        if result.status == 0:
            normal(result, target, leave)
    elif target.function in TOLD:
        told(result, target, leave)
    else:
        as_undisturbed(result, target)
        normal(result, target, leave)
        agrees(result)


def holds_something(target):
    """Out of memory the shim gives up its children, if there are any, and asks again."""
    calls = [call[:2] for call in calls_of(undisturbed(True), 0)]
    return calls.index((target.function, target.number)) > calls.index(("ncclCommSplit", 1))


def same_free(result, target, code, leave):
    """As the real one: nothing is freed, and the error is the caller's; the second try succeeds."""
    lines = spoken(result)["1", "main.-1"]
    clean = spoken(undisturbed(True))["1", "main.-1"]
    extra = [line for line in difflib.ndiff(clean, lines) if line[0] in "+-"]
    equal(extra, [f"+ free: {code}, last 0"], "what the program said besides")
    normal(result, target, leave)


def described(target, code, leave):
    return f"{target} gives {code} on {'rank 1' if leave else 'all ranks'}"


def attempt(job):
    try:
        inject(*job)
    except (Failure, KeyError) as error:
        return f"{described(*job)}: {error}"
    return None


def jobs(functions):
    last = {target.function: target.number for target in targets()}
    for target in targets():
        if not re.fullmatch(functions, target.function):
            continue
        codes = codes_of(target.function)
        for code in codes if target.number in (1, last[target.function]) else codes[:1]:
            for leave in (True, False):
                yield target, code, leave


GROUPS = {
    "memory": "cuMem(?!GetInfo).*|cuDevice.*|cuCtxSynchronize|cudaMalloc|cudaFree|cudaGetLastError",
    "context": "cuCtx(?!Synchronize).*|cuThread.*",
    "order": "cuEvent.*|cuStream.*",
    "kernels": "cuModule.*|cuLaunchKernel|cuMemGetInfo_v2",
    "windows": "ncclComm(Window|Register|Deregister).*|cuPointerGetAttribute",
    "communicators": "nccl(GetVersion|Comm(Split|InitRank|Destroy|Abort|Count|UserRank))",
    "calls": "ncclAllGather|ncclReduceScatter|ncclAllReduce|ncclBroadcast|ncclGroup.*|ncclRedOp.*",
}


@case("faults")
def every_call_has_its_group():
    """Nothing of the record is left out."""
    for target in targets():
        found = [name for name, pattern in GROUPS.items() if re.fullmatch(pattern, target.function)]
        equal(len(found), 1, f"groups of {target.function}")
    check(len({target.function for target in targets()}) > 40, "functions in the record")
    check(any(target.own for target in targets()) and not all(target.own for target in targets()), "both kinds")


def group(name):
    todo = list(jobs(GROUPS[name]))
    with concurrent.futures.ThreadPoolExecutor(max_workers=WORKERS) as pool:
        failures = [text for text in pool.map(attempt, todo) if text]
    # The group itself is one of them.
    further["passed"] += len(todo) - len(failures) - (not failures)
    further["failed"] += max(len(failures) - 1, 0)
    print(f"  {name}: {len(todo) - len(failures)} of {len(todo)} faults")
    if failures:
        raise Failure(f"{len(failures)} of {len(todo)}:\n  " + "\n  ".join(failures))


for word in GROUPS:
    case("faults", word)(functools.partial(group, word))
