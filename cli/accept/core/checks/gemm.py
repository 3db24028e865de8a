"""Matrix products on every GPU: fast over time, at once and alone, and right in every element.

The program prints for every rank and data type, say bf16, the metrics `bf16` (TFLOP/s, median over
time while all GPUs of the host work), `bf16-p5`, `bf16-least`, `bf16-most`, the same of
`bf16-alone`, and `bf16-wrong`; and a fact `digest`: {type, size, exact, random, device, software}.
`exact` is of a product that is known, equal everywhere; `random` is equal on equal devices.
"""

from __future__ import annotations

from accept.core.checks import Check, devices
from accept.core.judge.devices import judge_devices
from accept.core.judge.digests import digest_problems, undigested
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.slow_devices import Measured
from accept.core.judge.states import params_of


def judge_gemm(evidence: Evidence) -> Judged:
    """Every GPU computed right, reached its bounds, and is as fast as its equals."""
    params = params_of(evidence, devices.Params)
    seen = {m.name for record in evidence.records for m in record.metrics}
    kinds = tuple(kind for kind in devices.TYPES if kind in seen or f"{kind}-wrong" in seen)
    measured = Measured(
        unit="TFLOP/s",
        rates=kinds,
        wrong={f"{kind}-wrong": "wrong-result" for kind in kinds},
        others=tuple(f"{kind}{tail}" for kind in kinds for tail in ("-p5", "-alone")),
        needed=tuple(filter(None, params.types.split(","))) or kinds[:1] or devices.TYPES[:1],
    )
    more = (*digest_problems(evidence), *undigested(evidence))
    return judge_devices(evidence, measured, noise=params.noise, more=more)


GEMM = Check(
    name="gemm",
    summary="matrix products on every GPU: TFLOP/s over time, and every element is right",
    template="devices.sh.j2",
    params=devices.Params,
    groups=("each",),
    needs=("mpirun", "torch"),
    launch="devices",
    worth=70,
    estimate=devices.gemm_seconds,
    parse=devices.parse,
    judge=judge_gemm,
    devices=True,
    faults=devices.FAULTS,
)
CHECK = GEMM
