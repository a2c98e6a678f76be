# SPDX-License-Identifier: Apache-2.0
"""A section of run.py: the table of memory, tests/preload/memory_table.c, on the real runtime."""
import glob
import json
import os
import re
import subprocess
import sysconfig


def runtime_folder():
    """Where CUDA's runtime is, of the version that the table was linked to; PyTorch's own copy first."""
    places = [os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "**", "libcudart.so.13"),
              "/usr/local/cuda*/lib64/libcudart.so.13"]
    found = [path for place in places for path in sorted(glob.glob(place, recursive=True))]
    return os.path.dirname(found[0]) if found else None


def memory(bench, _same_parameters):
    results = bench.results
    results.add("", "## Memory: cudaMalloc's and the arena's", "",
                "Each case without the shim, under it with plain memory, and with the arena's; results and last errors.", "")
    folder = runtime_folder()
    if not folder:
        results.check(False, "libcudart.so.13 is not here; the table is linked to it")
        return
    program = os.path.join(bench.build, "tests", "preload", "memory_table")
    table = os.path.join(bench.temp, "memory_table.json")
    shim = os.path.join(bench.build, "shim", "libsymmshim.so")
    done = subprocess.run([program, "--preload", shim, "--json", table], capture_output=True, text=True, timeout=540,
                          env={**os.environ, "LD_LIBRARY_PATH": folder}, check=False)
    print(done.stdout + done.stderr, flush=True)
    results.add("| case | plain | arena | same? |", "|---|---|---|---|")
    with open(table, encoding="utf-8") as rows:
        for row in json.load(rows):
            arena = "the same" if row["arena"] == row["plain"] else row["arena"]
            results.add(f"| {row['case']} | {row['plain']} | {arena} | {row['verdict']} |")
    results.add("")
    results.check(done.returncode == 0 and re.search(r" 0 differ, ", done.stdout) is not None,
                  done.stdout.strip().splitlines()[-1])
