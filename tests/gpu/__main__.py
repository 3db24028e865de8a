"""`make test-gpu PYTHON=...`: test everything that needs a GPU, on one to eight NVIDIA GPUs.

Downloads nothing, uses the torch of this interpreter, and writes raw outputs, which can become
fixtures, to a folder. The groups contact, rates and runs take at most 9 minutes each. A skipped
part counts as failed unless `--allow-skips` names it. Without a GPU it tests nothing and exits with
1; `--rehearse` then runs the parts that a CPU can run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from enum import Enum
from pathlib import Path

from tests.gpu import parts
from tests.gpu.parts import Failed, Gpus, Skipped

#: Seconds for all requested parts together: 9 minutes, less the time to cancel a run.
LIMIT = 500.0


class Outcome(str, Enum):
    """The outcome of a part."""

    PASSED = "passed"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    #: Skipped, and named as such by the user.
    ALLOWED = "skipped"


def attempt(part: Callable[[Gpus, float], str], gpus: Gpus, seconds: float) -> tuple[Outcome, str]:
    """Run a part; return its outcome and its findings."""
    if seconds <= 0:
        return Outcome.SKIPPED, "no time is left"
    try:
        return Outcome.PASSED, part(gpus, seconds)
    except Skipped as reason:
        return Outcome.SKIPPED, str(reason)
    except Failed as problem:
        return Outcome.FAILED, str(problem)
    except Exception as error:
        return Outcome.FAILED, f"{part.__name__} broke: {type(error).__name__}: {error}"


def run(
    chosen: Iterable[Callable[[Gpus, float], str]],
    gpus: Gpus,
    limit: float = LIMIT,
    may_skip: Collection[str] = (),
) -> dict[Outcome, int]:
    """Run parts one after the other within the limit; print a line for each, return the counts."""
    end = time.monotonic() + limit
    counts = dict.fromkeys(Outcome, 0)
    for part in chosen:
        began = time.monotonic()
        outcome, text = attempt(part, gpus, end - began)
        if outcome is Outcome.SKIPPED and part.__name__ in may_skip:
            outcome = Outcome.ALLOWED
        counts[outcome] += 1
        print(f"{outcome.value:8}{part.__name__:14}{time.monotonic() - began:5.0f} s  {text}")
        sys.stdout.flush()
    return counts


def visible_gpus() -> tuple[Gpus | None, str]:
    """Return the GPUs that torch can use, or None and the reason."""
    try:
        import torch
    except ImportError as error:
        return None, f"{sys.executable} cannot import torch: {error}"
    if not torch.cuda.is_available():
        return None, f"torch {torch.__version__} of {sys.executable} sees no GPU"
    name = torch.cuda.get_device_name(0)
    return Gpus(count=torch.cuda.device_count(), name=name, peaks=peaks_of(name), out=Path()), ""


def peaks_of(device: str) -> dict[str, float]:
    """Return the peak rates of a GPU by its name, from the machine files; empty if unknown."""
    sys.path[:0] = [str(parts.ROOT / "cli"), str(parts.KIT)]
    try:
        from accept import config
    except ImportError:
        return {}
    for name in config.names("machines"):
        gpus = config.load_machine(name).value.gpus
        if gpus.peaks and gpus.device and gpus.device in device:
            rate = gpus.peaks.memory_gbytes_per_second
            return {**gpus.peaks.tflops, **({"copy": rate, "triad": rate} if rate else {})}
    return {}


def main() -> int:
    """Run all parts. Return 0 if none failed, 1 otherwise or without a GPU, 2 for a wrong name."""
    names = {part.__name__: part for group in parts.GROUPS.values() for part in group}
    parser = argparse.ArgumentParser(prog="make test-gpu ARGS=...", description=__doc__)
    known = (*parts.GROUPS, *names)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--rehearse", action="store_true", help="without GPUs, use the CPU")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all parts")
    default = parts.ROOT / "build" / "gpu-outputs"
    parser.add_argument("--out", type=Path, default=default, help=f"default: {default}")
    parser.add_argument("--allow-skips", default="", help="parts that may be skipped, with commas")
    options = parser.parse_args()
    allowed = frozenset(filter(None, options.allow_skips.split(",")))
    if unknown := [name for name in (*options.parts, *allowed) if name not in known]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(known)}")
    groups = {name: tuple(part.__name__ for part in group) for name, group in parts.GROUPS.items()}
    chosen = [p for name in options.parts or groups for p in groups.get(name, (name,))]
    gpus, reason = visible_gpus()
    if gpus is None and not options.rehearse:
        print(f"nothing was tested: {reason}")
        print(f"skipped: {', '.join(names)}")
        print("name a Python whose torch sees a GPU: make test-gpu PYTHON=/path/to/python")
        return 1
    gpus = gpus or Gpus(count=0, name="no GPU: a rehearsal on the CPU", peaks={}, out=Path())
    gpus = replace(gpus, out=options.out.resolve())
    print(f"{gpus.count} x {gpus.name}, {sys.executable}")
    counts = run([names[name] for name in chosen], gpus, options.limit, allowed)
    print(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()))
    print(f"raw outputs: {gpus.out}")
    return int(counts[Outcome.FAILED] + counts[Outcome.SKIPPED] > 0)


if __name__ == "__main__":
    sys.exit(main())
