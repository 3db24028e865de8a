"""A seeded training run over all ranks: the loss must fall and all ranks must agree on the model.

The program prints the metrics `loss-first` and `loss-last` (means over the first and the last steps
and all ranks), `throughput` (samples/s of the global batch, counted once) and `step-p50` (s), and a
problem `parameters-differ` for each rank whose parameters are not those of the majority at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from accept.core import recordlines
from accept.core.checks import Check, Evidence, Judged, param
from accept.core.judge import absolute, complete
from accept.core.judge.reading import number
from accept.core.judge.states import params_of, verdict_of
from accept.core.model import Parsed, Problem, Record

#: What a finished run must have measured.
_REQUIRED = ("loss-first", "loss-last", "throughput")
_ABSURD = 1e300


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of `train`.

    Samples of a step are counted over all ranks: the loss is the same at any number of ranks.
    """

    steps: int = param(60, "optimizer steps, at least 10")
    batch: int = param(64, "samples of a step, over all ranks")
    ratio: float = param(
        0.5, "the mean loss of the last steps must be at most this share of the first steps'"
    )

    def __post_init__(self) -> None:
        """Raise ValueError, naming the parameter, for a run that could not be judged."""
        if self.steps < 10:
            raise ValueError(
                f"steps must be at least 10, to have a first and a last, not {self.steps}"
            )
        if self.batch < 1:
            raise ValueError(f"batch must be at least 1, not {self.batch}")
        if not 0 < self.ratio < 1:
            raise ValueError(f"ratio must lie between 0 and 1, not {self.ratio}")


def estimate(params: Params, hosts: int, ranks_per_host: int) -> float:
    """Seconds: importing torch on every rank, and steps of about 50 ms and 1 ms for each rank."""
    return 10.0 + params.steps * (0.05 + 0.001 * hosts * ranks_per_host)


def parse(lines: Iterable[bytes]) -> Parsed:
    """Losses, throughput and what ranks report."""
    return recordlines.parse(lines, check="train")


def _values(record: Record) -> dict[str, float]:
    """Metrics of a whole run (not those of one rank), by name; damaged ones are left out."""
    return {
        metric.name: metric.value
        for metric in record.metrics
        if metric.check == "train" and metric.rank is None and abs(metric.value) < _ABSURD
    }


def _problems(record: Record, ratio: float) -> Iterator[Problem]:
    if record.exit != 0 or any(p.cause == "tool-missing" for p in record.problems):
        return
    values = _values(record)
    where = f"in step {record.step} on {complete.some(record.hosts)}"
    missing = [name for name in _REQUIRED if name not in values]
    if missing:
        said = f"no {', '.join(missing)} {where}"
        yield Problem(cause="no-measurement", message=said)
        return
    first, last = values["loss-first"], values["loss-last"]
    fell = first > 0 and last <= ratio * first
    if not fell and not any(p.cause == "loss-not-falling" for p in record.problems):
        said = (
            f"loss went from {number(first)} to {number(last)} {where}, more than {ratio:g} of it"
        )
        yield Problem(cause="loss-not-falling", message=said)
    if values["throughput"] <= 0:
        yield Problem(cause="no-measurement", message=f"throughput is not above 0 {where}")


def judge(evidence: Evidence) -> Judged:
    """The loss fell far enough, everywhere, and no rank reports anything wrong."""
    ratio = params_of(evidence, Params).ratio
    found = [problem for record in evidence.records for problem in _problems(record, ratio)]
    findings = complete.step_findings(evidence)
    findings += complete.problem_findings(evidence, more=found)
    findings += absolute.findings(evidence)
    return Judged(
        verdict_of(
            evidence,
            findings,
            measured=_measured(evidence),
            against=f"loss at most {ratio:g} of the first; equal parameters on all ranks",
        )
    )


def _measured(evidence: Evidence) -> str:
    for record in evidence.records:
        values = _values(record)
        if "loss-first" in values and "loss-last" in values:
            text = f"loss {number(values['loss-first'])} to {number(values['loss-last'])}"
            if "throughput" in values:
                text += f", {number(values['throughput'])} samples/s on {record.ranks} ranks"
            return text
    return ""


CHECK = Check(
    name="train",
    summary="a small training run: the loss falls, all ranks end with the same model",
    template="train.sh.j2",
    params=Params,
    groups=("all", "each", "pairs", "halves"),
    needs=("mpirun", "torch"),
    worth=60,
    estimate=estimate,
    parse=parse,
    judge=judge,
    # Which parameters are the odd ones takes a majority.
    faults={"wrong": 3, "nan": 1, "hang": 2, "die": 2, "full-disk": 1},
)
