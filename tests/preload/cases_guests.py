# SPDX-License-Identifier: Apache-2.0
"""Other preloads before and after the shim, and the programs that a process of the job starts."""

import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys

from cases_calls import ALL, three
from harness import Skip, case, check, equal, execute, job, outcome, setup

JOB = ("--op", ALL, "--calls", 6)
PLACES = {
    "jemalloc": ["/usr/lib/*/libjemalloc.so.2"],
    "tcmalloc": ["/usr/lib/*/libtcmalloc_minimal.so.4"],
    "stdbuf": ["/usr/libexec/coreutils/libstdbuf.so", "/usr/lib/*/coreutils/libstdbuf.so"],
}


def library(name):
    """The file of a guest; a sanitizer's build takes none that brings an allocator of its own."""
    if setup.runtime and name != "stdbuf":
        raise Skip("a sanitizer has an allocator of its own")
    if name == "asan":
        found = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True,
                               check=True).stdout.split() if shutil.which("cc") else []
        found = [path for path in found if os.path.isabs(path)]
    else:
        found = [path for pattern in PLACES[name] for path in sorted(glob.glob(pattern))]
    if not found:
        raise Skip(f"no lib{name}: tools/deps.sh names the package")
    return found[0]


def preload(*paths):
    return " ".join(filter(None, [setup.runtime, *paths]))


def symmetric(**env):
    """The job does all that it does with the shim alone."""
    env = {"ASAN_OPTIONS": "detect_leaks=0", **env}
    result = job(2, *JOB, env=env)
    outcome(result, 2, three("window", "window", "window", each=2))
    return result


@case("guests", "jemalloc_first", guest="jemalloc", first=True)
@case("guests", "jemalloc_behind", guest="jemalloc", first=False)
@case("guests", "tcmalloc_first", guest="tcmalloc", first=True)
@case("guests", "tcmalloc_behind", guest="tcmalloc", first=False)
@case("guests", "stdbuf_first", guest="stdbuf", first=True)
@case("guests", "stdbuf_behind", guest="stdbuf", first=False)
@case("guests", "asan_first", guest="asan", first=True)
def beside(guest, first):
    path = library(guest)
    symmetric(LD_PRELOAD=preload(path, setup.shim) if first else preload(setup.shim, path))


@case("guests")
def stdbuf_as_a_command():
    """It appends itself to what is preloaded."""
    if not shutil.which("stdbuf"):
        raise Skip("no stdbuf")
    outcome(job(2, *JOB, wrap=["stdbuf", "-o0"]), 2, three("window", "window", "window", each=2))


@case("guests", "interposer_first", first=True)
@case("guests", "interposer_behind", first=False)
def interposer(first):
    """
    Before the shim it sees the job's calls; behind it what the shim makes of them: the same all-gathers, and none of
    the arena's memory.
    """
    counts = []

    def look(folder, _):
        counts.extend(sorted(folder.joinpath("counts").read_text().split("\n")))
        folder.joinpath("counts").unlink()

    guest = str(pathlib.Path(setup.matrix, "libinterposer.so"))
    env = {"LD_PRELOAD": preload(guest, setup.shim) if first else preload(setup.shim, guest),
           "INTERPOSER": "{folder}/counts"}
    result = job(2, *JOB, env=env, after=look)
    outcome(result, 2, three("window", "window", "window", each=2))
    seen = [tuple(map(int, line.split())) for line in counts if line]
    equal(len(seen), 2, "processes in which it counted")
    for mallocs, _, gathers in seen:
        equal(gathers, 2, "all-gathers that it saw")
        check((mallocs > 0) == first, f"mallocs that it saw: {mallocs}")


# Children.

def children(*commands, env=None, stderr=None, program=None):
    """The same as without the shim, of which nothing is to be seen but the parent's own log."""
    command = [*(program or [str(pathlib.Path(setup.matrix, "parent"))]), *commands]
    without = execute(command, env=env)
    under = execute(command, shim=setup.shim, env=env, stderr=stderr)
    equal(under.stdout, without.stdout, "what parent and children say")
    logs = [line["pid"] for log in under.audit.values() for line in log]
    equal(len(set(logs)), 1, "processes in the audit log")
    return under


def tool(name):
    if not shutil.which(name):
        raise Skip(f"no {name}")
    return name


@case("guests", "child_shell", command="for i in 1 2 3; do /bin/echo $i | cat; done; exit 7")
@case("guests", "child_killed", command="kill -9 $$")
@case("guests", "child_missing", command="exec 2>/dev/null; /nowhere/at/all")
@case("guests", "child_python", command=f"{sys.executable} -c 'import sys; print(sys.version_info[0]); sys.exit(3)'")
@case("guests", "child_bash", command="bash -c 'echo $((6 * 7))'")
def child(command):
    children(command)


@case("guests")
def child_compiler():
    """gcc starts programs of its own, the linker among them."""
    tool("gcc")
    children("echo 'int main(void) { return 5; }' | gcc -x c - -o made && ./made; status=$?; rm made; exit $status")


@case("guests")
def child_setuid():
    """ld.so keeps preloads out of such programs, and says nothing of it."""
    tool("setpriv")
    if os.geteuid() != 0 or not os.stat(shutil.which(tool("su"))).st_mode & 0o4000:
        raise Skip("su is not setuid, or this is not root, for whom it makes no difference")
    children("setpriv --reuid=65534 --regid=65534 --clear-groups su --version | head -1")


WORKERS = """
import ctypes, math, multiprocessing, subprocess
if __name__ == "__main__":
    ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)
    memory = ctypes.c_void_p()
    print("malloc", ctypes.CDLL(None).cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(4 << 20)), flush=True)
    with multiprocessing.get_context("{how}").Pool(2) as pool:
        print(pool.map(math.factorial, range(8)))
    print(subprocess.run(["/bin/sh", "-c", "exit 9"]).returncode)
    print("free", ctypes.CDLL(None).cudaFree(memory))
"""


@case("guests", "workers_by_fork", how="fork")
@case("guests", "workers_by_spawn", how="spawn")
@case("guests", "workers_by_forkserver", how="forkserver")
def workers(how):
    """Data loaders' workers of a process in which the shim is awake."""
    if setup.runtime:
        raise Skip("python is not built with the sanitizer")
    children(program=[sys.executable, "-c", WORKERS.format(how=how)])


# SYMMSHIM_CHILDREN

SHOW = "echo \"<$LD_PRELOAD>\""


def preloaded(env, *, outer=(), stderr=None):
    """What a child of a process in which the shim is awake has in LD_PRELOAD."""
    result = execute([*outer, str(pathlib.Path(setup.matrix, "parent")), SHOW], shim=setup.shim, env=env, stdout=".*",
                     stderr=stderr)
    check("mapping" not in result.stdout and result.calls_of("none", "cuMemMap"), "the parent itself is served")
    return re.search(r"<(.*)>", result.stdout)[1]


@case("guests")
def children_get_it():
    for word in (None, "", "on"):
        equal(preloaded({"SYMMSHIM_CHILDREN": word}), preload(setup.shim), f"SYMMSHIM_CHILDREN={word}")


@case("guests")
def children_do_not_get_it():
    off = {"SYMMSHIM_CHILDREN": "off"}
    stdbuf = library("stdbuf")
    equal(preloaded(off).split(), preload().split(), "nobody else")
    for before, after in (([stdbuf], []), ([], [stdbuf]), ([stdbuf], [stdbuf])):
        for sign in " :":
            paths = [*preload().split(), *before, setup.shim, *after]
            found = preloaded({**off, "LD_PRELOAD": sign.join(paths)})
            equal(re.split("[ :]", found.strip(" :")), [path for path in paths if path != setup.shim],
                  "who else was preloaded")
    result = preloaded({**off, "LD_PRELOAD": preload(f"{stdbuf} {setup.shim} {setup.shim}")})
    equal(result.split(), [*preload().split(), stdbuf], "named twice")


@case("guests")
def children_of_launchers_get_it():
    """Who makes no call of CUDA's hands it on, though it was told not to."""
    equal(preloaded({"SYMMSHIM_CHILDREN": "off"}, outer=["sh", "-c", 'sh -c "exec \\"\\$@\\"" sh "$@"', "sh"]).split(),
          preload().split(), "the job's process was served, its child is not")


@case("guests")
def children_not_understood():
    warning = r"[^\n]*SYMMSHIM WARN SYMMSHIM_CHILDREN=perhaps is neither on nor off: taken as on\n"
    equal(preloaded({"SYMMSHIM_CHILDREN": "perhaps"}, stderr=warning), preload(setup.shim), "LD_PRELOAD")
