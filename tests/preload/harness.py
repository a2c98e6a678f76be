# SPDX-License-Identifier: Apache-2.0
"""Runs a program under the shim on the simulated GPUs and collects what it left: output, audit log, record of calls.

Every run is checked for what holds in all of them: nothing on stdout but the program's own, nothing on stderr that
the case did not ask for, no shared-memory object and no file left behind, and audit log and record of calls in
agreement on which calls went symmetric.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

LONG_US = 10_000_000  # the longest agree_us there is: a busy machine times out in no case that does not want it
OPS = {"AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "AllReduce": "all_reduce"}
TIMED = {"agree_us", "setup_ms", "warn_s"}
NOTE = re.compile(r"\[(Symmetric|Plain)\] (\w+) bytes=(\d+) comm=(\S+)")


NO_ARENA = r"[^\n]*SYMMSHIM WARN no memory came from the arena, [^\n]*\n"


class Failure(Exception):
    pass


class Skip(Exception):
    pass


class Setup:
    """Where things are; filled from the command line."""

    slower = 1  # by how much a sanitizer slows the jobs down, and all that is timed has to be longer


setup = Setup()
cases = collections.OrderedDict()
further = collections.Counter()  # of cases that are many: what has to be added to their own verdicts


def case(group, name=None, **arguments):
    """Registers a function as a case; with several decorations it is several cases."""

    def register(function):
        full = f"{group}/{name or function.__name__}"
        if full in cases:
            raise RuntimeError(f"two cases are named {full}")
        cases[full] = (group, lambda: function(**arguments))
        return function

    return register


def check(condition, text):
    if not condition:
        raise Failure(text)


def equal(got, wanted, what):
    check(got == wanted, f"{what}:\n      is  {got}\n      not {wanted}")


def policy(shim="", arena="", rules=None, **keys):
    """A policy file's text: everything goes symmetric that can."""
    settings = {
        "agree_us": LONG_US,
        "setup_ms": 60000,
        "child_memory": "16M",
        "window_memory": "1M",
        "warn_s": 0,
        "audit": "call",
    }
    settings.update(keys)
    for key in TIMED.intersection(keys):
        settings[key] = min(keys[key] * setup.slower, LONG_US)
    if rules is None:
        rules = "[rule all]\npath = window\nrewrite = post_scale\n"
    lines = [f"{key} = {value}\n" for key, value in settings.items()]
    return f"[shim]\n{''.join(lines)}{shim}[arena]\ncallers = *\nmin_bytes = 1M\n{arena}{rules}"


def shared_objects():
    return {name for name in os.listdir("/dev/shm") if name.startswith("symmshim")}


class Result:
    def __init__(self, folder, process):
        self.status = process.returncode
        self.stdout = process.stdout
        self.stderr = process.stderr
        self.audit = {}
        self.trace = {}
        for path in sorted(folder.iterdir()):
            kind, _, rank = path.name.partition(".")
            if kind == "audit":
                self.audit[rank] = [json.loads(line) for line in path.read_text().splitlines()]
                equal(path.stat().st_mode & 0o7777, 0o600, f"mode of {path.name}")
            elif kind == "trace":
                self.trace[rank] = path.read_text().splitlines()

    def events(self, rank, event):
        return [line for line in self.audit.get(str(rank), []) if line["event"] == event]

    def outcomes(self, rank):
        """How many calls of each op ended how: by the path, or by the reason when plain."""
        counts = collections.Counter()
        for call in self.events(rank, "call"):
            check((call["path"] == "plain") == (call["reason"] is not None), f"path and reason: {call}")
            counts[call["op"], call["reason"] or call["path"]] += 1
        return dict(counts)

    def sequence(self, rank):
        """The calls' outcomes, in order."""
        return [call["reason"] or call["path"] for call in self.events(rank, "call")]

    def notes(self, rank):
        """What the library did, call by call: (symmetric?, op, communicator)."""
        found = (NOTE.match(line) for line in self.trace.get(str(rank), []))
        return [(m[1] == "Symmetric", OPS[m[2]], m[4]) for m in found if m and m[2] in OPS]

    def calls_of(self, rank, function):
        return [line for line in self.trace.get(str(rank), []) if line.startswith(function + " ")]


def agrees(result):
    """The audit log says window or staged exactly where the library went symmetric; and only children ever do."""
    for rank, trace in result.trace.items():
        jobs_own = {m[1] for m in (re.match(r"ncclCommUserRank comm=(\S+)", line) for line in trace) if m}
        notes = result.notes(rank)
        calls = [c for c in result.events(rank, "call") if c["reason"] != "empty" and c["count"]]
        said = collections.Counter((call["path"] != "plain", call["op"]) for call in calls)
        done = collections.Counter((symmetric, op) for symmetric, op, _ in notes)
        equal(done, said, f"rank {rank}: what the library did, against the audit log")
        for symmetric, _, comm in notes:
            check(symmetric != (comm in jobs_own), f"rank {rank}: the {'job' if symmetric else 'child'}'s communicator "
                  f"made a {'symmetric' if symmetric else 'plain'} call")


def environment(folder, shim, text, extra):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SYMMSHIM", "NCCL_", "SIM_", "LD_"))}
    env.update(TMPDIR=str(folder), HOME=str(folder), LD_LIBRARY_PATH=setup.sim, SIM_TRACE=f"{folder}/trace.%r")
    if shim:
        (folder / "policy").write_text(text if text is not None else policy())
        env.update(
            LD_PRELOAD=" ".join(filter(None, [setup.runtime, shim])),
            SYMMSHIM_POLICY=f"{folder}/policy",
            SYMMSHIM_AUDIT=f"{folder}/audit.%r",
        )
    if setup.runtime:
        # Programs that no sanitizer was built into may leak as they like.
        env["ASAN_OPTIONS"] = "detect_leaks=0:" + env.get("ASAN_OPTIONS", "")
    for key, value in extra.items():
        if value is None:
            env.pop(key, None)
        else:
            env[key] = value.replace("{folder}", str(folder))
    return env


def run_until(command, until, timeout, **how):
    """Asks the command to end as soon as its stderr has the pattern `until`, however long that took."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, **how) as process:
            end = time.monotonic() + timeout
            while process.poll() is None and time.monotonic() < end:
                if re.search(until, os.pread(err.fileno(), 1 << 20, 0).decode(errors="replace")):
                    process.terminate()
                    process.wait()
                time.sleep(0.02)
            process.kill()
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, out.read(), err.read())


def execute(command, *, shim="", text=None, env=None, status=0, stdout=None, stderr=None, files=(), timeout=120,
            after=None, until=None):
    """Runs a command in a folder of its own. `stderr` is a pattern for the whole of it; None: it is to be empty."""
    before = shared_objects()
    with tempfile.TemporaryDirectory(prefix="symmshim-test-") as name:
        folder = pathlib.Path(name)
        for path, content in dict(files).items():
            (folder / path).write_text(content)
        words = [part.replace("{folder}", name) for part in command]
        how = {"cwd": folder, "env": environment(folder, shim, text, env or {})}
        if until:
            process = run_until(words, until, timeout, **how)
        else:
            process = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                                     check=False, **how)
        problem = None
        try:
            result = Result(folder, process)
            if after:
                after(folder, result)
        except (Failure, json.JSONDecodeError) as error:
            problem = error
        left = {path.name for path in folder.iterdir()} - {"policy"} - set(dict(files))
    try:
        if problem:
            raise problem
        if status is not None:
            check(process.returncode in (status if isinstance(status, tuple) else (status,)),
                  f"status is {process.returncode}, not {status}")
        if stdout is not None:
            check(re.fullmatch(stdout, process.stdout, re.DOTALL), f"stdout is not of the form {stdout!r}")
        check(re.fullmatch(stderr or "", process.stderr, re.DOTALL), f"stderr is not of the form {stderr!r}")
        odd = {path for path in left if not re.fullmatch(r"(audit|trace)\.(\d+|none|-1)", path)}
        check(not odd, f"files are left behind: {sorted(odd)}")
        remains(before)
    except (Failure, json.JSONDecodeError) as error:
        raise Failure(f"{error}\n    command: {' '.join(command)}\n    stdout: {process.stdout[-2000:]}\n"
                      f"    stderr: {process.stderr[-2000:]}") from error
    return result


def mapped_objects():
    """Those that a living process has."""
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.update(re.findall(r"/dev/shm/(symmshim\S*)", pathlib.Path("/proc", process, "maps").read_text()))
        except OSError:  # it has ended meanwhile
            continue
    return found


def remains(before):
    """Other tests on this machine have objects of their own, mapped by their jobs; ours have ended."""
    left = shared_objects() - before
    end = time.monotonic() + 3
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left &= shared_objects()
    left -= mapped_objects()
    if not left:
        return
    raise Failure(f"shared memory is left behind: {sorted(left)}")


def lengthened(arguments):
    """The job's own times, in milliseconds, where everything takes longer."""
    words = list(map(str, arguments))
    for i in range(1, len(words)):
        if words[i - 1] in ("--late", "--abort-after"):
            start, colon, time_ms = words[i].rpartition(":")
            words[i] = f"{start}{colon}{int(time_ms) * setup.slower}"
    return words


def job(nranks, *arguments, shim=None, env=None, status=0, seconds=None, wrap=(), agree=True, program=None, stdout=None,
        **rest):
    """The job on `nranks` processes. Each says one line, and no more, unless the case is about something else."""
    seconds = seconds * setup.slower if seconds else setup.seconds
    full = {"SIM_DEVICES": str(max(nranks, 2))}
    full.update(env or {})
    program = program or [setup.job]
    if stdout is None:
        stdout = r"(job: rank \d+ of \d+: \d+ calls, all right\n){%d}" % nranks if status == 0 else ".*"
    command = [setup.ranks, "-n", str(nranks), "-t", str(seconds), "--", *wrap, *program, *lengthened(arguments)]
    result = execute(command, shim=setup.shim if shim is None else shim, env=full, status=status, stdout=stdout,
                     timeout=seconds + 60, **rest)
    if agree:
        agrees(result)
    return result


def outcome(result, nranks, wanted, **by_rank):
    """`wanted` is what every rank's log has to say; r1={...} says it for rank 1 alone."""
    for rank in range(nranks):
        equal(result.outcomes(rank), by_rank.get(f"r{rank}", wanted), f"rank {rank}: outcomes")


def only_rank(rank, script):
    """A wrapper in which one rank first does something else: a line of shell, ending in nothing or in &&."""
    return ["sh", "-c", f'if [ "$RANK" = {rank} ]; then {script}; fi; exec "$@"', "sh"]
