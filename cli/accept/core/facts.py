"""Read the facts that programs and the coordinator report into typed values.

Facts come from hosts and logs, so every value is untrusted: each kind of fact has one function that
checks and bounds it. A fact that only one check uses is declared in the module of that check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar

from accept.core import causes
from accept.core.records import Fact, Record
from accept.core.serde import Bounds, Invalid, Prepared, keys_of, read
from accept.core.text import TextEnum, plain

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class FactKind(Generic[T_co]):
    """A kind of fact: its name, and the function that reads its value (None: damaged)."""

    name: str
    parse: Callable[[object], T_co | None]

    def among(self, facts: Iterable[Fact]) -> Iterator[tuple[Fact, T_co]]:
        """Yield the facts of this kind with their values, without damaged ones."""
        for fact in facts:
            if fact.name == self.name and (value := self.parse(fact.value)) is not None:
                yield fact, value

    def of(self, *records: Record) -> Iterator[tuple[Fact, T_co]]:
        """Yield the facts of this kind in `records` with their values, without damaged ones."""
        for record in records:
            yield from self.among(record.facts)


# Values of any kind


def text(value: object) -> str | None:
    """Return a text; None for any other value."""
    return value if isinstance(value, str) else None


def shown(value: object) -> str:
    """Return any value as text of at most 500 characters."""
    return str(value)[:500]


def mapping(value: object) -> Mapping[str, object]:
    """Return a mapping; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """Return a list; an empty one for any other value."""
    return value if isinstance(value, list) else []


def number(value: object) -> float | None:
    """Return a finite number; None for any other value."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


def integer(value: object) -> int | None:
    """Return an integer; None for any other value."""
    return value if isinstance(value, int) else None


def whole(value: object) -> int:
    """Return a count; 0 if it is invalid or has more than 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value if 0 < value < 2**63 else 0


# Discovery of hosts


def _hostnames(value: object) -> dict[str, str] | None:
    return {host: str(name) for host, name in value.items()} if isinstance(value, dict) else None


#: The order of the hosts, and what decided it.
ORDER = FactKind("order", shown)
#: Host -> its own hostname, for hosts with another name in the run.
HOSTNAMES = FactKind("hostnames", _hostnames)
#: The position of a host in the network, as `row/rack/host`. It comes from the machine's `topology`
#: command or from labels of its node.
PLACE = FactKind("place", text)
#: A host that takes no further part in the run, with the cause.
LEFT_OUT_HOST = FactKind("left-out-host", lambda value: causes.reported(str(value), "")[0])
#: An injected fault, one that could not be injected, and one that could not be undone.
INJECTED = FactKind("injected", shown)
NOT_INJECTED = FactKind("not-injected", shown)
NOT_UNDONE = FactKind("not-undone", shown)
#: Valid positions in the network that a host or a label may report.
POSITION = re.compile(r"[\w./:@+=-]{1,200}")


def position_of(labels: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the position of a node from its labels `names`; empty if it lacks one of them."""
    position = "/".join(labels.get(name, "") for name in names)
    is_known = bool(names) and all(labels.get(name) for name in names)
    return position if is_known and POSITION.fullmatch(position) else ""


# Ranks and launches


@dataclass(frozen=True, kw_only=True)
class RankIdentity:
    """The identity that one rank reports over MPI."""

    #: UUID of its GPU; empty: it has none.
    gpu: str
    #: True if it has none because CUDA_VISIBLE_DEVICES gives no more GPUs.
    beyond_list: bool = False


def _rank(value: object) -> RankIdentity:
    values = mapping(value)
    gpu, given = text(values.get("gpu")) or "", integer(values.get("given"))
    beyond = given is not None and given <= whole(values.get("localRank"))
    return RankIdentity(gpu=gpu, beyond_list=beyond and not gpu)


RANK = FactKind("rank", _rank)
#: The time at which the ranks began their work, in seconds since 1970.
BEGAN = FactKind("began", number)
#: A rank that failed while it waited for other ranks: the operation in which it waited.
WAITED = FactKind("waited", shown)
#: The program that measured, if it is not nccl-tests.
PROGRAM = FactKind("program", shown)
#: Its value for ranks of the resident program.
RESIDENT = "resident.py"


# Devices


class _Reported:
    """Values that a program reported; unknown ones are None there, and have a default here."""

    @classmethod
    def adapt(cls, data: dict[str, object]) -> dict[str, object]:
        """Return the values that are known, without the keys that this class does not read."""
        known = {key for _, key in keys_of(cls)}
        return {key: value for key, value in data.items() if key in known and value is not None}


def _shown(most: int) -> Prepared:
    """Return the marker of a text for people: on one line, and empty for any other value."""
    return Prepared(lambda value: plain(text(value) or "", most))


def _named(most: int) -> Prepared:
    """Return the marker of a name for people, which may be a number."""
    return Prepared(lambda value: plain(value, most))


def _id(value: object) -> str:
    return text(value) or ""


def _items(value: object) -> list[object]:
    return items(value)[:256]


def _is_true(value: object) -> bool:
    return value is True


def _printed(value: object) -> object:
    """Return the start of a text. No program prints one that is refused here, so it is damage."""
    if isinstance(value, str) and not (len(value) <= 600 and value.isprintable()):
        raise Invalid((), "a text that no program prints")
    return value[:80] if isinstance(value, str) else value


def _compared(value: object) -> object:
    """Return a number as text, and a text as `_printed` does."""
    return str(value) if type(value) is int and -2 < value < 2**63 else _printed(value)


_Word = Annotated[str, _shown(80)]
#: Values that are only compared with those of other hosts: texts, and numbers as text.
_Text = Annotated[str, Prepared(_printed)]
_Compared = Annotated[str, Prepared(_compared)]
_Count = Annotated[int, Prepared(whole)]
_Integer = Annotated[int | None, Prepared(integer)]
#: A text that is not shown; empty for any other value.
_Id = Annotated[str, Prepared(_id)]


@dataclass(frozen=True, kw_only=True)
class Gpu(_Reported):
    """A GPU in the inventory of a host. Texts that are only compared are None if unknown."""

    #: Its index on the host, as text; its address if it has none; empty if both are unknown.
    index: Annotated[str, _named(20)] = ""
    uuid: _Id = ""
    #: Its product name; None if missing.
    name: _Text | None = None
    #: Its serial number and PCI address; empty if unknown.
    serial: _Word = ""
    pci: _Word = ""
    driver: _Text | None = None
    vbios: _Text | None = None
    #: Version of the InfoROM image, and part number of the board; empty if unknown.
    inforom: _Word = ""
    part: _Word = ""
    memory_mib: _Compared | None = None
    memory_used_mib: _Count = 0
    ecc_uncorrected: _Count = 0
    #: Programs that use it, as "PID NAME".
    processes: tuple[_Text, ...] = ()
    #: The error that the driver reports for it, and NVML's return code; empty and 0: none.
    error: Annotated[str, _shown(200)] = ""
    error_code: _Count = 0

    @classmethod
    def adapt(cls, data: dict[str, object]) -> dict[str, object]:
        """Return the known values by the keys of this class."""
        known = super().adapt({key.replace("MiB", "Mib"): value for key, value in data.items()})
        return {"index": known.get("pci", ""), **known}


@dataclass(frozen=True, kw_only=True)
class Nic(_Reported):
    """An active or inactive network device in the inventory of a host."""

    rdma: Annotated[bool, Prepared(bool)] = False
    #: Rate in Mbit/s, and state, such as "active"; None: unknown.
    speed: Annotated[int, Bounds(min=-1, max=2**63 - 1)] | None = None
    state: _Text | None = None
    #: Name, model, firmware, PSID, PCI address and slot; empty if unknown.
    name: _Word = ""
    model: _Word = ""
    firmware: _Word = ""
    board: _Word = ""
    pci: _Word = ""
    slot: _Word = ""

    @property
    def mbps(self) -> int:
        """Return the rate in Mbit/s; 0: unknown."""
        return max(0, self.speed or 0)

    @property
    def active(self) -> bool:
        """Return True if its port is active."""
        return self.state == "active"

    @property
    def label(self) -> str | None:
        """Return speed and state, to compare hosts; None: unknown state, or speed if active."""
        unknown = self.state is None or (self.active and self.speed is None)
        return None if unknown else f"{self.speed} {self.state}"


@dataclass(frozen=True, kw_only=True)
class Imex(_Reported):
    """The view that the IMEX service of a host has of its NVLink domain."""

    #: UP, DEGRADED or DOWN; empty: unknown.
    domain: _Word = ""
    #: State of the host itself, such as READY; empty: unknown.
    state: _Word = ""
    #: Address of the host in the domain.
    host: _Word = ""
    #: Address of each node -> the state of the connection with it, such as CONNECTED.
    connections: dict[str, str] = field(default_factory=dict)
    #: Address -> name.
    names: dict[str, str] = field(default_factory=dict)
    #: The answer if it has no state.
    words: Annotated[str, _shown(200)] = ""

    @classmethod
    def adapt(cls, data: dict[str, object]) -> dict[str, object]:
        """Return the known values; those of at most 100 nodes."""
        tables = {
            part: {
                plain(address, 80): plain(text(value) or "", 80)
                for address, value in list(mapping(data.get(part)).items())[:100]
            }
            for part in ("connections", "names")
        }
        return super().adapt({**data, **tables})

    @property
    def lost(self) -> list[str]:
        """Return the addresses of the other nodes without a connection."""
        links = self.connections.items()
        return [host for host, state in links if state != "CONNECTED" and host != self.host]


class ListFault(TextEnum):
    """Why a list does not give the job all GPUs that it names; see `launchers/programs`."""

    #: The list is empty, or begins with an entry that ends it.
    NONE = "none"
    #: The entry is not a GPU of the host.
    MISSING = "missing"
    #: The entry is the beginning of several UUIDs.
    AMBIGUOUS = "ambiguous"
    #: The entry is the second one of a GPU, so CUDA fails.
    TWICE = "twice"
    #: The entry is a part of a GPU.
    MIG = "mig"


@dataclass(frozen=True, kw_only=True)
class GivenGpus(_Reported):
    """The GPUs of a host that CUDA_VISIBLE_DEVICES gives a job."""

    #: The value of the variable.
    value: Annotated[str, _shown(200)] = ""
    #: Number of GPUs that the list gives, or names up to the fault.
    count: _Count = 0
    #: Number of GPUs from which the list chooses; None: unknown.
    shown: _Integer = None
    #: None: the job gets all GPUs of its list.
    fault: ListFault | None = None
    #: The entry with the fault.
    entry: _Word = ""

    @classmethod
    def adapt(cls, data: dict[str, object]) -> dict[str, object]:
        """Return the known values by the keys of this class; a fault of a newer program."""
        fault = data.get("fault")
        is_known = fault is None or fault in [one.value for one in ListFault]
        known = {
            "value": data.get("list", ""),
            "fault": fault if is_known else ListFault.MISSING.value,
        }
        return super().adapt({**data, **known})


@dataclass(frozen=True, kw_only=True)
class Inventory(_Reported):
    """The inventory of one host. Texts that are only compared are None if unknown."""

    #: Serial number of the host; empty: unknown.
    serial: _Word = ""
    #: Vendor, model and BIOS version of the host; empty: unknown.
    vendor: _Word = ""
    model: _Word = ""
    bios: _Word = ""
    gpus: tuple[Gpu, ...] = ()
    #: False: the driver did not answer in time, so the GPUs are unknown.
    driver_answered: bool = True
    #: True if the inventory has a list of GPUs, even an empty one.
    gpus_listed: bool = False
    #: Why the driver shows no GPU, or not all of them; empty: unknown.
    driver_words: Annotated[str, _shown(300)] = ""
    #: NVML's code if the driver shows no GPU; 0: another reason, or none.
    driver_code: _Count = 0
    #: The GPUs that the run may not open, as indexes or addresses.
    forbidden: Annotated[tuple[Annotated[str, _named(40)], ...], Prepared(_items)] = ()
    #: Number of NVIDIA GPUs on the PCI bus, even without a driver.
    pci_nvidia: _Count = 0
    #: The list of the job's GPUs; None: the job was given all of the host.
    given: GivenGpus | None = None
    #: Number of IMEX channels of the host; None: unknown.
    imex_channels: _Integer = None
    #: None: the host has no program that reports it.
    imex: Imex | None = None
    #: NVLink domain of its GPUs; empty: none that spans hosts; None: unknown.
    domain: Annotated[str | None, Prepared(text)] = None
    nics: tuple[Nic, ...] = ()
    #: 0: unknown.
    memory_bytes: Annotated[int, Bounds(min=0, max=2**63 - 1)] = 0
    cpus: _Compared | None = None
    kernel: _Text | None = None
    #: Limit of locked memory in KiB, or "unlimited".
    memlock: _Compared | None = None
    #: True if that limit does not apply.
    ipc_lock: Annotated[bool, Prepared(_is_true)] = False
    #: Versions of installed software; None: unknown.
    versions: dict[str, _Text | None] = field(default_factory=dict)
    #: Settings of the host that change the speed of GPUs and NICs; None: unknown.
    settings: dict[str, _Text | None] = field(default_factory=dict)
    #: Settings of NCCL and of related libraries, and those that `launchers/rank.sh` chose there.
    env: dict[str, _Text | None] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()

    @classmethod
    def adapt(cls, data: dict[str, object]) -> dict[str, object]:
        """Return the known values by the keys of this class, from those of any version."""
        gpus, settings = data.get("gpus", ()), data.get("settings")
        more: dict[str, object] = {"driverAnswered": gpus is not None}
        more["gpusListed"] = isinstance(gpus, list)
        if "domain" in data:
            more["domain"] = data["domain"] or ""
        for part in ("given", "imex"):
            more[part] = data[part] if isinstance(data.get(part), dict) else None
        if more["given"] is None and integer(data.get("gpusGiven")) is not None:
            # Older evidence has only the number of entries of the list.
            more["given"] = {"count": data["gpusGiven"]}
        more["chosen"] = [name for name in items(data.get("chosen")) if isinstance(name, str)]
        if isinstance(settings, dict):
            more["settings"] = {name[:40]: settings[name] for name in list(settings)[:20]}
        return super().adapt({**data, **more})

    @property
    def nccl_settings(self) -> dict[str, str | None]:
        """Return the settings of NCCL that the host did not choose for itself."""
        return {
            name: value
            for name, value in self.env.items()
            if name.startswith("NCCL_") and name not in self.chosen
        }

    @property
    def start_fault(self) -> causes.Cause | None:
        """Return why the run sees none of the GPUs, if the driver reports one of these reasons."""
        if self.gpus:
            return None
        return (
            causes.Cause.GPU_PERMISSION if self.forbidden else causes.start_cause(self.driver_code)
        )

    @property
    def rdma(self) -> list[Nic]:
        """Return the RDMA devices."""
        return [nic for nic in self.nics if nic.rdma]


def _inventory(value: object) -> Inventory | None:
    try:
        return read(Inventory, value) if value else None
    except Invalid:
        return None


INVENTORY = FactKind("inventory", _inventory)


def inventories_of(records: Iterable[Record], hosts: Iterable[str]) -> dict[str, Inventory]:
    """Return the last inventory that each of `hosts` reported, in their order."""
    found: dict[str, Inventory] = {}
    for record in records:
        for fact, inventory in INVENTORY.of(record):
            found[record.host_of(fact)] = inventory
    return {host: found[host] for host in hosts if host in found}


@dataclass(frozen=True, kw_only=True)
class Digest:
    """The digests of the products that one device computed. An empty text is a missing value."""

    #: Data type of the product, and its rows and columns as text.
    type: str
    size: str
    #: Digests of the known product and of the product of random data.
    exact: str
    random: str
    #: Name and software of the device. If both are equal, so are the products of random data.
    device: str
    software: str


def _digest(value: object) -> Digest:
    texts = {key: (text(v) or "")[:120] for key, v in mapping(value).items()}
    names = ("type", "exact", "random", "device", "software")
    size = str(whole(mapping(value).get("size")))
    return Digest(size=size, **{name: texts.get(name, "") for name in names})


DIGEST = FactKind("digest", _digest)


@dataclass(frozen=True, kw_only=True)
class Load:
    """The state of a GPU while it measured a data type."""

    type: str
    #: Number of samples.
    samples: int
    #: Reason -> share of the time in which it limited the clock.
    limited: Mapping[str, float]
    #: Median clock in MHz, power in W and temperature in degrees Celsius, by unit.
    medians: Mapping[str, float]
    #: Highest clock of the GPU in MHz; 0: unknown.
    highest_clock: float = 0.0


def _load(value: object) -> Load | None:
    if not isinstance(value, dict):
        return None
    shares = {str(name)[:40]: number(v) for name, v in mapping(value.get("held")).items()}
    spans = {unit: items(value.get(unit)) for unit in ("MHz", "W", "C")}
    medians = {unit: number(span[1]) for unit, span in spans.items() if len(span) == 3}
    return Load(
        type=str(value.get("type")),
        samples=whole(value.get("looks")),
        limited={name: share for name, share in shares.items() if share is not None and share > 0},
        medians={unit: median for unit, median in medians.items() if median is not None},
        highest_clock=number(value.get("MHz-max")) or 0.0,
    )


LOAD = FactKind("load", _load)


def _reasons(value: object) -> dict[str, str]:
    return {str(name)[:40]: str(reason)[:120] for name, reason in mapping(value).items()}


#: Metric -> the reason why the program left it out.
LEFT_OUT = FactKind("left-out", _reasons)


# NCCL and nccl-tests


@dataclass(frozen=True, kw_only=True)
class NcclTests:
    """The parameters of one table of nccl-tests."""

    version: str
    ranks: int | None
    #: Own name of each host -> its number of ranks (None: damaged). None: the log lists no hosts.
    hosts: Mapping[str, int | None] | None
    #: Number of rows.
    rows: int


def _nccl_tests(value: object) -> NcclTests:
    listed = mapping(value).get("hosts")
    hosts = {host: integer(n) for host, n in listed.items()} if isinstance(listed, dict) else None
    return NcclTests(
        version=text(mapping(value).get("version")) or "",
        ranks=integer(mapping(value).get("ranks")),
        hosts=hosts,
        rows=whole(mapping(value).get("rows")),
    )


def _users(value: object) -> dict[str, tuple[str, ...]]:
    return {str(name)[:80]: tuple(map(str, items(h))) for name, h in mapping(value).items()}


def _nics_of_gpus(value: object) -> dict[str, dict[int, frozenset[str]]]:
    return {
        str(host): {
            int(gpu): frozenset(str(nic)[:64] for nic in items(nics))
            for gpu, nics in mapping(gpus).items()
            if re.fullmatch("[0-9]{1,3}", str(gpu))
        }
        for host, gpus in mapping(value).items()
    }


def _indices(value: object) -> frozenset[int] | None:
    if not isinstance(value, list):
        return None
    return frozenset(gpu for gpu in value if isinstance(gpu, int))


NCCL_TESTS = FactKind("nccl-tests", _nccl_tests)
#: Network, or path between GPUs that is slower than NVLink -> the hosts that used it.
NCCL_NETWORKS = FactKind("nccl-networks", _users)
NCCL_DETOURS = FactKind("nccl-detours", _users)
#: NCCL, the CUDA that it was built with, and network plugins -> the versions that were loaded.
NCCL_VERSIONS = FactKind("nccl-versions", _users)
#: Host -> number of its GPU -> the NICs that NCCL used for it.
NCCL_NICS = FactKind("nccl-nics", _nics_of_gpus)
#: Warnings of NCCL, as "HOST: TEXT".
NCCL_WARNINGS = FactKind(
    "nccl-warnings", lambda value: tuple(shown(text) for text in items(value)[:64])
)
#: The GPUs of a host that took part; without this fact, all of them did. Only in records made from
#: logs.
GPUS = FactKind("gpus", _indices)


def users_of(
    kind: FactKind[dict[str, tuple[str, ...]]], record: Record
) -> Iterator[tuple[str, str]]:
    """Yield each network or path in the facts of a kind with each host that used it."""
    for _, users in kind.of(record):
        for path, hosts in users.items():
            for host in hosts:
                yield path, host
