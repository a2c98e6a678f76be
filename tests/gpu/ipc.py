# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors between processes, as torch.multiprocessing shares them: written on one side, read on the other.

Usage: ipc.py. One GPU. Prints one line of JSON; exits with 1 when something was wrong. Right without the shim too.
"""
import json
import sys

import torch
import torch.multiprocessing as mp

SHARED, PARTS = 16 << 20, 3  # bytes of a tensor of its own; tensors that share an allocation


def serve(requests, answers):
    """Adds one to each tensor that comes, and says its sum; until there is None."""
    while (tensor := requests.get()) is not None:
        tensor += 1
        torch.cuda.synchronize()
        answers.put(float(tensor.double().sum()))
        del tensor


def main():
    mp.set_start_method("spawn")
    requests, answers = mp.Queue(), mp.Queue()
    child = mp.Process(target=serve, args=(requests, answers))
    child.start()
    whole = torch.arange(SHARED // 4, dtype=torch.float32, device="cuda") % 1000
    parts = [torch.full((SHARED // 16,), float(i), device="cuda") for i in range(PARTS)]
    right = True
    for tensor in (whole, *parts, whole[1 << 20:], whole):
        wanted = float((tensor.double() + 1).sum())
        torch.cuda.synchronize()
        requests.put(tensor)
        right &= answers.get(timeout=60) == wanted == float(tensor.double().sum())
    requests.put(None)
    child.join(60)
    right &= child.exitcode == 0
    print(json.dumps({"ipc": "right" if right else "wrong", "torch": torch.__version__, "child": child.exitcode}))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
