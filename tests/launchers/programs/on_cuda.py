"""Print what programs decide above the stand-in for CUDA, in a new process for each fault.

`on_cuda.py "pick FAULTS" "peers FAULTS"...`, with the programs in PYTHONPATH, prints a line `next`
after each.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace

import torch_io
from gemm import Gemm
from memory import Memory
from rank_io import Ended, Identity, Injected, Progress, Rank, fact
from windowed_timer import Bench

ME = Identity(rank=11, size=16, local_rank=3, local_size=8, host="h1")


def bench_of(me: Identity) -> Bench:
    """Return the bench of a rank on its GPU."""
    device = torch_io.pick_device(me, "cuda")
    injected = Injected(faults=frozenset())
    return Bench(Rank(me=me, progress=Progress(me.rank), injected=injected, device=device), 60)


def pick() -> None:
    """Print the device of rank 11, and what it measures there."""
    bench = bench_of(ME)
    fact("device", [bench.device, bench.uuid])
    Gemm(bench, seconds=1.0, alone=0.0, types="", size=0, seed=1)._choose()


def peers() -> None:
    """Print what rank 8 measures between the GPUs of its host."""
    import torch

    bench = bench_of(replace(ME, rank=8, local_rank=0))
    memory = Memory(bench, seconds=1.0, alone=0.0, share=0.9, most=1 << 20, seed=1)
    memory.torch = torch
    memory._peers()


if __name__ == "__main__":
    torch_io.import_torch()
    for word in sys.argv[1:]:
        part, _, faults = word.partition(" ")
        # CUDA starts in the child, and its faults are read there.
        if not os.fork():
            os.environ["CUDA_FAULTS"] = faults
            with suppress(Ended):
                {"pick": pick, "peers": peers}[part]()
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        print("next", flush=True)
