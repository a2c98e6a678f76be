# SPDX-License-Identifier: Apache-2.0
"""
Every real call fails once: the list comes from the record of a full run, each is made to fail in turn, on one rank and
on all, with the errors that it can give.

What the job called itself gives the job what it gives without the shim. What only the shim called is not to be seen:
right results, no wait without an end, nothing left over, and the next call works. Where that cannot be, since the
output is half made, the call fails and a line says why.
"""

import concurrent.futures
import difflib
import functools
import pathlib
import re
import signal

from cases_matrix import program, spoken
from harness import Failure, agrees, case, check, equal, execute, further, policy, setup

WORKERS = 6
NRANKS = 2
# A failing call must not look like a rank that is merely late: nobody's patience ends on a busy machine.
# The rules are such that every rewrite, and every way to copy, comes about.
RULES = """
[rule gathers]
op = all_gather
path = staged
[rule scatters]
op = reduce_scatter
redop = sum
path = staged
[rule averages]
op = all_reduce
redop = avg, premulsum
path = staged
rewrite = pre_scale
[rule all]
path = window
rewrite = post_scale
"""
TEXT = policy(agree_us=8_000_000, setup_ms=12_000, warn_s=1, rules=RULES)
LIMIT_S = 60

# Codes, likeliest first. The first is tried on every call, the others on the first and the last call of a function.
CODES = {
    "cudaMalloc": (2, 1, 700), "cudaFree": (1, 700, 719), "cudaDeviceEnablePeerAccess": (704, 101),
    "cudaIpcGetMemHandle": (1, 801), "cudaGetLastError": (2,),
    "cuMemCreate": (2, 1, 800, 801, 999), "cuMemMap": (1, 2, 999), "cuMemSetAccess": (1, 2, 800),
    "cuMemAddressReserve": (2, 1, 801), "cuMemGetAllocationGranularity": (1, 801), "cuMemRelease": (1, 400),
    "cuMemRetainAllocationHandle": (1, 201), "cuMemUnmap": (1, 700), "cuMemAddressFree": (1,),
    "cuMemGetInfo_v2": (201, 700), "cudaMemGetInfo": (201, 700),
    "cuDeviceGetAttribute": (1, 201), "cuDeviceTotalMem_v2": (1, 201), "cuPointerGetAttribute": (1, 700),
    "cuCtxGetCurrent": (201, 3), "cuCtxGetDevice": (201, 3), "cuCtxPushCurrent_v2": (201, 1),
    "cuCtxPopCurrent_v2": (201,), "cudaDeviceSynchronize": (700, 719, 201),
    "cuThreadExchangeStreamCaptureMode": (1, 201),
    "cuStreamIsCapturing": (400, 700, 906), "cuStreamWaitEvent": (400, 700), "cuEventCreate": (2, 201),
    "cuEventRecord": (400, 700), "cuEventQuery": (400, 700), "cuEventSynchronize": (700, 719, 400),
    "cuEventDestroy_v2": (400, 700), "cuModuleLoadData": (2, 200, 218, 801), "cuModuleGetFunction": (500, 2),
    "cuModuleUnload": (400,), "cuLaunchKernel": (701, 700, 719, 999), "cuMemcpyAsync": (1, 700, 719),
    "cuStreamGetCaptureInfo_v2": (400, 700, 900), "cuEventRecordWithFlags": (400, 700, 901),
    "cuUserObjectCreate": (2, 1), "cuGraphRetainUserObject": (1, 2), "cuUserObjectRelease": (1,),
}
# How often it is asked depends on time, so its calls have no numbers.
POLLED = "ncclCommGetAsyncError"
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
    # A buffer outside the arena cannot be captured, and if all are there can be no slot.
    "cuMem(Create|Map|SetAccess|AddressReserve|GetAllocationGranularity)|cuDevice":
        {"not_in_arena", "capturing", "no_slot"} | ELSEWHERE,
    "cudaFree|cudaMalloc": {"not_in_arena", "no_memory", "peer_left", "capturing", "no_slot"} | ELSEWHERE,
    # A call that one rank makes once more is one more on its side, so the ranks are out of step from then on.
    "ncclAllGather|ncclReduceScatter|ncclAllReduce": {"agree_timeout"} | ELSEWHERE,
    # Ranks that do not attend the same board, since one of them came twice.
    "ncclCommInitRank": {"missing_ranks", "peer_left"},
    "cuCtxGet|cuCtxP":
        {"not_in_arena", "other_device", "no_memory", "no_kernel", "peer_left", "capturing", "no_slot"} | ELSEWHERE,
    "cuMemGetInfo|cuEventCreate|cuMem(Create|Map|SetAccess)": {"no_memory", "no_slot", "capturing"} | ELSEWHERE,
    # A rank that does not get the device code leaves for good.
    "cuModule|cuDeviceGetAttribute": {"no_kernel", "peer_left"} | ELSEWHERE,
    "cuStreamIsCapturing|cuStreamGetCaptureInfo_v2|cuUserObject|cuGraph": {"capturing"} | ELSEWHERE,
    "ncclCommSplit": {"child_failed", "missing_ranks", "peer_left"},
    "ncclCommWindowRegister|ncclCommRegister|cuPointerGetAttribute|cuEventQuery": {"register_failed", "peer_left"},
    "ncclCommGetAsyncError": {"board_failed", "child_failed", "register_failed", "peer_left"} | ELSEWHERE,
    "ncclComm(Count|UserRank)": {"board_failed", "peer_left"} | ELSEWHERE,
    "ncclGetVersion": {"nccl_version", "shim_differs", "peer_left"} | ELSEWHERE,
}


def allowed_reasons(function):
    found = set()
    for pattern, reasons in REASONS.items():
        if re.match(pattern, function):
            found |= reasons
    return found


@functools.lru_cache(maxsize=None)
def private():
    """A /dev/shm of its own for a rank that is killed while it waits in NCCL's init, which leaves an object there."""
    found = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    return found if execute([*found, "true"], status=None, stderr=".*").status == 0 else []


def launch(shim, fault=None, leave=False, stderr=".*", until=None):
    env = {"SIM_DEVICES": str(NRANKS)}
    if fault:
        env["SIM_FAIL"] = fault
    if leave:
        env["MATRIX_LEAVE"] = "1"
    options = ["-k"] if leave else []
    command = [*(private() if leave else []), setup.ranks, *options, "-n", str(NRANKS), "-t", str(LIMIT_S), "--",
               program("matrix"), "all"]
    return execute(command, shim=setup.shim if shim else "", text=TEXT, env=env, status=None, stdout=".*",
                   stderr=stderr, timeout=LIMIT_S + 30, until=until)


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
    """
    A call of the record; `own`: its number without the shim, where the job made it itself. Or one that is only made
    after another one failed, which is `first`.
    """

    def __init__(self, function, number, own, first=None):
        self.function, self.number, self.own, self.first = function, number, own, first

    def __str__(self):
        return f"{self.function}:{self.number}"

    def fault(self, where, code):
        first = f"{self.first[0]}{where}={self.first[1]}," if self.first else ""
        return f"{first}{self}{where}={code}"


# Calls of the shim's that an undisturbed run has none of, and what has to fail for them to be made.
FOLLOWING = {"cuUserObjectRelease": ("cuGraphRetainUserObject:1", 1), "cuModuleUnload": ("cuModuleGetFunction:2", 500),
             "cuEventQuery": ("cuPointerGetAttribute:3", 1)}


@functools.lru_cache(maxsize=None)
def targets():
    """The calls that the shim makes or passes on."""
    under, without = ([*calls_of(undisturbed(shim), 0)] for shim in (True, False))
    own = {}
    shapes = [[(call[0], call[2]) for call in calls] for calls in (under, without)]
    for block in difflib.SequenceMatcher(None, *shapes, autojunk=False).get_matching_blocks():
        for i in range(block.size):
            own[under[block.a + i][:2]] = without[block.b + i][1]
    # Of these the shim makes exactly those that the job makes, in their order.
    for function in ("ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast", "cudaMemGetInfo"):
        numbers = [call[1] for call in under if call[0] == function]
        equal(numbers, [call[1] for call in without if call[0] == function], f"calls of {function}")
        own.update({(function, number): number for number in numbers})
    passed_by = {call[0] for call in without} - golden()
    return [Target(call[0], call[1], own.get(call[:2])) for call in under if call[0] not in passed_by | {POLLED}]


@functools.lru_cache(maxsize=None)
def grouped():
    """
    What the job makes in a group, and the end. The shim makes those calls after that end, which NCCL sees empty,
    and the job hears of all of them there.
    """
    found, depth = set(), 0
    for function, number, *_ in calls_of(undisturbed(False), 0):
        depth += (function == "ncclGroupStart") - (function == "ncclGroupEnd")
        if depth > 0 and function != "ncclGroupStart" or function == "ncclGroupEnd":
            found.add((function, number))
    equal(found & {("ncclAllGather", 5), ("ncclReduceScatter", 3), ("ncclGroupEnd", 1)}, found, "calls in groups")
    return found


def wrong(result):
    return [line for line in result.stdout.splitlines() if line.endswith("wrong") and ": 0 elements" not in line]


def kept_by_graphs(lines):
    """Events that some graph records: nobody tells when it does so for the last time, so they stay."""
    recorded = set()
    for line in lines:
        name, _, rest = line.partition(" ")
        if name == "cuEventRecordWithFlags":
            recorded.add(rest.split(" ")[0])
        elif name == "cuEventDestroy_v2":
            recorded.discard(rest.split(" ")[0])
    return recorded


def balance(result, rank):
    """What was taken successfully is to be given back, whether or not that succeeds."""
    pairs = {"cuMemCreate": "cuMemRelease", "cuMemMap": "cuMemUnmap", "cuEventCreate": "cuEventDestroy_v2",
             "ncclCommWindowRegister": "ncclCommWindowDeregister"}
    lines = [line for line in result.trace[str(rank)] if "comm=(nil)" not in line]
    for take, give in pairs.items():
        taken = sum(line.startswith(f"{take} ") and line.endswith("-> 0") for line in lines)
        given = sum(line.startswith(f"{give} ") for line in lines)
        if take == "cuEventCreate":
            given += len(kept_by_graphs(lines))
        equal(given, taken, f"rank {rank}: {take}, given back")
    good = [line.split(" ", 1)[0] for line in lines if line.endswith("-> 0")]
    # A non-blocking one is in progress when it is made.
    made = sum(bool(re.match(r"ncclComm(InitRank|InitRankConfig|Split) .*-> [07]$", line)) for line in lines)
    equal(good.count("ncclCommDestroy") + good.count("ncclCommAbort"), made, f"rank {rank}: communicators, ended")


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
        if KEEPS.fullmatch(target.function) and said:
            said, wanted = ([line for line in lines if "memory left" not in line] for lines in (said, wanted))
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


# Calls of the shim whose failure the job may be told of: without them the output would be wrong.
TOLD = {"cuLaunchKernel", "cuMemcpyAsync", "cuStreamWaitEvent", "cuEventRecord"}
FAILS = "; the call fails, since its output would be wrong\n"


def differing(result):
    """What rank 1 said besides, and what it did not say."""
    clean = spoken(undisturbed(True))["1", "main.-1"]
    return [line for line in difflib.ndiff(clean, spoken(result)["1", "main.-1"]) if line[0] in "+-"]


def told(result, leave):
    """One call fails with an error of CUDA's, and the next try succeeds, if there is one."""
    if leave:
        equal(result.status, 3, "status")
        check(spoken(result)["1", "main.-1"][-1].endswith(": 1, last 0"), "the last call is told to have failed")
        return
    extra = differing(result)
    check(len(extra) == 1 and re.fullmatch(r"\+ .*: 1, last 0", extra[0]), f"one call is told to have failed: {extra}")
    equal(wrong(result), [], "wrong results")
    equal(result.status, 0, "status")


def told_at_the_end(result, code, leave):
    """
    As NCCL does it with all errors within a group. A failed group is gone, with all its calls, and so is what a second
    ncclGroupEnd could end (group.cc, 2.27 to 2.30.7).
    """
    said = spoken(result)["1", "main.-1"]
    check(f"group end: {code}, last 0" in said, "the group's end is told to have failed")
    if leave:
        equal(result.status, 3, "status")
        equal(said[-1], f"group end: {code}, last 0", "the last that rank 1 said")
        return
    known = re.compile(r"[+-] (group end: |grouped .* elements are wrong$)")
    odd = [line for line in differing(result) if not known.match(line)]
    equal(odd, [], "what is different besides the group")
    check(result.status in (0, 1), f"status: {result.status}")


SAYS_WHERE = (r"SYMMSHIM WARN rank 0 of 2, communicator \w{16}: nccl(CommSplit|CommWindowRegister)\b[^\n]* "
              r"has taken \d s so far\n")


def hangs(target, leave):
    """Inside NCCL, where the other ranks wait for the one that failed."""
    return leave and not target.own and target.function in ("ncclCommSplit", "ncclCommWindowRegister",
                                                            "ncclCommRegister")


def inject(target, code, leave):
    where = "@rank1" if leave else ""
    fault = target.fault(where, code)
    if hangs(target, leave):
        result = launch(True, fault, leave, until=SAYS_WHERE)
        equal(result.status, 128 + signal.SIGTERM, "status")
        check(re.search(SAYS_WHERE, result.stderr), "the rank that waits says where")
        return
    result = launch(True, fault, leave)
    if target.function == "cudaDeviceSynchronize":  # within cudaFree, which gives what it said
        same_free(result, target, code, leave)
    elif target.function == "cudaMalloc" and code == 2 and holds_something(target):
        as_undisturbed(result, target)
        normal(result, target, leave)
    elif (target.function, target.number) in grouped():
        told_at_the_end(result, code, leave)
    elif target.own:
        as_without(result, f"{target.function}:{target.own}{where}={code}", leave)
        if result.status == 0:
            normal(result, target, leave)
    elif target.function in TOLD and FAILS in result.stderr:
        told(result, leave)
    else:
        as_undisturbed(result, target)
        normal(result, target, leave)
        agrees(result)


def holds_something(target):
    """Out of memory the shim gives up its children, if there are any, and asks again. Every one of them has windows."""
    calls = [call[:2] for call in calls_of(undisturbed(True), 0)]
    before = [function for function, _ in calls[:calls.index((target.function, target.number))]]
    return before.count("ncclCommWindowRegister") > before.count("ncclCommWindowDeregister")


def same_free(result, target, code, leave):
    """As the real one: nothing is freed, and the error is the caller's; the second try succeeds."""
    lines = spoken(result)["1", "main.-1"]
    clean = spoken(undisturbed(True))["1", "main.-1"]
    extra = [line for line in difflib.ndiff(clean, lines) if line[0] in "+-"]
    equal(extra, [f"+ free: {code}, last {code}"], "what the program said besides")
    normal(result, target, leave)


def described(target, code, leave):
    return f"{target} gives {code} on {'rank 1' if leave else 'all ranks'}"


def attempt(job):
    try:
        inject(*job)
    except (Failure, KeyError) as error:
        return f"{described(*job)}: {error}"
    return None


@functools.lru_cache(maxsize=None)
def captured():
    """Calls of the record that were made while a stream was being captured."""
    found, inside = set(), False
    for function, number, *_ in calls_of(undisturbed(True), 0):
        inside = function == "cudaStreamBeginCapture" or (inside and function != "cudaStreamEndCapture")
        if inside:
            found.add((function, number))
    return found


def jobs(functions):
    last = {target.function: target.number for target in targets()}
    for target in targets():
        if not re.fullmatch(functions, target.function):
            continue
        codes = codes_of(target.function)
        # Of a stream that is being captured this is the one error that there can be; others say that it is not.
        if target.function == "cuStreamIsCapturing" and (target.function, target.number) in captured():
            codes = (906,)
        for code in codes if target.number in (1, last[target.function]) else codes[:1]:
            for leave in (True, False):
                yield target, code, leave


def following():
    for function, first in FOLLOWING.items():
        for code in codes_of(function):
            for leave in (True, False):
                yield Target(function, 1, None, first), code, leave


GROUPS = {
    "memory": "cuMem(?!GetInfo).*|cuDevice.*|cudaDeviceSynchronize|cudaMemGetInfo|cudaMalloc|cudaFree|cudaGetLastError",
    "context": "cuCtx.*|cuThread.*",
    "order": "cuEvent.*|cuStream.*|cuUserObject.*|cuGraph.*",
    "kernels": "cuModule.*|cuLaunchKernel|cuMemGetInfo_v2",
    "windows": "ncclComm(Window|Register|Deregister).*|cuPointerGetAttribute",
    "communicators": "nccl(GetVersion|Comm(Split|InitRank|InitRankConfig|Destroy|Abort|Count|UserRank))",
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


# Functions that fail nowhere here, and why.
NOT_HERE = {
    "cuMemAddressFree": "only where a table cannot be mapped, or when two threads open a range at the same time",
    "cudaGetLastError": "does not fail, it tells of failures",
    "cuCtxSynchronize": "its failure tells of work that failed before, which the job hears of from its own calls",
    **dict.fromkeys(("cudaFreeAsync", "cudaStreamSynchronize", "cudaDeviceReset"),
                    "rows of `table` look at it, errors too"),
    **dict.fromkeys(("cudaIpcGetMemHandle", "cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle",
                     "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemGetAllocationPropertiesFromHandle"),
                    "cases of `ipc` make it fail"),
    **dict.fromkeys(("ncclAllGatherConfig", "ncclReduceScatterConfig", "ncclAllReduceConfig"),
                    "goes the way of the same without settings; cases of `entries` make it fail"),
    "cudaDeviceEnablePeerAccess": "passes by; cases of `memory` look at it",
    POLLED: "has no numbers; unit tests and the waits of non-blocking communicators have it",
}
PASSING = re.compile(r"nccl(Bcast|Reduce|Send|Recv|AlltoAll|Gather|Scatter|GroupSimulateEnd|CommInitRankScalable"
                     r"|(Broadcast|Reduce|AlltoAll|Gather|Scatter)Config|(Put|Wait)?Signal"
                     r"|CommInitAll|CommShrink|CommGrow|CommFinalize|CommRevoke|CommSuspend|CommRegister"
                     r"|CommDeregister)")


def names_of(header, *lists):
    """The first column of tables of the form X(name, ...) or X(LIBRARY, name, ...)."""
    text = (pathlib.Path(__file__).parents[2] / "shim" / header).read_text()
    found = set()
    for name in lists:
        body = re.search(rf"#define {name}\(X\).*?[^\\]\n", text, re.DOTALL)
        check(body, f"{header} has {name}")
        found |= set(re.findall(r"\bX\((?:CUDART, |NCCL, )?(\w+),", body[0]))
    return found


@case("faults")
def every_function_fails_somewhere():
    """What the shim may call is in the record, follows a failure, passes by, or is excused by name."""
    known = names_of("abi/cuda.h", "ABI_DRIVER_FUNCTIONS") | names_of("hooks.h", "HOOKS", "CALLED")
    check(len(known) > 60, f"functions in the headers: {len(known)}")
    injected = {target.function for target in targets()} | set(FOLLOWING)
    left = {name for name in known - injected - set(NOT_HERE) if not PASSING.fullmatch(name)}
    equal(left, set(), "functions that the shim may call and that no fault is injected into")
    equal({name for name in NOT_HERE if name in injected}, set(), "excuses that are none")


def group(name, todo=None):
    todo = todo or list(jobs(GROUPS[name]))
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


@case("faults")
def after_another_failure():
    for function in FOLLOWING:
        result = launch(True, "{}={}".format(*FOLLOWING[function]))
        check(any(call[0] == function for call in calls_of(result, 0)), f"{function} is made")
    group("after_another_failure", list(following()))
