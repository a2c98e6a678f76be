# SPDX-License-Identifier: Apache-2.0
"""One assertion program, however it comes to its libraries: the same results, errno and last error as without the shim.

What escapes the shim, escapes it silently and unharmed.
"""

import collections
import pathlib
import re
import shutil
import sys
import tempfile

from harness import Skip, agrees, case, check, equal, execute, job, setup

# What becomes of the program's calls where all of them are seen.
OUTCOMES = {
    ("all_gather", "window"): 6, ("all_gather", "unknown_comm"): 1,
    ("reduce_scatter", "window"): 3, ("reduce_scatter", "given_up"): 1,
    ("all_reduce", "window"): 2, ("all_reduce", "not_in_arena"): 2, ("all_reduce", "user_redop"): 1,
}


def program(name):
    return f"{setup.matrix}/{name}"


def plugin(name, how="local"):
    return f"{how}:{setup.matrix}/lib{name}.so"


def spoken(result):
    """What the program said, in order, by rank and thread."""
    lines = collections.defaultdict(list)
    for line in result.stdout.splitlines():
        _, rank, who, text = line.split(" ", 3)
        lines[rank, who].append(text)
    return dict(lines)


def both(*command, env=None, stderr=None, agree=True, runs=1, nranks=2, after=None, status=0):
    """Without the shim and with it; `runs` is how often the program ran in each rank."""
    rest = {"program": list(command), "env": env, "status": status, "stdout": ".*", "agree": False, "after": after}
    without = job(nranks, shim="", **rest)
    under = job(nranks, stderr=stderr, **rest)
    equal(len(spoken(without)), runs * nranks, "runs that said something")
    equal(spoken(under), spoken(without), "what the program said")
    wrong = [line for line in under.stdout.splitlines() if line.endswith("wrong") and ": 0 elements" not in line]
    equal(wrong, [], "wrong results")
    if agree:
        agrees(under)
    return under


def outcomes(result, wanted, runs=1, nranks=2):
    for rank in range(nranks):
        equal(result.outcomes(rank), {key: count * runs for key, count in wanted.items()}, f"rank {rank}: outcomes")


def unseen(result):
    """Nothing at all is to be seen of the shim."""
    equal(result.audit, {}, "audit logs")
    equal({symmetric for rank in range(2) for symmetric, _, _ in result.notes(rank)}, {False}, "symmetric")


def no_deepbind():
    if setup.runtime:
        raise Skip("sanitizers refuse RTLD_DEEPBIND")


# How the program came to its libraries.

@case("matrix", "linked", command=["matrix", "calls"])
@case("matrix", "linked_to_cuda_12", command=["matrix_cuda12", "calls"])
@case("matrix", "linked_through_library", command=["matrix_linked", "calls"])
def linked(command):
    outcomes(both(program(command[0]), *command[1:]), OUTCOMES)


@case("matrix", "opened_local", library="matrix_plugin", how="local")
@case("matrix", "opened_global", library="matrix_plugin", how="global")
@case("matrix", "opened_local_cuda_12", library="matrix_plugin_cuda12", how="local")
@case("matrix", "opened_global_cuda_12", library="matrix_plugin_cuda12", how="global")
@case("matrix", "opened_local_other_file_name", library="matrix_plugin_second", how="local")
def opened(library, how):
    outcomes(both(program("matrix_host"), plugin(library, how), "run:only", agree=library != "matrix_plugin_second",
                  env={"SIM_TRACE_SECOND": "{folder}/trace.%r"}), OUTCOMES)


@case("matrix")
def opened_deep():
    no_deepbind()
    unseen(both(program("matrix_host"), plugin("matrix_plugin", "deep"), "run:only", agree=False))


@case("matrix")
def opened_deep_beside_one_that_is_seen():
    """Each with its own communicators; the libraries are the same."""
    no_deepbind()
    result = both(program("matrix_host"), plugin("matrix_plugin"), plugin("matrix_plugin", "deep"), "run:seen",
                  agree=False)
    outcomes(result, OUTCOMES)


@case("matrix", "constructor_at_start", at="constructor", command=["matrix_linked"])
@case("matrix", "constructor_when_opened", at="constructor", command=["matrix_host", "local:matrix_plugin"])
@case("matrix", "constructor_when_opened_global", at="constructor", command=["matrix_host", "global:matrix_plugin"])
@case("matrix", "destructor_when_closed", at="destructor", command=["matrix_host", "local:matrix_plugin", "close"])
@case("matrix", "destructor_when_left_open", at="destructor", command=["matrix_host", "local:matrix_plugin"])
@case("matrix", "destructor_at_exit", at="destructor", command=["matrix_linked"])
def load_and_unload(at, command):
    words = [plugin(word.split(":")[1], word.split(":")[0]) if ":" in word else word for word in command[1:]]
    outcomes(both(program(command[0]), *words, env={"MATRIX_AT": at}), OUTCOMES)


@case("matrix", "unloaded_and_loaded_again_local", how="local")
@case("matrix", "unloaded_and_loaded_again_global", how="global")
def loaded_again(how):
    again = [word for i in range(4) for word in (plugin("matrix_plugin", how), f"run:load{i}", "close")]
    outcomes(both(program("matrix_host"), *again, runs=4), OUTCOMES, runs=4)


@case("matrix")
def unloaded_and_another_loaded():
    """What was found in the one must not be called when only the other is there."""
    one, two = plugin("matrix_plugin", "global"), plugin("matrix_plugin_second", "global")
    result = both(program("matrix_host"), one, "run:one", "close", two, "run:two", "close", one, "run:three", runs=3,
                  agree=False, env={"SIM_TRACE_SECOND": "{folder}/trace.%r"})
    outcomes(result, OUTCOMES, runs=3)


# Threads and forks.

@case("matrix", "threads_linked", command=["matrix", "threads"])
@case("matrix", "threads_cuda_12", command=["matrix_cuda12", "threads"])
def threads(command):
    """Sixteen, each with a communicator; their first calls, which wake the shim, are made at once."""
    result = both(program(command[0]), command[1], runs=16)
    for rank in range(2):
        counts = result.outcomes(rank)
        equal({kind: counts[kind] for kind in counts if kind[1] != "not_in_arena"},
              {("all_gather", "window"): 80, ("reduce_scatter", "window"): 48, ("all_reduce", "window"): 32},
              f"rank {rank}: outcomes")


@case("matrix", "forks_linked", command=["matrix", "fork"])
@case("matrix", "forks_cuda_12", command=["matrix_cuda12", "fork"])
def forks(command):
    """Child and grandchild, while four threads of the parent are inside the shim; and the parent goes on."""
    result = both(program(command[0]), command[1], runs=1, agree=False)
    lines = spoken(result)["0", "main.-1"]
    for what in ("malloc in the child: 3, last 3", "malloc in the grandchild: 3, last 3", "status of the child: 0"):
        equal(lines.count(what), 12, what)
    for rank in range(2):
        equal(len({line["pid"] for line in result.audit[str(rank)]}), 1, "processes in the audit log")
        equal(len(result.events(rank, "summary")), 3, f"rank {rank}: counts, which only the parent writes")
        equal({kind: count for kind, count in result.outcomes(rank).items() if kind[1] == "window"},
              {("all_gather", "window"): 80, ("reduce_scatter", "window"): 40, ("all_reduce", "window"): 40},
              f"rank {rank}: outcomes")


@case("matrix")
def forks_while_waking():
    """Whatever moment the fork hits, the child ends by itself."""
    if setup.runtime:
        raise Skip("the sanitizers' allocator may be locked in a child that is forked beside threads")
    script = f"for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do {program('matrix')} wake || exit 1; done"
    result = execute(["timeout", "30", "sh", "-c", script], shim=setup.shim, stdout=".*", env={"SIM_DEVICES": "1"})
    equal(result.stdout, "rank 0 main.-1 status of the child: 0\n" * 20, "children")


# Ways past the shim.

@case("matrix")
def names_for_tools():
    """pncclX all along: the memory is the arena's, and that is all that is seen."""
    result = both(program("matrix_pnccl"), "calls", agree=False)
    for rank in range(2):
        equal([line["event"] for line in result.audit[str(rank)]], ["start"], f"rank {rank}: audit log")
        equal({symmetric for symmetric, _, _ in result.notes(rank)}, {False}, "symmetric")
        check(result.calls_of(rank, "cuMemMap"), "memory of the arena")


@case("matrix")
def names_for_tools_for_calls_only():
    """The communicators are seen, the calls on them are not: nothing is split off and nothing is counted."""
    result = both(program("matrix_pnccl_calls"), "calls", agree=False)
    for rank in range(2):
        equal(result.events(rank, "call") + result.events(rank, "summary"), [], f"rank {rank}: calls")
        equal([line["reason"] for line in result.events(rank, "comm")], ["aborted", "aborted"], "communicators")
        equal(len(result.calls_of(rank, "ncclCommSplit")), 2, "splits: the job's and the one that is refused")


@case("matrix")
def names_for_tools_for_communicators_only():
    """The calls are seen on communicators that nobody knows."""
    result = both(program("matrix_pnccl_init"), "calls", agree=False)
    wanted = {("all_gather", "unknown_comm"): 7, ("reduce_scatter", "unknown_comm"): 4,
              ("all_reduce", "unknown_comm"): 5}
    outcomes(result, wanted)


@case("matrix")
def through_a_handle():
    """NCCL by dlsym() of a handle, as ctypes does: past the shim, but for the memory."""
    result = both(program("matrix_handle"), "calls", agree=False,
                  env={"MATRIX_LIBRARY": f"{setup.sim}/libnccl.so.2"})
    for rank in range(2):
        equal([line["event"] for line in result.audit[str(rank)]], ["start"], f"rank {rank}: audit log")


@case("matrix")
def copy_through_a_handle():
    """The same library file a second time, from another folder, opened beside the first by a process that has both."""
    with tempfile.TemporaryDirectory(prefix="symmshim-copy-") as folder:
        copy = shutil.copy(pathlib.Path(setup.sim, "libnccl.so.2").resolve(), f"{folder}/libnccl.so.2")
        result = both(program("matrix_host"), plugin("matrix_plugin"), f"local:{copy}", "first:before",
                      plugin("matrix_through_handle"), "run:copy", "first:after", runs=3, agree=False,
                      env={"MATRIX_LIBRARY": copy})
    outcomes(result, OUTCOMES, runs=2)


ONLY_LOADED = "import ctypes, os; ctypes.CDLL('libnccl.so.2'); os.fork() and os.wait()"


@case("matrix", "tells_unseen_deep", command=["matrix_host", "deep:{matrix}/libmatrix_plugin.so", "run:only"])
@case("matrix", "tells_unseen_names_for_tools", command=["matrix_pnccl", "calls"])
@case("matrix", "tells_unseen_through_a_handle", command=["matrix_handle", "calls"])
@case("matrix", "tells_unseen_only_loaded", command=[sys.executable, "-c", ONLY_LOADED])
@case("matrix", "tells_unseen_only_cuda", library="libcuda.so.1",
      command=["matrix_host", "global:{sim}/libcudart.so.13", "find:cudaFree"])
@case("matrix", "tells_unseen_not_when_seen", lines=0, command=["matrix", "calls"])
@case("matrix", "tells_unseen_not_when_off", lines=0, command=["matrix_pnccl", "calls"], env={"SYMMSHIM": "off"})
@case("matrix", "tells_unseen_not_without_libraries", lines=0, command=["matrix_host"])
@case("matrix", "tells_unseen_not_unasked", lines=0, command=["matrix_pnccl", "calls"], env={"SYMMSHIM_DEBUG": "WARN"})
def tells_unseen(command, lines=1, library="libnccl.so.2", env=None):
    """One line in each process, not in its forks; that there was a call that it did not see the shim cannot know."""
    if any(word.startswith("deep:") for word in command):
        no_deepbind()
    path, *words = [word.format(sim=setup.sim, matrix=setup.matrix) for word in command]
    env = {"SYMMSHIM_DEBUG": "INFO", "MATRIX_LIBRARY": f"{setup.sim}/libnccl.so.2", **(env or {})}
    result = job(2, program=[program(path) if "/" not in path else path, *words], env=env, stdout=".*", stderr=".*",
                 agree=False)
    told = re.findall(r" SYMMSHIM INFO no NCCL call was seen, though \S*/(\S+) is loaded: ", result.stderr)
    equal(told, [library] * 2 * lines, "what the shim says of it")


# Two copies of a library.

def comms_of(lines):
    """Communicators by address, as a library's record has them."""
    return {word for line in lines for word in line.split() if word.startswith("comm=0x")}


def two_copies(*words, runs, nranks=2):
    """The record of the first copy and that of the second, by rank."""
    second = {}

    def look(folder, result):
        second.clear()
        for path in folder.glob("second.*"):
            second[path.name.partition(".")[2]] = path.read_text().splitlines()
            path.unlink()

    result = both(program("matrix_host"), *words, runs=runs, agree=False, after=look,
                  env={"SIM_TRACE_SECOND": "{folder}/second.%r"})
    for rank in map(str, range(nranks)):
        first, other = comms_of(result.trace[rank]), comms_of(second.get(rank, []))
        check(not first & other, f"rank {rank}: communicators that reached both copies: {first & other}")
    return result, second


def inits(lines):
    return sum(line.startswith("ncclCommInitRank ") for line in lines)


@case("matrix", "two_copies", opened=("matrix_plugin", "matrix_plugin_second"), own=0)
@case("matrix", "two_copies_second_first", opened=("matrix_plugin_second", "matrix_plugin"), own=1)
def two_copies_of_nccl(opened, own):
    """Each plugin calls the copy it is linked to, and what the shim makes of a communicator stays with its copy."""
    words = [plugin(name) for name in opened] + ["run:a", "first:b", "run:c", "first:d"]
    result, second = two_copies(*words, runs=4)
    for rank in ("0", "1"):
        records = [result.trace[rank], second.get(rank, [])]
        equal([inits(lines) for lines in records], [2, 2], f"rank {rank}: communicators of each copy")
        for lines in records:
            equal(len([line for line in lines if line.startswith("[Symmetric]")]), 2 * 11, "symmetric calls")
            equal(len([line for line in lines if line.startswith("ncclCommSplit ")]), 2 * 4, "splits")
    outcomes(result, OUTCOMES, runs=4)


@case("matrix")
def two_copies_one_global():
    """The global one serves everybody, as without the shim."""
    result, second = two_copies(plugin("matrix_plugin", "global"), plugin("matrix_plugin_second"), "run:a", "first:b",
                                runs=2)
    equal([inits(result.trace["0"]), inits(second.get("0", []))], [2, 0], "communicators of each copy")
    outcomes(result, OUTCOMES, runs=2)


@case("matrix")
def two_copies_one_deep():
    no_deepbind()
    result, second = two_copies(plugin("matrix_plugin"), plugin("matrix_plugin_second", "deep"), "run:a", "first:b",
                                runs=2)
    equal([inits(result.trace["0"]), inits(second["0"])], [1, 1], "communicators of each copy")
    outcomes(result, OUTCOMES)


@case("matrix", "two_runtimes", opened=("matrix_plugin", "matrix_plugin_cuda12"))
@case("matrix", "two_runtimes_12_first", opened=("matrix_plugin_cuda12", "matrix_plugin"))
def two_runtimes(opened):
    """CUDA 12's beside CUDA 13's: each has a last error of its own."""
    outcomes(both(program("matrix_host"), *map(plugin, opened), "run:a", "first:b", "run:c", runs=3), OUTCOMES, runs=3)


@case("matrix", "unloaded_under_a_caller_that_stays_local", how="local")
@case("matrix", "unloaded_under_a_caller_that_stays_global", how="global")
def caller_stays(how):
    """Loaded again the libraries lie elsewhere, and where they were there is nothing to call."""
    names = ("cudaFree", "ncclGroupStart", "ncclGroupEnd", "ncclAllGather", "ncclBroadcast", "ncclCommDestroy")
    once = [plugin("matrix_plugin", how), *(f"find:{name}" for name in names)]
    again = [*once, "evict", *once, "evict", *once]
    # Without the shim nothing of a local library is to be found.
    wanted = probes(*again, shim=False) if how == "global" else 3 * probes(*once, shim=True)
    equal(probes(*again, shim=True), wanted, "results")
    check(not any(line.endswith(": none") for line in wanted), "all are there")


# What is not there.

def golden():
    return pathlib.Path(__file__).with_name("exports.golden").read_text().split()


def missing(name):
    """As a program that probes would take it: not supported."""
    if name.startswith("nccl"):
        return 5
    return 801 if name in ("cudaDeviceEnablePeerAccess", "cudaFreeAsync") or name.startswith("cudaIpc") else 3


def probes(*words, shim):
    return execute([program("matrix_host"), *words], shim=setup.shim if shim else "",
                   env={"SIM_DEVICES": "1"}, stdout=".*").stdout.splitlines()


@case("matrix")
def neither_library():
    """The shim's names can be found; whoever calls them is told that there is nothing."""
    words = [f"find:{name}" for name in golden()]
    equal(probes(*words, shim=False), [f"{name}: none" for name in golden()], "without the shim")
    equal(probes(*words, shim=True), [f"{name}: {missing(name)}" for name in golden()], "under the shim")


@case("matrix")
def nothing_is_left_of_neither_library():
    result = execute([program("matrix_host"), *(f"find:{name}" for name in golden())], shim=setup.shim, stdout=".*")
    equal(result.trace, {}, "records of calls")
    equal({line["reason"] for line in result.events(-1, "call")}, {"unknown_comm"}, "reasons")
    equal(result.events(-1, "comm"), [], "communicators")


@case("matrix")
def weak_references():
    """With both libraries there, only what they lack is there because of the shim."""
    libraries = [f"global:{setup.sim}/libcudart.so.13", f"global:{setup.sim}/libnccl.so.2"]
    without, under = (probes(*libraries, plugin("matrix_weak"), "weak", shim=shim) for shim in (False, True))
    equal([line for line in without if line not in under], ["weak ncclCommGrow: none"], "what is there besides")
    equal(len(under), len(golden()), "references")
    check(all(line.endswith(": there") for line in under), "all are there")


@case("matrix")
def weak_references_to_neither_library():
    without, under = (probes(plugin("matrix_weak"), "weak", shim=shim) for shim in (False, True))
    check(all(line.endswith(": none") for line in without), "none is there")
    check(all(line.endswith(": there") for line in under), "all are there")


@case("matrix", "function_that_comes_later", how="local")
@case("matrix", "function_that_comes_later_global", how="global")
def found_later(how):
    """What was not there at the first call is looked for again at the next."""
    words = ["find:ncclGroupEnd", "find:cudaFree", plugin("matrix_plugin", how), "find:ncclGroupEnd", "find:cudaFree",
             "find:ncclCommGrow"]
    equal(probes(*words, shim=True), ["ncclGroupEnd: 5", "cudaFree: 3", "ncclGroupEnd: 5", "cudaFree: 0",
                                      "ncclCommGrow: 5"], "results")
