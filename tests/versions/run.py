#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One build of the shim against released versions of CUDA, NCCL and PyTorch, without a GPU.

    python3 tests/versions/run.py BUILD [--cache DIR] [--cuda V,...] [--nccl V,...] [--torch V,...] [--results FILE]

Takes wheels with pip into a cache, which is kept: 5 GiB for the versions of NCCL, 5 to 7 GiB for each of PyTorch. A
version of NCCL is of the wheels for CUDA 12, or with "cu13:" before it of those for CUDA 13. Run by hand and weekly;
the status is 1 when something does not hold.
"""

import argparse
import pathlib
import platform
import re
import sys
import time

import abi
import guest
import wheels
from wheels import say

# CUDA 13's C headers are in two packages, whose versions differ.
CUDA = {"12.1.105": None, "12.4.127": None, "12.9.79": None, "13.0.96": "13.0.88", "13.5.37": "13.5.37"}
CUDA_OF = {"cu12": "12.9.79", "cu13": "13.5.37"}
NCCL = ("2.18.3,2.20.5,2.21.5,2.23.4,2.26.2,2.27.7,2.28.9,2.29.7,2.30.7,2.31.2,2.32.3,"
        "cu13:2.28.9,cu13:2.30.7,cu13:2.32.3")
TORCH = "2.6.0,2.10.0,2.15.0"  # the oldest, the last whose default is CUDA 12, the newest
NCCL_INCLUDE = "#include <cuda_runtime.h>\n#include <nccl.h>\n"
CUDA_INCLUDE = "#include <cuda.h>\n#include <cuda_runtime_api.h>\n"


class Report:
    def __init__(self):
        self.tables = {}
        self.problems = []
        self.notes = []

    def row(self, table, *cells):
        self.tables.setdefault(table, []).append(cells)

    def judged(self, what, problems, notes=()):
        self.problems += [f"{what}: {problem}" for problem in problems]
        self.notes += [f"{what}: {note}" for note in notes]
        for problem in problems:
            say(f"NOT OK {what}: {problem}")
        return "no" if problems else "yes"


def cuda_folders(cache, version):
    if version.startswith("12."):
        parts = [wheels.wheel(cache, "nvidia-cuda-runtime-cu12", version)]
    else:
        parts = [wheels.wheel(cache, "nvidia-cuda-runtime", version),
                 wheels.wheel(cache, "nvidia-cuda-crt", CUDA.get(version) or version)]
    return [folder for part in parts for folder in part.glob("nvidia/*/include")], parts[0]


def check_cuda(report, cache, rows, version):
    what = f"CUDA {version}"
    folders, part = cuda_folders(cache, version)
    headers = abi.Headers(CUDA_INCLUDE, folders)
    _, unknown, problems, notes = abi.judge([row for row in rows if not row.is_nccl], headers)
    for row in unknown:
        if row.kind == "field":
            problems.append(f"{row.name} is not there")
        elif row.kind != "hooked":
            notes.append(f"{row.name} is not in the headers")
    layout = report.judged(what, problems, notes)
    (library,) = part.glob("nvidia/*/lib/libcudart.so.*")
    there = abi.symbols(library, True)
    wanted = [row.name for row in rows if row.library == "CUDART"]
    names = report.judged(what, [f"{name} is not in {library.name}" for name in wanted if name not in there])
    report.row("CUDA", version, f"{len(wanted)} in {library.name}", names, layout)


def needed_of_nccl(code):
    """Names without which the shim has nothing to do there, and those that it can do without."""
    return abi.NCCL_CORE | (abi.NCCL_WINDOWS if code >= abi.plan_number("NCCL_FIRST_USABLE") else set())


def check_config(headers, rows, unknown, code):
    """What must hold of ncclConfig_t: all of our shape where children are made with it, else what is read of a job's.
    """
    size, magic, words = headers.config()
    problems = []
    ours = {row.field: int(row.at) for row in rows if row.kind == "field" and row.type == "ncclConfig_t"}
    absent = {row.field for row in unknown if row.kind == "field" and row.type == "ncclConfig_t"}
    if magic != 0xCAFEBEEF:
        problems.append(f"the configuration's magic is {magic:#x}")
    if code >= abi.plan_number("NCCL_FIRST_USABLE"):
        problems += [f"ncclConfig_t.{field} is not there" for field in sorted(absent)]
        if size < max(ours.values()) + 4:
            problems.append(f"ncclConfig_t has {size} bytes and ends before the child's does")
    else:
        problems += [f"ncclConfig_t.{field} is not there" for field in sorted(absent & abi.CONFIG_READ)]
        if size < ours["splitShare"] + 4:
            problems.append(f"ncclConfig_t has {size} bytes and ends before splitShare")
    if words[0] != -2**31:
        problems.append("a setting that nobody made is not NCCL_CONFIG_UNDEF_INT")
    return problems, size


def check_known(headers, there, code):
    """What a later version brings: functions and settings that the shim has to be told of."""
    strange = {name for name in there if re.match("nccl[A-Z]", name)} - abi.known_names()
    problems = [f"{name} is in none of the shim's lists (shim/exports.c)" for name in sorted(strange)]
    if code > abi.newest_known():
        problems.append(f"ABI_NCCL_NEWEST in shim/abi/nccl.h is only {abi.newest_known()}")
    settings = headers.settings()
    if settings and not abi.takes_as_unset(settings):
        problems.append(f"NCCL_COLLCONFIG_INITIALIZER ({len(settings)} bytes) is not known to ask for nothing")
    return problems


def check_nccl(report, cache, rows, shim, name):
    toolkit, _, version = name.rpartition(":")
    toolkit = toolkit or "cu12"
    what = f"NCCL {version} {toolkit}"
    folder = wheels.wheel(cache, f"nvidia-nccl-{toolkit}", version)
    say(what)
    headers = abi.Headers(NCCL_INCLUDE, [folder / "nvidia/nccl/include", *cuda_folders(cache, CUDA_OF[toolkit])[0]])
    library = folder / "nvidia/nccl/lib/libnccl.so.2"
    there = abi.symbols(library, True)
    code = int(headers.macros["NCCL_VERSION_CODE"])
    functions = {row.name for row in rows if row.library == "NCCL"}
    hooked = {row.name for row in rows if row.kind == "hooked"}

    missing = functions - there
    problems = [f"{function} is not there" for function in sorted(missing & needed_of_nccl(code))]
    problems += [f"{function} is in the header only" for function in sorted(missing & headers.words)]
    names = report.judged(what, problems)

    _, unknown, problems, notes = abi.judge([row for row in rows if row.is_nccl], headers)
    more, size = check_config(headers, rows, unknown, code)
    layout = report.judged(what, problems + more + check_known(headers, there, code), notes)

    called = functions & there & headers.words
    problems, bound = guest.probe(library, headers, rows, shim, called)
    under = report.judged(what, problems)

    streams = {function for function in headers.streamed() if not function.startswith("pnccl") and function in there}
    others = sorted(streams - hooked)
    report.row("NCCL", f"{version} {toolkit}", f"{len(functions & there)} of {len(functions)}",
               ", ".join(sorted(name.removeprefix("nccl") for name in missing)) or "none", names, size, layout,
               f"{bound}: {under}")
    return what, others, {function: headers.streamed()[function] for function in others}


def check_time(report, what, release, command, shim):
    """Seconds are only as good as the machine is quiet; where instructions can be counted those decide."""
    say(f"{what}: times")
    plain, under = guest.start_times(command, shim)
    wall, cpu = guest.ratio(plain, under), guest.ratio(plain, under, 1)
    problem, timed = None, "yes"
    if not (guest.is_settled(plain) and guest.is_settled(under)):
        problem = f"the import's times did not settle in {len(plain)} runs each: the machine is too busy"
        timed = "not settled"
    elif wall > guest.SLOWER:
        problem = f"the least time of the import is {100 * (wall - 1):+.1f} %"
        timed = "no"
    report.row("Import", release, len(plain), guest.summary(plain), guest.summary(under), f"{100 * (wall - 1):+.1f} %",
               f"{100 * (cpu - 1):+.1f} %", timed)

    say(f"{what}: instructions")
    count = guest.instructions(command, shim)
    if count:
        more = count[1] / count[0]
        if problem:
            report.notes.append(f"{what}: {problem}; counted, its instructions are {100 * (more - 1):+.2f} %")
        problem = f"the import takes {more:.3f} times the instructions" if more > guest.SLOWER else None
    symbols = " / ".join(str(guest.lookups(command, which)) for which in (None, shim))
    counted = (*(f"{part / 1e9:.3f}" for part in count), f"{100 * (more - 1):+.2f} %") if count else ("", "", "")
    report.row("Import, counted", release, *counted, symbols, report.judged(what, [problem] if problem else []))


def check_torch(report, cache, rows, shim, version, python_name):
    what = f"torch {version}"
    python = str(wheels.torch(cache, version, python_name))
    say(what)
    facts = guest.torch_facts(python)
    hooked = {row.name for row in rows if row.kind == "hooked"}
    wants = {path.name: abi.symbols(path, False) for path in guest.torch_objects(python)}
    users = {name: names & hooked for name, names in wants.items() if names & hooked}
    command = [python, "-c", "import torch, torch.distributed"]

    say(f"{what}: bindings")
    found = guest.bindings(command, shim, hooked)
    problems, bound = [], 0
    for name, names in sorted(users.items()):
        if name != "libtorch_cuda.so" and not any(caller == name for caller, _ in found):
            report.notes.append(f"{what}: {name} wants {', '.join(sorted(names))} and is not loaded by the import")
            continue
        problems += guest.not_ours(found, shim, names, name)
        bound += len(names)
    nccl = {name for name in wants["libtorch_cuda.so"] if name.startswith("nccl")}
    needed = {"cudaMalloc", "cudaFree", "ncclAllGather", "ncclReduceScatter", "ncclAllReduce"}
    problems += [f"no object of the release wants {name}" for name in sorted(needed - set().union(*users.values()))]
    bindings = report.judged(what, problems)
    others = sorted(nccl - hooked - {row.name for row in rows})

    say(f"{what}: import")
    plain, under = (guest.once(command, which)[0] for which in (None, shim))
    problems = [f"the import ends with {under}"] if under != (0, "", "", []) else []
    if plain != (0, "", "", []):
        report.notes.append(f"{what}: without the shim the import ends with {plain}")
        problems = problems if under != plain else []
    quiet = report.judged(what, problems)

    check_time(report, what, facts[0], command, shim)
    return what, others


HEADS = {
    "CUDA": ("CUDA runtime", "functions hooked or called", "all there", "constants, layouts, prototypes agree"),
    "NCCL": ("NCCL", "functions", "not there", "what must be is there", "bytes of ncclConfig_t",
             "constants, layouts, prototypes agree", "bound to the shim; same results"),
    "PyTorch": ("torch", "NCCL", "Python", "NCCL functions hooked", "functions bound to the shim",
                "silent, nothing left"),
    "Import": ("torch", "runs each", "without, s (min / median)", "with the shim, s", "min, difference",
               "CPU time, min, difference", "min within 2 %"),
    "Import, counted": ("torch", "instructions without, 10^9", "with the shim", "difference",
                        "symbols looked up, without / with", "within 2 %"),
}
TEXTS = {
    "CUDA": "The headers' and runtime's wheels.",
    "NCCL": "A program is linked with each libnccl: every hooked function that is there is bound to the shim "
            "(`LD_DEBUG=bindings`), and calls without a communicator give the same results with and without it.",
    "PyTorch": "`import torch, torch.distributed`, everything bound at start. NCCL's functions that the release "
               "wants and that are not hooked are listed below.",
    "Import": "In turns, until the two least of each differ by no more than 2 %.",
    "Import, counted": "By valgrind's cachegrind: a machine that is busy with other things does not change it.",
}


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return lines + [f"| {' | '.join(map(str, row))} |" for row in rows]


def streams_text(found):
    """Which functions with a stream are not hooked, with the versions that have them."""
    versions, params = {}, {}
    for what, names, prototypes in found:
        for name in names:
            versions.setdefault(name, []).append(what.removeprefix("NCCL "))
            params[name] = re.sub(r"\s+", " ", prototypes[name])
    return [f"- `{name}({params[name]})`: {', '.join(versions[name])}" for name in sorted(versions)]


def write(path, report, found, wanted):
    lines = ["# One build, many versions", "",
             f"Written by `tests/versions/run.py` on {time.strftime('%Y-%m-%d')}, with no GPU; Python "
             f"{platform.python_version()}. \"Yes\" is what is wanted everywhere.", ""]
    for name, rows in report.tables.items():
        lines += [f"## {name}", "", TEXTS[name], "", *table(HEADS[name], rows), ""]
    lines += ["## NCCL functions that take a stream and are not hooked", "", *(streams_text(found) or ["none"]), ""]
    lines += ["## NCCL functions of libtorch_cuda.so that are neither hooked nor called by the shim", ""]
    lines += [f"- {what}: {', '.join(names) or 'none'}" for what, names in wanted] or ["not looked at"]
    lines += ["", "## Does not hold", "", *([f"- {text}" for text in report.problems] or ["nothing"])]
    lines += ["", "## Notes", "", *([f"- {text}" for text in report.notes] or ["none"]), ""]
    path.write_text("\n".join(lines))


def versions(text):
    return [part for part in text.split(",") if part]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="a build folder")
    parser.add_argument("--cache", type=pathlib.Path, default=wheels.default_cache())
    parser.add_argument("--cuda", type=versions, default=list(CUDA))
    parser.add_argument("--nccl", type=versions, default=versions(NCCL))
    parser.add_argument("--torch", type=versions, default=versions(TORCH))
    parser.add_argument("--python", default=sys.executable, help="makes the environments for torch")
    parser.add_argument("--results", type=pathlib.Path, help="a file to write the tables to")
    options = parser.parse_args()

    shim = (options.build / "shim/libsymmshim.so").resolve(strict=True)
    options.cache.mkdir(parents=True, exist_ok=True)
    rows, report, found, wanted = abi.tables(), Report(), [], []
    for version in options.cuda:
        check_cuda(report, options.cache, rows, version)
    for name in options.nccl:
        found.append(check_nccl(report, options.cache, rows, shim, name))
    for version in options.torch:
        wanted.append(check_torch(report, options.cache, rows, shim, version, options.python))
    for package, known in (("nvidia-nccl-cu12", options.nccl), ("torch", options.torch)):
        newest = wheels.newest(package)
        if known and newest not in known:
            report.notes.append(f"{package} {newest} is the newest, and was not looked at")
    if options.results:
        write(options.results, report, found, wanted)
    for line in streams_text(found):
        say(f"not hooked {line}")
    say(f"{len(report.problems)} things do not hold")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
