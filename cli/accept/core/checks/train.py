"""Define the check `train`: the loss of a seeded run falls, and all ranks agree on the model.

The docstring of `launchers/programs/train.py` describes the output. The program itself reports the
ranks that compute wrong numbers; this module judges the loss curve and looks for slow ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from accept.core import facts, record_protocol
from accept.core.catalog.metrics import Better, MetricSpec
from accept.core.catalog.tools import MPIRUN, TORCH
from accept.core.causes import Cause
from accept.core.checks.check import Check, CheckParams, call_seconds, nccl_seconds
from accept.core.facts import FactKind
from accept.core.judge import stragglers
from accept.core.judge.conclusion import conclude
from accept.core.judge.consistency import digest_problems
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.summary import params_of
from accept.core.plan import GroupKind
from accept.core.records import Problem, Record
from accept.core.serde import param
from accept.core.text import host_list, number

#: Metrics of a finished run.
_REQUIRED = ("loss-first", "loss-last", "throughput")
#: Metrics of at least this magnitude are damaged.
_ABSURD = 1e300
#: Assumed seconds per step, without the messages of the ranks.
_STEP_SECONDS = {"resnet18": 1.0, "resnet50": 3.0}
_SMALL_STEP_SECONDS, _LARGE_STEP_SECONDS = 0.05, 3.0
#: Assumed seconds of each rank's messages in a step on CPUs, and the number of messages of a step
#: on GPUs: the gradients and the loss.
_CPU_STEP_SECONDS_PER_RANK, _MESSAGES = 0.001, 2
#: Seconds to start torch, and to build a large model after that: on slow and on healthy GPUs.
_START_SECONDS, _LARGE_START_SECONDS, _HEALTHY_LARGE_START_SECONDS = 10.0, 60.0, 20.0


@dataclass(frozen=True, kw_only=True)
class Params(CheckParams):
    """Parameters of `train`.

    `batch` counts the samples of all ranks, so the loss does not depend on the number of ranks.
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
        "gpt-fit",
    ] = param("mlp", "model to train; gpt-N fills a GPU of N GB, gpt-fit loads any GPU")
    precision: Literal["fp32", "autocast", "bf16"] = param(
        "fp32", "precision of the arithmetic; bf16: also of the weights"
    )
    parallel: Literal["auto", "ddp", "fsdp", "flat"] = param(
        "auto", "how gradients are averaged; auto: ddp on GPUs, one all-reduce on CPUs"
    )
    norm: Literal["group", "sync"] = param(
        "group", "normalization of ResNets; sync: SyncBatchNorm, on GPUs"
    )
    # With fewer steps or samples, the loss of a healthy run may fall by less than half.
    steps: int = param(60, "optimizer steps, at least 20", least=20)
    minutes: float = param(
        0.0, "train for this many minutes instead, with a report every five minutes", least=0
    )
    batch: int = param(64, "samples of a step, over all ranks, at least 16", least=16)
    micro: int = param(0, "samples per forward pass; 0: chosen for the model", least=0)
    ratio: float = param(
        0.5,
        "the mean loss of the last steps must be at most this share of the first steps'",
        above=0,
        below=1,
    )
    by: int = param(
        0, "step by which the loss must have fallen to `ratio`; 0: the last step", least=0
    )
    every: int = param(
        100, "steps between comparisons of the ranks' parameters and gradients", least=1
    )
    dataset: Literal["synthetic", "fashion-mnist", "cifar-10", "cifar-100", "image-folder"] = param(
        "synthetic", "data set to learn"
    )
    path: str = param("", "folder of the data set, on every host")
    download: bool = param(False, "download the data set to `path` with torchvision")
    checkpoint: str = param("", "folder to write a checkpoint to at the end, and to read it back")

    def __post_init__(self) -> None:
        """Raise ValueError, which names the parameter, for a run that could not be judged."""
        super().__post_init__()
        if not self.minutes and self.by > self.steps:
            raise ValueError(f"by must be at most the number of steps, {self.steps}, not {self.by}")
        if self.dataset == "synthetic" and self.path:
            raise ValueError("path: dataset synthetic has no folder; choose another dataset")
        if self.dataset != "synthetic" and not self.path:
            raise ValueError(f"path: dataset {self.dataset} needs a folder on every host")
        if self.path and self.model.startswith("gpt"):
            raise ValueError(
                f"model {self.model} needs text, but dataset {self.dataset} contains images"
            )
        if self.download and self.dataset in ("synthetic", "image-folder"):
            raise ValueError(f"download: dataset {self.dataset} cannot be downloaded")
        for name in ("path", "checkpoint"):
            if (folder := getattr(self, name)) and not folder.startswith("/"):
                raise ValueError(f"{name} must be an absolute path on the hosts, not {folder}")

    def estimate(self, hosts: int, ranks: int) -> float:
        """Return seconds: import torch on each rank, then run the steps, 1 ms longer per rank.

        The steps of large models are a guess, because they were never measured; suites can set
        `timeout`.
        """
        return self._seconds(_LARGE_START_SECONDS, _CPU_STEP_SECONDS_PER_RANK * hosts * ranks)

    def healthy_seconds(self, hosts: int, ranks: int, _algbw: float | None) -> float:
        """Return the seconds on healthy GPUs, which build a large model themselves."""
        messages = _MESSAGES * call_seconds(hosts * ranks)
        return nccl_seconds(hosts * ranks) + self._seconds(_HEALTHY_LARGE_START_SECONDS, messages)

    def _seconds(self, large_start: float, messages: float) -> float:
        large = self.model.startswith("gpt") and self.model != "gpt-tiny"
        small_step = _STEP_SECONDS.get(self.model, _SMALL_STEP_SECONDS)
        step = _LARGE_STEP_SECONDS if large else small_step
        start = _START_SECONDS + large * large_start
        return start + (60 * self.minutes or self.steps * (step + messages))


def _values(record: Record) -> dict[str, float]:
    """Return the metrics of the whole run by name, without those of single ranks and damaged ones.

    A long run reports them repeatedly; the last value counts.
    """
    return {
        metric.name: metric.value
        for metric in record.metrics
        if metric.check == "train" and metric.rank is None and abs(metric.value) < _ABSURD
    }


#: True if the program has a reference curve for the settings of the training.
TRAINING = FactKind("training", lambda value: bool(facts.mapping(value).get("reference")))
#: True if the ranks compared their parameters or outputs.
COMPARED = FactKind("compared", lambda value: bool(facts.mapping(value).get("times")))


def _last(kind: FactKind[bool], record: Record) -> bool:
    """Return the value of the last fact of this kind, or False if there is none."""
    values = [value for fact, value in kind.of(record) if fact.check == "train"]
    return bool(values) and values[-1]


def _problems(record: Record, params: Params) -> Iterator[Problem]:
    if record.exit != 0 or any(p.cause is Cause.TOOL_MISSING for p in record.problems):
        return
    values = _values(record)
    where = f"in step {record.step} on {host_list(record.hosts)}"
    required = [*_REQUIRED]
    if params.by:
        required.append("loss-by")
    if params.model == "gpt-fit":
        required.append(SUSTAINED.name)
    if params.checkpoint:
        required += ["checkpoint-write", "checkpoint-read"]
    has_reference = _last(TRAINING, record)
    if has_reference:
        required += ["curve-deviation", "curve-tolerance"]
    missing = [name for name in required if name not in values]
    if not _last(COMPARED, record):
        missing.append("comparison of the ranks")
    if missing:
        message = f"training {where} reported no {', '.join(missing)}"
        yield Problem(cause=Cause.NO_MEASUREMENT, message=message)
        return
    first, last = values["loss-first"], values["loss-by" if params.by else "loss-last"]
    fell = first > 0 and last <= params.ratio * first
    if not fell and not any(p.cause is Cause.LOSS_NOT_FALLING for p in record.problems):
        by = f" by step {params.by}" if params.by else ""
        message = f"the loss went from {number(first)} to {number(last)}{by} {where}; at most "
        message += f"{params.ratio:g} of the first loss is allowed"
        yield Problem(cause=Cause.LOSS_NOT_FALLING, message=message)
    if has_reference and not values["curve-deviation"] <= values["curve-tolerance"]:
        deviation, tolerance = number(values["curve-deviation"]), number(values["curve-tolerance"])
        message = f"the loss curve {where} deviates from the reference curve by {deviation} of the "
        message += f"first loss; at most {tolerance} is allowed"
        yield Problem(cause=Cause.LOSS_DIFFERS, message=message)
    if values["throughput"] <= 0:
        yield Problem(cause=Cause.NO_MEASUREMENT, message=f"throughput is not above 0 {where}")


def judge(evidence: Evidence) -> Judged:
    """Pass if the loss fell far enough everywhere, and no rank is wrong or slow."""
    params = {
        step.id: params_of(replace(evidence, steps=(step,)), Params) for step in evidence.steps
    }
    ratios = ", ".join(f"{ratio:g}" for ratio in dict.fromkeys(p.ratio for p in params.values()))
    required = f"loss at most {ratios or Params().ratio} of the first"
    if any(_last(TRAINING, record) for record in evidence.records):
        required += " and along the reference curve"
    problems = [p for record in evidence.records for p in _problems(record, params[record.step])]
    slow = stragglers.judge(evidence, "rank-own", SUSTAINED)
    return conclude(
        evidence,
        # The program compares the ranks of one execution; the digests are those of all of them.
        problems=[*problems, *digest_problems(evidence, Cause.GRADIENTS_DIFFER)],
        findings=slow.findings,
        suspects=slow.suspects,
        measured=_measured(evidence),
        required=f"{required}; equal parameters on all ranks",
    )


def _measured(evidence: Evidence) -> str:
    # A training that loads the GPU comes first: its speed is worth showing.
    for record in sorted(evidence.records, key=lambda r: SUSTAINED.name not in _values(r)):
        values = _values(record)
        if "loss-first" in values and "loss-last" in values:
            text = f"loss {number(values['loss-first'])} to {number(values['loss-last'])}"
            if "throughput" in values:
                text += f", {number(values['throughput'])} samples/s on {record.ranks} ranks"
            if SUSTAINED.name in values:
                text += f", {number(values[SUSTAINED.name])} {SUSTAINED.unit} per rank"
            return text + (f", MFU {values['mfu']:.1%}" if "mfu" in values else "")
    return ""


#: `flops` of a training that loads the GPU; small models say nothing about its speed.
SUSTAINED = MetricSpec(
    name="sustained", unit="TFLOP/s", better=Better.HIGHER, baseline=True, in_log=True
)
#: Metrics of the whole run. `tokens`, `flops` and `mfu` are the throughput in other units.
_METRICS = (
    MetricSpec(
        name="throughput", unit="samples/s", better=Better.HIGHER, baseline=True, in_log=True
    ),
    MetricSpec(name="tokens", unit="tokens/s"),
    MetricSpec(name="flops", unit="TFLOP/s"),
    MetricSpec(name="mfu", unit=""),
    SUSTAINED,
    *(
        MetricSpec(name=name, unit="s", better=Better.LOWER)
        for name in ("step-p50", "time-input", "time-compute", "time-communication")
    ),
    MetricSpec(name="loss-first", unit=""),
    MetricSpec(name="loss-last", unit="", in_log=True),
    *(
        MetricSpec(name=name, unit="")
        for name in ("loss-by", "loss-target", "curve-deviation", "curve-tolerance")
    ),
    *(
        MetricSpec(name=name, unit="GB/s", better=Better.HIGHER)
        for name in ("checkpoint-write", "checkpoint-read")
    ),
)
#: Metrics of each rank.
_RANK_METRICS = tuple(
    MetricSpec(name=name, unit="s", better=Better.LOWER)
    for name in ("rank-own", "rank-step-p50", "rank-step-p95", "rank-step-p99")
)

TRAIN = Check(
    name="train",
    summary="a training run: the loss falls, and all ranks have the same gradients and parameters",
    template="train.sh.j2",
    params=Params,
    groups=(GroupKind.BLOCKS, GroupKind.ALL, GroupKind.EACH, GroupKind.PAIRS, GroupKind.HALVES),
    needs=((MPIRUN,), (TORCH,)),
    metrics=(*_METRICS, *_RANK_METRICS),
    facts=(TRAINING, COMPARED, facts.DIGEST),
    worth=60,
    parse=partial(record_protocol.parse, check="train"),
    judge=judge,
    loads_gpus=True,
    # Only a majority shows which rank's parameters are wrong.
    faults={"wrong": 3, "nan": 1, "hang": 2, "die": 2, "full-disk": 1},
)

CHECKS = (TRAIN,)
