"""State the faults of a ticket: what is bad, measured beside normal, and on which hardware."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from accept.core.facts import PLACE, Inventory
from accept.core.report.text import utc
from accept.core.sentences import action
from accept.core.text import count
from accept.core.verdict import Suspect, SuspectKind
from accept.report.data import Population, Run, Sample, measured
from accept.report.node_commands import FAULTS, Fault, SavedNode

#: Labels of nodes with the physical host below a virtual machine; the second is Google's.
PHYSICAL_HOST = ("topology.kubernetes.io/physical-host", "cloud.google.com/gce-topology-host")
#: Parts of a host in the words of people.
_PARTS = {SuspectKind.GPU: "GPU", SuspectKind.NIC: "NIC"}
#: What a ticket needs of a host -> how to find it there.
_HOW_OF_HOST = {
    "serial": "needs root; run: sudo dmidecode -s system-serial-number",
    "model": "run: cat /sys/class/dmi/id/product_name",
    "BIOS": "run: cat /sys/class/dmi/id/bios_version",
    "BMC": "needs root; run: sudo ipmitool mc info",
    "neighbor": "run: sudo lldpctl (Ethernet) or sudo iblinkinfo (InfiniBand)",
}
_HOW_OF_GPUS = "run: nvidia-smi -q"
_HOW_OF_NICS = "run: sudo mlxfwmanager --query, and lspci -vv for the slot"
_GPU_COLUMNS = "GPU", "name", "UUID", "serial", "part number", "PCI", "VBIOS", "InfoROM", "driver"
_NIC_COLUMNS = "NIC", "model", "firmware", "PSID", "PCI", "slot"

#: The rows of a table, the first its header.
Rows = Sequence[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class TicketFault:
    """One fault, with the fields that the interfaces of providers ask for."""

    #: The node; empty: the network between nodes.
    node: str
    #: Serial number of the node, and the provider's id of it; empty: unknown.
    serial: str
    provider_id: str
    #: The bad part: "node", "GPU 3", "NIC mlx5_3", "rail 3".
    component: str
    #: Serial and part number of that part; empty: unknown, or it has none.
    component_serial: str
    component_part: str
    #: PCI address and slot of the part, or the node's place in the network; empty: unknown.
    location: str
    #: The kind of fault; None: it is not one of the hardware.
    kind: Fault | None
    #: Name and stable code of the cause.
    cause: str
    code: str
    #: One sentence for people.
    title: str
    #: The worst value and normal; None: nothing comparable was measured.
    measured: float | None
    normal: float | None
    unit: str
    #: Bad executions of those that exercise the part.
    bad: int
    executions: int
    #: Times in UTC; empty: unknown.
    first_seen: str
    last_seen: str
    action: str
    #: Paths in the evidence.
    logs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """The measurements of a suspect in the population that shows it most."""

    population: Population
    bad: list[Sample] = field(default_factory=list)
    executions: int = 0

    @property
    def worst(self) -> float | None:
        """Return the worst value that is not a failure."""
        return min(measured(self.bad), default=None)


def faults(
    run: Run, suspects: Sequence[Suspect], nodes: Mapping[str, SavedNode]
) -> list[TicketFault]:
    """Return a fault for each suspect. `nodes` are the cluster's records of the nodes."""
    return [_fault(run, suspect, nodes) for suspect in suspects]


def _fault(run: Run, suspect: Suspect, nodes: Mapping[str, SavedNode]) -> TicketFault:
    node = "" if suspect.of_network else suspect.hosts[0]
    inventory = run.inventories.get(node, Inventory())
    gpus = inventory.gpus if suspect.kind is SuspectKind.GPU else ()
    nics = inventory.nics if suspect.kind is SuspectKind.NIC else ()
    gpu = next((gpu for gpu in gpus if gpu.index == suspect.device), None)
    nic = next((nic for nic in nics if nic.name == suspect.device), None)
    place = run.found.places.get(node, "")
    location = gpu.pci if gpu else f"{nic.pci} {nic.slot}".strip() if nic else place
    found = _measured(run, suspect)
    value, normal = (found.worst, found.population.normal) if found else (None, None)
    shown = found.population.measure.shown if found else float
    times = _times(run, suspect, found)
    return TicketFault(
        node=node,
        serial=inventory.serial,
        provider_id=nodes[node].provider_id if node in nodes else "",
        component=_component(suspect),
        component_serial=gpu.serial if gpu else "",
        component_part=gpu.part if gpu else "",
        location=location,
        kind=FAULTS.get(suspect.cause),
        cause=suspect.cause.value,
        code=suspect.cause.code,
        title=_title(suspect, found),
        measured=None if value is None else shown(value),
        normal=None if normal is None or value is None else shown(normal.value),
        unit=found.population.measure.unit if found and value is not None else "",
        bad=len(found.bad) if found else 0,
        executions=found.executions if found else 0,
        first_seen=iso(min(times)) if times else "",
        last_seen=iso(max(times)) if times else "",
        action=action(suspect, run.verdict.checks),
        logs=suspect.evidence,
    )


def _component(suspect: Suspect) -> str:
    if part := _PARTS.get(suspect.kind):
        return f"{part} {suspect.device}"
    return suspect.name if suspect.of_network else "node"


def _measured(run: Run, suspect: Suspect) -> _Measured | None:
    """Return the executions that show a suspect; None if its evidence is none of them."""
    pairs = {frozenset(pair.hosts) for pair in suspect.pairs}
    found = []
    for population in run.populations:
        # A pair that another suspect makes bad shows nothing about this one.
        bad = [
            sample
            for sample in population.samples
            if sample.bad and (frozenset(sample.hosts) in pairs or sample.log in suspect.evidence)
        ]
        own = bad
        if suspect.kind is SuspectKind.NODE:
            own = [s for s in population.samples if suspect.hosts[0] in s.hosts]
        if bad:
            found.append(_Measured(population=population, bad=bad, executions=len(own)))
    return max(found, key=lambda one: len(one.bad), default=None)


def _title(suspect: Suspect, found: _Measured | None) -> str:
    """Return "node17: all-gather 327.5 to 331.5 of 366.4 GB/s (normal) in 5 of 5 pairs"."""
    node = "" if suspect.of_network else suspect.hosts[0]
    part = _component(suspect)
    subject = f"{node}: " if part == "node" else f"{node}: {part}: " if node else f"{part}: "
    values = found.population.compared(found.bad) if found else ""
    if not found or not values:
        return f"{subject}{suspect.cause.row.meaning}; {suspect.why}"
    noun = {1: "measurement", 2: "pair"}[found.population.nodes]
    times = f"{len(found.bad)} of {count(found.executions, noun)}"
    return f"{subject}{found.population.title} {values} (normal) in {times}"


def _times(run: Run, suspect: Suspect, found: _Measured | None) -> list[float]:
    """Return the start of each record that shows a suspect."""
    logs = {*suspect.evidence, *(sample.log for sample in (found.bad if found else ()))}
    hosts = {*suspect.hosts, *suspect.others}
    return [
        record.start
        for record in run.records
        if (record.log and record.log in logs)
        or any(p.host in hosts and p.cause is suspect.cause for p in record.problems)
        if 0 < record.start < 1e11
    ]


def iso(seconds: float, unknown: str = "-") -> str:
    """Return a time for people, and for programs."""
    return utc(seconds, "%Y-%m-%dT%H:%M:%SZ", unknown)


# Hardware


def host_facts(
    run: Run, host: str, saved: SavedNode | None, collected: Sequence[str]
) -> Iterator[str]:
    """Yield what is known of a host, one fact each, and how to find what is not.

    `collected`: the outputs of collectors on this host, by their paths.
    """
    places = {f.host: place for record in run.records for f, place in PLACE.among(record.facts)}
    inventory = run.inventories.get(host, Inventory())
    known = {
        "serial": inventory.serial,
        "model": f"{inventory.vendor} {inventory.model}".strip(),
        "BIOS": inventory.bios,
        "BMC": "",
        "neighbor": "",
        "position": places.get(host, ""),
        "kernel": inventory.kernel or "",
    }
    if saved:
        labels = (saved.labels.get(name, "") for name in PHYSICAL_HOST)
        known |= {
            "physical host": next(filter(None, labels), ""),
            "provider's id": saved.provider_id,
        }
    for name, value in known.items():
        if value:
            yield f"{name}: {value}"
        elif how := _HOW_OF_HOST.get(name):
            outputs = [
                path for path in collected if path.rpartition("/")[2].startswith(_OUTPUT[name])
            ]
            yield f"{name}: {f'see {outputs[0]}' if outputs else how}"


#: The collector that reports what the evidence of a run lacks.
_OUTPUT = {
    "serial": "dmi",
    "model": "dmi",
    "BIOS": "dmi",
    "BMC": "bmc",
    "neighbor": "lldp",
}


def gpu_rows(inventory: Inventory) -> tuple[Rows, str]:
    """Return a table of the GPUs, and how to find its empty cells; empty if there are none."""
    rows = [
        (
            g.index,
            g.name or "",
            g.uuid,
            g.serial,
            g.part,
            g.pci,
            g.vbios or "",
            g.inforom,
            g.driver or "",
        )
        for g in inventory.gpus
    ]
    return _table(_GPU_COLUMNS, rows, _HOW_OF_GPUS)


def nic_rows(inventory: Inventory) -> tuple[Rows, str]:
    """Return a table of the RDMA devices, and how to find its empty cells."""
    rows = [(n.name, n.model, n.firmware, n.board, n.pci, n.slot) for n in inventory.rdma]
    return _table(_NIC_COLUMNS, rows, _HOW_OF_NICS)


def _table(header: tuple[str, ...], rows: Rows, how: str) -> tuple[Rows, str]:
    if not rows:
        return [], f"{header[0]}s: none in the evidence; {how}"
    unknown = [
        name
        for name, column in zip(header, zip(*rows, strict=True), strict=True)
        if not all(column)
    ]
    return [header, *rows], f"{', '.join(unknown)} of {header[0]}s: {how}" if unknown else ""
