# SPDX-License-Identifier: Apache-2.0
"""What a seed stands for: the program's options, the policy, and what the simulation is asked to do."""

import random

# The words that policies are made of. A new one is added here and nowhere else.
PATHS = ("plain", "window", "staged")
REWRITES = ("none", "post_scale", "pre_scale")

OPS = ("all_gather", "reduce_scatter", "all_reduce")
DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "fp16", "fp32", "fp64", "bf16", "fp8e4m3", "fp8e5m2")
VERSIONS = (22703, 22705, 22707, 22803, 22809, 22902, 23003, 23007)

# Calls that only the shim makes, and the errors to give. Those that are collective fail on every rank or none, or the
# others would wait inside NCCL for ever; their numbers mean the same on all ranks only if all communicators are whole.
FAULTS = {
    "cuMemCreate": (2, 1, 800), "cuMemMap": (1, 2), "cuMemSetAccess": (1, 2), "cuMemAddressReserve": (2,),
    "cuMemGetAllocationGranularity": (1,), "cuMemGetInfo_v2": (201,), "cuEventCreate": (2,), "cuEventRecord": (400,),
    "cuStreamWaitEvent": (400,), "cuModuleLoadData": (2, 218), "cuCtxGetCurrent": (201,), "cuCtxGetDevice": (201,),
    "cuStreamIsCapturing": (400,), "cuDeviceGetAttribute": (1,), "cuPointerGetAttribute": (1,),
}
COLLECTIVE_FAULTS = ("ncclCommWindowRegister", "ncclCommSplit")
DELAYS = ("ncclCommWindowRegister", "ncclCommSplit", "ncclAllGather", "ncclReduceScatter", "ncclAllReduce",
          "cuMemCreate", "cudaMalloc", "ncclCommInitRank")
MEMORIES = ("48M", "64M", "96M", "200M", "8G", "8G", "8G")


class Plan:
    def __init__(self, seed, ranks=None, steps=None):
        self.seed = seed
        draw = random.Random(seed)
        drawn = draw.choices((2, 3, 4), (5, 3, 2))[0]
        self.ranks = ranks or drawn
        self.whole = draw.random() < 0.3
        self.memory = draw.choice(MEMORIES)
        self.options = ["--seed", str(seed), "--late", str(draw.choice((200, 3000, 20000))),
                        "--diverge", str(draw.choice((0, 1, 3, 10)))]
        # Mostly the way of one job; sometimes whatever is made and ended over and over.
        cycles, drawn = draw.choice(((2, 20), (2, 60), (2, 100), (3, 60), (12, 8)))
        self.options += ["--cycles", str(cycles), "--steps", str(steps or drawn)]
        if self.whole:
            self.options.append("--whole")
        if draw.random() < 0.3:
            self.options.append("--pressure")
        self.policy = policy(draw)
        self.env = environment(draw, self)
        # Where no event tells that a child's work is done, an abort leaves the child behind, with all that it has.
        if "cuEvent" in self.env.get("SIM_FAIL", ""):
            self.options.append("--keeps")


def rule(draw, number):
    lines = [f"[rule r{number}]"]
    if draw.random() < 0.6:
        lines.append(f"op = {', '.join(draw.sample(OPS, draw.randint(1, 2)))}")
    if draw.random() < 0.3:
        lines.append(f"dtype = {', '.join(draw.sample(DTYPES, draw.randint(1, 4)))}")
    if draw.random() < 0.3:
        lines.append(f"{draw.choice(('min_bytes', 'max_bytes'))} = {draw.choice(('1K', '10K', '64K', '200K'))}")
    if draw.random() < 0.1:
        lines.append(f"nranks = {draw.choice(('2', '3..', '..3'))}")
    settings = [f"path = {draw.choice(PATHS)}", f"rewrite = {draw.choice(REWRITES)}"]
    return lines + draw.choice((settings, settings[:1], settings[1:]))


def policy(draw):
    lines = ["[shim]"]
    values = {
        "agree_us": (0, 50, 2000, 50000, 1000000, 10000000), "setup_ms": (20, 500, 3000, 20000),
        "pause_after": (0, 1, 3, 10), "pause_calls": (3, 20, 100), "child_memory": ("4M", "16M"),
        "window_memory": ("1M", "8M"), "audit": ("summary", "change", "call"),
    }
    weights = {"agree_us": (1, 1, 2, 6, 5, 5), "setup_ms": (1, 3, 6, 3)}
    for key, choices in values.items():
        lines.append(f"{key} = {draw.choices(choices, weights.get(key))[0]}")
    lines += ["warn_s = 0", "[arena]", "callers = *", f"min_bytes = {draw.choice(('1M', '1M', '64K', '2M'))}"]
    if draw.random() < 0.15:
        lines.append(f"max_bytes = {draw.choice(('8M', '20M', '40M'))}")
    # One in four has whatever rules; in the others most that can goes symmetric.
    if draw.random() < 0.25:
        for number in range(draw.randint(1, 6)):
            lines += rule(draw, number)
    elif draw.random() < 0.3:
        lines += rule(draw, 0)
    lines += ["[rule rest]", f"path = {draw.choice([word for word in PATHS if word != 'plain'])}",
              f"rewrite = {draw.choice([word for word in REWRITES if word != 'none'])}"]
    return "\n".join(lines) + "\n"


def fault(draw, plan):
    if draw.random() < 0.25:
        function = draw.choice(COLLECTIVE_FAULTS)
        # A program that splits itself would see that fail too.
        if plan.whole:
            return f"{function}:{draw.choice(('1', '2', '5', '*'))}={draw.choice((1, 2, 3))}"
        return "ncclCommWindowRegister:*=3"
    function = draw.choice(list(FAULTS))
    number = draw.choice(("1", "2", str(draw.randint(1, 60)), "*"))
    where = draw.choice(("", f"@rank{draw.randrange(plan.ranks)}"))
    return f"{function}:{number}{where}={draw.choice(FAULTS[function])}"


def environment(draw, plan):
    env = {"SIM_NCCL_VERSION": str(draw.choices(VERSIONS, (1, 2, 2, 2, 6, 4, 4, 4))[0]),
           "SIM_DEVICE_MEMORY": plan.memory, "SIM_DEVICES": str(plan.ranks)}
    if plan.memory == "8G" and draw.random() < 0.5:
        env["SIM_COMM_MEMORY"] = draw.choice(("2M", "4M"))
    if draw.random() < 0.25:
        # Those of one rank last: after one that is another rank's the simulation takes "*" for that one's number.
        faults = [fault(draw, plan) for _ in range(draw.randint(1, 2))]
        env["SIM_FAIL"] = ",".join(sorted(faults, key=lambda text: "@" in text))
    if draw.random() < 0.25:
        function, rank = draw.choice(DELAYS), draw.randrange(plan.ranks)
        env["SIM_DELAY"] = f"{function}:{draw.randint(1, 20)}@rank{rank}={draw.choice((5, 50, 200))}"
    if draw.random() < 0.05:
        env["NCCL_WIN_ENABLE"] = "0"
    if draw.random() < 0.1:
        env["SIM_FABRIC"] = "1"
    return env
