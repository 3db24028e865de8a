"""A seeded training run over all ranks: the loss must fall and all ranks must agree on the model.

What the program prints its own docstring says (`launchers/programs/train.py`). It names ranks by
itself where numbers are wrong; here its curve is judged, and whether a rank is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from accept.core import record_protocol
from accept.core.checks.check import Check, param
from accept.core.judge import bounds, completeness, stragglers
from accept.core.judge.collective_metrics import number
from accept.core.judge.consistency import digest_problems
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.summary import params_of, verdict_of
from accept.core.judge.suspects import from_problems
from accept.core.model import Parsed, Problem, Record

#: What a finished run must have measured.
_REQUIRED = ("loss-first", "loss-last", "throughput")
_ABSURD = 1e300
#: Steps that the program needs: with fewer the loss of a healthy run need not fall by half.
_LEAST_STEPS, _LEAST_BATCH = 20, 16
#: Seconds that a step is taken to last, where nobody has measured it; smaller models take 0.05.
_STEP_SECONDS = {"resnet18": 1.0, "resnet50": 3.0}
_LARGE_SECONDS, _LARGE_START = 3.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of `train`.

    Samples of a step are counted over all ranks: the loss is the same at any number of ranks.
    """

    model: Literal[
        "mlp",
        "resnet18",
        "resnet50",
        "gpt-tiny",
        "gpt-16",
        "gpt-40",
        "gpt-80",
        "gpt-141",
        "gpt-192",
    ] = param("mlp", "what is trained; gpt-N is computed to fill a GPU of N GB")
    precision: Literal["fp32", "autocast", "bf16"] = param(
        "fp32", "of the arithmetic; bf16: of the weights too"
    )
    parallel: Literal["auto", "ddp", "fsdp", "flat"] = param(
        "auto", "how gradients are averaged; auto: ddp on GPUs, one all-reduce on CPUs"
    )
    norm: Literal["group", "sync"] = param("group", "of ResNets; sync: SyncBatchNorm, on GPUs")
    steps: int = param(60, "optimizer steps, at least 20")
    minutes: float = param(0.0, "train so long instead, with prints every five minutes")
    batch: int = param(64, "samples of a step, over all ranks, at least 16")
    micro: int = param(0, "samples that go through the model at once; 0: as it needs")
    ratio: float = param(
        0.5, "the mean loss of the last steps must be at most this share of the first steps'"
    )
    by: int = param(0, "step by which the loss must have fallen so far; 0: the last")
    every: int = param(100, "steps between comparisons of what the ranks hold and compute")
    dataset: Literal["synthetic", "fashion-mnist", "cifar-10", "cifar-100", "image-folder"] = param(
        "synthetic", "what is learnt"
    )
    path: str = param("", "folder of the data set, on every host")
    download: bool = param(False, "fetch the data set there, by torchvision")
    checkpoint: str = param("", "folder to write a checkpoint to at the end, and to read it back")

    def __post_init__(self) -> None:
        """Raise ValueError, naming the parameter, for a run that could not be judged."""
        if self.steps < _LEAST_STEPS or self.batch < _LEAST_BATCH:
            raise ValueError(
                f"steps must be at least {_LEAST_STEPS} and batch at least {_LEAST_BATCH}, for the "
                f"loss to fall, not {self.steps} and {self.batch}"
            )
        if not 0 < self.ratio < 1:
            raise ValueError(f"ratio must lie between 0 and 1, not {self.ratio}")
        if self.minutes < 0 or self.micro < 0 or self.by < 0:
            raise ValueError("minutes, micro and by must not be below 0")
        if self.every < 1:
            raise ValueError(f"every must be at least 1, not {self.every}")
        if not self.minutes and self.by > self.steps:
            raise ValueError(f"by is step {self.by}, and there are {self.steps} steps")
        if (self.dataset == "synthetic") == bool(self.path):
            raise ValueError("path is the folder of a dataset other than synthetic, which needs it")
        if self.path and self.model.startswith("gpt"):
            raise ValueError(f"model {self.model} reads text, and dataset {self.dataset} is images")
        if self.download and self.dataset in ("synthetic", "image-folder"):
            raise ValueError(f"download: there is nothing to fetch for dataset {self.dataset}")
        for name in ("path", "checkpoint"):
            if (given := getattr(self, name)) and not given.startswith("/"):
                raise ValueError(
                    f"{name} must be absolute, as hosts have no common folder: {given}"
                )


def estimate(params: Params, hosts: int, ranks_per_host: int) -> float:
    """Seconds: importing torch on every rank, and the steps, each with 1 ms for each rank.

    How long the steps of large models last nobody has measured; a suite can say `timeout`.
    """
    large = params.model.startswith("gpt") and params.model != "gpt-tiny"
    step = _LARGE_SECONDS if large else _STEP_SECONDS.get(params.model, 0.05)
    start = 10.0 + large * _LARGE_START
    return start + (60 * params.minutes or params.steps * (step + 0.001 * hosts * ranks_per_host))


def parse(lines: Iterable[bytes]) -> Parsed:
    """Losses, throughput and what ranks report."""
    return record_protocol.parse(lines, check="train")


def _values(record: Record) -> dict[str, float]:
    """Metrics of a whole run (not those of one rank), by name; damaged ones are left out.

    A long run says them again and again: the last one counts.
    """
    return {
        metric.name: metric.value
        for metric in record.metrics
        if metric.check == "train" and metric.rank is None and abs(metric.value) < _ABSURD
    }


def _facts(record: Record, name: str) -> dict[str, object]:
    """The last fact of this name; empty where it is missing or no table."""
    found = [f.value for f in record.facts if f.check == "train" and f.name == name]
    return found[-1] if found and isinstance(found[-1], dict) else {}


def _problems(record: Record, params: Params) -> Iterator[Problem]:
    if record.exit != 0 or any(p.cause == "tool-missing" for p in record.problems):
        return
    values, where = (
        _values(record),
        f"in step {record.step} on {completeness.host_list(record.hosts)}",
    )
    needed = [*_REQUIRED]
    if params.by:
        needed.append("loss-by")
    if params.checkpoint:
        needed += ["checkpoint-write", "checkpoint-read"]
    referenced = bool(_facts(record, "training").get("reference"))
    if referenced:
        needed += ["curve-deviation", "curve-tolerance"]
    missing = [name for name in needed if name not in values]
    if not _facts(record, "compared").get("times"):
        missing.append("comparison of the ranks")
    if missing:
        said = f"training {where} reported no {', '.join(missing)}"
        yield Problem(cause="no-measurement", message=said)
        return
    first, last = values["loss-first"], values["loss-by" if params.by else "loss-last"]
    fell = first > 0 and last <= params.ratio * first
    if not fell and not any(p.cause == "loss-not-falling" for p in record.problems):
        by = f" by step {params.by}" if params.by else ""
        said = f"the loss went from {number(first)} to {number(last)}{by} {where}; at most "
        said += f"{params.ratio:g} of the first loss is allowed"
        yield Problem(cause="loss-not-falling", message=said)
    if referenced and not values["curve-deviation"] <= values["curve-tolerance"]:
        far = number(values["curve-deviation"])
        said = f"the loss curve {where} is {far} of the first loss away from the reference curve"
        yield Problem(cause="loss-differs", message=said)
    if values["throughput"] <= 0:
        yield Problem(cause="no-measurement", message=f"throughput is not above 0 {where}")


def judge(evidence: Evidence) -> Judged:
    """The loss fell far enough, everywhere, no rank reports anything wrong, and none is slow."""
    params = {
        step.id: params_of(replace(evidence, steps=(step,)), Params) for step in evidence.steps
    }
    found = [p for record in evidence.records for p in _problems(record, params[record.step])]
    # Ranks of one execution compare themselves; those of several are compared here.
    odd = tuple(digest_problems(evidence, "gradients-differ"))
    findings = completeness.step_findings(evidence)
    findings += completeness.problem_findings(evidence, more=[*found, *odd])
    findings += bounds.findings(evidence)
    slow = stragglers.judge(evidence, "rank-own")
    ratios = ", ".join(f"{ratio:g}" for ratio in dict.fromkeys(p.ratio for p in params.values()))
    held = f"loss at most {ratios or Params().ratio} of the first"
    if any(_facts(record, "training").get("reference") for record in evidence.records):
        held += " and along the reference curve"
    return Judged(
        verdict_of(
            evidence,
            findings + slow.findings,
            measured=_measured(evidence),
            against=f"{held}; equal parameters on all ranks",
        ),
        (*slow.suspects, *from_problems(odd, "", len(evidence.hosts))),
    )


def _measured(evidence: Evidence) -> str:
    for record in evidence.records:
        values = _values(record)
        if "loss-first" in values and "loss-last" in values:
            text = f"loss {number(values['loss-first'])} to {number(values['loss-last'])}"
            if "throughput" in values:
                text += f", {number(values['throughput'])} samples/s on {record.ranks} ranks"
            return text + (f", MFU {values['mfu']:.1%}" if "mfu" in values else "")
    return ""


TRAIN = Check(
    name="train",
    summary="a training run: the loss falls as it should, all ranks compute and hold the same",
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

CHECKS = (TRAIN,)
