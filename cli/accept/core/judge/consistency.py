"""Compare hosts that should be equal: GPUs, NICs, software, clocks, and digests of results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from accept.core.causes import Cause
from accept.core.judge.completeness import device_label
from accept.core.judge.evidence import Evidence
from accept.core.judge.hosts import gpus_of, is_device
from accept.core.judge.robust_stats import median_of
from accept.core.model import Metric, PlannedMachine, Problem
from accept.core.text import count

#: Memory that firmware and kernel keep for themselves differs a little from boot to boot.
_MEMORY_STEP = 1 << 30
#: Versions that must be equal because ranks of several hosts communicate.
_VERSIONS = ("mpi", "nccl", "cuda", "torch", "python", "mpi4py", "ncclTests")

#: Fields of a digest fact that are texts.
_DIGEST_TEXTS = ("type", "exact", "random", "device", "software")

#: Host -> the value of its inventory fact.
Inventory = dict[str, dict[str, Any]]


# GPUs of each host


def gpu_problems(
    inventory: Inventory,
    machine: PlannedMachine,
    *,
    used: int | None,
    given: int | None = None,
    busy_ok: bool,
    busy_mib: int,
) -> Iterator[Problem]:
    """Yield the problems with the GPUs of each host: too few, unusable, busy, ECC errors.

    `used`: number of GPUs of each host that the run measures; None: all. `given`: number of GPUs
    that the run requested; the other GPUs on the bus then belong to other programs.
    """
    owner: dict[str, str] = {}
    required = machine.gpus if machine.gpus is not None else 1
    expected = f"the machine has {required}"
    if given is not None:
        required, expected = given, f"the run requested {given}"
    for host, value in inventory.items():
        if not _driver_answered(value):
            text = "nvidia-smi did not answer in time; does it hang, or is persistence mode off?"
            yield Problem(cause=Cause.GPU_UNUSABLE, message=text, host=host)
            continue
        gpus = gpus_of(value)
        on_bus = whole(value.get("pciNvidia"))
        if given is None and on_bus > len(gpus):
            text = f"the PCI bus has {count(on_bus, 'NVIDIA GPU')}, and the driver shows "
            yield Problem(cause=Cause.GPU_UNUSABLE, message=f"{text}{len(gpus)}", host=host)
        if len(gpus) < required:
            shown = count(len(gpus), "GPU") if gpus else "no GPU"
            text = f"the host shows {shown}, and {expected}"
            yield Problem(cause=Cause.GPU_MISSING, message=text, host=host)
        for index, gpu in enumerate(gpus):
            yield from _gpu_problems(host, gpu, machine, owner)
            measured = machine.gpus != 0 and (used is None or index < used)
            if measured and not busy_ok and (text := _busy(gpu, busy_mib)):
                yield Problem(cause=Cause.GPU_BUSY, message=text, host=host, gpu=gpu_name(gpu))


def _driver_answered(value: dict[str, Any]) -> bool:
    """Return True unless the GPUs are null, which means that the driver did not answer in time."""
    return value.get("gpus", ()) is not None


def _gpu_problems(
    host: str, gpu: dict[str, Any], machine: PlannedMachine, owner: dict[str, str]
) -> Iterator[Problem]:
    """Yield the problems of one GPU. `owner` maps the UUIDs seen so far to their hosts."""
    name, uuid = gpu_name(gpu), gpu.get("uuid")
    if isinstance(uuid, str) and uuid:
        if uuid in owner:
            text = f"GPU {uuid} was seen on {owner[uuid]} already"
            yield Problem(cause=Cause.GPU_DUPLICATE, message=text, host=host, gpu=name)
        owner.setdefault(uuid, host)
    errors = whole(gpu.get("eccUncorrected"))
    if errors:
        text = f"GPU {name} has counted {count(errors, 'uncorrected memory error')}"
        yield Problem(cause=Cause.GPU_ECC, message=text, host=host, gpu=name)
    device = gpu.get("name")
    if machine.device and isinstance(device, str) and not is_device(machine.device, device):
        text = f"GPU {name} is a {device}, the machine has {machine.device}"
        yield Problem(cause=Cause.INVENTORY_MISMATCH, message=text, host=host)


def gpu_name(gpu: dict[str, Any]) -> str:
    """Return the name of a GPU in a verdict: its index on the host."""
    return str(gpu.get("index", "?"))[:20]


def _busy(gpu: dict[str, Any], busy_mib: int) -> str:
    """Return a text if other programs use a GPU, else ""."""
    processes = gpu.get("processes")
    if isinstance(processes, list) and processes:
        return f"the GPU is in use by {', '.join(str(name)[:60] for name in processes[:4])}"
    used = whole(gpu.get("memoryUsedMiB"))
    return f"{used} MiB of the GPU's memory are in use" if used > busy_mib else ""


def whole(value: Any) -> int:
    """Return a count from untrusted data; 0 if it is invalid or has more than 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value if 0 < value < 2**63 else 0


# Differences between hosts


def differences(inventory: Inventory) -> Iterator[Problem]:
    """Yield the hosts that differ from the majority in a property that should be equal.

    Without a strict majority, no host is named. Unknown values are ignored.
    """
    tables = {
        host: _properties(value) for host, value in inventory.items() if _driver_answered(value)
    }
    for name in sorted({name for table in tables.values() for name in table}):
        values = {host: table.get(name, "nothing") for host, table in tables.items()}
        known = {host: value for host, value in values.items() if value is not None}
        counts = Counter(known.values())
        if len(counts) < 2:
            continue
        (usual, count), *_ = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if count * 2 <= len(known):
            kinds = ", ".join(sorted(counts)[:4])
            yield Problem(cause=Cause.INVENTORY_MISMATCH, message=f"{name} differs: {kinds}")
            continue
        for host, value in known.items():
            if value != usual:
                message = f"{name} is {value}, on {count} of {len(known)} hosts it is {usual}"
                yield Problem(cause=Cause.INVENTORY_MISMATCH, message=message, host=host)


def _properties(value: dict[str, Any]) -> dict[str, str | None]:
    """Return the properties that must be equal on all hosts, as text; None: unknown."""
    gpus, memory = gpus_of(value), whole(value.get("memoryBytes"))
    properties: dict[str, str | None] = {
        "number of GPUs": str(len(gpus)),
        "number of CPUs": _text(value.get("cpus")),
        "memory in GiB": str(round(memory / _MEMORY_STEP / 8) * 8),
        "kernel": _text(value.get("kernel")),
        "memlock": _text(value.get("memlock")),
    }
    if gpus:
        for key in ("name", "driver", "memoryMiB"):
            properties[f"GPU {key}"] = ", ".join(sorted({_text(gpu.get(key)) for gpu in gpus}))
        registered = "registered" if value.get("domain") else "none"
        properties["NVLink between hosts"] = registered if "domain" in value else None
    if rdma := _rdma(value):
        up = sorted(f"{_text(n.get('speed'))} {_text(n.get('state'))}" for n in rdma)
        properties["RDMA devices"] = f"{len(up)} ({', '.join(sorted(set(up)))})"
    versions = value.get("versions")
    if isinstance(versions, dict):
        properties |= {f"{k} version": _text(versions[k]) for k in _VERSIONS if k in versions}
    env, chosen = value.get("env"), value.get("chosen")
    # Variables that the run chose itself may differ.
    own = chosen if isinstance(chosen, list) else ()
    if isinstance(env, dict):
        properties |= {
            k: _text(v) for k, v in env.items() if k.startswith("NCCL_") and k not in own
        }
    return properties


# Requirements of each host


def nic_problems(inventory: Inventory, machine: PlannedMachine) -> Iterator[Problem]:
    """Yield the hosts with too few active RDMA devices of the machine's speed."""
    for host, value in inventory.items() if machine.rdma_devices else ():
        speeds = [whole(n.get("speed")) for n in _rdma(value) if n.get("state") == "active"]
        up = sum(speed >= machine.rdma_gbps * 1000 for speed in speeds)
        if up < machine.rdma_devices:
            text = f"{up} RDMA devices of {machine.rdma_gbps:g} Gbit/s are up, the machine has "
            text += str(machine.rdma_devices)
            yield Problem(cause=Cause.INVENTORY_MISMATCH, message=text, host=host)


def _rdma(value: dict[str, Any]) -> list[dict[str, Any]]:
    nics = value.get("nics")
    listed = nics if isinstance(nics, list) else []
    return [nic for nic in listed if isinstance(nic, dict) and nic.get("rdma")]


def _text(value: Any) -> str:
    return str(value)[:80]


def clock_problems(offsets: Sequence[Metric], limit: float) -> Iterator[Problem]:
    """Yield the hosts whose clock is more than `limit` seconds away from the median."""
    known = {
        m.host: m.value
        for m in offsets
        if m.name == "clock-offset" and m.host and math.isfinite(m.value)
    }
    centre = median_of(known.values()) if known else 0.0
    for host, offset in known.items():
        if abs(offset - centre) > limit:
            text = f"its clock is {offset - centre:+.3g} s from the median, {limit:g} s are allowed"
            yield Problem(cause=Cause.CLOCK_SKEW, message=text, host=host)


def memlock_problems(inventory: Inventory) -> Iterator[Problem]:
    """Yield the hosts that limit locked memory, unless the limit does not apply (`ipcLock`)."""
    for host, value in inventory.items():
        limit = value.get("memlock")
        if limit != "unlimited" and value.get("ipcLock") is not True:
            text = f"locked memory is limited to {_text(limit)} KiB"
            yield Problem(cause=Cause.MEMLOCK_LIMITED, message=text, host=host)


# Digests of results


class _Digest(NamedTuple):
    """The digest that one device reported."""

    host: str | None
    rank: int | None
    gpu: str | None
    digest: str


def digest_problems(evidence: Evidence, cause: Cause = Cause.WRONG_RESULT) -> Iterator[Problem]:
    """Yield the devices whose digest differs from that of most peers, as problems of `cause`.

    All devices have the same digest of the known product (`exact`). Devices of the same name and
    software version have the same digest of random data (`random`). Without a majority, no device
    is named. Devices that have a problem already are left out. All executions of the check are
    compared.
    """
    groups: dict[tuple[str, ...], list[_Digest]] = {}
    for record in evidence.records:
        gpus = {(m.host, m.rank): m.gpu for m in record.metrics if m.gpu}
        known = {
            (p.host, p.rank)
            for p in record.problems
            if p.cause.row.wrong_numbers or p.cause is cause
        }
        for fact in record.facts:
            is_digest = fact.name == "digest" and fact.check == evidence.check
            if is_digest and (fact.host, fact.rank) not in known:
                for key, digest in _digests(fact.value):
                    gpu = gpus.get((fact.host, fact.rank))
                    groups.setdefault(key, []).append(_Digest(fact.host, fact.rank, gpu, digest))
    for (kind, what, *_), digests in groups.items():
        counts = Counter(one.digest for one in digests)
        (usual, count), *others = counts.most_common()
        if not others:
            continue
        data = "a known product" if what == "exact" else "the same random data"
        if 2 * count <= len(digests):
            text = f"{kind}: {len(digests)} devices gave {len(counts)} different results of {data}"
            yield Problem(cause=cause, message=text)
            continue
        for one in digests:
            if one.digest != usual:
                device = device_label(one.host, one.rank, one.gpu)
                text = f"{kind}: {data} gave {device} another result "
                text += f"than {count} of {len(digests)} equal devices"
                yield Problem(cause=cause, message=text, host=one.host, rank=one.rank, gpu=one.gpu)


def missing_digest_problems(evidence: Evidence) -> Iterator[Problem]:
    """Yield the devices that counted wrong elements of a product but reported no digest of it.

    GPUs report digests of both products, other devices that of the known product.
    """
    for record in evidence.records:
        reported = {
            (fact.host, fact.rank, kind, what)
            for fact in record.facts
            if fact.name == "digest" and fact.check == evidence.check
            for (kind, what, *_), _digest in _digests(fact.value)
        }
        for metric in record.metrics:
            kind, _, what = metric.name.rpartition("-")
            if metric.check != evidence.check or what != "wrong":
                continue
            required = ("exact", "random") if metric.gpu else ("exact",)
            device = metric.host, metric.rank
            missing = [name for name in required if (*device, kind, name) not in reported]
            if missing:
                label = device_label(metric.host, metric.rank, metric.gpu)
                yield Problem(
                    cause=Cause.NO_MEASUREMENT,
                    message=f"{label} reported no digest of the {kind} product "
                    f"({', '.join(missing)})",
                    host=metric.host,
                    rank=metric.rank,
                    gpu=metric.gpu,
                )


def _digests(value: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the digests in a fact, each with the key of its peers; nothing if it is damaged."""
    if not isinstance(value, dict):
        return
    texts = {key: str(value[key])[:120] for key in _DIGEST_TEXTS if isinstance(value.get(key), str)}
    kind, size = texts.get("type", ""), str(whole(value.get("size")))
    if "exact" in texts:
        yield (kind, "exact", size), texts["exact"]
    if "random" in texts:
        device = texts.get("device", ""), texts.get("software", "")
        yield (kind, "random", size, *device), texts["random"]
