"""Runs `gemm`, `memory` or both in one launch, one process a device: mpirun -n 8 python devices.py.

What is measured is said in gemm.py and memory.py. Ranks talk to each other over gloo and only to
take turns. Each rank prints its own records, as soon as it has them.

Exit status of rank 0: 0, 7 something wrong was computed or kept, 1 a device could not go on, 2 bad
usage; the other ranks end with 0, as a launcher would cut short who still speaks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import rank_io
import torch_io
from gemm import KINDS, Gemm
from memory import Memory
from windowed_timer import Bench

CHECKS = ("gemm", "memory")
#: Least size: two periods of the known product.
LEAST = 254


def options_of(
    arguments: Sequence[str] | None = None, checks: Sequence[str] = CHECKS
) -> argparse.Namespace:
    """The command line."""
    what = {
        "gemm": "Matrix products on every device: TFLOP/s over time, and every element compared.",
        "memory": "Memory of every device: bandwidth, a pattern test, and the ways in and out.",
    }
    about = " ".join(what[check] for check in checks)
    parser = argparse.ArgumentParser(
        description=f"{about} One process a device: mpirun -n 8 python {checks[0]}.py"
    )
    if len(checks) > 1:
        parser.add_argument(
            "--checks", default=",".join(CHECKS), help="comma list of gemm, memory (default both)"
        )
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="how long all devices work at once, for each data type and for copies (default 5)",
    )
    parser.add_argument(
        "--alone",
        type=float,
        default=0.5,
        help="how long each then works alone; 0: not at all (default 0.5)",
    )
    if "gemm" in checks:
        parser.add_argument(
            "--types",
            default="",
            help=f"comma list of {', '.join(KINDS)} (default: what the hardware has)",
        )
        parser.add_argument(
            "--size",
            type=int,
            default=0,
            help="rows and columns of the matrices; fp8 needs a multiple of 16 of at least 2032 "
            "(default: by the device, 8192 on large GPUs)",
        )
    if "memory" in checks:
        parser.add_argument(
            "--share",
            type=float,
            default=0.9,
            help="share of a GPU's free memory that is tested (default 0.9)",
        )
        parser.add_argument(
            "--most",
            type=int,
            default=256 << 20,
            help="bytes that a rank without a GPU tests, at most (default 256 MiB)",
        )
    parser.add_argument("--seed", type=int, default=1, help="of all data (default 1)")
    torch_io.add_options(parser)
    options = parser.parse_args(arguments)
    options.checks = options.checks.split(",") if len(checks) > 1 else list(checks)
    _check(parser, options)
    return options


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if set(options.checks) - set(CHECKS):
        parser.error(f"--checks must be of {', '.join(CHECKS)}")
    if not 0 < options.seconds <= 86400 or not 0 <= options.alone <= 86400 or options.timeout <= 0:
        parser.error("--seconds and --timeout must be above 0, --alone at least 0")
    unknown = set(filter(None, getattr(options, "types", "").split(","))) - set(KINDS)
    if unknown:
        parser.error(f"--types: no type {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    if getattr(options, "size", 0) and not LEAST <= options.size <= 1 << 16:
        parser.error(f"--size must be from {LEAST} to 65536, or 0")
    if not 0 < getattr(options, "share", 0.5) <= 0.98:
        parser.error("--share must lie between 0 and 0.98: torch itself needs some")
    if getattr(options, "most", 1 << 20) < 1 << 20:
        parser.error("--most must be at least 1048576")


def begin(me: rank_io.Identity, progress: rank_io.Progress, options: argparse.Namespace) -> Bench:
    """The bench of this rank, once all have joined, those without a usable device too."""
    plant = rank_io.planted(me)
    try:
        device = torch_io.pick_device(me, options.device)
    except rank_io.Ended:
        device = ""
    progress.enter("rendezvous")
    # The others wait while one works: the longest that any stage takes comes on top.
    patience = options.timeout + 2 * options.seconds + options.alone
    torch_io.join(me, "cpu", patience)
    return Bench(me, plant, progress, device, patience)


def main(*checks: str) -> None:
    """Measure what is asked for. Leaves the process."""
    options = options_of(checks=checks or CHECKS)
    me = rank_io.identity("mpirun", "torchrun")
    progress = rank_io.Progress(me.rank)

    def work() -> int:
        bench = begin(me, progress, options)
        if me.rank == 0:
            rank_io.fact("began", time.time())
        common = {"seconds": options.seconds, "alone": options.alone, "seed": options.seed}
        if "gemm" in options.checks:
            Gemm(bench, **common, types=options.types, size=options.size).run()
        if "memory" in options.checks:
            Memory(bench, **common, share=options.share, most=options.most).run()
        progress.enter("barrier")
        worst = torch_io.most(bench.status)
        progress.enter("done")
        return int(worst) if me.rank == 0 else 0

    rank_io.guarded(me, progress, work)


if __name__ == "__main__":
    main()
