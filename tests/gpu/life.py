# SPDX-License-Identifier: Apache-2.0
"""What jobs do with communicators, one scenario a run, on two GPUs: torchrun --nproc-per-node 2 life.py SCENARIO.

Knows nothing of the shim. Every element of every result is checked. Rank 0 prints one JSON line.
"""
import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

ELEMENTS = 1 << 20  # of the small side, bf16: 2 MiB


def bf16(value, count=ELEMENTS):
    return torch.full((count,), float(value), dtype=torch.bfloat16, device="cuda")


def must(condition, what):
    if not condition:
        raise AssertionError(f"rank {dist.get_rank()}: {what}")


class Buffers:
    """An all-gather and a reduce-scatter whose results tell which call they come from."""

    def __init__(self, count=ELEMENTS):
        self.small, self.gathered = bf16(0, count), bf16(0, 2 * count)
        self.scattered, self.large = bf16(0, count), bf16(0, 2 * count)

    def gather(self, value, group=None):
        self.small.fill_(value + dist.get_rank())
        dist.all_gather_into_tensor(self.gathered, self.small, group=group)

    def gather_is_right(self, value):
        halves = self.gathered.view(2, -1).float()
        return bool((halves[0] == value).all() and (halves[1] == value + 1).all())

    def scatter(self, value, group=None):
        self.large.fill_(value + dist.get_rank())
        dist.reduce_scatter_tensor(self.scattered, self.large, op=dist.ReduceOp.AVG, group=group)

    def scatter_is_right(self, value):
        return bool((self.scattered.float() == value + 0.5).all())

    def both(self, value, group=None):
        self.gather(value, group)
        must(self.gather_is_right(value), f"all-gather {value} is wrong")
        self.scatter(value, group)
        must(self.scatter_is_right(value), f"reduce-scatter {value} is wrong")


def plain(_):
    buffers = Buffers()
    for value in range(20):
        buffers.both(value)
    return {"calls": 40}


def coalesced(_):
    ins = [bf16(dist.get_rank() + 2 * i) for i in range(6)]
    outs = [bf16(0, 2 * ELEMENTS) for _ in range(6)]
    device = torch.device("cuda", torch.cuda.current_device())
    for _ in range(10):
        with dist._coalescing_manager(device=device):  # pylint: disable=protected-access
            for out, small in zip(outs, ins):
                dist.all_gather_into_tensor(out, small)
        for i, out in enumerate(outs):
            halves = out.view(2, -1).float()
            must((halves[0] == 2 * i).all() and (halves[1] == 2 * i + 1).all(), f"coalesced all-gather {i} is wrong")
            out.zero_()
    return {"calls": 60}


def graphs(args):
    buffers, graph = Buffers(), torch.cuda.CUDAGraph()
    value = torch.zeros((), device="cuda")
    for i in range(3):
        buffers.both(i)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        buffers.small.copy_((value + dist.get_rank()).expand(ELEMENTS))
        dist.all_gather_into_tensor(buffers.gathered, buffers.small)
        buffers.large.copy_((value + dist.get_rank()).expand(2 * ELEMENTS))
        dist.reduce_scatter_tensor(buffers.scattered, buffers.large, op=dist.ReduceOp.AVG)
    eager = Buffers()
    for i in range(args.replays):
        value.fill_(i % 100)
        graph.replay()
        if i % 20 == 0:
            eager.gather(i % 100)
            must(eager.gather_is_right(i % 100), f"all-gather beside replay {i} is wrong")
        if i % 100 == 0 or i == args.replays - 1:
            must(buffers.gather_is_right(i % 100), f"all-gather of replay {i} is wrong")
            must(buffers.scatter_is_right(i % 100), f"reduce-scatter of replay {i} is wrong")
    torch.cuda.synchronize()
    del graph
    return {"replays": args.replays}


def split(_):
    group = dist.split_group(split_ranks=[[0, 1]])
    world, other = Buffers(), Buffers()
    for value in range(20):
        world.both(value)
        other.both(value + 30, group)
    dist.destroy_process_group(group)
    for value in range(5):
        world.both(value)
    return {"calls": 90}


def cycles(args):
    """Communicators made, used and destroyed; the memory of the device before and after."""
    buffers = Buffers()
    used = []
    for cycle in range(args.cycles):
        group = dist.split_group(split_ranks=[[0, 1]])
        buffers.both(cycle % 100, group)
        torch.cuda.synchronize()
        dist.destroy_process_group(group)
        if cycle in (9, args.cycles - 1):
            dist.barrier()
            torch.cuda.synchronize()
            free, total = torch.cuda.mem_get_info()
            used.append((total - free) >> 20)
    return {"cycles": args.cycles, "used_mib_after_10": used[0], "used_mib_at_the_end": used[-1],
            "host_mib": host_mib()}


def host_mib():
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def nonblocking(_):
    must(os.environ.get("TORCH_NCCL_USE_COMM_NONBLOCKING") == "1", "the variable is not set")
    return plain(_)


def abort(_):
    """A communicator is aborted after symmetric calls; another one goes on."""
    buffers = Buffers()
    group = dist.new_group([0, 1])
    for value in range(5):
        buffers.both(value)
        buffers.both(value, group)
    torch.cuda.synchronize()
    group._get_backend(torch.device("cuda")).abort()  # pylint: disable=protected-access
    for value in range(5):
        buffers.both(value)
    return {"calls": 30}


def killed(args):
    """Rank 1 dies while rank 0 is inside a kernel that waits for it. Can rank 0 abort?"""
    buffers = Buffers()
    for value in range(3):
        buffers.both(value)
    torch.cuda.synchronize()
    dist.barrier()
    if dist.get_rank() == 1:
        torch.cuda._sleep(1 << 36)  # pylint: disable=protected-access
        buffers.gather(7)  # behind the sleep: rank 0's kernel is alone
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    buffers.gather(7)
    time.sleep(3)
    started = time.monotonic()
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))  # pylint: disable=protected-access
    thread = threading.Thread(target=backend.abort, daemon=True)
    thread.start()
    thread.join(args.patience)
    print(json.dumps({"scenario": "killed", "abort_returned": not thread.is_alive(),
                      "seconds": round(time.monotonic() - started, 1)}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # nothing else ends a process whose kernel does not


def start_ranks(arguments):
    """torchrun would end rank 0 when rank 1 dies."""
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}
    ranks = [subprocess.Popen([sys.executable, __file__, *arguments],
                              env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    ranks[0].wait()
    ranks[1].kill()
    ranks[1].wait()


def main():
    scenarios = {f.__name__: f for f in (plain, coalesced, graphs, split, cycles, nonblocking, abort, killed)}
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=scenarios)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--replays", type=int, default=5000)
    parser.add_argument("--patience", type=int, default=20)
    args = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        start_ranks(sys.argv[1:])
        return 0
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device, timeout=datetime.timedelta(seconds=120))
    found = scenarios[args.scenario](args)
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        print(json.dumps({"scenario": args.scenario, "right": True, **found}), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
