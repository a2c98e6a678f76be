# SPDX-License-Identifier: Apache-2.0
"""Calls that every rank makes from alike memory, and calls that they make from differing memory."""

import concurrent.futures

from harness import NO_ARENA, Failure, Skip, case, check, equal, job, outcome, policy, setup

ALL = "all_gather,reduce_scatter,all_reduce"


def three(gather, scatter, reduce, each=2):
    return {("all_gather", gather): each, ("reduce_scatter", scatter): each, ("all_reduce", reduce): each}


def ops(nranks, dtype, *more, wanted=three("window", "window", "window"), **rest):
    result = job(nranks, "--op", ALL, "--calls", 6, "--dtype", dtype, *more, **rest)
    outcome(result, nranks, wanted)
    return result


for n in (2, 3):
    for kind in ("bf16", "fp16", "fp32", "fp8e4m3", "fp8e5m2"):
        case("same", f"ops_{n}_{kind}", nranks=n, dtype=kind)(ops)
    for kind in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "fp64"):
        case("same", f"ops_{n}_{kind}", nranks=n, dtype=kind, wanted=three("window", "dtype", "dtype"))(ops)


@case("same", "average_2_bf16", nranks=2, dtype="bf16")
@case("same", "average_3_bf16", nranks=3, dtype="bf16")
@case("same", "average_2_fp32", nranks=2, dtype="fp32")
@case("same", "average_3_fp32", nranks=3, dtype="fp32")
def average(nranks, dtype):
    result = ops(nranks, dtype, "--redop", "avg", wanted=three("window", "window", "redop"))
    for rank in range(nranks):
        rewrites = {call["rewrite"] for call in result.events(rank, "call") if call["op"] == "reduce_scatter"}
        equal(rewrites, {"post_scale"}, "rewrites of the reduce-scatters")
        equal(len(result.calls_of(rank, "cuLaunchKernel")), 2, "scale kernels")


@case("same", "average_inplace", more=("--inplace",))
@case("same", "average_of_one", more=("--count", 1))
@case("same", "average_of_many", more=("--count", 250001, "--segment", 32 << 20))
@case("same", "average_over_streams", more=("--streams", 2, "--batch", 6))
def average_of(more):
    ops(3, "bf16", "--redop", "avg", *more, wanted=three("window", "window", "redop"))
    ops(3, "fp32", "--redop", "avg", *more, wanted=three("window", "window", "redop"))


@case("same")
def average_fp16_is_plain():
    ops(3, "fp16", "--redop", "avg", wanted=three("window", "redop", "redop"))


@case("same")
def average_without_rewrite_is_plain():
    ops(3, "fp32", "--redop", "avg", wanted=three("window", "redop", "redop"),
        text=policy(rules="[rule all]\npath = window\n"))


@case("same", "average_native_fp32", dtype="fp32")
@case("same", "average_native_fp16", dtype="fp16")
def average_native(dtype):
    result = ops(3, dtype, "--redop", "avg", wanted=three("window", "window", "redop"),
                 env={"SIM_NCCL_VERSION": "23003"})
    equal({call["rewrite"] for call in result.events(0, "call")}, {None}, "rewrites")
    equal(result.calls_of(0, "cuLaunchKernel"), [], "scale kernels")


for word in ("max", "min", "prod"):
    case("same", f"redop_{word}", nranks=3, dtype="fp32", wanted=three("window", "redop", "redop"))(
        lambda nranks, dtype, wanted, word=word: ops(nranks, dtype, "--redop", word, wanted=wanted))


@case("same", "premulsum_fp32", dtype="fp32")
@case("same", "premulsum_bf16", dtype="bf16")
def premulsum(dtype):
    ops(2, dtype, "--redop", "premulsum", wanted=three("window", "user_redop", "user_redop"))


@case("same")
def inplace():
    for dtype in ("bf16", "fp32"):
        ops(3, dtype, "--inplace")


@case("same")
def over_streams():
    ops(3, "fp32", "--streams", 2, "--batch", 3)


@case("same")
def empty():
    ops(2, "fp32", "--count", 0, wanted=three("empty", "empty", "empty"))


@case("same")
def single_rank():
    ops(1, "fp32", wanted=three("single_rank", "single_rank", "single_rank"))


@case("same")
def policy_keeps_plain():
    result = ops(2, "fp32", wanted=three("policy", "policy", "window"),
                 text=policy(rules="[rule some]\nop = all_reduce\npath = window\n"))
    equal(len(result.calls_of(0, "ncclCommSplit")), 1, "splits")


@case("same")
def policy_keeps_all_plain():
    result = ops(2, "fp32", wanted=three("policy", "policy", "policy"), text=policy(rules="[rule no]\npath = plain\n"))
    equal(result.calls_of(0, "ncclCommSplit"), [], "splits")


@case("same")
def arena_switched_off():
    result = ops(2, "fp32", wanted=three("not_in_arena", "not_in_arena", "not_in_arena"),
                 text=policy(arena="enable = no\n"))
    equal(result.calls_of(0, "cuMemCreate"), [], "VMM allocations")


@case("same", "nccl_2_27_3", version="22703", reason="nccl_version")
@case("same", "nccl_2_27_7", version="22707", reason="window")
@case("same", "nccl_2_28_3", version="22803", reason="window")
@case("same", "nccl_2_29_2", version="22902", reason="window")
@case("same", "nccl_2_29_7", version="22907", reason="window")
@case("same", "nccl_2_30_7", version="23007", reason="window")
def nccl_version(version, reason):
    ops(2, "bf16", wanted=three(reason, reason, reason), env={"SIM_NCCL_VERSION": version})


@case("same")
def nccl_too_old_whatever_is_wished():
    ops(2, "bf16", wanted=three(*["nccl_version"] * 3), text=policy(min_nccl="2.27.0"),
        env={"SIM_NCCL_VERSION": "22704"})


@case("same")
def nccl_older_than_wished():
    ops(2, "bf16", wanted=three(*["nccl_version"] * 3), text=policy(min_nccl="2.29.0"))


@case("same", "linked_through_plugin", how="local")
@case("same", "linked_through_global_plugin", how="global")
def linked_through_plugin(how):
    """Neither library is there when the program starts; with RTLD_LOCAL, RTLD_NEXT does not find them later either."""
    ops(2, "fp32", program=[setup.host, how, setup.plugin])


@case("same")
def linked_past_the_shim():
    """RTLD_DEEPBIND goes past every preloaded object: the job runs as without the shim."""
    if setup.runtime:
        raise Skip("sanitizers refuse RTLD_DEEPBIND")
    result = job(2, "--op", ALL, program=[setup.host, "deep", setup.plugin], agree=False)
    equal((result.audit, {symmetric for symmetric, _, _ in result.notes(0)}), ({}, {False}), "audit log, symmetric")


@case("same")
def two_threads():
    """Each with a communicator of its own; all memory is of one arena."""
    result = job(3, "--op", ALL, "--calls", 60, "--batch", 6, "--derive", "twins", "--count", 500)
    outcome(result, 3, three("window", "window", "window", each=40))


@case("allocators")
def two_threads_differing():
    result = job(2, "--op", ALL, "--calls", 60, "--derive", "twins", "--count", 500, "--diverge", "offset")
    outcome(result, 2, {(op, kind): 20 for op in ALL.split(",") for kind in ("window", "ranks_differ")})


@case("same")
def more_calls_than_cells():
    """Once round the board and more, with ranks running ahead of each other."""
    result = job(3, "--op", "all_gather,reduce_scatter", "--count", 64, "--calls", 1200, "--batch", 48)
    outcome(result, 3, {("all_gather", "window"): 600, ("reduce_scatter", "window"): 600})


@case("same")
def two_segments_at_once():
    """A call that needs two new windows."""
    result = ops(3, "fp32", "--apart")
    equal([line["segment"] for line in result.events(0, "window")], [2, 1], "segments that became windows")


@case("same")
def several_segments():
    result = job(2, "--op", ALL, "--calls", 24, "--batch", 12, "--count", 40000, "--segment", 2 << 20)
    outcome(result, 2, three("window", "window", "window", each=8))
    check(len(result.events(0, "window")) > 2, "windows on more than two segments")
    equal(len(result.events(0, "window")), len(result.events(1, "window")), "windows of the two ranks")


@case("same")
def order_between_communicators():
    """NCCL keeps the order of one communicator's calls across streams; two communicators must not lose it."""
    result = job(2, "--chain", "--calls", 4, "--streams", 2)
    equal(result.sequence(0), ["window", "not_in_arena", "not_in_arena", "window"] * 2, "outcomes, in order")


@case("same")
def order_between_communicators_after_groups():
    """Likewise, where the first call is in a group."""
    result = job(2, "--chain", "--calls", 4, "--streams", 2, "--group")
    equal(result.sequence(0), ["window", "not_in_arena", "not_in_arena", "window"] * 2, "outcomes, in order")


@case("same")
def order_with_other_calls():
    """Likewise with calls that are never moved."""
    job(2, "--chain", "--mixed", "--calls", 4, "--streams", 2)


# How the ranks' memory differs, and what becomes of the calls then.

def diverge(nranks, how, **rest):
    return job(nranks, "--op", ALL, "--calls", 12, "--diverge", how, **rest)


@case("allocators", "offset_2", nranks=2, how="offset")
@case("allocators", "offset_3", nranks=3, how="offset")
def offset(nranks, how):
    result = diverge(nranks, how)
    for rank in range(nranks):
        equal(result.sequence(rank), ["window", "ranks_differ"] * 6, f"rank {rank}: outcomes, in order")


@case("allocators", "size_2", nranks=2, how="size")
@case("allocators", "size_3", nranks=3, how="size")
def size(nranks, how):
    result = diverge(nranks, how)
    outcome(result, nranks, three("ranks_differ", "ranks_differ", "ranks_differ", each=4))
    equal(result.calls_of(0, "ncclCommWindowRegister"), [], "registrations")


@case("allocators", "malloc_2", nranks=2, how="malloc")
@case("allocators", "malloc_3", nranks=3, how="malloc")
def malloc(nranks, how):
    result = diverge(nranks, how)
    for rank in range(nranks):
        equal(result.sequence(rank), ["window"] * 6 + ["ranks_differ"] * 6, f"rank {rank}: outcomes, in order")


@case("allocators", "plain_2", nranks=2, how="plain")
@case("allocators", "plain_3", nranks=3, how="plain")
def plain(nranks, how):
    result = diverge(nranks, how, stderr=NO_ARENA)
    outcome(result, nranks, three("peer_declined", "peer_declined", "peer_declined", each=4),
            **{f"r{nranks - 1}": three("not_in_arena", "not_in_arena", "not_in_arena", each=4)})
    equal(result.calls_of(0, "ncclCommSplit"), [], "splits")


@case("allocators", "window_2", nranks=2, how="window")
@case("allocators", "window_3", nranks=3, how="window")
def window(nranks, how):
    """The same offset, in another window."""
    result = diverge(nranks, how)
    for rank in range(nranks):
        equal(result.sequence(rank), ["window"] * 4 + ["ranks_differ"] * 8, f"rank {rank}: outcomes, in order")


@case("allocators", "batch_2", nranks=2, how="batch")
@case("allocators", "batch_3", nranks=3, how="batch")
def batch(nranks, how):
    outcome(diverge(nranks, how), nranks, three("window", "ranks_differ", "ranks_differ", each=4))


@case("allocators")
def differing_in_flight():
    """Agreed and other calls follow each other closely, on two streams."""
    result = job(3, "--op", "all_gather,reduce_scatter", "--calls", 640, "--batch", 32, "--streams", 2,
                 "--diverge", "batch", "--count", 128)
    for rank in range(3):
        equal(result.events(rank, "call")[0]["path"], "window", "the first all-gather")
        check(("reduce_scatter", "ranks_differ") in result.outcomes(rank), "some calls differ")


@case("allocators")
def averages_of_differing():
    """A plain average stays an average: nothing is scaled twice, or not at all."""
    result = job(3, "--op", "reduce_scatter", "--redop", "avg", "--calls", 12, "--diverge", "offset", "--dtype", "bf16")
    outcome(result, 3, {("reduce_scatter", "window"): 6, ("reduce_scatter", "ranks_differ"): 6})
    plain_calls = [call for call in result.events(0, "call") if call["path"] == "plain"]
    equal({call["rewrite"] for call in plain_calls}, {None}, "rewrites of plain calls")


@case("allocators")
def other_calls_on_windowed_memory():
    result = job(3, "--op", ALL, "--calls", 9, "--mixed", "--diverge", "offset")
    equal(result.sequence(0), (["window", "ranks_differ"] * 5)[:9], "outcomes, in order")


# The same without agreement: a test that cannot fail would prove nothing.

@case("no_agreement", "same_allocators")
def no_agreement_is_fine_when_all_is_alike():
    ops(3, "fp32", shim=setup.no_agreement)


def must_fail(nranks, how):
    result = diverge(nranks, how, shim=setup.no_agreement, status=None, stderr=".*", seconds=4, agree=False)
    if result.status == 0:
        raise Failure(f"{nranks} ranks, {how}: all right without agreement")
    if result.status == 1:
        check("elements are wrong" in result.stderr, "wrong data is told of")
    return f"{nranks} ranks, {how}: " + {1: "wrong data", 124: "hang"}.get(result.status, f"status {result.status}")


@case("no_agreement")
def fails_where_agreement_is_needed():
    """
    Side by side: some of them hang until their time is over. Segments of different size are not among them, since
    their registration fails on all ranks alike: NCCL maps whole allocations, with its own rank's size.
    """
    wanted = [(nranks, how) for nranks in (2, 3) for how in ("offset", "malloc", "plain", "window", "batch")]
    with concurrent.futures.ThreadPoolExecutor(max_workers=5) as pool:
        for line in pool.map(lambda pair: must_fail(*pair), wanted):
            print(f"  {line}")
