# SPDX-License-Identifier: Apache-2.0
"""Runs programs of one version with and without the shim: which object their calls are bound to, what they print,
and how long they take to start."""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time

BINDING = re.compile(r"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: \w+ symbol `(\w+)'")
ROUNDS = 7
ROUNDS_MOST = 11  # of a machine that is busy with other things
SLOWER = 1.02


def environment(shim, folder, extra=()):
    env = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
    env.update(HOME=folder, TMPDIR=folder, **dict(extra))
    if shim:
        env["LD_PRELOAD"] = str(shim)
    return env


def once(command, shim, extra=()):
    """(what it left: status, stdout, stderr, files), wall seconds, CPU seconds."""
    with tempfile.TemporaryDirectory(prefix="symmshim-versions-") as folder:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            start = time.perf_counter()
            process = subprocess.Popen(command, cwd=folder, env=environment(shim, folder, extra),
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode(errors="replace"))
        left = sorted(path.name for path in pathlib.Path(folder).iterdir())
    return (process.returncode, *texts, left), wall, usage.ru_utime + usage.ru_stime


def bindings(command, shim, wanted, extra=()):
    """{(object's name, function): name of the object it is bound to} for functions of `wanted`, all bound at start."""
    names = "|".join(sorted(wanted))
    with tempfile.TemporaryDirectory(prefix="symmshim-versions-") as folder:
        env = environment(shim, folder, {"LD_DEBUG": "bindings", "LD_BIND_NOW": "1", **dict(extra)})
        # A line for each binding of the process: too many to keep.
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE)
        lines = subprocess.run(["grep", "-aE", f"symbol `({names})'"], stdin=process.stderr, capture_output=True,
                               text=True, check=False).stdout
        process.stderr.close()
        process.wait()
    found = {}
    for caller, target, name in BINDING.findall(lines):
        found[os.path.basename(caller), name] = os.path.basename(target)
    return found


def not_ours(found, shim, wanted, caller):
    """Problems: functions that `caller` wants and that are not bound to the shim."""
    name = os.path.basename(shim)
    return [f"{function} of {caller} is bound to {found.get((caller, function), 'nothing')}"
            for function in sorted(wanted) if found.get((caller, function)) != name]


def probe(library, headers, rows, shim, called):
    """A program that is linked with one version of NCCL: (problems, number of functions bound to the shim)."""
    hooked = [row for row in rows if row.kind == "hooked" and row.name in called]
    calls = [row for row in hooked if "cudaStream_t" in row.params]
    with tempfile.TemporaryDirectory(prefix="symmshim-versions-") as folder:
        program = [headers.include, "#include <stdio.h>", "int main(void)", "{",
                   "  ncclResult_t result = ncclSuccess;", "  int version = 0;", "  void *address;"]
        program += [f"  address = (void *)&{row.name};\n  if (!address) return 1;" for row in hooked]
        program += ['  printf("ncclGetVersion %d ", ncclGetVersion(&version));', '  printf("%d\\n", version);']
        for row in calls:
            zeros = ", ".join("0" for _ in row.params.split(","))
            program.append(f'  printf("{row.name} %d\\n", {row.name}({zeros}));')
        program += ['  printf("start %d\\n", ncclGroupStart());', '  printf("end %d\\n", ncclGroupEnd());',
                    '  printf("destroy %d\\n", ncclCommDestroy(NULL));',
                    '  printf("error %d\\n", ncclCommGetAsyncError(NULL, &result));', "  return 0;", "}"]
        pathlib.Path(f"{folder}/probe.c").write_text("\n".join(program) + "\n")
        subprocess.run(["cc", "-w", "-fno-pie", "-no-pie", *headers.flags, "-o", f"{folder}/probe", f"{folder}/probe.c",
                        f"-L{library.parent}", f"-l:{library.name}", "-Wl,--allow-shlib-undefined"], check=True)
        extra = {"LD_LIBRARY_PATH": str(library.parent)}
        plain, under = (once([f"{folder}/probe"], which, extra)[0] for which in (None, shim))
        found = bindings([f"{folder}/probe"], shim, {row.name for row in hooked}, extra)
    problems = not_ours(found, shim, {row.name for row in hooked}, "probe")
    if plain[0] != 0 or plain[2] or plain[3]:
        problems.append(f"without the shim the probe ends with {plain}")
    if under != plain:
        problems.append(f"the probe ends with {under}, without the shim with {plain}")
    return problems, len(hooked)


def torch_objects(python):
    """The release's own shared objects."""
    text = subprocess.run([python, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)"], check=True,
                          capture_output=True, text=True).stdout.strip()
    return sorted(pathlib.Path(text).parent.glob("lib/*.so*"))


def torch_facts(python):
    code = ("import json, sys, torch, torch.cuda.nccl as n; print(json.dumps([torch.__version__, torch.version.cuda, "
            "'.'.join(map(str, n.version())), sys.version.split()[0]]))")
    return json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout)


def lookups(command, shim):
    """How many symbols the loader looks up for the program: the part of its start that a preloaded object adds to."""
    (_, _, stderr, _), _, _ = once(command, shim, {"LD_DEBUG": "statistics"})
    return int(re.findall(r"final number of relocations: (\d+)", stderr)[-1])


def instructions(command, shim):
    """(instructions without, with the shim) of the program's own code, which no other load changes; None without
    valgrind. Two runs of one kind differ by less than 1 %."""
    valgrind = shutil.which("valgrind")
    if not valgrind:
        return None
    counted = [valgrind, "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", *command]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        left = pool.map(lambda which: once(counted, which, {"PYTHONHASHSEED": "0"})[0][2], (None, shim))
        return [int(re.search(r"I\s+refs:\s+([\d,]+)", text)[1].replace(",", "")) for text in left]


def is_settled(runs):
    """The least is no accident when another run comes as near to it as the check is fine."""
    first, second, *_ = sorted(wall for wall, _ in runs)
    return second <= SLOWER * first


def start_times(command, shim):
    """Lists of (wall, CPU) seconds without and with the shim, in turns; more turns until both are settled, however
    they compare."""
    times = {None: [], shim: []}
    once(command, None)  # fills caches, compiles modules
    for turn in range(ROUNDS_MOST):
        for which in (None, shim) if turn % 2 else (shim, None):
            times[which].append(once(command, which)[1:])
        if turn + 1 >= ROUNDS and is_settled(times[None]) and is_settled(times[shim]):
            break
    return times[None], times[shim]


def ratio(plain, under, part=0):
    return min(run[part] for run in under) / min(run[part] for run in plain)


def summary(runs, part=0):
    values = [run[part] for run in runs]
    return f"{min(values):.3f} / {statistics.median(values):.3f}"
