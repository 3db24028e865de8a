"""Make the evidence of `accept demo`: a simulated run of 32 nodes, one of them with a slow network.

`python -m tests.factories.demo_evidence` writes `values/demo.tgz`. The functions of the product
make plan, waves, records, verdict and checksums. Only the raw logs are simulated. They have the
formats of the programs, invented speeds, and a first line that marks them as simulated.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.factories import nccl_logs
from tests.factories.judging import judged
from tests.factories.verdicts import gpus, hosts_record, inventory_of

from accept import __version__
from accept.config.resources import demo
from accept.core import evidence
from accept.core.checks import REGISTRY, parse_log
from accept.core.groups import Group, Wave, waves
from accept.core.judge.remeasure import waves_again
from accept.core.plan import SIMULATED, Plan, Step
from accept.core.records import Record
from accept.core.report import write_judgement
from accept.core.serde import dump
from accept.plan.resolve import Options, resolve

HOSTS = tuple(f"gpu{number:02d}" for number in range(1, 33))
BAD = "gpu17"
ATTEMPT = "demo"
#: The share of the normal speed that the NICs of the bad node reach.
_SHARE = 0.9
_GPUS, _NICS = 8, 8
_MACHINE = "h100-8"
MARK = "# SIMULATED: no hardware was measured for this log\n"
_SEED = 7
#: The start of the run in seconds since 1970: 2026-11-23 09:00 UTC.
_START = 1_795_424_400.0
#: The steps of `quick` that are simulated, by their first check.
_STEPS = ("inventory", "all-reduce", "all-gather", "gemm")
#: Invented bus bandwidth between nodes, in GB/s: what 8 NICs of 400 Gbit/s might reach.
_BETWEEN = {
    "all-reduce": 372.0,
    "all-gather": 366.0,
    "reduce-scatter": 367.0,
    "alltoall": 44.0,
    "sendrecv": 43.0,
}
_NOISE = 0.004
#: Data types of `gemm`.
_TYPES = ("bf16", "fp8", "tf32", "fp32")
#: Invented metrics of a GPU: check, name, value and unit.
_OF_GPU = (
    ("gemm", "bf16", 752.0, "TFLOP/s"),
    ("gemm", "fp8", 1368.0, "TFLOP/s"),
    ("gemm", "tf32", 418.0, "TFLOP/s"),
    ("gemm", "fp32", 51.5, "TFLOP/s"),
    ("memory", "copy", 3010.0, "GB/s"),
    ("memory", "triad", 3042.0, "GB/s"),
    ("memory", "host-to-device", 55.2, "GB/s"),
    ("memory", "device-to-host", 55.4, "GB/s"),
    ("memory", "p2p-out", 392.0, "GB/s"),
    ("memory", "p2p-in", 391.0, "GB/s"),
)


def plan() -> Plan:
    """Return the plan of `quick` on the nodes, with the steps that are simulated."""
    options = Options(machine=_MACHINE, suite="quick", hosts=HOSTS, backend="ssh", seed=_SEED)
    full = resolve(options).plan
    steps = tuple(step for step in full.steps if step.checks[0] in _STEPS)
    made = replace(full, version=__version__, suite=SIMULATED, steps=steps, skipped=())
    made = replace(made, files_hash="0" * 64)
    return replace(made, hash=evidence.plan_hash(dump(made)))


@dataclass(kw_only=True)
class _Simulation:
    """A run that goes on in simulated time and leaves its logs in a folder."""

    plan: Plan
    folder: Path
    chance: random.Random = field(default_factory=lambda: random.Random(_SEED))
    now: float = _START

    def run(self) -> Iterator[Record]:
        """Yield the records of all steps, with the waves that measure suspects again."""
        yield replace(hosts_record(HOSTS), start=self.now, end=self.now + 4)
        self.now += 5
        for step in self.plan.steps:
            own: list[Record] = []
            todo: Sequence[Wave] = waves(
                step.groups, HOSTS, rounds=step.rounds, seed=self.plan.seed, ranks=_GPUS
            )
            while todo:
                for wave in todo:
                    own += self._wave(step, 1 + max((r.wave for r in own), default=-1), wave)
                todo = waves_again(self.plan, step, own, HOSTS, {}, checks=REGISTRY)
            yield from own

    def _wave(self, step: Step, number: int, wave: Wave) -> list[Record]:
        records = [self._execute(step, number, index, group) for index, group in enumerate(wave)]
        self.now = max(record.end for record in records) + 1
        return records

    def _execute(self, step: Step, wave: int, index: int, group: Group) -> Record:
        log = evidence.log_path(step, wave, index, hosts=group.hosts, start=self.now)
        path = self.folder / log
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MARK + self._log(step, group), encoding="utf-8")
        lines = evidence.open_log(self.folder, log)
        assert lines is not None
        parsed = parse_log(step.checks, lines, group.hosts)
        assert not parsed.problems, parsed.problems
        seconds = step.estimate / step.rounds * self.chance.uniform(0.75, 0.8)
        return Record(
            step=step.id,
            checks=step.checks,
            wave=wave,
            group=index,
            hosts=group.hosts,
            ranks=_GPUS * len(group.hosts),
            exit=0,
            start=self.now,
            began=self.now + 0.3 * seconds,
            end=self.now + seconds,
            log=log,
            metrics=parsed.metrics,
            facts=parsed.facts,
        )

    def _log(self, step: Step, group: Group) -> str:
        if step.checks[0] == "inventory":
            return _line(dump(_inventory(group.hosts[0])))
        if step.checks[0] == "gemm":
            return "".join(self._gpus(group.hosts[0]))
        return _network(group.hosts) + "\n".join(
            self._table(step, check, group.hosts) for check in step.checks
        )

    def _table(self, step: Step, check: str, hosts: Sequence[str]) -> str:
        share = _SHARE if BAD in hosts else 1.0
        speed = _BETWEEN[check] * share * (1 + self.chance.gauss(0, _NOISE))
        top = 8 << 30
        factor = int(step.params["factor"])
        sizes = [top // factor**power for power in range(int(step.params["sizes"]))]
        name = check.replace("-", "_")
        return nccl_logs.table(
            name, hosts, range(_GPUS), round(speed, 2), sizes=sizes[::-1], factor=factor
        )

    def _gpus(self, host: str) -> Iterator[str]:
        for rank in range(_GPUS):
            for check, name, usual, unit in _OF_GPU:
                value = usual * (1 + self.chance.gauss(0, _NOISE))
                yield _metric(host, rank, check, name, round(value, 2), unit)
            for name in _TYPES:
                yield _metric(host, rank, "gemm", f"{name}-wrong", 0, "count")
                yield _fact(host, rank, "digest", _digest(name))
            yield _metric(host, rank, "memory", "wrong", 0, "count")
            yield _metric(host, rank, "memory", "tested", 0.9, "")
            heat = round(self.chance.gauss(61, 1.5))
            load = {"type": "bf16", "C": [44, heat, heat + 3], "MHz": [1755, 1830, 1980]}
            yield _fact(host, rank, "load", load)


def _line(data: object) -> str:
    return f"ACCEPT {json.dumps(data, separators=(',', ':'))}\n"


def _metric(host: str, rank: int, check: str, name: str, value: float, unit: str) -> str:
    return _line(
        {
            "check": check,
            "metric": name,
            "value": value,
            "unit": unit,
            "host": host,
            "rank": rank,
            "gpu": _uuid(host, rank),
        }
    )


def _fact(host: str, rank: int, name: str, value: object) -> str:
    return _line({"fact": name, "check": "gemm", "host": host, "rank": rank, "value": value})


def _digest(name: str) -> dict[str, object]:
    """Return the digests of the products of a data type, which are the same on equal GPUs."""
    products = {what: f"{name}-{what}" for what in ("exact", "random")}
    return {
        "type": name,
        "size": 8192,
        "device": nccl_logs.DEVICE,
        "software": "simulated",
    } | products


def _uuid(host: str, rank: int) -> str:
    return f"GPU-{host}-{rank}"


def _inventory(host: str) -> object:
    listed = gpus(host, _GPUS)
    for number, gpu in enumerate(listed):
        gpu |= {"name": nccl_logs.DEVICE, "memoryMiB": 81559, "driver": "580.95.05"}
        gpu |= {"uuid": _uuid(host, number)}
    nics = [
        {"name": f"mlx5_{number}", "speed": 400_000, "state": "active", "rdma": True}
        for number in range(_NICS)
    ]
    fact = inventory_of(host, gpus=listed, pciNvidia=_GPUS, nics=nics, cpus=192)
    return {"fact": fact.name, "check": fact.check, "host": host, "value": fact.value}


def _network(hosts: Sequence[str]) -> str:
    """Return the lines of NCCL about the NICs of all hosts."""
    named = " ".join(f"[{number}]mlx5_{number}:1/IB" for number in range(_NICS))
    lines = []
    for host in hosts:
        lines.append(f"{host}:1:2 [0] NCCL INFO NET/IB : Using {named} [RO]; OOB eth0")
        lines += [
            f"{host}:1:2 [{gpu}] NCCL INFO Channel 00/0 : {gpu}[{gpu}] -> 0[0] [send] "
            f"via NET/IB/{gpu}/GDRDMA"
            for gpu in range(_GPUS)
        ]
    return "".join(f"{line}\n" for line in lines)


def write(folder: Path) -> None:
    """Write the evidence into a folder."""
    planned = plan()
    evidence.write(folder / evidence.PLAN, json.dumps(dump(planned)))
    evidence.write(folder / evidence.HOSTS, json.dumps({"attempt": ATTEMPT}))
    records = list(_Simulation(plan=planned, folder=folder).run())
    for record in records:
        evidence.append_record(folder, record)
    evidence.write_run_end(folder, "")
    evidence.write_readme(folder, planned, ATTEMPT)
    write_judgement(folder, planned, replace(judged(planned, *records), attempt=ATTEMPT), records)
    evidence.write_checksums(folder)


def archive() -> bytes:
    """Return the evidence as an archive, with the same bytes each time."""
    packed = io.BytesIO()
    with (
        tempfile.TemporaryDirectory() as scratch,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        folder = Path(scratch) / "evidence"
        folder.mkdir()
        write(folder)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(str(path.relative_to(scratch)))
            member.size, member.mtime = path.stat().st_size, int(_START)
            tar.addfile(member, io.BytesIO(path.read_bytes()))
    return packed.getvalue()


if __name__ == "__main__":
    demo().write_bytes(archive())
