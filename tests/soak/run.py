# SPDX-License-Identifier: Apache-2.0
"""
Random programs under the shim on the simulated GPUs, for a given time: soak.h says what they do, plans.py what else is
random. Each has a seed of its own, from --seed and its number; --repeat SEED runs one of them again.

Exit status: 0 no wrong element, hang or leak; 1 at least one.
"""

import argparse
import collections
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import plans

TAIL_LINES = 12
# A /dev/shm of its own: what is left in it is the program's. Where that may not be, the common one is watched.
PRIVATE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
           'mount -t tmpfs soak /dev/shm && "$@"; status=$?; ls /dev/shm >left; exit $status', "sh"]
QUIET = re.compile(r"SYMMSHIM WARN ")
LEFT = re.compile(r"(audit|trace)\.\d+$|(policy|left)$")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("shim", "soak", "ranks-program", "sim", "symmshim"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seconds", type=float, default=60, help="no further program is started after so long")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first program; default: the clock")
    parser.add_argument("--repeat", type=int, metavar="SEED", help="only the program with this seed")
    parser.add_argument("--times", type=int, default=1, help="how often to repeat it")
    parser.add_argument("--ranks", type=int, help="number of ranks, instead of a random one")
    parser.add_argument("--steps", type=int, help="steps of a cycle, instead of a random number")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="programs at a time")
    parser.add_argument("--limit", type=int, default=60, help="seconds after which a program hangs")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--without-shim", action="store_true", help="the same programs, to check them alone")
    parser.add_argument("--keep", help="folder for what failed programs leave: policy, audit logs, records of calls")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    return parser.parse_args()


def objects():
    return {name for name in os.listdir("/dev/shm") if name.startswith("symmshim")}


@functools.lru_cache(maxsize=None)
def is_private():
    with tempfile.TemporaryDirectory() as name:
        tried = subprocess.run([*PRIVATE, "true"], cwd=name, capture_output=True, check=False)
    return tried.returncode == 0


def is_mapped(name):
    for path in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            if name in path.read_text(errors="replace"):
                return True
        except OSError:
            pass
    return False


def left_objects(folder, before):
    """Of a common /dev/shm those that nobody has mapped any more: others have some for a moment."""
    if is_private():
        return (folder / "left").read_text().split()
    left = objects() - before
    end = time.monotonic() + 5
    while left and time.monotonic() < end:
        time.sleep(0.1)
        left &= objects()
    return sorted(name for name in left if not is_mapped(name))


class Outcome:
    def __init__(self, plan):
        self.plan = plan
        self.problem = None
        self.said = []
        self.report = {}
        self.tails = {}
        self.seconds = 0


def environment(options, plan, folder):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SYMMSHIM", "NCCL_", "SIM_", "LD_"))}
    env.update(plan.env, TMPDIR=str(folder), HOME=str(folder), LD_LIBRARY_PATH=options.sim,
               SIM_TRACE=f"{folder}/trace.%r")
    if options.without_shim:
        env.pop("SIM_FAIL", None)
        env.pop("SIM_DELAY", None)
        return env
    (folder / "policy").write_text(plan.policy)
    env.update(LD_PRELOAD=options.shim, SYMMSHIM_POLICY=f"{folder}/policy", SYMMSHIM_AUDIT=f"{folder}/audit.%r")
    return env


def look(options, outcome, process, folder):
    """What is wrong with a program that has ended; None if nothing."""
    loud = [line for line in process.stderr.splitlines() if not QUIET.search(line)]
    if process.returncode != 0 or loud:
        return f"status {process.returncode}\n" + "\n".join(loud)
    outcome.said = [json.loads(line) for line in process.stdout.splitlines()]
    if len(outcome.said) != outcome.plan.ranks:
        return "not every rank came to its end"
    odd = [path.name for path in folder.iterdir() if not LEFT.match(path.name)]
    if odd:
        return f"files are left behind: {odd}"
    logs = [str(path) for path in folder.glob("audit.*")]
    if logs:
        report = subprocess.run([options.symmshim, "report", "--json", *logs], capture_output=True, text=True,
                                check=True)
        outcome.report = json.loads(report.stdout)
    elif not options.without_shim:
        return "there is no audit log"
    return None


def run(options, seed):
    plan = plans.Plan(seed, options.ranks, options.steps)
    outcome, before, start = Outcome(plan), objects(), time.monotonic()
    command = [options.ranks_program, "-k", "-n", str(plan.ranks), "-t", str(options.limit + 5), "--", options.soak,
               *plan.options, "--limit", str(options.limit)]
    if is_private():
        command = PRIVATE + command
    with tempfile.TemporaryDirectory(prefix="symmshim-soak-") as name:
        folder = pathlib.Path(name)
        process = subprocess.run(command, cwd=folder, env=environment(options, plan, folder), capture_output=True,
                                 text=True, stdin=subprocess.DEVNULL, timeout=options.limit + 60, check=False)
        outcome.problem = look(options, outcome, process, folder)
        left = left_objects(folder, before)
        if left and not outcome.problem:
            outcome.problem = f"shared memory is left behind: {left}"
        if outcome.problem:
            for path in sorted(folder.glob("trace.*")):
                outcome.tails[path.name] = path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            if options.keep:
                shutil.copytree(folder, pathlib.Path(options.keep) / str(seed), dirs_exist_ok=True)
    outcome.seconds = time.monotonic() - start
    return outcome


def complain(outcome, options, out):
    plan = outcome.plan
    again = [sys.executable, os.path.abspath(__file__)]
    for name in ("shim", "soak", "ranks_program", "sim", "symmshim"):
        again += [f"--{name.replace('_', '-')}", getattr(options, name)]
    again += ["--repeat", str(plan.seed), "--limit", str(options.limit)]
    for name in ("ranks", "steps"):
        if getattr(options, name):
            again += [f"--{name}", str(getattr(options, name))]
    if options.without_shim:
        again.append("--without-shim")
    print(f"FAILED: seed {plan.seed}, {outcome.seconds:.1f} s, {outcome.problem}\n"
          f"again: {shlex.join(again)}\n"
          f"which is: {plan.ranks} ranks, soak {' '.join(plan.options)}\n"
          f"environment: {' '.join(f'{key}={value}' for key, value in plan.env.items())}\npolicy:", file=out)
    print("".join(f"    {line}\n" for line in plan.policy.splitlines()), end="", file=out)
    for name, lines in outcome.tails.items():
        print(f"end of {name}:", *(f"    {line}" for line in lines), sep="\n", file=out)
    out.flush()


class Figures:
    def __init__(self):
        self.seeds = []
        self.failed = []
        self.sums = collections.Counter()
        self.ops = collections.defaultdict(collections.Counter)

    def add(self, outcome):
        self.seeds.append(outcome.plan.seed)
        if outcome.problem:
            self.failed.append(outcome.plan.seed)
        for said in outcome.said:
            self.sums.update({key: value for key, value in said.items() if key != "rank"})
        for op, counts in outcome.report.get("ops", {}).items():
            self.ops[op].update(flatten(counts))

    def as_dict(self, seconds):
        return {"seconds": round(seconds), "programs": len(self.seeds), "failed": self.failed, **self.sums,
                "audited": {op: dict(counts) for op, counts in self.ops.items()}, "seeds": self.seeds}


def flatten(op):
    """The report's numbers by their names, those of the reasons too."""
    found = {}
    for key, value in op.items():
        if isinstance(value, dict):
            found.update({f"{key}.{name}": number for name, number in value.items() if isinstance(number, int)})
        elif isinstance(value, int):
            found[key] = value
    return found


def seeds(options):
    if options.repeat is not None:
        yield from [options.repeat] * options.times
        return
    end, number = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        yield options.seed * 1000003 + number
        number += 1


def soak(options, out):
    figures, start, lock = Figures(), time.monotonic(), threading.Lock()
    supply = seeds(options)

    def work():
        while True:
            with lock:
                seed = next(supply, None)
                if seed is None or len(figures.failed) >= options.failures:
                    return
            outcome = run(options, seed)
            with lock:
                figures.add(outcome)
                if outcome.problem:
                    complain(outcome, options, out)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for worker in [pool.submit(work) for _ in range(options.jobs)]:
            worker.result()
    return figures, time.monotonic() - start


def main():
    options = arguments()
    for name in ("shim", "soak", "ranks_program", "sim", "symmshim"):
        setattr(options, name, os.path.abspath(getattr(options, name)))
    out = sys.stderr if options.json else sys.stdout
    if options.repeat is None:
        print(f"seed {options.seed}, {options.seconds:g} s, {options.jobs} programs at a time", file=out, flush=True)
    figures, seconds = soak(options, out)
    summary = figures.as_dict(seconds)
    if options.json:
        print(json.dumps(summary))
    else:
        for key, value in summary.items():
            if key == "audited":
                for op, counts in value.items():
                    print(f"{op}:", ", ".join(f"{name} {number}" for name, number in counts.items()))
            elif key != "seeds":
                print(f"{key}: {value}")
        print(f"seeds: {min(summary['seeds'], default='none')} to {max(summary['seeds'], default='none')}")
    return 1 if figures.failed or not figures.seeds else 0


if __name__ == "__main__":
    sys.exit(main())
