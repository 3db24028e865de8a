"""Compare hosts that should be equal: GPUs, NICs, software, clocks, and digests of results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from accept.core.judge.completeness import device_label
from accept.core.judge.evidence import Evidence
from accept.core.judge.hosts import gpus_of, is_device
from accept.core.judge.robust_stats import median_of
from accept.core.model import Metric, PlannedMachine, Problem

#: Memory that firmware and kernel keep for themselves differs a little from boot to boot.
_MEMORY_STEP = 1 << 30
#: Versions that must be equal where ranks of several hosts talk to each other.
_VERSIONS = ("mpi", "nccl", "cuda", "torch", "python", "mpi4py", "ncclTests")

Inventory = dict[str, dict[str, Any]]


def gpu_problems(
    inventory: Inventory,
    machine: PlannedMachine,
    *,
    used: int | None,
    given: int | None = None,
    busy_ok: bool,
    busy_mib: int,
) -> Iterator[Problem]:
    """What is wrong with the GPUs of each host: fewer than there should be, unusable, busy, ECC.

    Where the run was `given` a part of them, the others on the bus are somebody else's.
    """
    owner: dict[str, str] = {}
    for host, value in inventory.items():
        if not _told(value):
            said = "nvidia-smi did not answer in time; does it hang, or is persistence mode off?"
            yield Problem(cause="gpu-unusable", message=said, host=host)
            continue
        gpus = gpus_of(value)
        on_bus = whole(value.get("pciNvidia"))
        if given is None and on_bus > len(gpus):
            said = (
                f"the PCI bus has {_gpus(on_bus, 'NVIDIA GPU')}, and the driver shows {len(gpus)}"
            )
            yield Problem(cause="gpu-unusable", message=said, host=host)
        wanted = machine.gpus if machine.gpus is not None else 1
        if len(gpus) < (wanted if given is None else given):
            shown = _gpus(len(gpus)) if gpus else "no GPU"
            expected = (
                f"the machine has {wanted}" if given is None else f"the run requested {given}"
            )
            said = f"the host shows {shown}, and {expected}"
            yield Problem(cause="gpu-missing", message=said, host=host)
        for place, gpu in enumerate(gpus):
            yield from _gpu(host, gpu, machine, owner)
            measured = machine.gpus != 0 and (used is None or place < used)
            if measured and not busy_ok and (who := _busy(gpu, busy_mib)):
                yield Problem(cause="gpu-busy", message=who, host=host, gpu=gpu_name(gpu))


def _gpus(count: int, noun: str = "GPU") -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _told(value: dict[str, Any]) -> bool:
    """Whether a host said which GPUs it has; null: its driver did not answer."""
    return value.get("gpus", ()) is not None


def _gpu(
    host: str, gpu: dict[str, Any], machine: PlannedMachine, owner: dict[str, str]
) -> Iterator[Problem]:
    name, uuid = gpu_name(gpu), gpu.get("uuid")
    if isinstance(uuid, str) and uuid:
        if uuid in owner:
            said = f"GPU {uuid} was seen on {owner[uuid]} already"
            yield Problem(cause="gpu-duplicate", message=said, host=host, gpu=name)
        owner.setdefault(uuid, host)
    errors = whole(gpu.get("eccUncorrected"))
    if errors:
        noun = "uncorrected memory error" if errors == 1 else "uncorrected memory errors"
        said = f"GPU {name} has counted {errors} {noun}"
        yield Problem(cause="gpu-ecc", message=said, host=host, gpu=name)
    device = gpu.get("name")
    if machine.device and isinstance(device, str) and not is_device(machine.device, device):
        said = f"GPU {name} is a {device}, the machine has {machine.device}"
        yield Problem(cause="inventory-mismatch", message=said, host=host)


def gpu_name(gpu: dict[str, Any]) -> str:
    """What a GPU is called in a verdict: its index on the host."""
    return str(gpu.get("index", "?"))[:20]


def _busy(gpu: dict[str, Any], busy_mib: int) -> str:
    """Who uses a GPU, or ""."""
    processes = gpu.get("processes")
    if isinstance(processes, list) and processes:
        return f"the GPU is in use by {', '.join(str(one)[:60] for one in processes[:4])}"
    used = whole(gpu.get("memoryUsedMiB"))
    return f"{used} MiB of the GPU's memory are in use" if used > busy_mib else ""


def whole(value: Any) -> int:
    """A count out of untrusted data; 0 for what is none, or more than 64 bits hold."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value if 0 < value < 2**63 else 0


def differences(inventory: Inventory) -> Iterator[Problem]:
    """Hosts that differ from the majority in something that should be equal.

    Without a strict majority no host is named, and none of which nothing is known.
    """
    tables = {host: _properties(value) for host, value in inventory.items() if _told(value)}
    for name in sorted({name for table in tables.values() for name in table}):
        said = {host: table.get(name, "nothing") for host, table in tables.items()}
        known = {host: mine for host, mine in said.items() if mine is not None}
        counts = Counter(known.values())
        if len(counts) < 2:
            continue
        (usual, most), *_ = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if most * 2 <= len(known):
            kinds = ", ".join(sorted(counts)[:4])
            yield Problem(cause="inventory-mismatch", message=f"{name} differs: {kinds}")
            continue
        for host, mine in known.items():
            if mine != usual:
                message = f"{name} is {mine}, on {most} of {len(known)} hosts it is {usual}"
                yield Problem(cause="inventory-mismatch", message=message, host=host)


def _properties(value: dict[str, Any]) -> dict[str, str | None]:
    """What must be equal among the hosts, as text; None: not known."""
    gpus, memory = gpus_of(value), whole(value.get("memoryBytes"))
    found: dict[str, str | None] = {
        "number of GPUs": str(len(gpus)),
        "number of CPUs": _text(value.get("cpus")),
        "memory in GiB": str(round(memory / _MEMORY_STEP / 8) * 8),
        "kernel": _text(value.get("kernel")),
        "memlock": _text(value.get("memlock")),
    }
    if gpus:
        for key in ("name", "driver", "memoryMiB"):
            found[f"GPU {key}"] = ", ".join(sorted({_text(gpu.get(key)) for gpu in gpus}))
        registered = "registered" if value.get("domain") else "none"
        found["NVLink between hosts"] = registered if "domain" in value else None
    if rdma := _rdma(value):
        up = sorted(f"{_text(n.get('speed'))} {_text(n.get('state'))}" for n in rdma)
        found["RDMA devices"] = f"{len(up)} ({', '.join(sorted(set(up)))})"
    versions = value.get("versions")
    if isinstance(versions, dict):
        found |= {f"{k} version": _text(versions[k]) for k in _VERSIONS if k in versions}
    env, chosen = value.get("env"), value.get("chosen")
    own = chosen if isinstance(chosen, list) else ()
    if isinstance(env, dict):
        found |= {k: _text(v) for k, v in env.items() if k.startswith("NCCL_") and k not in own}
    return found


def nic_problems(inventory: Inventory, machine: PlannedMachine) -> Iterator[Problem]:
    """Hosts with fewer RDMA devices up than the machine has, or slower ones."""
    for host, value in inventory.items() if machine.rdma_devices else ():
        speeds = [whole(n.get("speed")) for n in _rdma(value) if n.get("state") == "active"]
        up = sum(speed >= machine.rdma_gbps * 1000 for speed in speeds)
        if up < machine.rdma_devices:
            said = f"{up} RDMA devices of {machine.rdma_gbps:g} Gbit/s are up, the machine has "
            said += str(machine.rdma_devices)
            yield Problem(cause="inventory-mismatch", message=said, host=host)


def _rdma(value: dict[str, Any]) -> list[dict[str, Any]]:
    nics = value.get("nics")
    listed = nics if isinstance(nics, list) else []
    return [nic for nic in listed if isinstance(nic, dict) and nic.get("rdma")]


def _text(value: Any) -> str:
    return str(value)[:80]


def clock_problems(offsets: Sequence[Metric], most: float) -> Iterator[Problem]:
    """Hosts whose clock is more than `most` seconds away from the median of all."""
    known = {
        m.host: m.value
        for m in offsets
        if m.name == "clock-offset" and m.host and math.isfinite(m.value)
    }
    centre = median_of(known.values()) if known else 0.0
    for host, offset in known.items():
        if abs(offset - centre) > most:
            said = f"its clock is {offset - centre:+.3g} s from the median, {most:g} s are allowed"
            yield Problem(cause="clock-skew", message=said, host=host)


def memlock_problems(inventory: Inventory) -> Iterator[Problem]:
    """Hosts on which locked memory is limited, and the limit is heeded."""
    for host, value in inventory.items():
        limit = value.get("memlock")
        if limit != "unlimited" and value.get("ipcLock") is not True:
            said = f"locked memory is limited to {_text(limit)} KiB"
            yield Problem(cause="memlock-limited", message=said, host=host)


_NAMED = ("wrong-result", "not-finite")
_TEXTS = ("type", "exact", "random", "device", "software")


class _Told(NamedTuple):
    host: str | None
    rank: int | None
    gpu: str | None
    digest: str


def digest_problems(evidence: Evidence, cause: str = "wrong-result") -> Iterator[Problem]:
    """Devices whose digest is not that of more than half of their equals, as problems of `cause`.

    The known product (`exact`) has one digest for all devices; that of random data (`random`) for
    those of one name and one version of the software. Without a majority nobody is named. Devices
    that a problem names already are left out. All executions of the check are compared.
    """
    groups: dict[tuple[str, ...], list[_Told]] = {}
    for record in evidence.records:
        gpus = {(m.host, m.rank): m.gpu for m in record.metrics if m.gpu}
        named = {(p.host, p.rank) for p in record.problems if p.cause in (*_NAMED, cause)}
        for fact in record.facts:
            mine = fact.name == "digest" and fact.check == evidence.check
            if mine and (fact.host, fact.rank) not in named:
                for key, digest in _digests(fact.value):
                    gpu = gpus.get((fact.host, fact.rank))
                    groups.setdefault(key, []).append(_Told(fact.host, fact.rank, gpu, digest))
    for (kind, what, *_), told in groups.items():
        counts = Counter(one.digest for one in told)
        (usual, most), *others = counts.most_common()
        if not others:
            continue
        data = "a known product" if what == "exact" else "the same random data"
        if 2 * most <= len(told):
            said = f"{kind}: {len(told)} devices gave {len(counts)} different results of {data}"
            yield Problem(cause=cause, message=said)
            continue
        for one in told:
            if one.digest != usual:
                device = device_label(one.host, one.rank, one.gpu)
                said = f"{kind}: {data} gave {device} another result "
                said += f"than {most} of {len(told)} equal devices"
                yield Problem(cause=cause, message=said, host=one.host, rank=one.rank, gpu=one.gpu)


def undigested(evidence: Evidence) -> Iterator[Problem]:
    """Devices that counted the wrong elements of a product and say nothing of what it was.

    GPUs have digests of both products, others that of the known one.
    """
    for record in evidence.records:
        told: set[tuple[str | None, int | None, str, str]] = set()
        for fact in record.facts:
            if fact.name == "digest" and fact.check == evidence.check:
                for (kind, what, *_), _digest in _digests(fact.value):
                    told.add((fact.host, fact.rank, kind, what))
        for metric in record.metrics:
            kind, _, what = metric.name.rpartition("-")
            if metric.check == evidence.check and what == "wrong":
                wanted = ("exact", "random") if metric.gpu else ("exact",)
                lacking = [w for w in wanted if (metric.host, metric.rank, kind, w) not in told]
                if lacking:
                    where = device_label(metric.host, metric.rank, metric.gpu)
                    said = (
                        f"{where} reported no digest of the {kind} product ({', '.join(lacking)})"
                    )
                    yield Problem(
                        cause="no-measurement",
                        message=said,
                        host=metric.host,
                        rank=metric.rank,
                        gpu=metric.gpu,
                    )


def _digests(value: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """What a fact says, by what must be equal; nothing where it is damaged."""
    if not isinstance(value, dict):
        return
    said = {key: str(value[key])[:120] for key in _TEXTS if isinstance(value.get(key), str)}
    kind, size = said.get("type", ""), str(whole(value.get("size")))
    if "exact" in said:
        yield (kind, "exact", size), said["exact"]
    if "random" in said:
        equals = said.get("device", ""), said.get("software", "")
        yield (kind, "random", size, *equals), said["random"]
