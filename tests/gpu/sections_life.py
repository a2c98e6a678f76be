# SPDX-License-Identifier: Apache-2.0
"""Sections of run.py: calls whose buffers do not lie alike, and the life of communicators."""
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))

STAGED = """[shim]
{keys}
[rule all]
path = staged
rewrite = post_scale
"""
OPS = ("all_gather", "reduce_scatter", "all_reduce")


def policy_file(bench, name, keys=""):
    path = os.path.join(bench.temp, name + ".conf")
    with open(path, "w", encoding="utf-8") as out:
        out.write(STAGED.format(keys=keys))
    return path


def coverage(report):
    """What part of an op's calls went symmetric, and by which path."""
    words = []
    for op in OPS:
        counts = report["ops"].get(op)
        if counts and counts["calls"]:
            words.append(f"{op} {counts['symmetric_calls']}/{counts['calls']}"
                         + (f" plain {json.dumps(counts['plain'])}" if counts["plain"] else ""))
    return "; ".join(words)


def share(report, ops=OPS):
    counts = [report["ops"][op] for op in ops if op in report["ops"]]
    calls = sum(c["calls"] for c in counts)
    return sum(c["symmetric_calls"] for c in counts) / calls if calls else 1.0


def staging(bench, same_parameters):
    results = bench.results
    policy = policy_file(bench, "staged")
    results.add("", "## Every wrapper, ranks alike and not, with staging", "",
                "Policy: `path = staged`, `rewrite = post_scale` for all calls of all sizes.", "")
    for wrap in ("fsdp2", "fsdp1", "ddp"):
        for diverge in ("none", "batch", "rank0"):
            arguments = ["--wrap", wrap, "--diverge", diverge]
            stock, shim = bench.job(arguments, shim=False), bench.job(arguments, shim=True, policy=policy)
            name = " ".join(arguments)
            if not (stock["json"] and shim["json"] and shim.get("report")):
                results.check(False, f"{name}: both runs end by themselves (status {stock['status']}, {shim['status']})")
                continue
            results.add(f"- {name}: {coverage(shim['report'])}; step {stock['json']['step_ms']} ms stock, "
                        f"{shim['json']['step_ms']} ms with the shim")
            results.check(same_parameters(stock["json"], shim["json"]), f"{name}: final parameters agree to 1e-6")
            results.check(share(shim["report"]) >= 0.95, f"{name}: at least 95 % of the calls symmetric")


def scenario(bench, name, shim=True, **options):
    return bench.torchrun([os.path.join(HERE, "life.py"), name], shim, **{"limit": 150, **options})


def life(bench, _):
    results = bench.results
    policy = policy_file(bench, "life")
    results.add("", "## The life of communicators", "", "`life.py SCENARIO` under the shim, policy as above.", "")
    for name, env in (("plain", None), ("coalesced", None), ("graphs", None), ("split", None), ("abort", None),
                      ("nonblocking", {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"})):
        found = scenario(bench, name, policy=policy, env=env)
        results.raw(found["command"], found["line"] + "\n" + (coverage(found["report"]) if found.get("report") else ""))
        results.check(found["status"] == 0 and bool(found["json"] and found["json"].get("right")),
                      f"{name}: every result right, no hang")
        if found.get("report"):
            results.check(share(found["report"], ("all_gather", "reduce_scatter")) >= 0.9,
                          f"{name}: all-gathers and reduce-scatters symmetric but for the first ones")


def cycles(bench, _):
    results = bench.results
    results.add("", "## 1000 communicators made, used and destroyed", "")
    growth = {}
    for shim in (False, True):
        found = scenario(bench, "cycles", shim=shim, policy=policy_file(bench, "cycles") if shim else None, limit=280)
        results.raw(found["command"], found["line"] + "\n" + (coverage(found["report"]) if found.get("report") else ""))
        if found["json"]:
            growth[shim] = found["json"]["used_mib_at_the_end"] - found["json"]["used_mib_after_10"]
    results.check(len(growth) == 2 and growth[True] <= growth[False] + 8,
                  f"device memory grows no more than stock: MiB from cycle 10 to the end {growth}")


def killed(bench, _):
    results = bench.results
    results.add("", "## A rank is killed while the other waits for it inside a kernel", "",
                "Rank 0 then aborts the communicator and waits 20 s for that to return.", "")
    for words, shim, keys in (("stock", False, ""), ("shim", True, ""),
                              ("shim, require_abortable = yes", True, "require_abortable = yes")):
        policy = policy_file(bench, "killed", keys) if shim else None
        found = scenario(bench, "killed", shim=shim, policy=policy, limit=90, alone=True)
        results.raw(f"{found['command']}   # {words}", found["line"])
        expected = not shim or bool(keys)
        results.check(bool(found["json"]) and found["json"]["abort_returned"] == expected,
                      f"{words}: abort {'returns' if expected else 'does not return, as NCCL before 2.29 has it'}")
