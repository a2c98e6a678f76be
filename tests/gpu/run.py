# SPDX-License-Identifier: Apache-2.0
"""Runs the demo and an unchanged PyTorch job with and without the shim on two real GPUs, and writes RESULTS.md.

Every command has a time limit, since what is looked for includes hangs. Exit status 1 when a check failed.
"""
import argparse
import datetime
import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

import sections_life
import sections_memory

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
OPS = ("all_gather", "reduce_scatter", "all_reduce")


class Results:
    """RESULTS.md, written anew after every section so that a time-out loses nothing."""

    def __init__(self, path):
        self.path, self.text, self.failures = path, [], []

    def add(self, *lines):
        self.text += lines
        with open(self.path, "w", encoding="utf-8") as out:
            out.write("\n".join(self.text) + "\n")
        print("\n".join(lines), flush=True)

    def check(self, good, what):
        self.add(f"- {'ok' if good else 'FAILED'}: {what}")
        if not good:
            self.failures.append(what)

    def raw(self, command, output):
        self.add("", "```", "$ " + command, *output.strip().splitlines(), "```", "")


def run(command, env=None, limit=120):
    """Runs a command; returns (exit status or None after a time-out, stdout, stderr, seconds)."""
    start = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, **NO_MULTICAST, **(env or {})}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=limit)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
        status = None
    return status, out, err, time.monotonic() - start


def versions(results):
    import torch
    smi = run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])[1]
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    results.add("# Checks on two real GPUs", "",
                f"Written by `tests/gpu/run.sh` on {datetime.date.today()}.", "",
                f"- GPUs: {'; '.join(smi.strip().splitlines())}",
                f"- torch {torch.__version__}, NCCL {nccl}, Python {platform.python_version()}",
                "- NVLink multicast off in every process: " + " ".join(f"{k}={v}" for k, v in NO_MULTICAST.items()))


class Bench:
    def __init__(self, build, results):
        self.build, self.results = build, results
        self.tool = os.path.join(build, "tools", "symmshim")
        self.temp = tempfile.mkdtemp(prefix="symmshim-gpu-")
        self.port = 29600

    def job(self, arguments, shim, nccl_debug=False, policy=None):
        """One run of train.py."""
        return self.torchrun([os.path.join(HERE, "train.py"), *arguments], shim, nccl_debug, policy)

    def torchrun(self, arguments, shim, nccl_debug=False, policy=None, env=None, limit=120, alone=False):
        """One run of a program. Returns a dict with its JSON line and, under the shim, the report and the audit."""
        folder = tempfile.mkdtemp(dir=self.temp)
        self.port += 1
        command = ["torchrun", "--nproc-per-node", "2", "--master-port", str(self.port), *arguments]
        if alone:  # the program starts its ranks itself
            command = [sys.executable, *arguments]
        if shim:
            command = [self.tool, "run", "--audit", folder + "/audit.%r.%p.jsonl"] + \
                (["--policy", policy] if policy else []) + ["--"] + command
        shown = " ".join([f"{name}={value}" for name, value in (env or {}).items()]
                         + (["symmshim run --"] if shim else [])
                         + ["python3" if alone else "torchrun --nproc-per-node 2", os.path.basename(arguments[0]), *arguments[1:]])
        env = dict(env or {})
        if nccl_debug:
            env.update({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING", "NCCL_DEBUG_FILE": folder + "/nccl.%p"})
        status, out, err, seconds = run(command, env, limit)
        lines = [line for line in out.splitlines() if line.startswith("{")]
        found = {"status": status, "command": shown, "seconds": seconds, "json": json.loads(lines[-1]) if lines else None,
                 "line": lines[-1] if lines else "", "err": err, "audits": glob.glob(folder + "/audit.*")}
        if found["audits"]:
            found["report"] = json.loads(run([self.tool, "report", "--json"] + found["audits"])[1] or "{}")
            found["table"] = run([self.tool, "report"] + found["audits"])[1]
        found["works"] = sum(int(works) for path in glob.glob(folder + "/nccl.*")
                             for works in re.findall(r"\[Symmetric\].*nWorks (\d+)", open(path, encoding="utf-8").read()))
        found["kernels"] = sorted({name for path in glob.glob(folder + "/nccl.*")
                                   for name in re.findall(r"\[Symmetric\].*Kernel (\S+ nchannels \d+)",
                                                          open(path, encoding="utf-8").read())})
        if status != 0:
            keep = os.environ.get("OUT")
            tail = "\n".join(err.splitlines()[-30:])
            print(f"status {status}: {shown}\n{tail}", flush=True)
            if keep:
                with open(os.path.join(keep, "stderr.txt"), "a", encoding="utf-8") as out_file:
                    out_file.write(f"== {shown}\n{err}\n")
        return found


def same_parameters(stock, shim):
    return all(abs(a - b) <= 1e-6 * max(abs(a), abs(b)) for a, b in zip(stock["params"], shim["params"]))


def rank0_windowed(audits):
    """Windowed calls of rank 0, from the last summaries of its file."""
    last = {}
    for path in audits:
        for line in open(path, encoding="utf-8"):
            record = json.loads(line)
            if record["event"] == "summary" and record["rank"] == 0:
                last[path, record["comm"], record["op"]] = record["window_calls"]
    return sum(last.values())


def demo(bench):
    results = bench.results
    results.add("", "## Demo", "")
    status, out, err, _ = run(["sh", os.path.join(ROOT, "tools", "demo", "run.sh"), bench.build], limit=90)
    results.raw("tools/demo/run.sh BUILD", out + err)
    results.check(status == 0 and "real GPUs)" in out, "the demo on real GPUs: every element right, every call symmetric")


# What a process that uses both devices relies on: copies between them in both directions, freed memory, no error.
TWO_DEVICES = """
import torch
a = torch.arange(1 << 24, device="cuda:0")
b = torch.arange(1 << 24, device="cuda:1") * 3
for _ in range(3):
    c, d = a.to("cuda:1"), b.to("cuda:0")
    assert torch.equal(c.cpu(), a.cpu()) and torch.equal(d.cpu(), b.cpu())
    del c, d
    torch.cuda.empty_cache()
try:
    torch.empty(1 << 50, device="cuda:0")
except torch.cuda.OutOfMemoryError:
    print("two devices: copies right, out of memory as usual")
"""


def one_process(bench):
    results = bench.results
    results.add("", "## One process, two devices", "")
    status, out, err, _ = run([bench.tool, "run", "--", "python3", "-c", TWO_DEVICES], limit=60)
    results.raw("symmshim run -- python3 -c '...copies between the devices, empty_cache, out of memory...'", out + err)
    results.check(status == 0 and "copies right" in out, "copies and errors as without the shim")


def divergence(bench):
    results = bench.results
    results.add("", "## FSDP2, ranks alike and not", "",
                "`NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING` in the runs under the shim, for NCCL's own `[Symmetric]` lines.")
    for diverge in ("none", "batch", "rank0"):
        arguments = ["--wrap", "fsdp2", "--diverge", diverge]
        stock = bench.job(arguments, shim=False)
        shim = bench.job(arguments, shim=True, nccl_debug=True)
        results.add("", f"### --diverge {diverge}", "")
        results.raw(stock["command"], stock["line"])
        results.raw(shim["command"], shim["line"] + "\n" + shim.get("table", ""))
        results.check(stock["status"] == 0 and shim["status"] == 0, "both runs end by themselves")
        if not (stock["json"] and shim["json"] and shim.get("report")):
            results.check(False, "both runs have results")
            continue
        ops = shim["report"]["ops"]
        gathers, scatters = ops["all_gather"], ops["reduce_scatter"]
        results.check(same_parameters(stock["json"], shim["json"]), "final parameters agree to 1e-6 relative")
        results.check(gathers["symmetric_calls"] == gathers["calls"] > 0,
                      f"all-gathers on windows: {gathers['symmetric_calls']} of {gathers['calls']}")
        results.add(f"- reduce-scatters on windows: {scatters['symmetric_calls']} of {scatters['calls']}, "
                    f"plain: {json.dumps(scatters['plain'])}")
        windowed = rank0_windowed(shim["audits"])
        results.check(shim["works"] == windowed > 0,
                      f"nWorks of NCCL's [Symmetric] lines {shim['works']}, windowed calls of rank 0 in the audit {windowed}")
        results.add(f"- kernels that NCCL named: {', '.join(shim['kernels'])}")


# arguments, runs of each kind; jobs that are run once are shown and not judged
SPEED = ((["--regime", "overlapped"], 2), (["--regime", "exposed"], 2), (["--regime", "small", "--steps", "60"], 6),
         (["--regime", "small", "--wrap", "fsdp1"], 1), (["--regime", "small", "--wrap", "ddp"], 1))


def speed(bench):
    results = bench.results
    results.add("", "## Step time, default policy", "",
                "Milliseconds, the median step of each run; stock and shim in turn. What disturbs a run only makes it "
                "slower, and the small regime is bound by the host, so the best run of each is compared. Speed as such "
                "is not the subject here.", "",
                "| job | stock | shim | ratio of the best |", "|---|---|---|---|")
    judged = []
    for arguments, count in SPEED:
        runs = {False: [], True: []}
        for shim in (False, True) * count:
            found = bench.job(arguments, shim)
            if found["json"]:
                runs[shim].append(found["json"]["step_ms"])
        name = " ".join(arguments)
        if len(runs[False]) < count or len(runs[True]) < count:
            judged.append((False, f"{name}: all runs end by themselves"))
            continue
        ratio = min(runs[True]) / min(runs[False])
        results.add(f"| {name} | {', '.join(map(str, runs[False]))} | {', '.join(map(str, runs[True]))} | {ratio:.3f} |")
        if count > 1:
            judged.append((ratio <= 1.05, f"{name}: step at most 5 % over stock ({ratio:.3f})"))
    results.add("")
    for good, what in judged:
        results.check(good, what)


MORE = {"staging": sections_life.staging, "life": sections_life.life, "cycles": sections_life.cycles,
        "killed": sections_life.killed, "memory": sections_memory.memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="build folder")
    parser.add_argument("--only", default="demo,one_process,divergence,speed", help="sections to run (default: %(default)s)")
    parser.add_argument("--results", default=os.path.join(HERE, "RESULTS.md"), help="file to write")
    args = parser.parse_args()
    if not os.path.exists(os.path.join(HERE, "train.py")):
        sys.exit(f"{HERE}/train.py is missing: put the job to be run there")
    results = Results(args.results)
    versions(results)
    bench = Bench(os.path.abspath(args.build), results)
    try:
        for section in args.only.split(","):
            if section in MORE:
                MORE[section](bench, same_parameters)
            else:
                {"demo": demo, "one_process": one_process, "divergence": divergence, "speed": speed}[section](bench)
    finally:
        shutil.rmtree(bench.temp, ignore_errors=True)
    results.add("", f"{len(results.failures)} checks failed.")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
