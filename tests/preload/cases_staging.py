# SPDX-License-Identifier: Apache-2.0
"""Calls that are copied through slots, since their buffers do not lie alike on all ranks."""

import re

from cases_calls import ALL, three
from cases_memory import allocations
from harness import NO_ARENA, case, check, equal, execute, job, outcome, policy, setup

STAGED = "[rule all]\npath = staged\n"
SCALED = STAGED + "rewrite = pre_scale\n"
MIB = 1 << 20
SAID = r"((job: [^\n]*, all right|error: [^\n]*|memory: [^\n]*)\n)*"
TOLD = r"([^\n]*SYMMSHIM (INFO|WARN) [^\n]*\n)*"


def staged(rules=SCALED, **keys):
    return policy(rules=rules, **keys)


def outside():
    """No memory of the job's comes from the arena."""
    return staged().replace("min_bytes = 1M", "min_bytes = 1G")


def calls(nranks, *steps, text=None, **rest):
    """The steps that staging.c describes."""
    result = job(nranks, *steps, program=[setup.staging], stdout=SAID, text=text or staged(), **rest)
    equal(result.stdout.count("all right"), nranks, "ranks that found all right")
    return result


def each(result, nranks, wanted, **by_rank):
    """Every rank's outcomes, in order; a word stands for all of them."""
    for rank in range(nranks):
        want = by_rank.get(f"r{rank}", wanted)
        got = result.sequence(rank)
        equal(got, [want] * len(got) if isinstance(want, str) else want, f"rank {rank}: outcomes, in order")


def synced(*steps):
    """One after the other, so that they may use the same memory."""
    return [word for step in steps for word in (step, "sync")]


def slots(result, rank):
    """The sizes of the slots that a rank told of."""
    return [int(size) for size in re.findall(rf"rank {rank} of \d+, [^\n]*: 2 slots of (\d+) bytes", result.stderr)]


def differ(op, nranks=2, **keys):
    """A call whose buffers lie elsewhere on each rank."""
    places = "/".join(f"1@{4096 * rank}" for rank in range(nranks))
    words = {"send": places.replace("1@", "0@"), "recv": places, **keys}
    return ",".join([op, *(f"{key}={value}" for key, value in words.items())])


ALIKE = "all_gather,send=0@0,recv=1@0"


# Where the memory lies.

@case("staging", "offset_2", nranks=2)
@case("staging", "offset_3", nranks=3)
def offset(nranks):
    """Every second call differs, so each op once goes by its windows and once through a slot."""
    for dtype in ("bf16", "fp16", "fp32", "fp8e4m3", "fp8e5m2"):
        result = job(nranks, "--op", ALL, "--calls", 6, "--diverge", "offset", "--dtype", dtype, text=staged())
        each(result, nranks, ["window", "staged"] * 3)


@case("staging", "offset_gather_2", nranks=2)
@case("staging", "offset_gather_3", nranks=3)
def offset_gather(nranks):
    for dtype in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "fp64"):
        result = job(nranks, "--op", ALL, "--calls", 6, "--diverge", "offset", "--dtype", dtype, text=staged())
        each(result, nranks, ["window", "dtype", "dtype", "staged", "dtype", "dtype"])


@case("staging", "with_2_27_5", version=22705)
@case("staging", "with_2_29_2", version=22902)
@case("staging", "with_2_30_7", version=23007)
def with_version(version):
    result = job(3, "--op", ALL, "--calls", 6, "--diverge", "offset", text=staged(),
                 env={"SIM_NCCL_VERSION": str(version)})
    each(result, 3, ["window", "staged"] * 3)


@case("staging", "sizes_of_segments", how="size", wanted={"staged"})
@case("staging", "further_tensors", how="malloc", wanted={"window", "staged"})
@case("staging", "other_window", how="window", wanted={"window", "staged"})
@case("staging", "activations", how="batch", wanted={"window", "staged"})
def diverging(how, wanted):
    """Whatever keeps calls plain that must be alike."""
    for nranks in (2, 3):
        result = job(nranks, "--op", ALL, "--calls", 12, "--diverge", how, text=staged())
        for rank in range(nranks):
            check(set(result.sequence(rank)) <= wanted and "staged" in result.sequence(rank),
                  f"{how}, rank {rank}: {result.sequence(rank)}")


@case("staging", "outside_on_one_2", nranks=2)
@case("staging", "outside_on_one_3", nranks=3)
def outside_on_one(nranks):
    result = job(nranks, "--op", ALL, "--calls", 6, "--diverge", "plain", text=staged(), stderr=f"({NO_ARENA})?")
    each(result, nranks, "staged")


@case("staging")
def outside_on_all():
    result = job(3, "--op", ALL, "--calls", 6, text=outside(), stderr=f"({NO_ARENA}){{0,3}}")
    each(result, 3, "staged")
    for rank in range(3):
        equal(len([line for line in result.calls_of(rank, "cuMemMap")]), 1, "mappings: the slots")
        equal(len(result.calls_of(rank, "ncclCommWindowRegister")), 1, "registrations: the slots")


@case("staging")
def registered_by_the_job():
    """What the job registered with its own communicator is not a window of the child's; its content can be copied."""
    result = job(2, "--op", ALL, "--calls", 6, "--register", "buffer", text=staged())
    each(result, 2, "staged")


@case("staging")
def no_slots_by_policy():
    result = job(2, "--op", ALL, "--calls", 6, "--diverge", "offset", text=staged(stage_max=0))
    each(result, 2, ["window", "ranks_differ"] * 3)


@case("staging")
def inplace():
    places = "/".join(f"0@{4096 * rank}" for rank in range(3))
    steps = [f"all_gather,send=inplace,recv={places}"]
    for op in ("reduce_scatter", "all_reduce"):
        steps += [f"{op},recv=inplace,send={places}{more}" for more in ("", ",redop=avg,dtype=fp16")]
    each(calls(3, *synced(*steps)), 3, "staged")


@case("staging", "misaligned_bf16", dtype="bf16", size=2)
@case("staging", "misaligned_fp16", dtype="fp16", size=2)
@case("staging", "misaligned_fp32", dtype="fp32", size=4)
def misaligned(dtype, size):
    """Not to 16 bytes, and otherwise on each rank; an odd number of elements too."""
    steps = []
    for shift in range(3):
        words = {"send": f"0@{shift * size}/0@{(shift + 1) * size}", "recv": f"1@{(shift + 2) * size}/1@{size}",
                 "dtype": dtype, "count": 333 + shift, "redop": "avg"}
        steps += [differ(op, **words) for op in ("all_gather", "reduce_scatter", "all_reduce")]
    each(calls(2, *synced(*steps)), 2, "staged")


# One side on one rank only.

@case("staging")
def input_of_one_rank():
    """An all-gather's input concerns nobody else: it is copied in place, with no slot."""
    result = calls(2, ALIKE, "sync", "repeat=3", "all_gather,send=loose/0@0,recv=1@0", "sync")
    each(result, 2, "window")
    equal(len(result.calls_of(0, "ncclCommWindowRegister")), 2, "registrations")


@case("staging")
def output_of_one_rank():
    """A reduce-scatter's output comes out of a slot, once there is one; the others do not hear of it."""
    result = calls(2, "reduce_scatter,send=0@0,recv=1@0", "sync", "repeat=3",
                   "reduce_scatter,send=0@0,recv=loose/1@0", "sync")
    each(result, 2, ["window", "staged", "window", "window"])


@case("staging")
def slots_in_step():
    """A rank that used a slot by itself is with the others again at the next staged call."""
    own = "reduce_scatter,send=0@0,recv=loose/1@0"
    result = calls(2, *synced("reduce_scatter,send=0@0,recv=1@0", differ("all_reduce"), own, differ("all_reduce"),
                              differ("reduce_scatter"), own, own, own, differ("all_gather"), differ("all_reduce")))
    each(result, 2, ["window", "staged", "window", "staged", "staged", *["window"] * 3, "staged", "staged"])


@case("staging", "new_input", op="all_gather", side="send", other="recv")
@case("staging", "new_output", op="reduce_scatter", side="recv", other="send")
def new_on_one_rank(op, side, other):
    """A segment that is new on one rank, where the other's is old, is not asked about for ever."""
    result = calls(2, f"{op},{side}=0@0,{other}=1@0", "sync", "repeat=4", f"{op},{side}=2@0/0@0,{other}=1@0", "sync")
    each(result, 2, ["window", "staged", "window", "window", "window"])


@case("staging", "new_input_together", op="all_gather", side="send", other="recv")
@case("staging", "new_output_together", op="reduce_scatter", side="recv", other="send")
def new_together_on_one_rank(op, side, other):
    """Both sides in one new segment here, in two there."""
    result = calls(2, "repeat=5", f"{op},{side}=0@0/1@0,{other}=0@{MIB}", "sync")
    for rank in range(2):
        equal(result.sequence(rank)[2:], ["window"] * 3, f"rank {rank}: outcomes, in order")


@case("staging")
def new_of_other_sizes():
    """Nor where it is new everywhere, and of another size; it may be a window yet where peers touch it."""
    result = calls(2, ALIKE, "sync", f"size={4 * MIB}/{6 * MIB}", "repeat=3", "all_gather,send=2@0,recv=1@0", "sync")
    each(result, 2, ["window", "staged", "window", "window"])


# Sizes.

@case("staging")
def from_one_element():
    counts = (1, 2, 3, 7, 8, 9, 511, 512, 513)
    for op in ("all_gather", "reduce_scatter", "all_reduce"):
        each(calls(3, *synced(*(differ(op, 3, count=count) for count in counts))), 3, "staged")


@case("staging")
def slots_grow():
    """Each time to a power of two that suffices; smaller calls then use the larger ones."""
    counts = (1000, 2 * MIB // 4, 2 * MIB // 4 + 1, 1000, 7 * MIB // 4)
    steps = synced(*(differ("all_reduce", count=count) for count in counts))
    result = calls(2, *steps, env={"SYMMSHIM_DEBUG": "INFO"}, stderr=TOLD)
    each(result, 2, "staged")
    for rank in range(2):
        equal(slots(result, rank), [2 * MIB, 4 * MIB, 8 * MIB], "slots")
        equal(len(result.calls_of(rank, "ncclCommWindowRegister")), 3, "registrations")
        equal(allocations(result, rank), 0, "allocations left")


@case("staging")
def slots_up_to_the_cap():
    """16M are two of 2M and two of 4M, and no two of 8M beside them."""
    counts = (1000, 3 * MIB // 4, 5 * MIB // 4, 3 * MIB // 4)
    steps = synced(*(differ("all_reduce", count=count) for count in counts))
    result = calls(2, *steps, text=staged(stage_max="16M"))
    each(result, 2, ["staged", "staged", "no_slot", "staged"])
    result = calls(2, *synced(differ("all_reduce"), differ("all_gather")), text=staged(stage_max="4095K"))
    each(result, 2, "no_slot")
    result = calls(2, differ("all_reduce"), "sync", text=staged(stage_max="4096K"))
    each(result, 2, "staged")


@case("staging")
def slots_with_parked_memory():
    """What the job has freed may be a window already; slots are other memory, of the same size on all ranks."""
    for size, count in ((4 * MIB, 1000), (18 * MIB, 2 * MIB)):
        for freed in ("0", "0/-"):
            result = calls(2, f"size={size}", ALIKE, "sync", f"free={freed}",
                           differ("all_reduce", count=count, send="1@0/1@4096",
                                  recv=f"1@{size // 2}/1@{size // 2 + 8192}"), "sync", ALIKE,
                           "sync", differ("all_reduce"), "sync")
            check(all(path in ("window", "staged") for path in result.sequence(0)), f"{size}: {result.sequence(0)}")
            equal([allocations(result, rank) for rank in range(2)], [0, 0], "allocations left")


# Factors.

@case("staging", "average_bf16", dtype="bf16", redop="avg")
@case("staging", "average_fp16", dtype="fp16", redop="avg")
@case("staging", "average_fp32", dtype="fp32", redop="avg")
@case("staging", "premulsum_bf16", dtype="bf16", redop="premulsum")
@case("staging", "premulsum_fp16", dtype="fp16", redop="premulsum")
@case("staging", "premulsum_fp32", dtype="fp32", redop="premulsum")
def scaled(dtype, redop):
    """No further off than NCCL's own, all taken together; in fp32 both round as often, and chance decides."""
    steps = synced(*(differ(op, 3, dtype=dtype, redop=redop, factor=0.3, count=5001)
                     for op in ("reduce_scatter", "all_reduce")))
    result = calls(3, *steps)
    each(result, 3, "staged")
    without = calls(3, *steps, shim="", agree=False)
    errors = [[float(line.rsplit(" ", 1)[1]) for line in sorted(run.stdout.splitlines()) if line.startswith("error")]
              for run in (result, without)]
    for mine, plain in zip(*errors):
        check(mine <= plain * (1.1 if dtype == "fp32" else 1),
              f"squared errors: {mine:g} through slots, {plain:g} without")
    for rank in range(3):
        rewrites = {call["rewrite"] for call in result.events(rank, "call")}
        equal(rewrites, {"pre_scale"}, "rewrites")
        equal(len(result.calls_of(rank, "cuLaunchKernel")), 2, "scale kernels")


@case("staging")
def scaled_even_if_alike():
    result = calls(2, *synced("reduce_scatter,redop=avg", "all_reduce,redop=premulsum,dtype=fp16", ALIKE))
    each(result, 2, ["staged", "staged", "window"])


@case("staging")
def post_scale_through_a_slot():
    """Scaled on the way in where it is copied, afterwards where it is not; and once only."""
    result = calls(2, *synced("reduce_scatter,redop=avg", differ("reduce_scatter", redop="avg"),
                              "reduce_scatter,redop=avg,recv=loose/1@0"),
                   text=staged(STAGED + "rewrite = post_scale\n"))
    each(result, 2, ["window", "staged", "window"])
    equal([call["rewrite"] for call in result.events(0, "call")], ["post_scale", "pre_scale", "post_scale"], "rewrites")
    equal(len(result.calls_of(0, "cuLaunchKernel")), 3, "scale kernels")


@case("staging")
def average_native():
    """Copied, and averaged by NCCL where it can; an all-reduce it cannot."""
    result = calls(2, *synced(differ("reduce_scatter", redop="avg"), differ("all_reduce", redop="avg")),
                   env={"SIM_NCCL_VERSION": "23003"})
    each(result, 2, "staged")
    equal([call["rewrite"] for call in result.events(0, "call")], [None, "pre_scale"], "rewrites")


@case("staging")
def factor_in_device_memory():
    own = "all_reduce,redop=premulsum,device="
    result = calls(2, *synced(own + "1", own + "0", own + "1/0"))
    each(result, 2, ["no_factor", "staged", "no_factor"], r1=["no_factor", "staged", "peer_declined"])


@case("staging")
def factors_of_their_own():
    for dtype in ("fp16", "bf16", "fp32"):
        steps = [differ(op, 3, redop="premulsum", factor="2/0.5/-3", dtype=dtype)
                 for op in ("reduce_scatter", "all_reduce")]
        each(calls(3, *synced(*steps)), 3, "staged")


# Order.

def spread(op, i, nranks=3, **keys):
    """The i-th of calls that are under way at the same time."""
    places = "/".join(f"0@{i * 65536 + 4096 * rank}" for rank in range(nranks))
    return differ(op, nranks, send=places, recv=places.replace("0@", "1@"), **keys)


@case("staging")
def back_to_back():
    ops = ALL.split(",")
    each(calls(3, *(spread(ops[i % 3], i) for i in range(60)), "sync"), 3, "staged")


@case("staging", "over_two_streams", streams=(0, 1))
@case("staging", "over_three_streams", streams=(0, 1, 2))
@case("staging", "over_streams_irregularly", streams=(0, 0, 1, 2, 1, 1, 0))
def over_streams(streams):
    """Two slots in turn, while one stream or another stands still."""
    steps = []
    for i in range(42):
        stream = streams[i % len(streams)]
        steps += [f"rest={stream}"] if i % 11 == 0 else []
        steps += [spread(ALL.split(",")[i % 3], i, stream=stream)]
    each(calls(3, *steps, "sync"), 3, "staged")


@case("staging")
def streams_differ_between_ranks():
    steps = [spread("all_reduce", i, stream=f"{i % 3}/{(i + i // 2) % 3}/{i % 2}") for i in range(30)]
    each(calls(3, "rest=0/1/0", *steps, "sync"), 3, "staged")


@case("staging")
def among_others():
    """Plain calls (by their type), calls by windows, and staged ones, in no order that helps."""
    steps, wanted = ["all_reduce,send=0@0,recv=1@0", "sync"], ["window"]
    for i in range(40):
        kind = (i * 7 + i // 3) % 4
        steps += [f"rest={i % 3}"] if i % 9 == 0 else []
        if kind == 0:
            steps += [spread("reduce_scatter", i, stream=i % 3, dtype="int32", count=500)]
        elif kind == 1:
            steps += [f"all_reduce,send=0@{i * 65536},recv=1@{i * 65536},stream={i % 2}"]
        else:
            steps += [spread(ALL.split(",")[kind - 1], i, stream=(i // 2) % 3)]
        wanted += [["dtype", "window", "staged", "staged"][kind]]
    each(calls(3, *steps, "sync"), 3, wanted)


GATHER, SCATTER = "all_gather,send=0@0,recv=2@0", "reduce_scatter,send=2@0,recv=1@0"


@case("staging", "read_by_a_scaled_call", first=GATHER, second=SCATTER + ",redop=avg", wanted="window staged")
@case("staging", "read_by_a_copied_call", first=GATHER, second=SCATTER.replace("1@0", "loose"), wanted="window staged")
@case("staging", "read_between_staged_calls", first=differ("all_gather", recv="2@0/2@4096"),
      second=differ("reduce_scatter", send="2@0/2@4096"), wanted="staged staged")
@case("staging", "read_of_a_staged_call", first=differ("all_reduce", recv="2@0/2@4096"),
      second="all_gather,send=2@0/2@4096,recv=1@0", wanted="staged window")
@case("staging", "read_of_a_window_call", first="all_reduce,send=0@0,recv=2@0",
      second="all_gather,send=2@0,recv=1@0", wanted="window window")
def read_on_another_stream(first, second, wanted):
    """
    NCCL keeps the calls on one communicator in order, so that the second reads what the first gives, on another stream
    and with no event between the two. What is copied in and out keeps it as well.
    """
    warm = synced(f"all_gather,send=0@0,recv=2@{MIB}", f"reduce_scatter,send=2@{MIB},recv=1@0")
    result = calls(2, *warm, "repeat=2", "rest=0", first + ",count=20000", second + ",count=20000,reads=1,stream=1",
                   "sync")
    equal(result.sequence(0)[2:4], wanted.split(), "outcomes")


@case("staging")
def chain():
    """Likewise where single buffers are outside, turn about."""
    result = job(2, "--chain", "--calls", 6, "--streams", 2, text=staged())
    equal(result.sequence(0), ["window", "staged", *["window"] * 10], "outcomes, in order")


@case("staging")
def chain_with_other_calls():
    """Broadcasts, which stay on the job's communicator."""
    job(2, "--chain", "--mixed", "--calls", 4, "--streams", 2, text=outside(), stderr=f"({NO_ARENA}){{0,2}}")


@case("staging")
def other_calls_between():
    result = job(3, "--op", ALL, "--calls", 9, "--mixed", "--diverge", "offset", text=staged())
    equal(result.sequence(0), (["window", "staged"] * 5)[:9], "outcomes, in order")


@case("staging")
def many_in_flight():
    result = job(3, "--op", ALL, "--calls", 320, "--batch", 32, "--streams", 2, "--diverge", "batch", "--count", 128,
                 text=staged())
    for rank in range(3):
        equal(set(result.sequence(rank)), {"window", "staged"}, "outcomes")


# Groups and captures.

@case("staging")
def grouped():
    result = job(3, "--op", ALL, "--calls", 24, "--batch", 6, "--group", "--streams", 2, "--diverge", "offset",
                 text=staged())
    for rank in range(3):
        equal(set(result.sequence(rank)), {"window", "staged"}, "outcomes")


@case("staging")
def grouped_scaled():
    result = job(3, "--op", ALL, "--calls", 24, "--batch", 6, "--group", "--redop", "avg", "--dtype", "fp16",
                 text=staged())
    outcome(result, 3, three("window", "staged", "staged", each=8))


@case("staging")
def grouped_while_slots_grow():
    """All are agreed on before the first is made: it then uses the larger slots."""
    result = calls(2, "group", spread("all_reduce", 0, 2), spread("all_reduce", 1, 2, count=10),
                   differ("all_reduce", count=MIB, send=f"0@{MIB}/0@{2 * MIB}", recv=f"1@{MIB}/1@{2 * MIB}"), "end",
                   "sync", spread("all_reduce", 0, 2), "sync")
    each(result, 2, "staged")


@case("staging", "grouped_window_fails_afterwards", first=differ("all_reduce"), path="staged")
@case("staging", "grouped_window_fails_after_a_window", first="all_gather,send=0@0,recv=1@0", path="window")
def grouped_then_failing(first, path):
    """The child is ended by a later call of the group: what was agreed on before has been made by then."""
    result = calls(2, ALIKE, "sync", differ("all_reduce"), "sync", "group", first,
                   f"all_gather,send=3@0,recv=3@{MIB}", "end", "sync", ALIKE, "sync",
                   env={"SIM_FAIL": "ncclCommWindowRegister:4=2"})
    for rank in range(2):
        equal(result.sequence(rank)[3:], [path, "register_failed"], f"rank {rank}: outcomes, in order")


@case("staging")
def captured():
    """A replay would use a slot at a time of its own: so what differs is plain, as it is with no slots at all."""
    result = job(2, "--op", ALL, "--calls", 7, "--capture", 3, "--diverge", "offset", text=staged())
    each(result, 2, [("window", "ranks_differ")[i % 2] for i in range(7)])
    equal([call["capture"] for call in result.events(0, "call")], [False] + [True] * 6, "captures")


@case("staging")
def captured_scaled():
    result = job(2, "--op", "reduce_scatter", "--redop", "avg", "--calls", 4, "--capture", 2, text=staged())
    each(result, 2, ["staged", "capturing", "capturing", "capturing"])


@case("staging")
def captured_outside():
    result = job(2, "--op", ALL, "--calls", 4, "--capture", 2, "--diverge", "plain", text=staged(),
                 stderr=f"({NO_ARENA})?")
    each(result, 2, ["staged", *["capturing"] * 3], r1=["staged", *["not_in_arena"] * 3])


# What fails.

@case("staging")
def no_memory_for_slots():
    """On one rank (the arena tries two allocations first, then come two segments); later it is tried again."""
    result = calls(2, differ("all_reduce", count=1), "sync", "repeat=1003", differ("all_reduce", count=1), "sync",
                   env={"SIM_FAIL": "cuMemCreate:5@rank1=2"})
    for rank in range(2):
        sequence = result.sequence(rank)
        equal((set(sequence[:1000]), sequence[-1]), ({"no_slot"}, "staged"), f"rank {rank}: the first and the last")
        equal(allocations(result, rank), 0, "allocations left")
    equal(result.sequence(0), result.sequence(1), "outcomes of the ranks")


@case("staging", "slots_not_registered_on_one", where="2@rank1")
@case("staging", "slots_not_registered_on_all", where="2")
def slots_not_registered(where):
    """Rank 0 comes when rank 1 has gone, if it has: what waits for a rank that failed by itself, waits for ever."""
    result = calls(2, "all_reduce,send=0@0,recv=0@4096", "sync", "repeat=4",
                   differ("all_reduce", recv="0@8192/0@16384"), "sync",
                   env={"SIM_FAIL": f"ncclCommWindowRegister:{where}=2",
                        "SIM_DELAY": "ncclCommWindowRegister:2@rank0=300",
                        "NCCL_SOCKET_RETRY_CNT": "3", "NCCL_SOCKET_RETRY_SLEEP_MSEC": "20"})
    each(result, 2, ["window", *["register_failed"] * 4])
    equal([allocations(result, rank) for rank in range(2)], [0, 0], "allocations left")


@case("staging")
def memory_pressure():
    """
    A job that wants the slots' memory gets it. They are made anew when windows are: a rank that gave up by itself and
    then heard that another did has given up twice, and waits for longer.
    """
    result = calls(2, differ("all_reduce"), "sync", "memory", f"take={46 * MIB}", "memory", "repeat=2003",
                   differ("all_reduce", count=1), "sync", env={"SIM_DEVICE_MEMORY": "64M"})
    free = sorted(int(size) for size in re.findall(r"memory: rank \d: (\d+)", result.stdout))
    equal([after - before for before, after in zip(free[:2], free[2:])], [4 * MIB] * 2, "memory that came back")
    for rank in range(2):
        sequence = result.sequence(rank)
        equal((sequence[0], sequence[1], sequence[-1]), ("staged", "given_up", "staged"), "outcomes")
        check("staged" not in sequence[1:1000], "for a while no outcome is staged")
        equal(allocations(result, rank), 0, "allocations left")


@case("staging", "memory_pressure_on_one_first", waits="wait=-/150")
@case("staging", "memory_pressure_on_one_last", waits="wait=150/-")
def memory_pressure_on_one(waits):
    """The other rank, which has memory enough, follows; from inside the next call too, in which it waits."""
    result = calls(2, differ("all_reduce"), "sync", waits, f"take={46 * MIB}/-",
                   *synced(differ("all_reduce"), differ("all_reduce")), "memory", env={"SIM_DEVICE_MEMORY": "64M"})
    for rank in range(2):
        equal(result.sequence(rank)[0], "staged", "the first outcome")
        check("staged" not in result.sequence(rank)[1:], "no outcome afterwards is staged")
    free = {int(size) for size in re.findall(r"memory: rank \d: (\d+)", result.stdout)}
    equal(free, {48 * MIB}, "memory that is free then: all but two segments")


@case("staging")
def parked_above_the_cap():
    text = staged().replace("callers = *\n", "callers = *\nparked_max = 4M\n")
    result = calls(2, ALIKE, "sync", "free=0", ALIKE, "sync", text=text)
    each(result, 2, ["window", "given_up"])
    text = staged().replace("callers = *\n", "callers = *\nparked_max = 8M\n")
    each(calls(2, ALIKE, "sync", "free=0", ALIKE, "sync", text=text), 2, "window")


# Ends.

@case("staging", "ends_destroy", how="again", times=200)
@case("staging", "ends_abort", how="abort", times=60)
@case("staging", "ends_split", how="split", times=60)
def ends(how, times):
    """With the communicator its slots go, and their memory comes back."""
    result = calls(2, differ("all_reduce"), "sync", how, "wait=100", f"repeat={times}", "memory",
                   *synced(differ("all_reduce"), differ("all_gather", count=10)), how,
                   text=staged(audit="summary"), agree=False)
    free = re.findall(r"memory: rank \d: (\d+)", result.stdout)
    equal((len(free), len(set(free))), (2 * times, 1), "looks at the memory that is free, and differing ones of them")
    for rank in range(2):
        equal(allocations(result, rank), 0, "allocations left")
        summaries = result.events(rank, "summary")
        equal({(line["staged_calls"], line["window_calls"]) for line in summaries}, {(1, 0)}, "calls of each")


@case("staging", "end_abort", more=("--end", "abort"))
@case("staging", "end_finalize", more=("--end", "finalize"))
@case("staging", "end_exit", more=("--end", "exit"))
@case("staging", "end_split", more=("--derive", "split"))
@case("staging", "end_halves", more=("--derive", "halves"), nranks=4)
@case("staging", "end_twins", more=("--derive", "twins"))
def ending(more, nranks=2):
    result = job(nranks, "--op", ALL, "--calls", 6, "--diverge", "plain", *more, text=staged(),
                 stderr=f"({NO_ARENA}){{0,{nranks}}}")
    for rank in range(nranks):
        equal(set(result.sequence(rank)), {"staged"}, "outcomes")


@case("staging")
def many_communicators():
    result = execute([setup.ranks, "-n", "2", "-t", "100", "--", setup.cycles, "200", "20"], shim=setup.shim,
                     env={"SIM_DEVICES": "2"}, text=outside().replace("audit = call", "audit = summary"),
                     stdout=r"(cycles: [^\n]*\n){2}", stderr=f"({NO_ARENA}){{0,2}}")
    for line in result.stdout.splitlines():
        numbers = list(map(int, re.findall(r"(?<=[a-z] )-?\d+", line.split(": ", 2)[2])))
        # The last slots stay until the other rank has let go of them too, in 180 cycles as in one.
        check(numbers[0] <= 2 and numbers[1] <= 4, f"the process grew: {line}")
    for rank in range(2):
        counts = {(line["calls"], line["staged_calls"]) for line in result.events(rank, "summary")}
        equal(counts, {(1, 1)}, "calls of each communicator")
        equal(allocations(result, rank), 0, "allocations left")


@case("staging")
def aborted_at_work():
    """By a watchdog, while a rank is late: the call ends with an error, or the job's own communicator does."""
    job(2, "--op", "all_reduce", "--calls", 4, "--diverge", "plain", "--late", "0:2:2:1500", "--abort-after", 300,
        text=staged(agree_us=100000), stdout=".*", stderr=".*", status=None, agree=False, seconds=10)


# The account of it, and what else the policy says.

@case("staging")
def summary():
    result = calls(2, *synced(ALIKE, differ("all_gather"), differ("all_gather", count=10)))
    for rank in range(2):
        line, = result.events(rank, "summary")
        equal([line[key] for key in ("calls", "window_calls", "window_bytes", "staged_calls", "staged_bytes", "plain")],
              [3, 1, 8000, 2, 8080, {}], "counts")


@case("staging")
def not_abortable():
    text = staged(require_abortable="yes")
    each(calls(2, *synced(ALIKE, differ("all_reduce")), text=text), 2, "not_abortable")
    each(calls(2, *synced(ALIKE, differ("all_reduce")), text=text, env={"SIM_NCCL_VERSION": "22900"}), 2,
         ["window", "staged"])


@case("staging")
def errno_and_last_error():
    """As they are, but for a call in which one waits inside NCCL: there is one for the child and one for the slots."""
    job(2, "--op", ALL, "--calls", 9, "--errors", "--diverge", "offset", "--redop", "avg", text=staged(),
        env={"SIM_DEVICE_MEMORY": "1G"})
