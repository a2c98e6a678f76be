# SPDX-License-Identifier: Apache-2.0
"""
CUDA IPC between processes under the shim. Steps are those of ipc.c; most cases run them on plain memory without the
shim first, and the arena's memory has to give the same, code by code.
"""

import os
import re

from cases_hostile import steps
from harness import Skip, case, check, equal, execute, policy, setup

WARN = r"[^\n]*SYMMSHIM WARN {}[^\n]*\n"
NOT_TO_BE_HAD = "cudaIpcOpenMemHandle: memory of another process's arena is not to be had: "
ENDED = WARN.format(NOT_TO_BE_HAD + "its owner has ended, ")
FREED = WARN.format(NOT_TO_BE_HAD + "its owner has freed it")
UNOPENED = WARN.format(r"cudaIpcGetMemHandle gave out a handle [^\n]*`callers`[^\n]*`enable = no`")
SHARED = ("o alloc a 4194304", "o fill a 7", "o handle a 0 H")


def run(*words, shim=True, env=None, **rest):
    full = {"SIM_DEVICES": "2"}
    full.update(env or {})
    return execute([setup.ipc, *words], shim=setup.shim if shim else "", env=full, stdout=".*", **rest)


def said(result):
    """What each step gave."""
    return dict(line.split(": ", 1) for line in result.stdout.splitlines() if ": " in line)


def taken(result, rank):
    """Descriptors and mappings of other processes' memory, less those that went again."""
    counts = [len([line for line in result.calls_of(rank, name) if line.endswith("-> 0")])
              for name in ("cuMemImportFromShareableHandle", "cuMemMap", "cuMemUnmap", "cuMemCreate", "cuMemRelease")]
    imported, mapped, unmapped, created, released = counts
    return mapped - unmapped, imported + created - released


def both(*words, **rest):
    without = run(*words, shim=False, env=rest.get("env"))
    under = run(*words, **rest)
    equal(under.stdout, without.stdout, "what the steps give")
    check(under.calls_of(0, "cuMemMap"), "the owner's memory is the arena's")
    return under


@case("ipc")
def contents():
    result = both(*SHARED, "c open x H", "c read x 0 7", "c read x 1000000 7", "c fill x 9", "o read a 0 9",
                  "o fill a 5", "c read x 4096 5", "c close x", "o read a 0 5", "o free a")
    equal(taken(result, 1), (0, 0), "left in the process that opened it")
    equal(result.calls_of(0, "cudaIpcGetMemHandle") + result.calls_of(1, "cudaIpcOpenMemHandle"), [], "real calls")


@case("ipc")
def handle_is_the_allocations():
    """Whatever the pointer into it, and however often it is asked for; callers add the offset themselves."""
    result = both(*SHARED, "o handle a 1048576 I", "o handle a 0 J", "alike H I", "alike H J", "o alloc b 4194304",
                  "o handle b 0 K", "alike H K", "c open x I", "c read x 4096 7", "c close x")
    check("H and I: alike\nH and J: alike\n" in result.stdout.replace("o handle a 0 J: 0, last 0\n", ""), "alike")
    check("H and K: different" in result.stdout, "different")


@case("ipc")
def opened_twice():
    result = both(*SHARED, "c open x H", "c open y H", "c same x y", "c close x", "c read y 0 7", "c close y",
                  "c close y", "c open z H", "c read z 0 7", "c close z")
    equal(said(result)["c same x y"], "1", "one mapping")
    equal(said(result)["c read y 0 7"], "0 wrong", "after one of two closes")
    equal(taken(result, 1), (0, 0), "left")


@case("ipc")
def several_processes():
    both(*SHARED, "c open x H", "d open x H", "c fill x 3", "d read x 0 3", "c close x", "d read x 0 3", "d close x",
         "o alloc b 2097152", "o handle b 0 I", "d open y I", "d fill y 4", "o read b 0 4")


@case("ipc")
def both_ways():
    both(*SHARED, "c alloc b 4194304", "c fill b 8", "c handle b 0 I", "o open y I", "c open x H", "o read y 0 8",
         "c read x 0 7", "o close y", "c close x")


@case("ipc")
def misuse():
    """The same codes and last errors as with plain memory."""
    both(*SHARED, "c open x H 0", "c open x H 2", "c open x H 3", "c open x H", "c close x 512", "c free x",
         "c handle x 0 I", "c close x", "c close x", "o close a", "o free a", "o free a", "o handle a 0 I")


@case("ipc")
def small_memory_is_the_real_ones():
    words = ("o alloc a 4096", "o handle a 0 H", "c open x H", "c close x", "c close x")
    without, under = run(*words, shim=False), run(*words)
    equal(under.stdout, without.stdout, "what the steps give")
    equal(len(under.calls_of(1, "cudaIpcOpenMemHandle")), 1, "real calls")


@case("ipc")
def own_process():
    """The code is the real one's; the thread's last error is not set."""
    words = (*SHARED, "o open x H", "o read a 0 7")
    equal(said(run(*words, shim=False))["o open x H"], "201, last 201", "plain memory")
    equal(said(run(*words))["o open x H"], "201, last 0", "the arena's")


@case("ipc", "owner_ends", how="end")
@case("ipc", "owner_is_killed", how="kill")
def owner_ends(how):
    """Who has the memory keeps it; who asks later hears what the real runtime says of such a handle."""
    result = both(*SHARED, "c open x H", "d alloc b 4096", f"{how} o", "c read x 0 7", "c fill x 2", "c open y H",
                  "c same x y", "c close x", "c read y 0 2", "c close y", "d open x H", "c open x H", stderr=ENDED * 2)
    equal(taken(result, 1), (0, 0), "left")


@case("ipc")
def freed():
    """A new allocation has a new handle, wherever it lies; what is open stays."""
    words = (*SHARED, "d open x H", "o free a", "c open x H", "o alloc a 4194304", "o handle a 0 I", "alike H I")
    both(*words, stderr=FREED)
    result = run(*words, "o fill a 1", "d read x 0 7", "d close x", "c open y I", "c read y 0 1", stderr=FREED)
    equal(said(result)["d read x 0 7"], "0 wrong", "the old memory")
    equal(said(result)["c read y 0 1"], "0 wrong", "the new memory")


@case("ipc")
def parked_and_taken_again():
    """The job cannot tell that it is the memory of before; a handle of before is not to be taken for one of now."""
    line = "comm take:A=8 gather:0,A handle:A handle:A give:A take:A=8 handle:A"
    said_by = "".join(rf"(?=.*rank {rank}: new handle\n.*rank {rank}: same handle\n.*rank {rank}: new handle\n)"
                      for rank in range(2))
    result = steps(line, 2, stdout=rf"{said_by}(hostile: rank \d: (new handle|same handle|all right)\n){{8}}")
    for rank in range(2):
        equal(len([line for line in result.calls_of(rank, "cuMemUnmap") if line.endswith("-> 0")]), 1,
              f"rank {rank}: the memory was parked and goes at the end")


@case("ipc")
def another_user():
    """Both sides look: the one who opens, and the owner, whoever asks."""
    if os.geteuid() != 0:
        raise Skip("wants to become another user")
    words = (*SHARED, "c alloc b 4096", "c user", "c open x H")
    env = {"SIM_TRACE": None}  # whose file the other user could not write
    equal(said(run(*words, shim=False, env=env))["c open x H"], "400, last 400", "plain memory")
    refused = WARN.format("cudaIpcOpenMemHandle: another user asked ")
    # The one who opens does not wait for the owner, which may have ended before it has looked.
    refusal = WARN.format(NOT_TO_BE_HAD + "its owner is another user")
    result = run(*words, env=env, stderr=f"({refused})?{refusal}({refused})?")
    equal(said(result)["c open x H"], "400, last 400", "the arena's")
    asked = run(*SHARED, "c alloc b 4096", "c user", "c ask H", env=env, stderr=refused)
    equal(said(asked)["c ask H"], "no answer", "to another user")
    equal(said(run(*SHARED, "c ask H"))["c ask H"], "status 0 and a descriptor", "to the same user")


@case("ipc")
def garbled():
    """A bit that changed in whichever field makes it nobody's handle, and the real runtime's to refuse."""
    places = (0, 7, 8, 15, 16, 24, 31, 32, 40, 47, 48, 52, 56, 63)
    words = [word for at in places for word in (f"flip H {at} G", "c open x G", "c alloc b 4096")]
    result = run(*SHARED, *words)
    equal(result.stdout.count("c open x G: 400, last 400\n"), len(places), "refusals")
    equal(len(result.calls_of(1, "cudaIpcOpenMemHandle")), len(places), "real calls")


@case("ipc")
def forged():
    """So does a handle that is a right one in all but what it names."""
    result = run(*SHARED, *(step for at in (8, 16, 24, 32, 48, 52) for step in (f"forge H {at} G", "c ask G")))
    answers = re.findall(r"c ask G: (.*)", result.stdout)
    equal(answers, ["no connection: Connection refused", "status -13", "status -13", "status -116", "status -116",
                    "status -13"], "answers")
    result = run(*SHARED, "forge H 16 G", "c open x G", "forge H 40 G", "c open x G", "c open x H", "c read x 0 7",
                 "c close x", stderr=WARN.format(NOT_TO_BE_HAD))
    equal(re.findall(r"c open x .: (.*)", result.stdout), ["400, last 400", "1, last 0", "0, last 0"], "results")
    equal(taken(result, 1), (0, 0), "left")


@case("ipc")
def forked():
    """The child serves nobody, and nobody waits for it when the owner has ended."""
    result = run(*SHARED, "o fork", "c open x H", "c read x 0 7", "end o", "d open x H", stderr=ENDED)
    equal(said(result)["d open x H"], "400, last 400", "after the owner's end")


@case("ipc", "without_the_shim", how=("end o",))
@case("ipc", "without_the_shim_and_killed", how=("sleep {}", "kill o"))
def without_the_shim(how):
    """One line of the owner's says what is the matter, at its end or after `warn_s` seconds."""
    words = [word.format(5 * setup.slower) for word in how]
    result = run(*SHARED, "n open x H", *words, text=policy(warn_s=1), stderr=UNOPENED)
    equal(said(result)["n open x H"], "400, last 400", "result")
    check(not result.audit.get("1"), "the other process is without the shim")


@case("ipc")
def quiet():
    """Whose handles are opened says nothing."""
    run(*SHARED, "c open x H", "o handle a 0 I", "end o", text=policy(warn_s=1))
    run("o alloc a 4194304", "end o", text=policy(warn_s=1))


@case("ipc")
def descriptors():
    rounds = ("c open x H", "c read x 0 7", "c close x", "d open y H", "d close y") * 20
    result = run(*SHARED, *rounds[:5], "o fds", "c fds", *rounds, "forge H 32 G", "c open z G", "c close z", "o fds",
                 "c fds", stderr=FREED)
    equal(re.findall(r"fds: (.*)", result.stdout), ["0 more"] * 4, "descriptors")


@case("ipc")
def many():
    count = 60
    words = [word.format(i=i) for i in range(count) for word in ("o alloc a{i} 2097152", "o fill a{i} {i}",
                                                                "o handle a{i} 0 H{i}", "c open x{i} H{i}")]
    words += [f"c read x{i} 0 {i}" for i in range(count)] + [f"c close x{i}" for i in range(count)]
    result = both(*words)
    equal(result.stdout.count(": 0 wrong\n"), count, "right contents")
    equal(taken(result, 1), (0, 0), "left")


@case("ipc")
def threads():
    """Several open and close at the same time, in two processes."""
    result = both(*SHARED, "c threads H", "d threads H", "c open x H", "c threads H", "c read x 0 7", "c close x")
    equal(result.stdout.count(": 0 wrong\n"), 4, "right")
    for rank in (1, 2):
        equal(taken(result, rank), (0, 0), f"rank {rank}: left")


@case("ipc")
def another_device():
    """The memory is where the owner has it; who opens it may use another device, or several."""
    both(*SHARED, "c device 1", "c open x H", "c read x 0 7", "c fill x 6", "o read a 0 6", "c close x",
         "c alloc b 4194304", "c device 0", "c alloc d 4194304", "c open x H", "c read x 0 6", "c close x")


@case("ipc")
def socket_closed():
    """A program that closes what it did not open: its own file in that place is left alone."""
    result = run(*SHARED, "c open x H", "o closeall", "d open x H", "e open x H", "o fill a 1", "c read x 0 1",
                 "o free a", stderr=ENDED)
    equal(said(result)["o closeall"], "closed 1", "sockets")
    # The first one meets a wait that began before.
    equal((said(result)["d open x H"], said(result)["e open x H"]), ("0, last 0", "400, last 400"), "afterwards")


@case("ipc")
def owner_is_stopped():
    """The wait for it has an end."""
    result = run(*SHARED, "stop o", "c open x H", "go o", "c open x H", "c read x 0 7",
                 stderr=WARN.format(NOT_TO_BE_HAD + "its owner does not answer"))
    equal(re.findall(r"c open x H: (.*)", result.stdout), ["400, last 400", "0, last 0"], "results")


@case("ipc")
def watching_only():
    """With SYMMSHIM=audit memory is plain, and all calls are the real ones."""
    result = run(*SHARED, "c open x H", "c read x 0 7", "c close x", env={"SYMMSHIM": "audit"})
    equal((said(result)["c open x H"], len(result.calls_of(1, "cudaIpcOpenMemHandle"))), ("0, last 0", 1), "results")


# Faults: the call that fails, what opening and closing then give, and once more.
OPENS = ("c open x H", "c open x H", "c read x 0 7", "c close x")
IS_GONE = WARN.format(NOT_TO_BE_HAD + "Input/output error")


@case("ipc", "fault_export", fault="cuMemExportToShareableHandle:1@rank0=999", codes=(400, 0, 0), stderr=IS_GONE)
@case("ipc", "fault_import", fault="cuMemImportFromShareableHandle:1@rank1=999", codes=(999, 0, 0))
@case("ipc", "fault_map", fault="cuMemMap:1@rank1=2", codes=(2, 0, 0))
@case("ipc", "fault_access", fault="cuMemSetAccess:1@rank1=801", codes=(801, 0, 0))
@case("ipc", "fault_home", fault="cuMemGetAllocationPropertiesFromHandle:1@rank1=1", codes=(0, 0, 0, 0))
@case("ipc", "fault_release", fault="cuMemRelease:2@rank1=1", codes=(0, 0, 0, 0), again=True)
def fault(fault, codes, stderr=None, again=False):
    """Nothing is left over of an attempt that failed, and the next one works."""
    result = run(*SHARED, *OPENS, *(["c close x"] if len(codes) == 4 else []), env={"SIM_FAIL": fault}, stderr=stderr)
    found = [int(line.split(": ")[1].split(",")[0]) for line in result.stdout.splitlines()
             if re.match(r"c (open|close)", line)]
    equal(tuple(found), codes, "codes of opening, opening again and closing")
    equal(said(result)["c read x 0 7"], "0 wrong", "contents")
    if not again:
        equal(taken(result, 1), (0, 0), "left")


@case("ipc")
def fault_settle():
    """As with the real one: an error of work that was under way, and the memory is still there."""
    result = run(*SHARED, "c open x H", "c close x", "c read x 0 7", "c close x", "c close x",
                 env={"SIM_FAIL": "cuCtxSynchronize:1@rank1=700"})
    equal(re.findall(r"c close x: (\d+)", result.stdout), ["700", "0", "1"], "codes")


@case("ipc")
def fault_no_arena():
    """Where nothing can be mapped; the memory is not lost to the others."""
    result = run(*SHARED, "c open x H", "d open x H", "d read x 0 7",
                 env={"SIM_FAIL": "cuMemAddressReserve:*@rank1=801"})
    equal((said(result)["c open x H"], said(result)["d open x H"]), ("801, last 0", "0, last 0"), "codes")


@case("ipc")
def fault_of_the_real_functions():
    """Of plain memory, passed on as they are."""
    fail = "cudaIpcGetMemHandle:1@rank0=801,cudaIpcOpenMemHandle:1@rank1=205,cudaIpcCloseMemHandle:1@rank1=700"
    words = ("o alloc a 4096", "o handle a 0 H", "o handle a 0 H", "c open x H", "c open x H", "c close x", "c close x")
    without, under = (run(*words, shim=shim, env={"SIM_FAIL": fail}) for shim in (False, True))
    equal(under.stdout, without.stdout, "what the steps give")
    equal(re.findall(r": (\d+), last", under.stdout), ["0", "801", "0", "205", "0", "700", "0"], "codes")
