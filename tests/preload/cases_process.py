# SPDX-License-Identifier: Apache-2.0
"""Switches and files, processes that are none of the shim's business, and the shared object itself."""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys

from cases_calls import ALL, three
from cases_memory import probe
from harness import Skip, case, check, equal, execute, job, outcome, policy, setup

QUESTIONS = re.compile(
    r"(ncclGetVersion|ncclCommUserRank|ncclCommCount|cuStreamIsCapturing|cuCtxGetCurrent|cuCtxGetDevice|"
    r"cuDeviceGetAttribute|cuMemGetAllocationGranularity) ")
JOB = ("--op", ALL, "--calls", 6, "--redop", "avg", "--mixed")


def real_calls(result, rank, questions=True):
    """The record of calls, whatever the addresses are."""
    lines = (re.sub(r"0x[0-9a-f]+|\(nil\)", "P", line) for line in result.trace[str(rank)])
    return [line for line in lines if questions or not QUESTIONS.match(line)]


@case("inert")
def switched_off():
    without = job(2, *JOB, shim="", agree=False)
    under = job(2, *JOB, env={"SYMMSHIM": "off"}, agree=False)
    for rank in range(2):
        equal(real_calls(under, rank), real_calls(without, rank), f"rank {rank}: real calls")
    equal(under.audit, {}, "audit logs")


@case("inert")
def watching_only():
    without = job(2, *JOB, shim="", agree=False)
    under = job(2, *JOB, env={"SYMMSHIM": "audit"})
    for rank in range(2):
        equal(real_calls(under, rank, False), real_calls(without, rank, False), f"rank {rank}: real calls")
    outcome(under, 2, three("audit_only", "audit_only", "audit_only"))
    equal(under.events(0, "start")[0]["mode"], "audit", "mode")


@case("inert")
def unknown_switch():
    result = job(2, *JOB, env={"SYMMSHIM": "yes"}, agree=False, stderr=r"([^\n]*SYMMSHIM=yes is none of [^\n]*\n){2}")
    equal(result.audit, {}, "audit logs")


@case("inert", "bad_policy", content="[shim]\naudit = call\n[arena]\nenable = perhaps\n", line=4)
@case("inert", "bad_policy_section", content="[arenas]\n", line=1)
def bad_policy(content, line):
    """One line says where; the job runs as without the shim, down to its exit status."""
    without = job(2, *JOB, "--status", 3, shim="", agree=False, status=3)
    under = job(2, *JOB, "--status", 3, status=3, text=content, agree=False,
                stdout=r"(job: rank \d of 2: 6 calls, all right\n){2}",
                stderr=rf"([^\n]*/policy:{line}: [^\n]+\n){{2}}")
    for rank in range(2):
        equal(real_calls(under, rank, False), real_calls(without, rank, False), f"rank {rank}: real calls")
        equal({reason for _, reason in under.outcomes(rank)}, {"bad_policy"}, "reasons")


@case("inert")
def missing_policy():
    job(2, *JOB, env={"SYMMSHIM_POLICY": "{folder}/none"}, agree=False, stderr=r"([^\n]*/none:0: [^\n]+\n){2}")


@case("inert")
def built_in_policy():
    """It serves PyTorch's allocator only, and what was measured to be faster."""
    result = job(2, "--op", ALL, "--calls", 6, env={"SYMMSHIM_POLICY": None}, agree=False)
    equal(result.calls_of(0, "cuMemCreate"), [], "VMM allocations")
    equal({reason for _, reason in result.outcomes(0)}, {"policy"}, "reasons")


@case("inert", "other_program", command=["/bin/true"])
@case("inert", "other_shell", command=["bash", "-c", "for i in 1 2 3; do /bin/true | cat; done"])
@case("inert", "other_python", command=[sys.executable, "-c", "import json, subprocess; subprocess.run(['true'])"])
def other_program(command):
    """No CUDA library anywhere, and nothing to be seen of the shim."""
    result = execute(command, shim=setup.shim, env={"LD_LIBRARY_PATH": None}, stdout="")
    equal((result.audit, result.trace), ({}, {}), "files")


@case("inert")
def only_linked():
    """A program that has the libraries and calls none of their functions."""
    result = execute([setup.probe, "nothing"], shim=setup.shim, status=64, stderr="probe: not understood\n")
    equal(result.audit, {}, "audit logs")


@case("inert")
def forked_child():
    result = probe("fork")
    equal(len({line["pid"] for line in result.audit["-1"]}), 1, "processes in the audit log")


@case("inert")
def forked_child_that_exits():
    """It has no communicators to speak of."""
    result = job(2, *JOB, "--fork")
    for rank in range(2):
        equal(len({line["pid"] for line in result.audit[str(rank)]}), 1, "processes in the audit log")


@case("inert")
def child_that_starts_by_itself():
    result = probe("fork-early")
    equal(len(result.audit["-1"]), 1, "lines of the audit log")


@case("inert")
def absent_function():
    """The shim has a function that this NCCL lacks: who finds it is told that it cannot be used."""
    result = execute([setup.probe, "absent"], shim=setup.shim)
    equal(result.stdout, "ncclCommGrow: 5\n", "what the call gives")


# The audit log.

@case("audit")
def names():
    """%h, %p and %r."""
    seen = []

    def look(folder, result):
        seen.extend(path.name for path in folder.iterdir() if path.name.startswith("log-"))
        for path in folder.glob("log-*"):
            equal(path.stat().st_mode & 0o7777, 0o600, "mode")
            path.unlink()

    result = job(2, "--op", ALL, env={"SYMMSHIM_AUDIT": "{folder}/log-%h-%r-%p"}, agree=False, after=look)
    host = re.escape(socket.gethostname())
    equal(len(seen), 2, "audit logs")
    check(all(re.fullmatch(rf"log-{host}-[01]-\d+", name) for name in seen), f"names: {seen}")
    equal(result.audit, {}, "other audit logs")


@case("audit")
def appended():
    """Several processes may write to one file, and it may be there already."""
    lines = []

    def look(folder, result):
        path = folder / "log"
        lines.extend(path.read_text().splitlines())
        path.unlink()

    job(3, "--op", ALL, "--calls", 9, env={"SYMMSHIM_AUDIT": "{folder}/log"}, agree=False, after=look,
        files={"log": "a line that was there\n"})
    equal(lines[0], "a line that was there", "the first line")
    check(all(re.fullmatch(r'\{"schema":1,"event":".*\}', line) for line in lines[1:]), "whole lines")
    equal(sum('"event":"call"' in line for line in lines), 27, "calls")


@case("audit", "link", prepare="ln -s target log")
@case("audit", "folder", prepare="mkdir log")
@case("audit", "fifo", prepare="mkfifo log")
@case("audit", "absent_folder", prepare="true", log="absent/log")
@case("audit", "foreign", prepare="touch log && chown 12345 log")
def refused(prepare, log="log"):
    """One line says so, and the job goes on, symmetric as before."""

    def look(folder, result):
        equal(folder.joinpath("target").exists(), False, "the link's target")
        subprocess.run(["rm", "-rf", "log"], cwd=folder, check=True)

    if "chown" in prepare and os.geteuid() != 0:
        raise Skip("not root")
    result = execute(
        ["sh", "-c", f'{prepare} && exec "$@"', "sh", setup.ranks, "-n", "2", "-t", "60", "--", setup.job, "--op", ALL],
        shim=setup.shim, env={"SYMMSHIM_AUDIT": f"{{folder}}/{log}", "SIM_DEVICES": "2"}, after=look,
        stdout=r"(job: [^\n]*all right\n){2}",
        stderr=rf"([^\n]*SYMMSHIM WARN [^\n]*/{log}: [^\n]*SYMMSHIM_AUDIT[^\n]*\n){{2}}")
    equal({symmetric for symmetric, _, _ in result.notes(0)}, {True}, "symmetric")


@case("audit")
def full_disk():
    """A log that cannot be written is told of once; the job goes on."""

    mount = "mkdir -p small && mount -t tmpfs -o size=8k tmpfs small"
    if execute(["unshare", "-m", "sh", "-c", f"{mount} && umount small && rmdir small"], status=None,
               stderr=".*").status != 0:
        raise Skip("file systems cannot be mounted here")
    job(2, "--op", ALL, "--calls", 60, wrap=["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"], agree=False,
        env={"SYMMSHIM_AUDIT": "{folder}/small/log-%r"}, after=lambda folder, result: folder.joinpath("small").rmdir(),
        stderr=r"([^\n]*SYMMSHIM WARN the audit log could not be written: [^\n]*\n){2}")


@case("audit")
def levels():
    result = job(2, "--op", "all_gather", "--calls", 6, text=policy(audit="summary"), agree=False)
    equal([line["event"] for line in result.audit["0"]], ["start", "comm", "window", "comm", "summary"],
          "events")
    result = job(2, "--op", "all_gather", "--calls", 6, text=policy(audit="change"), agree=False)
    equal([line["event"] for line in result.audit["0"]], ["start", "comm", "window", "call", "comm", "summary"],
          "events")
    result = job(2, "--op", "all_gather", "--calls", 6, "--diverge", "offset", text=policy(audit="change"),
                 agree=False)
    equal(result.sequence(0), ["window", "ranks_differ"] * 3, "changes")


# The shared object.

def output(*command):
    if not shutil.which(command[0]):
        raise Skip(f"no {command[0]}")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def plain_build():
    if setup.runtime:
        raise Skip("a sanitizer adds to the object")


@case("exports")
def exported_names():
    plain_build()
    names = sorted(line.split()[-1] for line in output("nm", "-D", "--defined-only", setup.shim).splitlines())
    golden = pathlib.Path(__file__).with_name("exports.golden").read_text().split()
    equal(names, sorted(golden + [f"ncclProfiler_v{version}" for version in (4, 5, 6)]), "exported names")


@case("exports")
def no_version_definitions():
    plain_build()
    text = output("readelf", "-VW", setup.shim)
    check("Version definition" not in text and ".gnu.version_d" not in text, "version definitions")


@case("exports")
def needed_libraries():
    plain_build()
    text = output("readelf", "-dW", setup.shim)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", text))
    check(needed <= {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}, f"libraries: {sorted(needed)}")
    for word in ("TEXTREL", "RPATH", "RUNPATH"):
        check(word not in text, word)
    check("BIND_NOW" in text and "NODELETE" in text, "BIND_NOW and NODELETE")


@case("exports")
def segments():
    plain_build()
    text = output("readelf", "-lW", setup.shim)
    check("GNU_RELRO" in text, "RELRO")
    check(re.search(r"GNU_STACK.* RW ", text), "a stack that is not executable")
    check(not re.search(r"LOAD.* RWE ", text), "no segment is both written and executed")


@case("exports")
def undefined_names():
    """Only glibc's, and nothing newer than the oldest system that is served."""
    plain_build()
    names = [line.split()[-1] for line in output("nm", "-D", "--undefined-only", setup.shim).splitlines()]
    weak = {"__cxa_finalize", "__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"}
    odd = [name for name in names if "@GLIBC_" not in name and name not in weak]
    equal(odd, [], "names that are not of glibc")
