# SPDX-License-Identifier: Apache-2.0
"""What NCCL itself was seen to do, beside what the shim arranged; and an audit log that never harms the job."""

import json
import os
import re
import time

from harness import case, check, equal, execute, job, policy, setup

ALL = "all_gather,reduce_scatter,all_reduce"
NAMES = {"all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "all_reduce": "AllReduce"}
INTERFACES = {"22707": 4, "22809": 5, "22903": 6, "23007": 6}
OWN = r"([^\n]*SYMMSHIM WARN verify = on: the job has a profiler of its own [^\n]*\n){2}"


def verified(**keys):
    return policy(verify="on", **keys)


def seen(result, rank):
    """What was observed, call by call: as the log says, and as the library's record has it."""
    done = ["symmetric" if symmetric else "plain" for symmetric, _, _ in result.notes(rank)]
    return [call["observed"] for call in result.events(rank, "call")], done


def summed(result, rank):
    """The last summaries' counts of calls: arranged, observed symmetric, plain, mismatched."""
    last = {line["op"]: line for line in result.events(rank, "summary")}.values()
    return tuple(sum(line[key] for line in last) for key in (
        "window_calls", "observed_symmetric_calls", "observed_plain_calls", "mismatched_calls"))


def interfaces(result, rank):
    return {line for line in result.trace[str(rank)] if line.startswith("profiler ")}


@case("verify", "v4", version="22707")
@case("verify", "v5", version="22809")
@case("verify", "v6", version="22903")
@case("verify", "newest", version="23007")
def observed(version):
    """Ranks that differ at some calls: both kinds occur, and the log says of each what the library did."""
    result = job(2, "--op", ALL, "--calls", 12, "--diverge", "offset", text=verified(),
                 env={"SIM_NCCL_VERSION": version}, agree=False)
    for rank in range(2):
        equal(interfaces(result, rank), {f"profiler v{INTERFACES[version]}"}, "the interface that was taken")
        said, done = seen(result, rank)
        equal(said, done, f"rank {rank}: observed")
        equal(set(said), {"symmetric", "plain"}, "kinds that occur")
        window, symmetric, plain, mismatched = summed(result, rank)
        equal((window, symmetric, plain, mismatched), (said.count("symmetric"), said.count("symmetric"),
              said.count("plain"), 0), f"rank {rank}: summary")


@case("verify", "missing_kernel_v4", version="22707")
@case("verify", "missing_kernel_v5", version="22809")
@case("verify", "missing_kernel_v6", version="22903")
def missing_kernel(version):
    """NCCL goes plain on windows: what the shim arranged is not what it did, and the report says so."""
    texts = []

    def report(folder, result):
        tool = os.path.join(os.path.dirname(setup.job), "../../tools/symmshim")
        logs = [str(path) for path in folder.glob("audit.*")]
        texts.append(execute([tool, "report", *logs], stdout=".*", stderr=r"[^\n]*MISMATCH: 6 reduce_scatter [^\n]*\n").stdout)

    result = job(2, "--op", ALL, "--calls", 9, text=verified(), agree=False, after=report,
                 env={"SIM_NCCL_VERSION": version, "SIM_NO_KERNEL": "ReduceScatter"})
    for rank in range(2):
        said, done = seen(result, rank)
        equal(said, done, f"rank {rank}: observed")
        for call in result.events(rank, "call"):
            equal(call["path"], "window", "path")
            equal(call["observed"], "plain" if call["op"] == "reduce_scatter" else "symmetric", call["op"])
        equal(summed(result, rank), (9, 6, 3, 3), f"rank {rank}: summary")
    check("MISMATCH: 6 reduce_scatter calls were put on windows" in texts[0], f"the report: {texts[0]}")
    check("MISMATCH: 6 all" not in texts[0], f"the report: {texts[0]}")


@case("verify")
def not_asked():
    """Without verify = on no profiler is loaded, and nothing is observed."""
    result = job(2, "--op", ALL, "--calls", 6)
    for rank in range(2):
        equal(interfaces(result, rank), set(), "interfaces")
        equal(set(seen(result, rank)[0]), {None}, "observed")
        equal(summed(result, rank)[1:], (0, 0, 0), "summary")


@case("verify", "none", plugin="none")
@case("verify", "other", plugin="libabsent-profiler.so")
def own_profiler(plugin):
    """The job's own is left alone."""
    result = job(2, "--op", ALL, "--calls", 6, text=verified(), env={"NCCL_PROFILER_PLUGIN": plugin}, stderr=OWN)
    for rank in range(2):
        equal(interfaces(result, rank), set(), "interfaces")
        equal(set(seen(result, rank)[0]), {None}, "observed")


@case("verify", "conf_home", file=".nccl.conf", env={})
@case("verify", "conf_named", file="conf", env={"NCCL_CONF_FILE": "{folder}/conf"})
def own_profiler_in_file(file, env):
    files = {file: "# a comment\nNCCL_DEBUG=WARN\nNCCL_PROFILER_PLUGIN=other\n"}
    result = job(2, "--op", ALL, "--calls", 6, text=verified(), files=files, env=env, stderr=OWN)
    equal(interfaces(result, 0), set(), "interfaces")


@case("verify")
def inherited():
    """A process that a verified one started has the variable already, and it is the shim's."""
    result = job(2, "--op", ALL, "--calls", 6, text=verified(), env={"NCCL_PROFILER_PLUGIN": setup.shim})
    equal(seen(result, 0)[0], ["symmetric"] * 6, "observed")


@case("verify")
def unasked_plugin():
    """NCCL is sent to the shim by somebody else: it asks for no events."""
    result = job(2, "--op", ALL, "--calls", 6, env={"NCCL_PROFILER_PLUGIN": setup.shim})
    equal(interfaces(result, 0), {"profiler v5"}, "interfaces")
    equal(set(seen(result, 0)[0]), {None}, "observed")


@case("verify", "capture", extra=["--capture", "2"])
@case("verify", "nonblocking", extra=["--init", "nonblocking", "--diverge", "offset"])
def told_later(extra):
    """What is only captured or queued when the call returns is never said to be symmetric because nothing was heard."""
    result = job(2, "--op", ALL, "--calls", 6, *extra, text=verified(), agree=False, stderr=".*")
    for rank in range(2):
        for call in result.events(rank, "call"):
            check(call["observed"] != "symmetric" or not (call["capture"] or call["path"] == "plain"), f"{call}")
        equal(summed(result, rank)[3], 0, "mismatched")


@case("verify")
def changes():
    """Another observation is a change, and is logged: of a call that is captured nothing is known."""
    result = job(2, "--op", "all_gather", "--calls", 6, "--capture", 2, text=verified(audit="change"), agree=False,
                 stderr=".*")
    lines = [(call["path"], call["capture"], call["observed"]) for call in result.events(0, "call")]
    equal(lines, [("window", False, "symmetric"), ("window", True, None)], "lines")


# The log against the world.

def lost(result, rank, count):
    got = [line["lost"] for line in result.events(rank, "summary")]
    check(got and count(got[-1]), f"lost: {got}")


@case("sink")
def size_limit():
    """Beyond RLIMIT_FSIZE a write raises SIGXFSZ, which ends a process that does not expect it."""
    sizes = []

    def look(folder, result):
        text = (folder / "log").read_text()
        (folder / "log").unlink()
        sizes.append(len(text))
        check([json.loads(line) for line in text.splitlines()[:-1]], "whole lines")

    execute([setup.descriptors, "--limit", "4096"], shim=setup.shim, stdout=r"descriptors: limited\n", after=look,
            env={"SIM_DEVICES": "2", "SIM_TRACE": None, "SYMMSHIM_AUDIT": "{folder}/log"}, text=policy(),
            stderr=r"[^\n]*SYMMSHIM WARN the audit log could not be written: [^\n]*\n")
    check(2048 < sizes[0] <= 4096, f"sizes: {sizes}")


@case("sink", "closed", arguments=[])
@case("sink", "closed_and_taken", arguments=["{folder}/taken"])
def closed_descriptor(arguments):
    """The job closed it: the log goes on, and a file of the job's that has the number gets none of its lines."""
    result = execute([setup.descriptors, *arguments], shim=setup.shim, files={"taken": ""},
                     stdout=r"descriptors: 1 closed\n", text=policy(),
                     env={"SIM_DEVICES": "2", "RANK": "0", "SIM_TRACE": None})
    equal([line["event"] for line in result.audit["0"]], ["start", "comm", "call", "call", "summary"], "events")
    lost(result, 0, lambda count: count == 0)


@case("sink")
def rotation():
    """FILE and FILE.1, neither above the limit, with the newest lines; several processes in one file."""
    sizes, events = {}, []

    def look(folder, result):
        for path in folder.glob("log*"):
            sizes[path.name] = path.stat().st_size
            events.extend(json.loads(line)["event"] for line in path.read_text().splitlines())
            equal(path.stat().st_mode & 0o7777, 0o600, "mode")
            path.unlink()

    job(3, "--op", ALL, "--calls", 60, text=policy(audit_max="16K"), agree=False, after=look,
        env={"SYMMSHIM_AUDIT": "{folder}/log"})
    equal(set(sizes), {"log", "log.1"}, "files")
    check(all(size <= 16384 + 3 * 2048 for size in sizes.values()), f"sizes: {sizes}")
    equal(events.count("summary"), 9, "summaries")


@case("sink")
def no_rotation():
    result = job(2, "--op", ALL, "--calls", 60)
    equal(len(result.events(0, "call")), 60, "calls")
    lost(result, 0, lambda count: count == 0)


def stderr_program(script):
    before = time.monotonic()
    execute(["sh", "-c", script, "sh", setup.ranks, "-n", "2", "-t", "60", "--", setup.job, "--op", ALL,
                    "--calls", "9"], shim=setup.shim, env={"SIM_DEVICES": "2", "SYMMSHIM_DEBUG": "TRACE"},
                   stdout=r"(job: [^\n]*all right\n){2}(STATUS 0\n)?", stderr=".*")
    check(time.monotonic() - before < 15, "it waited for the reader")


@case("sink")
def nobody_reads_stderr():
    """A pipe without a reader: messages are dropped, and no SIGPIPE ends the job."""
    stderr_program('exec 3>&1; ("$@" 2>&1 >&3; echo "STATUS $?" >&3) | true')


@case("sink")
def stderr_is_full():
    """A full pipe whose reader sleeps: messages are dropped, and the job does not wait."""
    script = ('mkfifo pipe; (exec 4<pipe; sleep 20) & reader=$!; exec 5>pipe; '
              'dd if=/dev/zero bs=4096 count=16 2>/dev/null >&5; "$@" 2>&5; status=$?; kill $reader; rm pipe; '
              'exit $status')
    stderr_program(script)


# Fields of the lines.

@case("audit")
def times():
    """When the call was made, and how long NCCL took for it: 0.3 s longer for the one that is delayed."""
    result = job(2, "--op", ALL, "--calls", 9, env={"SIM_DELAY": "ncclReduceScatter:2=300"})
    for call in result.events(0, "call"):
        late = 0.3 if call["seq"] == 5 else 0
        took = call["call_ns"] / 1e9
        check(late <= took < late + 0.2, f"call_ns: {call}")
        check(abs(call["time"] - call["start_ns"] / 1e9 - call["host_ns"] / 1e9 - took) < 0.1, f"start_ns: {call}")
        equal(call["since"], 0, "since")


@case("audit")
def drop():
    """Windows that are given up."""
    result = job(2, "--op", "all_gather", "--calls", 6, "--pressure", env={"SIM_DEVICE_MEMORY": "128M"})
    for rank in range(2):
        drops = result.events(rank, "drop")
        equal([line["reason"] for line in drops], ["given_up"], f"rank {rank}: drops")
        equal(drops[0]["comm"], result.events(rank, "call")[0]["comm"], "communicator")
        check(drops[0]["retry_at"] >= 1000, f"retry_at: {drops}")


@case("audit")
def since():
    """How many calls of a kind there were since the line before it."""
    result = job(2, "--op", "all_gather", "--calls", 10, "--late", "1:6:6:1000", agree=False,
                 text=policy(audit="change", agree_us=250000))
    for rank in range(2):
        lines = [(call["seq"], call["reason"] or call["path"], call["since"]) for call in result.events(rank, "call")]
        equal(lines, [(1, "window", 0), (7, "agree_timeout", 5), (8, "window", 0)], f"rank {rank}: since")


@case("audit")
def sums():
    """Bytes by reason, and the time spent in the shim, are the calls' own sums."""
    result = job(2, "--op", ALL, "--calls", 12, "--diverge", "offset")
    for rank in range(2):
        for line in result.events(rank, "summary"):
            calls = [call for call in result.events(rank, "call") if call["op"] == line["op"]]
            equal(line["host_ns"], sum(call["host_ns"] for call in calls), "host_ns")
            for reason, number in line["plain"].items():
                plain = [call["bytes"] for call in calls if call["reason"] == reason]
                equal((number, line["plain_bytes"][reason]), (len(plain), sum(plain)), reason)


@case("audit")
def whence():
    """The scheduler's name for the job, and the file of the NCCL that is used."""
    result = job(2, "--op", ALL, env={"SLURM_JOB_ID": "4711"})
    equal(result.events(0, "start")[0]["job"], "4711", "job")
    for line in result.events(0, "comm"):
        equal(os.path.realpath(line["library"]), os.path.realpath(os.path.join(setup.sim, "libnccl.so.2")), "library")
    equal(job(2, "--op", ALL).events(0, "start")[0]["job"], None, "job")


def in_one_line(result):
    """What rank 0 says at its end, and nobody else."""
    said = re.findall(r"SYMMSHIM INFO (\w+ \d+/\d+ symmetric[^\n]*), setup (\d+\.\d) s\n", result.stderr)
    equal(len(said), 1, f"lines about all calls in {result.stderr}")
    return said[0][0]


@case("audit")
def totals():
    """One line at the end of the job: of all communicators, ended and left, and of all ranks the first alone."""
    told = {"env": {"SYMMSHIM_DEBUG": "INFO"}, "stderr": ".*"}
    result = job(2, "--op", ALL, "--calls", 12, **told)
    equal(in_one_line(result), "all_gather 4/4 symmetric, reduce_scatter 4/4, all_reduce 4/4", "line")
    result = job(2, "--op", ALL, "--calls", 12, "--end", "exit", "--dtype", "int32", **told)
    equal(in_one_line(result), "all_gather 4/4 symmetric, reduce_scatter 0/4 (4 dtype), all_reduce 0/4 (4 dtype)", "line")
    result = job(3, "--op", "all_gather,reduce_scatter", "--calls", 24, "--diverge", "offset", **told)
    sums = {}
    for call in result.events(0, "call"):
        symmetric, calls, reasons = sums.setdefault(call["op"], [0, 0, {}])
        if call["reason"]:
            reasons[call["reason"]] = reasons.get(call["reason"], 0) + 1
        sums[call["op"]][:2] = symmetric + (not call["reason"]), calls + 1
    check(any(reasons for _, _, reasons in sums.values()), f"a reason: {sums}")
    for op, (symmetric, calls, reasons) in sums.items():
        check(re.search(rf"\b{op} {symmetric}/{calls}\b", in_one_line(result)), f"{op}: {symmetric} of {calls}")
        for reason, number in sorted(reasons.items(), key=lambda item: -item[1])[:3]:
            check(f"{number} {reason}" in in_one_line(result), f"{op}: {number} {reason}: {in_one_line(result)}")
    quiet = job(2, "--op", ALL, "--calls", 3, stderr=".*")
    equal(re.findall("symmetric", quiet.stderr), [], "lines without SYMMSHIM_DEBUG")
