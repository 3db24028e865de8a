"""What the collective checks share: parameters, estimate, reading of a log, and making of a check.

All five run in one launch, whose log holds one table of nccl-tests for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from accept.core.causes import NOT_TESTED
from accept.core.checks import Check, param
from accept.core.judge import collective
from accept.core.judge.collective_metrics import message_sizes, read
from accept.core.judge.evidence import Score
from accept.core.model import Parsed, Record, Step
from accept.core.sizes import parse_size

#: A rank that waits or dies is told from those that it lets wait.
FAULTS = {"wrong": 1, "nan": 1, "hang": 2, "die": 2, "slow": 2, "full-disk": 1}
_MARK = b"ACCEPT {"
_PIECE = 1 << 20
#: A log with more records than this has run wild; the rest is left out.
_MOST_RECORDS = 100_000


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of a collective check; sizes as nccl-tests writes them."""

    min: str = param("1K", "smallest message, such as 1K")
    max: str = param("16M", "largest message, such as 8G; the one that is judged for speed")
    factor: int = param(2, "each size is the one before times this, at least 2")
    iters: int = param(20, "timed repetitions of each size")
    warmup: int = param(5, "repetitions before the timed ones")
    dtype: Literal["float", "double", "half", "bfloat16", "int32"] = param(
        "float", "type of the elements"
    )

    def __post_init__(self) -> None:
        """Raise ValueError, naming the parameter, for what cannot be run."""
        if parse_size(self.max) < parse_size(self.min):
            raise ValueError(f"max {self.max} is smaller than min {self.min}")
        if self.factor < 2:
            raise ValueError(f"factor must be at least 2, not {self.factor}")
        if self.iters < 1 or self.warmup < 0:
            raise ValueError("iters must be at least 1 and warmup at least 0")


def estimate(params: Params, hosts: int, ranks_per_host: int) -> float:
    """Seconds that one collective takes over all its sizes.

    Messages above 64 MiB are only sent where GPUs are and taken to run at 20 GB/s, smaller ones at
    0.5 GB/s; a call takes 50 us and 5 us more for each rank. Both placements are measured.
    """
    calls = 2 * (params.iters + params.warmup)
    sizes = message_sizes(params.min, params.max, params.factor)
    latency = 50e-6 + 5e-6 * hosts * ranks_per_host
    moved = sum(size / (20e9 if size > 64 << 20 else 0.5e9) for size in sizes)
    return 1.0 + calls * (latency * len(sizes) + moved)


def parse(lines: Iterable[bytes]) -> Parsed:
    """What a log of collectives says: each table by the check it belongs to, and the records.

    Where a record says that the programs never ran, the missing tables are no news.
    """
    # Readers of logs are of no use to those who only plan.
    from accept.core import nccl_tests, record_protocol

    said: list[bytes] = []
    tables = nccl_tests.read(_pieces(lines, said))
    if not said:
        return tables
    records = record_protocol.parse(said)
    idle = any(problem.cause in NOT_TESTED for problem in records.problems)
    return Parsed(
        metrics=tables.metrics + records.metrics,
        facts=tables.facts + records.facts,
        problems=records.problems if idle else records.problems + tables.problems,
    )


def _pieces(lines: Iterable[bytes], said: list[bytes]) -> Iterator[bytes]:
    """Join lines to pieces of about 1 MiB, and copy to `said` those that hold a record."""
    for piece in _joined(lines):
        if _MARK in piece and len(said) < _MOST_RECORDS:
            said += [line for line in piece.split(b"\n") if _MARK in line]
        yield piece


def _joined(lines: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _PIECE:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def score_of(check: str) -> Score:
    """The `Check.score` of a collective: bus bandwidth in GB/s at the planned largest size."""

    def score(record: Record, step: Step) -> tuple[float | None, str]:
        return collective.score(read(record.metrics, check), step)

    return score


def make(name: str, what: str, worth: int) -> Check:
    """The check of one collective."""
    return Check(
        name=name,
        summary=f"{what}: bandwidth, and every element of every rank is right",
        template="collectives.sh.j2",
        params=Params,
        groups=("all", "each", "pairs", "rails", "ladder", "halves"),
        needs=("mpirun", "nccl-tests-or-torch"),
        launch="collectives",
        worth=worth,
        estimate=estimate,
        parse=parse,
        judge=collective.judge,
        score=score_of(name),
        faults=FAULTS,
    )
