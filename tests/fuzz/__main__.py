"""`python -m tests.fuzz`: try many inputs of each kind; print the outcomes and the memory.

Exits with 1 at the first input that makes a reader fail, and prints how to repeat it.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType

from tests.fuzz import known_lines
from tests.fuzz.kinds import KINDS, attempt, input_of

#: Limits of memory, file size, CPU time and time. An input that exceeds one of them is a failure.
_MEMORY, _FILE, _SECONDS, _WALL_SECONDS = 4 << 30, 256 << 20, 10, 300
#: Most that memory may grow after the first tenth of the inputs, and maximum memory, in MiB. With
#: 100,000 folders it grows by 67 MiB, which `tracemalloc` does not show.
_GROWTH, _MOST = 96, 300


def main() -> int:
    """Run the requested kinds."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of %(default)s")
    parser.add_argument("--only", type=int, help="the number of one input, which is written out")
    asked = parser.parse_args()
    kinds = asked.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if asked.only is not None:
        for kind in kinds:
            sys.stdout.buffer.write(input_of(kind, asked.seed, asked.only).raw)
            print(attempt(kind, asked.seed, asked.only)[1], file=sys.stderr)
        return 0
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    signal.signal(signal.SIGALRM, _too_long)
    signal.signal(signal.SIGPROF, _too_long)
    known_lines.is_timed = True
    print(f"seed {asked.seed}")
    return max(run(kind, asked.seed, asked.inputs) for kind in kinds)


def run(kind: str, seed: int, inputs: int) -> int:
    """Try that many inputs of a kind; return 1 if a reader failed or took too much memory."""
    outcomes: Counter[str] = Counter()
    begin, begin_used, size, early = time.monotonic(), time.process_time(), 0, 0
    for number in range(inputs):
        # A loaded machine delays this process: it may wait longer than it may compute.
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        signal.alarm(_WALL_SECONDS)
        try:
            raw, outcome = attempt(kind, seed, number)
        except (Exception, TooLong):
            traceback.print_exc()
            again = f"--kinds {kind} --seed {seed} --only {number}"
            print(f"{kind}: input {number} failed. Repeat: python -m tests.fuzz {again}")
            return 1
        finally:
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_PROF, 0)
        outcomes[outcome] += 1
        size += len(raw)
        if number == inputs // 10:
            early = _peak()
    summary = ", ".join(f"{outcome} {count:,}" for outcome, count in outcomes.most_common())
    grown = _peak() - early
    seconds, used = time.monotonic() - begin, time.process_time() - begin_used
    speed = f"{inputs / used:.0f} inputs for each second of CPU time"
    print(f"{kind}: {inputs:,} inputs, {size / 1e6:.0f} MB, {seconds:.0f} s; {speed}; {summary}")
    print(f"  peak {_peak()} MiB, {grown} MiB of it after the first tenth", flush=True)
    return int(grown > _GROWTH or _peak() > _MOST)


def _peak() -> int:
    """Return the peak memory of this process, in MiB.

    `ru_maxrss` would include the peak of the process that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


class TooLong(BaseException):
    """An input took too long. No reader catches it, as it may catch a TimeoutError."""


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise TooLong(f"one input took {_SECONDS} s of CPU time, or {_WALL_SECONDS} s")


if __name__ == "__main__":
    sys.exit(main())
