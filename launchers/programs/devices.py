"""Run `gemm`, `memory` or both in one launch, with one process per device.

Example: mpirun -n 8 python devices.py. See gemm.py and memory.py for the measurements. Ranks use
gloo, only to take turns. Each rank prints its own records as soon as it has them.

Exit status of rank 0: 0 done, 7 wrong results or memory contents, 1 a device failed, 2 bad usage.
The other ranks exit with 0, because a launcher would end the ranks that still print.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import rank_io
import torch_io
from gemm import KINDS, Gemm
from memory import Memory
from windowed_timer import Bench

CHECKS = ("gemm", "memory")
#: Minimum size: two periods of the known product.
LEAST = 254


def options_of(
    arguments: Sequence[str] | None = None, checks: Sequence[str] = CHECKS
) -> argparse.Namespace:
    """Return the parsed command line."""
    descriptions = {
        "gemm": "Matrix products on every device: TFLOP/s over time, and every element compared.",
        "memory": "Memory of every device: bandwidth, a pattern test, copies from and to the host.",
    }
    about = " ".join(descriptions[check] for check in checks)
    parser = argparse.ArgumentParser(
        description=f"{about} One process per device: mpirun -n 8 python {checks[0]}.py"
    )
    if len(checks) > 1:
        parser.add_argument(
            "--checks", default=",".join(CHECKS), help="comma list of gemm, memory (default both)"
        )
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="seconds that all devices work at once, for each data type and for copies (default 5)",
    )
    parser.add_argument(
        "--alone",
        type=float,
        default=0.5,
        help="seconds that each device then works alone; 0: not at all (default 0.5)",
    )
    if "gemm" in checks:
        parser.add_argument(
            "--types",
            default="",
            help=f"comma list of {', '.join(KINDS)} (default: those of the hardware)",
        )
        parser.add_argument(
            "--size",
            type=int,
            default=0,
            help="rows and columns of the matrices; fp8 needs a multiple of 16 of at least 2032 "
            "(default: depends on the device, 8192 on large GPUs)",
        )
    if "memory" in checks:
        parser.add_argument(
            "--share",
            type=float,
            default=0.9,
            help="share of a GPU's free memory to test (default 0.9)",
        )
        parser.add_argument(
            "--most",
            type=int,
            default=256 << 20,
            help="maximum bytes that a rank without a GPU tests (default 256 MiB)",
        )
    parser.add_argument("--seed", type=int, default=1, help="seed of all data (default 1)")
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
        parser.error("--share must be between 0 and 0.98, because torch itself needs memory")
    if getattr(options, "most", 1 << 20) < 1 << 20:
        parser.error("--most must be at least 1048576")


def begin(
    me: rank_io.Identity,
    progress: rank_io.Progress,
    options: argparse.Namespace,
    store: Callable[[], Any] | None,
) -> Bench:
    """Return this rank's bench after all ranks have joined, also those without a usable device."""
    injected = rank_io.injected_faults(me)
    try:
        device = torch_io.pick_device(me, options.device)
    except rank_io.Ended:
        device = ""
    progress.enter("rendezvous")
    # The other ranks wait while one works, so the timeout includes the longest stage.
    patience = options.timeout + 2 * options.seconds + options.alone
    torch_io.join(me, "cpu", patience, store)
    rank = rank_io.Rank(me=me, progress=progress, injected=injected, device=device)
    return Bench(rank, patience)


def measure(
    options: argparse.Namespace,
    me: rank_io.Identity,
    progress: rank_io.Progress,
    *,
    store: Callable[[], Any] | None = None,
    **_: object,
) -> int:
    """Run the chosen measurements as a rank, and return its exit status.

    The ranks meet as `torch_io.join` describes.
    """
    bench = begin(me, progress, options, store)
    if me.rank == 0:
        rank_io.fact("began", time.time())
    common = {"seconds": options.seconds, "alone": options.alone, "seed": options.seed}
    if "gemm" in options.checks:
        Gemm(bench, **common, types=options.types, size=options.size).run()
    if "memory" in options.checks:
        Memory(bench, **common, share=options.share, most=options.most).run()
    return bench.finish()


def main(*checks: str) -> None:
    """Run the chosen measurements. Ends the process."""
    options = options_of(checks=checks or CHECKS)
    rank_io.run(partial(measure, options), "mpirun", "torchrun")


if __name__ == "__main__":
    main()
