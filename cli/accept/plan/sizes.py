"""Estimate how large the evidence of a run and the log of its coordinator become.

The figures are fitted to the records and raw logs of accepted runs on 1 to 8 hosts without GPUs,
with one or two ranks each. The sizes grow with the number of ranks. Problems are not included: a
group that fails also keeps NCCL's logs. The output of a user's own script is unknown, and that of a
tool assumed to be like fio's.
"""

from __future__ import annotations

from dataclasses import dataclass

from accept.core.evidence import PACKED_LIMIT
from accept.core.groups import waves
from accept.core.plan import Plan, Step


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes in bytes, and the number of executions, each with a record and a raw log."""

    executions: int
    evidence: int
    #: The log of the coordinator, without packed records.
    log: int
    #: The records as they would be packed at the end of that log.
    packed: int

    @property
    def fits_log(self) -> bool:
        """Return True if the log can contain the records."""
        return self.packed <= PACKED_LIMIT


#: Bytes of record and raw log, together: of each execution and each of its ranks, and what each
#: check adds to both.
_EXECUTION, _RANK = 500, 60
_COLLECTIVE = (3500, 100)
_CHECKS = {
    "all-gather": _COLLECTIVE,
    "all-reduce": _COLLECTIVE,
    "alltoall": _COLLECTIVE,
    "burn": (400, 900),
    "connectivity": (1200, 1400),
    "gemm": (0, 3700),
    "health": (0, 470),
    "inventory": (550, 230),
    "latency": (600, 3300),
    "memory": (0, 3340),
    "nic-loop": (0, 3800),
    "reduce-scatter": _COLLECTIVE,
    "script": (0, 0),
    "sendrecv": _COLLECTIVE,
    "train": (5700, 1400),
}
_TOOL = (16_000, 0)
#: Share of an execution that is its record, and the packed size of a record relative to that.
_RECORD_SHARE, _PACKED_SHARE = 0.5, 0.15
#: Bytes of a host in each health sweep, and once for its discovery and the log of its pod.
_HOST_SWEEP, _HOST = 25, 2000
#: Bytes of the log: of the plan and the verdict, of each step, of each wave, and of the table of
#: nccl-tests, which has up to 25 lines. The records of progress are included.
_LOG, _LOG_STEP, _LOG_WAVE, _LOG_TABLE = 1800, 800, 500, 2700
#: Packed size of the plan and the verdict.
_PACKED = 4000


def sizes(plan: Plan) -> Sizes | None:
    """Return the sizes of a run without problems; None if its number of nodes is unknown."""
    if plan.nodes is None:
        return None
    hosts = tuple(map(str, range(plan.nodes)))
    per_host = plan.gpus_used or plan.machine.gpus or plan.machine.ranks or 1
    executions = measured = 0
    log = _LOG
    for step in plan.steps:
        planned = waves(step.groups, hosts, rounds=step.rounds, seed=plan.seed, ranks=per_host)
        log += _LOG_STEP + _LOG_WAVE * len(planned)
        if plan.machine.gpus and any(_CHECKS.get(check) == _COLLECTIVE for check in step.checks):
            log += _LOG_TABLE
        groups = [group for wave in planned for group in wave]
        executions += len(groups)
        measured += sum(
            _execution(step, len(group.hosts) * (len(group.local_ranks) or per_host))
            for group in groups
        )
    sweeps = (len(plan.steps) + 1) * plan.nodes * _HOST_SWEEP
    records = measured * _RECORD_SHARE + sweeps
    return Sizes(
        executions=executions,
        evidence=round(measured + sweeps + plan.nodes * _HOST + 2 * log),
        log=log,
        packed=round(_PACKED + records * _PACKED_SHARE),
    )


def _execution(step: Step, ranks: int) -> int:
    """Return the bytes of record and raw log of an execution with this number of ranks."""
    figures = (_CHECKS.get(check, _TOOL) for check in step.checks)
    return _EXECUTION + _RANK * ranks + sum(fixed + each * ranks for fixed, each in figures)
