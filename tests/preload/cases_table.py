# SPDX-License-Identifier: Apache-2.0
"""Memory of the arena and of cudaMalloc's, row by row (memory_table.c): the same results and last errors."""

import subprocess

from cases_hostile import steps
from cases_memory import allocations
from harness import Skip, case, check, equal, execute, further, setup

# Rows that differ for a reason, which the README names; what the simulation lacks, a real GPU has to say.
KNOWN = ["odd_size", "capture_malloc", "capture_elsewhere"]
REAL_ONLY = ["host_unregister", "host_register", "host_pointer", "managed"]


def table(*words, status=0):
    preload = " ".join(filter(None, [setup.runtime, setup.shim]))
    return execute([setup.memory_table, "--preload", preload, *words], status=status, stdout=".*",
                   env={"SIM_DEVICES": "2", "SIM_DEVICE_MEMORY": "2G"}, timeout=240 * setup.slower).stdout


def verdicts(text):
    lines = [line.split(None, 1) for line in text.splitlines()[:-1] if not line.startswith(" ")]
    return {name: verdict.strip() for name, verdict in lines}


@case("table")
def memory():
    found = verdicts(table())
    names = subprocess.run([setup.memory_table, "--list"], capture_output=True, text=True, check=True,
                           env={"LD_LIBRARY_PATH": setup.sim}).stdout.split()
    equal(list(found), names, "rows")
    equal([name for name, verdict in found.items() if verdict == "known"], KNOWN, "rows with a known difference")
    equal([name for name, verdict in found.items() if verdict == "real GPU only"], REAL_ONLY, "rows for a real GPU only")
    same = [name for name, verdict in found.items() if verdict == "same"]
    equal(len(same), len(names) - len(KNOWN) - len(REAL_ONLY), "rows that are the same")
    further["passed"] += len(same) - 1


@case("table")
def needs_devices():
    """A row that cannot be run is counted as that, and a table without a row that was run is no success."""
    text = execute([setup.memory_table, "--preload", setup.shim, "--only", "copies"], status=1, stdout=".*",
                   env={"SIM_DEVICES": "1"}).stdout if not setup.runtime else None
    if text is None:
        raise Skip("one preload only")
    check("needs more devices" in text and "0 same, 0 differ for a known reason, 0 differ, 1 not here" in text, text)


# Memory that windows hold, which the table has none of.

@case("table", "parked_is_free", line="comm room take:A=8 take:B=16 gather:0,A gather:0,B give:A room give:B room")
@case("table", "parked_is_taken_again", line="comm take:A=8 gather:0,A give:A room take:B=8 room gather:0,B")
def parked(line):
    """What the shim keeps of freed memory is free to who asks."""
    without, under = (steps(line, 2, shim=shim, agree=bool(shim), stdout=".*") for shim in ("", None))
    equal(sorted(under.stdout.splitlines()), sorted(without.stdout.splitlines()), "what the ranks say")
    for rank in range(2):
        equal(set(under.sequence(rank)), {"window"}, f"rank {rank}: outcomes")
        check(under.calls_of(rank, "cuMemUnmap"), f"rank {rank}: it went at the end")


@case("table", "reset_gives_windows_up", line="comm room take:A=8 gather:0,A meet reset meet room")
@case("table", "reset_gives_parked_up", line="comm room take:A=8 gather:0,A give:A meet reset meet room")
def all_is_free(line):
    without, under = (steps(line, 2, shim=shim, agree=bool(shim), stdout=".*") for shim in ("", None))
    equal(sorted(under.stdout.splitlines()), sorted(without.stdout.splitlines()), "what the ranks say")


@case("table", "reset", line="comm take:A=8 gather:0,A end:0 reset comm take:B=8 gather:1,B")
@case("table", "reset_with_windows", line="comm take:A=8 gather:0,A meet reset meet end:0 comm take:B=8 gather:1,B")
@case("table", "reset_with_parked", line="comm take:A=8 gather:0,A give:A meet reset meet end:0 comm take:B=8 gather:1,B")
def reset(line):
    """Nothing of the time before the reset is in the way of windows after it, and nothing is left."""
    result = steps(line, 2)
    for rank in range(2):
        equal(result.sequence(rank), ["window"] * 2, f"rank {rank}: outcomes")
        equal(allocations(result, rank), 0, f"rank {rank}: allocations left")
