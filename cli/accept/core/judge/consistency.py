"""Compare hosts that should be equal: GPUs, NICs, software, clocks, and digests of results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from accept.core.causes import Cause, driver_cause
from accept.core.facts import DIGEST, Gpu, Inventory, ListFault
from accept.core.judge.evidence import Evidence
from accept.core.judge.findings import problem_of, usual
from accept.core.judge.hosts import is_device
from accept.core.plan import Plan, PlannedMachine
from accept.core.records import Metric, Problem
from accept.core.table import Row, rows_of
from accept.core.text import count, folded

#: Numbers of RDMA devices as which a NIC can appear, with as many parts of its rate each. Google
#: and Oracle set up ConnectX-8 as two, Oracle also as four (values/machines/bm.gpu.gb300.4.yaml).
_DEVICES_OF_A_NIC = (1, 2, 4)
#: Unit of memory sizes. They are rounded, because the memory that firmware and kernel reserve
#: differs a little from boot to boot.
_MEMORY_STEP = 1 << 30
_DOMAIN = "NVLink between hosts"
_VBIOS = "GPU VBIOS"
#: Properties whose differences are only noted: repaired hosts have newer firmware, and the pages
#: that a host reserves are the choice of its other programs.
_NOTED = frozenset({_VBIOS, "NIC firmware", "hugepages"})
#: Versions that must be equal because ranks of several hosts communicate.
_VERSIONS = ("mpi", "nccl", "cuda", "torch", "python", "mpi4py", "ncclTests")


# GPUs of each host


def usual_number(numbers: Iterable[int]) -> int:
    """Return the number that more than half of the hosts have; else the lowest; at least 1."""
    known = list(numbers)
    return max(1, usual(known) or min(known, default=1))


#: Fault of a list of GPUs -> what is wrong with its entry.
_LIST_FAULTS = {
    ListFault.NONE: "gives the job no GPU",
    ListFault.MISSING: "names {entry}, and the host shows {shown}",
    ListFault.AMBIGUOUS: "names {entry}, the beginning of several UUIDs",
    ListFault.TWICE: "names a GPU twice, the second time by {entry}, and CUDA then uses none",
    ListFault.MIG: "names {entry}, a part of a GPU, and only whole GPUs are tested",
}


def _required_gpus(inventories: Mapping[str, Inventory], plan: Plan) -> tuple[int, str]:
    """Return the number of GPUs that each host must have, and the reason as text."""
    if plan.gpus_given is not None:
        return plan.gpus_given, f"the run requested {plan.gpus_given}"
    if plan.machine.gpus is not None:
        return plan.machine.gpus, f"the machine has {plan.machine.gpus}"
    usual = usual_number(len(i.gpus) for i in inventories.values() if i.gpus)
    return usual, f"most hosts show {usual}" if usual > 1 else "the machine has GPUs"


def _words(inventory: Inventory) -> str:
    """Return why the driver shows no GPU, or not all, in brackets; empty if unknown."""
    return f" ({inventory.driver_words})" if inventory.driver_words else ""


def withheld(inventories: Mapping[str, Inventory], plan: Plan) -> dict[str, tuple[Cause, str]]:
    """Return the hosts on which the run lacks GPUs that they have, with the cause and a text.

    It has no permission, or CUDA_VISIBLE_DEVICES does not list them. The hosts are not to blame.
    """
    required, expected = _required_gpus(inventories, plan)
    used = required if plan.gpus_used is None else plan.gpus_used
    faults = {}
    for host, inventory in inventories.items() if plan.machine.gpus != 0 else ():
        given, forbidden, text = inventory.given, inventory.forbidden, ""
        has_enough = plan.gpus_given is not None and len(inventory.gpus) >= plan.gpus_given
        refused = inventory.start_fault is Cause.GPU_PERMISSION
        if refused or (forbidden and not has_enough):
            which = f"GPU {', '.join(forbidden[:8])}" if forbidden else "any GPU"
            text = f"the run has no permission to use {which}{_words(inventory)}"
            faults[host] = (Cause.GPU_PERMISSION, text)
            continue
        if given is None or given.shown == 0 or _lost_a_listed_gpu(inventories, host, plan.machine):
            continue
        if given.fault is not None:
            shown = "no such GPU" if given.shown is None else count(given.shown, "GPU")
            text = _LIST_FAULTS[given.fault].format(entry=repr(given.entry), shown=shown)
        elif given.count < used:
            text = f"gives the job {count(given.count, 'GPU')}, and {expected}"
        if text:
            faults[host] = (Cause.GPU_LIST, f"CUDA_VISIBLE_DEVICES={given.value!r} {text}")
    return faults


def _lost_a_listed_gpu(
    inventories: Mapping[str, Inventory], host: str, machine: PlannedMachine
) -> bool:
    """Return True if the list names a GPU that most hosts show, or that is not on the bus."""
    given = inventories[host].given
    if not (given and given.fault is ListFault.MISSING and given.shown) or machine.gpus == 0:
        return False
    shown = [i.given.shown for i in inventories.values() if i.given and i.given.shown]
    on_bus = inventories[host].pci_nvidia
    return given.shown < usual_number(shown) or 0 < on_bus < (machine.gpus or 0)


def gpu_problems(
    inventories: Mapping[str, Inventory], plan: Plan, *, busy_mib: int
) -> Iterator[Problem]:
    """Yield the problems with the GPUs of each host: too few, unusable, busy, ECC errors."""
    machine, used = plan.machine, plan.gpus_used
    owner: dict[str, str] = {}
    hosts_of: dict[tuple[Cause, str], list[str]] = {}
    for host, fault in withheld(inventories, plan).items():
        hosts_of.setdefault(fault, []).append(host)
    for (cause, text), hosts in hosts_of.items():
        yield Problem(cause=cause, message=f"{text} (on {folded(hosts)})")
    for host, inventory in inventories.items():
        if not inventory.driver_answered:
            text = inventory.driver_words or "nvidia-smi did not answer in time"
            text += "; does the driver hang, or is persistence mode off?"
            yield Problem(cause=Cause.GPU_UNUSABLE, message=text, host=host)
            continue
        if machine.gpus != 0 and (fault_at_start := inventory.start_fault):
            if fault_at_start is not Cause.GPU_PERMISSION:
                yield Problem(cause=fault_at_start, message=inventory.driver_words, host=host)
            continue
        yield from _missing_gpus(inventories, host, plan)
        for index, gpu in enumerate(inventory.gpus):
            if gpu.uuid in owner:
                text = f"GPU {gpu.uuid} is on {owner[gpu.uuid]} and on {host}"
                where = host_of_shared_gpu(owner[gpu.uuid], host)
                yield Problem(cause=Cause.GPU_DUPLICATE, message=text, host=where)
            elif gpu.uuid:
                owner[gpu.uuid] = host
            for cause, text in _gpu_faults(gpu, machine):
                of_host = cause is Cause.INVENTORY_MISMATCH
                name = None if of_host else gpu.index or None
                yield Problem(cause=cause, message=text, host=host, gpu=name)
            measured = machine.gpus != 0 and (used is None or index < used)
            if measured and not plan.busy_ok and (text := _busy(gpu, busy_mib)):
                yield Problem(cause=Cause.GPU_BUSY, message=text, host=host, gpu=gpu.index)


def host_of_shared_gpu(first: str | None, second: str | None) -> str | None:
    """Return the host to accuse if a GPU occurs on two, or twice on one; None: no host.

    Of two names for one node, neither is the wrong one.
    """
    return second if first == second else None


def _missing_gpus(inventories: Mapping[str, Inventory], host: str, plan: Plan) -> Iterator[Problem]:
    """Yield what shows that a host lacks GPUs, or that its driver does not show them."""
    machine, inventory = plan.machine, inventories[host]
    required, reason = _required_gpus(inventories, plan)
    gpus, forbidden = len(inventory.gpus), len(inventory.forbidden)
    on_bus, needed = inventory.pci_nvidia - forbidden, required - forbidden
    # A list does not hide GPUs from the driver.
    given = inventory.given if inventory.given and inventory.given.shown != 0 else None
    if given is not None:
        on_bus = min(on_bus, given.count)
        if machine.gpus != 0:
            needed, reason = given.count, f"the job was given {given.count}"
    words = _words(inventory)
    if plan.gpus_given is None and on_bus > gpus:
        text = f"the PCI bus has {count(on_bus, 'NVIDIA GPU')}, and the driver shows {gpus}{words}"
        yield Problem(cause=Cause.GPU_UNUSABLE, message=text, host=host)
    # The host may be a virtual machine with one of the machine's GPUs.
    is_alone = plan.gpus_used == 1 and gpus == 1 and (given is None or given.count == 1)
    text = ""
    if given is not None and _lost_a_listed_gpu(inventories, host, machine):
        text = f"the host shows {count(given.shown or 0, 'GPU')} without {given.entry!r}, which "
        text += "CUDA_VISIBLE_DEVICES lists, and other hosts or the machine have more"
    elif gpus < needed and not is_alone:
        text = f"the host shows {count(gpus, 'GPU') if gpus else 'no GPU'}, and {reason}{words}"
    if text:
        yield Problem(cause=Cause.GPU_MISSING, message=text, host=host)


def _gpu_faults(gpu: Gpu, machine: PlannedMachine) -> Iterator[tuple[Cause, str]]:
    """Yield what is wrong with one GPU."""
    name = gpu.index
    if gpu.error:
        where = f" at {gpu.pci}" if gpu.pci not in ("", name) else ""
        which = f"GPU {name}" if name else "a GPU"
        yield driver_cause(gpu.error_code), f"the driver reports {gpu.error!r} for {which}{where}"
    if gpu.ecc_uncorrected:
        errors = count(gpu.ecc_uncorrected, "uncorrected memory error")
        yield Cause.GPU_ECC, f"GPU {name} has counted {errors}"
    if machine.device and gpu.name is not None and not is_device(machine.device, gpu.name):
        text = f"GPU {name} is a {gpu.name}, the machine has {machine.device}"
        yield Cause.INVENTORY_MISMATCH, text


def _busy(gpu: Gpu, busy_mib: int) -> str:
    """Return a text if other programs use a GPU, else ""."""
    if gpu.processes:
        return f"the GPU is in use by {', '.join(gpu.processes[:4])}"
    used = gpu.memory_used_mib
    return f"{used} MiB of the GPU's memory are in use" if used > busy_mib else ""


# Differences between hosts


@dataclass(frozen=True, kw_only=True)
class Property:
    """One property that should be equal on all hosts, and the hosts that differ."""

    name: str
    #: Each value with its hosts, the most frequent first.
    values: tuple[tuple[str, tuple[str, ...]], ...]
    #: Hosts that did not report it, although their driver answered.
    silent: tuple[str, ...]
    #: Number of all hosts that did not report it.
    unknown: int

    @property
    def known(self) -> int:
        """Return the number of hosts that reported it."""
        return sum(len(hosts) for _, hosts in self.values)

    @property
    def has_majority(self) -> bool:
        """Return True if more than half of these hosts have the same value."""
        return len(self.values[0][1]) * 2 > self.known

    @property
    def usual(self) -> str:
        """Return the value of most hosts."""
        return self.values[0][0] if self.has_majority else "no majority"

    @property
    def nodes(self) -> int:
        """Return the number of hosts with that value."""
        return len(self.values[0][1]) if self.has_majority else 0

    @property
    def others(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the other values, with their hosts."""
        return self.values[1:] if self.has_majority else self.values


def _compared(inventories: Mapping[str, Inventory]) -> Iterator[Property]:
    """Yield each property that must be equal on all hosts."""
    tables = {host: _properties(i) for host, i in inventories.items() if i.driver_answered}
    for name in sorted({name for table in tables.values() for name in table}):
        hosts_of: dict[str | None, list[str]] = {}
        for host, table in tables.items():
            hosts_of.setdefault(table.get(name, "nothing"), []).append(host)
        silent = tuple(hosts_of.pop(None, ()))
        values = [(value, tuple(hosts)) for value, hosts in hosts_of.items() if value is not None]
        yield Property(
            name=name,
            values=tuple(sorted(values, key=lambda item: (-len(item[1]), item))),
            silent=silent,
            unknown=len(inventories) - sum(len(hosts) for _, hosts in values),
        )


def differences(inventories: Mapping[str, Inventory], *, noted: bool = False) -> Iterator[Problem]:
    """Yield the hosts that differ from the majority in a property that should be equal.

    With `noted`, only properties whose differences accuse nobody; else all others. Without a strict
    majority, no host is named. A host whose value is unknown is not compared; see `partly_unknown`.
    """
    for one in _compared(inventories):
        if len(one.values) < 2 or (one.name in _NOTED) is not noted:
            continue
        if not one.has_majority:
            values = (f"{value} on {folded(hosts)}" for value, hosts in sorted(one.values)[:4])
            text = f"{one.name} differs: {'; '.join(values)}"
            yield Problem(cause=Cause.INVENTORY_MISMATCH, message=text)
            continue
        for value, host in sorted((v, host) for v, hosts in one.others for host in hosts):
            text = f"{one.name} is {value}, on {one.nodes} of {one.known} hosts it is {one.usual}"
            yield Problem(cause=Cause.INVENTORY_MISMATCH, message=text, host=host)


def compared(inventories: Mapping[str, Inventory]) -> list[Property]:
    """Return the properties that hosts reported, those with differences first."""
    known = (one for one in _compared(inventories) if one.values)
    return sorted(known, key=lambda one: not one.others)


def unknown_properties(inventories: Mapping[str, Inventory]) -> list[str]:
    """Return the properties that no host reported, so that hosts were not compared by them.

    The NVLink domain is left out: most GPUs have none, and drivers then report nothing.
    """
    return [p.name for p in _compared(inventories) if not p.values and p.name != _DOMAIN]


def partly_unknown(inventories: Mapping[str, Inventory]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each property that only some hosts reported, with the hosts that did not report it."""
    for one in _compared(inventories):
        if one.values and one.silent and one.name not in {*_NOTED, _DOMAIN}:
            yield one.name, one.silent


def _properties(inventory: Inventory) -> dict[str, str | None]:
    """Return the properties that must be equal on all hosts, as text; None: unknown."""
    gpus, memory = inventory.gpus, inventory.memory_bytes
    properties: dict[str, str | None] = {
        "number of GPUs": str(len(gpus)),
        "number of CPUs": inventory.cpus,
        "memory in GiB": str(round(memory / _MEMORY_STEP / 8) * 8) if memory else None,
        "kernel": inventory.kernel,
        "memlock": inventory.memlock,
    }
    if gpus := tuple(gpu for gpu in gpus if not gpu.error):
        properties["GPU name"] = _each(gpu.name and gpu.name[:80] for gpu in gpus)
        if vbios := _each(gpu.vbios for gpu in gpus):
            properties[_VBIOS] = vbios
        properties["GPU driver"] = _each(gpu.driver for gpu in gpus)
        properties["GPU memory in MiB"] = _each(gpu.memory_mib for gpu in gpus)
        registered = "registered" if inventory.domain else "none"
        properties[_DOMAIN] = None if inventory.domain is None else registered
    if rdma := inventory.rdma:
        labels = _each(nic.label for nic in rdma)
        properties["RDMA devices"] = f"{len(rdma)} ({labels})" if labels else None
    versions = inventory.versions
    properties |= {f"{name} version": versions[name] for name in _VERSIONS if name in versions}
    return properties | dict(inventory.settings) | dict(inventory.nccl_settings)


def _each(values: Iterable[str | None]) -> str | None:
    """Return the distinct values as text, also "unknown"; None if all of them are unknown."""
    shown = {value or "unknown" for value in values}
    return None if shown <= {"unknown"} else ", ".join(sorted(shown))


# Requirements of each host


def nic_problems(
    inventories: Mapping[str, Inventory], machine: PlannedMachine
) -> Iterator[Problem]:
    """Yield the hosts with too few active RDMA devices of the machine's speed."""
    found = []
    for host, inventory in inventories.items() if machine.rdma_devices else ():
        rates = [nic.mbps / 1000 for nic in inventory.rdma if nic.active]
        if not any(
            sum(rate >= machine.rdma_gbps / parts for rate in rates) >= machine.rdma_devices * parts
            for parts in _DEVICES_OF_A_NIC
        ):
            up = sum(rate >= machine.rdma_gbps for rate in rates)
            text = f"{up} RDMA devices of {machine.rdma_gbps:g} Gbit/s are up, the machine has "
            text += str(machine.rdma_devices)
            found.append((host, text))
    on_all = len(found) == len(inventories) > 1
    question = "; as on all nodes: does --machine name another machine?" if on_all else ""
    for host, text in found:
        yield Problem(cause=Cause.INVENTORY_MISMATCH, message=text + question, host=host)


def domain_problems(inventories: Mapping[str, Inventory]) -> Iterator[Problem]:
    """Yield what keeps hosts from NVLink between hosts, on a machine that has it.

    A host whose GPUs report no cluster, or not all the same clique, is in no domain. NCCL then uses
    NICs without a word. IMEX channels are needed to share memory over NVLink.
    """
    for host, inventory in inventories.items():
        if not inventory.gpus:
            continue
        if inventory.domain == "":
            text = "its GPUs have no NVLink domain in common that spans hosts, and the machine has "
            text += "one; check nvidia-smi --query-gpu="
            text += "fabric.state,fabric.clusterUuid,fabric.cliqueId"
            yield Problem(cause=Cause.FABRIC_MANAGER, message=text, host=host)
        elif inventory.domain and inventory.imex_channels == 0:
            text = "it has no IMEX channel in /dev/nvidia-caps-imex-channels, so GPUs of other "
            text += "hosts cannot be reached over NVLink; check nvidia-imex-ctl -N"
            yield Problem(cause=Cause.FABRIC_MANAGER, message=text, host=host)


def clock_problems(offsets: Sequence[Metric], limit: float) -> Iterator[Problem]:
    """Yield the hosts whose clock is more than `limit` seconds away from the median."""
    known = {m.host: m.value for m in offsets if m.host and math.isfinite(m.value)}
    center = median(known.values()) if known else 0.0
    for host, offset in known.items():
        if abs(offset - center) > limit:
            text = f"its clock is {offset - center:+.3g} s from the median, {limit:g} s are allowed"
            yield Problem(cause=Cause.CLOCK_SKEW, message=text, host=host)


def memlock_problems(inventories: Mapping[str, Inventory]) -> Iterator[Problem]:
    """Yield the hosts that limit locked memory, unless the limit does not apply or is unknown."""
    for host, inventory in inventories.items():
        if inventory.memlock not in (None, "unlimited") and not inventory.ipc_lock:
            text = f"locked memory is limited to {inventory.memlock} KiB"
            yield Problem(cause=Cause.MEMLOCK_LIMITED, message=text, host=host)


# Digests of results


def digest_problems(evidence: Evidence, cause: Cause = Cause.WRONG_RESULT) -> Iterator[Problem]:
    """Yield the devices whose digest differs from that of most peers, as problems of `cause`.

    All devices have the same digest of the known product (`exact`). Devices of the same name and
    software version have the same digest of random data (`random`). Without a majority, no device
    is named. Devices that have a problem already are left out. All executions of the check are
    compared.
    """
    groups: dict[tuple[str, ...], list[tuple[str, Row]]] = {}
    for row, key, value in _digests(evidence):
        if not any(
            (p.host, p.rank) == (row.host, row.rank)
            for p in row.execution.record.problems
            if p.cause.row.wrong_numbers or p.cause is cause
        ):
            groups.setdefault(key, []).append((value, row))
    for (kind, what, *_), digests in groups.items():
        counts = Counter(digest for digest, _ in digests)
        most = usual(digest for digest, _ in digests)
        data = "a known product" if what == "exact" else "the same random data"
        if most is None:
            text = f"{kind}: {len(digests)} devices gave {len(counts)} different results of {data}"
            yield Problem(cause=cause, message=text)
            continue
        for row in (row for digest, row in digests if digest != most):
            text = f"{kind}: {data} gave {row.device} a different result "
            text += f"from {counts[most]} of {len(digests)} equal devices"
            yield problem_of(row, cause, text)


def missing_digest_problems(evidence: Evidence) -> Iterator[Problem]:
    """Yield the devices that counted wrong elements of a product but reported no digest of it.

    GPUs report digests of both products, other devices that of the known product.
    """
    reported = {
        (id(row.execution), row.host, row.rank, *key[:2]) for row, key, _ in _digests(evidence)
    }
    for row in (
        row for execution in evidence.executions for row in rows_of(execution, evidence.check)
    ):
        kind, _, what = row.metric.rpartition("-")
        of = id(row.execution), row.host, row.rank, kind
        required = ("exact", "random") if row.gpu else ("exact",)
        missing = [name for name in required if (*of, name) not in reported]
        if what == "wrong" and missing:
            text = f"{row.device} reported no digest of the {kind} product "
            yield problem_of(row, Cause.NO_MEASUREMENT, f"{text}({', '.join(missing)})")


def _digests(evidence: Evidence) -> Iterator[tuple[Row, tuple[str, ...], str]]:
    """Yield the digests of each device with the keys of their peers: type, `exact` or `random`."""
    for execution in evidence.executions:
        gpus = {(m.host, m.rank): m.gpu for m in execution.record.metrics if m.gpu}
        for fact, digest in DIGEST.of(execution.record):
            of = fact.host, fact.rank
            row = Row(evidence.check, execution, host=of[0], rank=of[1], gpu=gpus.get(of))
            if digest.exact and fact.check == evidence.check:
                yield row, (digest.type, "exact", digest.size), digest.exact
            if digest.random and fact.check == evidence.check:
                key = digest.type, "random", digest.size, digest.device, digest.software
                yield row, key, digest.random
