"""Read what nvidia-smi prints about GPUs: `-q` as text or XML, `nvlink -s`, its table, its errors.

Both forms of `-q` become values by their path, and the values become the levels and counters that
a run reads with NVML (`launchers/programs/health_gpus.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from xml.parsers import expat

from accept import config
from accept.config import resources
from accept.config.yaml_file import read_file
from accept.core.causes import Cause, start_cause
from accept.core.health_readings import Device, DeviceKind, DriverError, Gap, Reading, Unread
from accept.core.judge.hosts import is_device
from accept.core.records import Problem
from accept.core.text import count, plain, shortened
from accept.foreign_logs.host_state import Gpu, Report, ReportKind, lines_of
from accept.foreign_logs.kernel_log import wall_time

#: The beginnings of the forms. A shell may have printed something before them.
_TEXT = re.compile(rb"^=+NVSMI LOG=+\s*$", re.MULTILINE)
_XML = re.compile(rb"<nvidia_smi_log>")
_NVLINK = re.compile(
    rb"^GPU \d{1,3}: .{1,80} \(UUID: GPU-[^)\n]{1,80}\)[ \t\r]{0,8}\n[ \t]{1,16}Link \d",
    re.MULTILINE,
)
_NVLINK_GPU = re.compile(rb"GPU \d{1,3}: .{1,80} \(UUID: GPU-[^)]{1,80}\)\s*$")
#: Sections of `-q` that people cut out, with a value.
_EXCERPT = re.compile(
    rb"^[ \t]{2,12}(?:Remapped Rows|ECC Errors|Retired Pages|GPU Reset Status|Fabric|"
    rb"Clocks (?:Event|Throttle) Reasons)[ \t]{0,40}\r?\n[ \t]{4,16}[A-Z][\w .]{0,40}(?: *:|\r?\n)",
    re.MULTILINE,
)
#: A line of the head of `-q`, which people paste without its title.
_COUNT = re.compile(rb"^Attached GPUs {2,60}: \d{1,3}\s*$", re.MULTILINE)
#: The table that nvidia-smi prints without options, and the rows of one GPU in it.
_SUMMARY = re.compile(rb"^\| NVIDIA-SMI [\d.]{3,20} {1,20}(?:Driver|KMD) Version: ", re.MULTILINE)
_SUMMARY_GPU = re.compile(
    r"\| {1,4}(\d{1,3}) {1,3}(\S.{1,40}?) {1,40}[\w!]{2,4} {1,4}\| {1,4}"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d) {1,8}\w{2,3} \| {1,30}(\S{1,10}) \|\s*$"
)
#: Lines around such an output: its own, a prompt, a date.
_OWN_LINE = re.compile(rb"[|+]|\s*$|.{0,200}nvidia-smi|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d ")
_MAX_OTHER_LINES = 3
_FAILED = re.compile(
    rb"\s*(Failed to initialize NVML: .{1,200}|NVIDIA-SMI has failed because .{1,300}|"
    rb"No devices were found|Unable to determine the device handle for .{1,200})"
)
_NO_HANDLE = re.compile(
    r"for GPU ?\d{0,3}:? ?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d): ?(.{1,160})"
)
#: NVML's code of a library and a module that do not match.
_MISMATCH = 18
_GPU_LINE = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_PAIR = re.compile(r"( *)([^:]{1,80}?) *(?:: ?(.{0,400}))?$")
#: Limits of a document; more is damage.
_MAX_HEAD = 1 << 16
_MAX_GPUS, _MAX_VALUES, _MAX_DEPTH, _MAX_VALUE = 64, 20_000, 24, 200
#: Values that nvidia-smi prints instead of those of a GPU with a fault -> NVML's code.
_UNKNOWN = 999
#: What the table shows for them.
_ERROR = "ERR!"
_FAULTS = {
    "gpu is lost": 15,
    "gpu requires reset": 16,
    "unknown error": _UNKNOWN,
    "err!": _UNKNOWN,
}
#: The value of any other word than those of a good configuration in `fabric-health`.
_WRONG_CONFIGURATION = 2
#: The name of a GPU in an excerpt that shows neither its number nor its address.
_UNNUMBERED = "unnumbered"
#: Sections that the full output has; without one of them it was limited by `-d`.
_SECTIONS = ("pci", "ecc_mode", "ecc_errors", "temperature", "clocks", "max_clocks")

Values = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class _Value:
    """A number of a GPU, where it is printed, and what its words mean."""

    #: Paths of the value, in text and in XML; of several that exist, the first counts.
    paths: tuple[str, ...]
    #: The name of a table of `words`.
    words: str = "switch"
    #: The value of a word that is not listed; None: it is not known.
    other: float | None = None


@dataclass(frozen=True, kw_only=True)
class _MemoryErrors:
    """A counter that adds up the values of a section."""

    section: str
    #: The beginnings of the names of the values; older versions print a total.
    names: tuple[str, ...]
    older: str


@dataclass(frozen=True, kw_only=True)
class _HealthField:
    """A field of the level `fabric-health`: its lowest bit, and the value of each word."""

    bit: int
    words: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class _Names:
    """The content of `values/nvidia-smi.yaml`."""

    words: dict[str, dict[str, float]]
    levels: dict[str, _Value]
    counters: dict[str, _Value]
    memory_errors: dict[str, _MemoryErrors]
    reasons: dict[str, int]
    fabric_health: dict[str, _HealthField]


@cache
def _names() -> _Names:
    return read_file(_Names, resources.values() / "nvidia-smi.yaml")


@dataclass
class _Document:
    """The values of one output of `nvidia-smi -q` by their paths."""

    head: Values = field(default_factory=dict)
    #: PCI address and values of each GPU.
    gpus: list[tuple[str, Values]] = field(default_factory=list)
    #: Why its end is missing; empty: it is complete.
    damage: str = ""

    def add(self, path: str, value: str) -> None:
        values = self.gpus[-1][1] if self.gpus else self.head
        if len(values) < _MAX_VALUES:
            values.setdefault(path, value.strip()[:_MAX_VALUE])


def is_query(start: bytes) -> bool:
    """Return True if a file begins like the output of `nvidia-smi -q`, or is an error of it."""
    if any(form.search(start) for form in (_XML, _TEXT, _COUNT)) or _FAILED.match(start):
        return True
    if not (_SUMMARY.search(start) or _EXCERPT.search(start) or b"Unable to determine" in start):
        return False
    # Logs of jobs often begin with such an output.
    lines = start.split(b"\n")
    if _EXCERPT.search(start):
        return all(re.match(rb"\s|GPU [0-9A-F]|$", line) or b"nvidia-smi" in line for line in lines)
    others = [line for line in lines if not (_OWN_LINE.match(line) or _FAILED.match(line))]
    return len(others) <= _MAX_OTHER_LINES


def begins_query(line: bytes) -> bool:
    """Return True if an output of nvidia-smi about GPUs begins with this line."""
    return bool(_TEXT.match(line) or _SUMMARY.match(line) or _FAILED.match(line))


def is_xml(line: bytes) -> bool:
    """Return True if a line belongs to the beginning of the XML form."""
    return b"<!DOCTYPE nvidia_smi_log" in line or bool(_XML.search(line))


def begins_nvlink(line: bytes) -> bool:
    """Return True if the NVLinks of a GPU may follow."""
    return bool(_NVLINK_GPU.match(line))


def is_nvlink(start: bytes) -> bool:
    """Return True if a file begins like the output of `nvidia-smi nvlink -s`."""
    return bool(_NVLINK.search(start))


def read_query(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return the state of the GPUs in the output of `nvidia-smi -q`. No content raises an error."""
    lines = lines_of(blocks)
    head = b""
    before: list[bytes] = []
    for line in lines:
        # The document type comes before the document, and may declare entities.
        opens = b"<?xml" in line or b"<!DOCTYPE" in line
        head = (head + line + b"\n")[-_MAX_HEAD:] if head or opens else head
        if _XML.search(line):
            return [_report(file, _of_xml(head or line + b"\n", lines))]
        if _TEXT.search(line):
            return [_report(file, _of_text(lines))]
        if failed := _FAILED.match(line):
            return [_failure(file, failed[1].decode("utf-8", "replace"))]
        before.append(line)
        if _SUMMARY.match(line):
            return [_of_summary(file, line, lines)]
    is_excerpt = not any(map(_COUNT.match, before))
    return [_report(file, _of_text(before, is_excerpt=is_excerpt))]


def _failure(file: str, words: str) -> Report:
    """Return the report for an nvidia-smi that ends with an error."""
    if found := _NO_HANDLE.search(words):
        pci, fault = _pci_name(found[1]), found[2].strip(". ")
        code = next((code for text, code in _FAULTS.items() if text in fault.lower()), _UNKNOWN)
        error = DriverError(code=code, words=plain(fault, 80), readings=("handle",))
        device = Device(kind=DeviceKind.GPU, name=pci, pci=pci, errors=(error,))
        gap = Gap(reason="the state of the other GPUs (nvidia-smi ended)", devices=Unread.GPUS)
        return Report(
            file=file,
            kind=ReportKind.NVIDIA_SMI,
            reading=Reading(devices=(device,), unread=(gap,)),
            shows=plain(words, 200),
        )
    mismatch = "version mismatch" in words
    cause = start_cause(_MISMATCH) if mismatch else None
    problem = Problem(cause=cause or Cause.GPU_UNUSABLE, message=f"nvidia-smi: {plain(words, 200)}")
    return Report(
        file=file, kind=ReportKind.NVIDIA_SMI, problems=(problem,), shows=plain(words, 200)
    )


# Forms


def _of_text(lines: Iterable[bytes], *, is_excerpt: bool = False) -> _Document:
    """Return the values of the text form; of several outputs in one file, those of the last.

    An excerpt may begin inside a GPU, whose address it does not show.
    """
    document = _Document()
    if is_excerpt:
        document.gpus.append(("", {}))
    open_keys: list[tuple[int, str]] = []
    for raw in lines:
        if _TEXT.match(raw):
            document, open_keys = _Document(), []
            continue
        line = raw.decode("utf-8", "replace").expandtabs(4).rstrip()
        if found := _GPU_LINE.match(line):
            if document.gpus and not document.gpus[-1][1]:
                document.gpus.pop()
            if len(document.gpus) >= _MAX_GPUS:
                document.damage = f"more than {_MAX_GPUS} GPUs"
                break
            document.gpus.append((found[1], {}))
            open_keys = []
            continue
        pair = _PAIR.match(line) if line else None
        if pair is None or (document.gpus and not pair[1] and pair[3] is None):
            continue
        indent, key, value = len(pair[1]), _key(pair[2]), pair[3]
        while open_keys and open_keys[-1][0] >= indent:
            open_keys.pop()
        if len(open_keys) < _MAX_DEPTH:
            open_keys.append((indent, key))
            if value is not None:
                document.add("/".join(name for _, name in open_keys), value)
    return document


def _of_summary(file: str, first: bytes, lines: Iterable[bytes]) -> Report:
    """Return what the table of nvidia-smi shows, which is little."""
    driver = re.search(rb"Version: ([\d.]{3,20})", first)
    gpus: list[Gpu] = []
    devices: list[Device] = []
    for raw in lines:
        line = raw.decode("utf-8", "replace")
        if (found := _SUMMARY_GPU.match(line)) and len(gpus) < _MAX_GPUS:
            gpu = Gpu(
                index=int(found[1]),
                name=plain(found[2], 80),
                driver=driver[1].decode("ascii") if driver else "",
            )
            errors = int(found[4]) if found[4].isdecimal() else 0
            is_faulty = _ERROR in (found[2], found[4])
            fault = DriverError(code=_UNKNOWN, words=_ERROR, readings=("table",))
            device = Device(
                kind=DeviceKind.GPU,
                name=found[1],
                pci=_pci_name(found[3]),
                counters={"ecc-uncorrected": errors} if errors else {},
                errors=(fault,) if is_faulty else (),
            )
            gpus.append(gpu)
            devices.append(device)
    names = shortened([*dict.fromkeys(gpu.name for gpu in gpus if gpu.name != _ERROR)], 3)
    shows = f"the table of {count(len(gpus), 'GPU')}{f' ({names})' if names else ''}"
    gap = Gap(
        reason="most of the state of the GPUs (add the output of `nvidia-smi -q`)",
        devices=Unread.GPUS,
    )
    return Report(
        file=file,
        kind=ReportKind.NVIDIA_SMI,
        reading=Reading(devices=tuple(devices), unread=(gap,)),
        gpus=tuple(gpus),
        shows="; ".join([shows, *_memory_errors(devices)][:4]),
    )


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.strip().lower()).strip("_")


class _Refused(ValueError):
    """The reason why a document is not read to its end."""


def _of_xml(start: bytes, lines: Iterable[bytes]) -> _Document:
    """Return the values of the XML form. Its DTD is not read, and no entity is expanded."""
    document = _Document()
    parser = expat.ParserCreate()
    names: list[str] = []
    parts: list[str] = []

    def refuse(*_: object) -> int:
        raise _Refused("it declares an entity")

    def begin(name: str, attributes: dict[str, str]) -> None:
        if len(names) > _MAX_DEPTH:
            raise _Refused("it is nested too deeply")
        if names == ["nvidia_smi_log"] and name == "gpu":
            if len(document.gpus) >= _MAX_GPUS:
                raise _Refused(f"it has more than {_MAX_GPUS} GPUs")
            document.gpus.append((attributes.get("id", ""), {}))
        names.append(name)
        parts.clear()

    def text(words: str) -> None:
        if sum(map(len, parts)) < _MAX_VALUE:
            parts.append(words)

    def end(_: str) -> None:
        value = "".join(parts)
        inside = names[1:] if names[1:2] != ["gpu"] else names[2:]
        if inside and value.strip():
            document.add("/".join(map(_key, inside)), value)
        names.pop()
        parts.clear()

    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    try:
        # Bytes before the document, such as the command that printed it.
        opening = re.search(rb"<\?xml|<!DOCTYPE|<nvidia_smi_log>", start)
        parser.Parse(start[opening.start() if opening else 0 :], False)
        for line in lines:
            parser.Parse(line + b"\n", False)
            if not names:
                return document
        parser.Parse(b"", True)
    except (expat.ExpatError, _Refused) as error:
        document.damage = plain(error, 80)
    return document


# Values


def _report(file: str, document: _Document) -> Report:
    devices = []
    gpus = []
    counters: set[str] = set()
    driver = document.head.get("driver_version", "")
    for index, (pci, values) in enumerate(document.gpus):
        device = _device(str(index) if pci else _UNNUMBERED, pci, values)
        devices.append(device)
        counters |= device.counters.keys()
        gpus.append(
            Gpu(
                index=index,
                name=plain(values.get("product_name", ""), 80),
                uuid=plain(values.get("gpu_uuid", values.get("uuid", "")), 80),
                serial=plain(values.get("serial_number", values.get("serial", "")), 40),
                driver=plain(driver, 40),
            )
        )
    devices = [
        replace(
            device,
            # Counters that are zero are left out of a reading.
            counters={name: value for name, value in device.counters.items() if value},
            missing=tuple(sorted(counters - device.counters.keys())),
        )
        for device in devices
    ]
    stamp = document.head.get("timestamp", "")
    names = shortened([*dict.fromkeys(gpu.name for gpu in gpus if gpu.name)], 3)
    shows = f"{count(len(gpus), 'GPU')}{f' ({names})' if names else ''}"
    shows += f", driver {plain(driver, 40)}" if driver else ""
    shows += f", {plain(stamp, 40)}" if stamp else ""
    if errors := [*_memory_errors(devices)]:
        shows += f"; {shortened(errors, 4, '; ')}"
    return Report(
        file=file,
        kind=ReportKind.NVIDIA_SMI,
        reading=Reading(
            devices=tuple(devices),
            read={DeviceKind.GPU: tuple(sorted(counters))},
            unread=tuple(Gap(reason=why, devices=Unread.GPUS) for why in _lacks(document)),
        ),
        gpus=tuple(gpus),
        attached=_attached(document),
        shows=shows,
        written=wall_time(stamp),
    )


def _memory_errors(devices: Iterable[Device]) -> Iterator[str]:
    """Yield the counts of the memory errors of each GPU that has some."""
    for device in devices:
        known = (name for name in _names().memory_errors if device.counters.get(name))
        counts = [f"{name} {device.counters[name]}" for name in known]
        if counts:
            yield f"{device.title}: {', '.join(counts)}"


def _lacks(document: _Document) -> list[str]:
    """Return why the document may not show all GPUs, or not all of their state."""
    lacks = [f"the rest of the output of `nvidia-smi -q` ({document.damage})"] * bool(
        document.damage
    )
    attached = _attached(document)
    if attached > len(document.gpus):
        lacks.append(f"{attached - len(document.gpus)} of {attached} GPUs")
    absent = {
        section
        for _, values in document.gpus
        for section in _SECTIONS
        if not any(path.partition("/")[0] == section for path in values)
    }
    if absent:
        names = ", ".join(sorted(name.replace("_", " ") for name in absent))
        lacks.append(f"{names} (the output of `nvidia-smi -q` without `-d`)")
    return lacks


def _attached(document: _Document) -> int:
    """Return the number of GPUs that the driver found, also with `-i`; 0: it is not shown."""
    attached = document.head.get("attached_gpus", "")
    return int(attached) if attached.isdecimal() else 0


def _device(name: str, pci: str, values: Values) -> Device:
    errors: dict[str, list[str]] = {}
    for path, value in values.items():
        if value.strip("[]. ").lower() in _FAULTS:
            errors.setdefault(value.strip("[]. "), []).append(path.rpartition("/")[2])
    known = _names()
    levels = {name: _number(values, value) for name, value in known.levels.items()}
    levels["reasons"] = _reasons(values)
    levels["fabric-health"] = _fabric_health(values)
    # Some GPUs of workstations are delivered without ECC.
    if levels["ecc"] == 0 and _links_of(values.get("product_name", "")) is None:
        levels["ecc-default"] = 0.0
    counters = {name: _number(values, value) for name, value in known.counters.items()}
    counters |= {name: _sum(values, errors) for name, errors in known.memory_errors.items()}
    return Device(
        kind=DeviceKind.GPU,
        name=name,
        pci=_pci_name(values.get("pci/bus_id", values.get("pci/pci_bus_id", pci))),
        counters={name: int(value) for name, value in counters.items() if value is not None},
        levels={name: value for name, value in levels.items() if value is not None},
        errors=tuple(
            DriverError(code=_FAULTS[words.lower()], words=words, readings=tuple(names))
            for words, names in errors.items()
        ),
    )


def _pci_name(text: str) -> str:
    """Return a PCI address as the kernel's log has it, "0000:1b:00"."""
    found = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2})\.[0-7]", text.lower())
    return f"{found[1][-4:]}:{found[2]}" if found else ""


@cache
def _links_of_devices() -> dict[str, int]:
    """Return the GPUs of known machines, each with the number of its NVLinks."""
    machines = (config.load_machine(name).value for name in config.names("machines"))
    return {m.gpus.device: m.planned().nvlinks for m in machines if m.gpus.device}


def _links_of(name: str) -> int | None:
    """Return the number of NVLinks of such a GPU; None: no known machine has it."""
    known = _links_of_devices().items()
    return max((links for device, links in known if is_device(device, name)), default=None)


def _number(values: Values, value: _Value) -> float | None:
    """Return a value as a number; None if it is missing, "N/A" or the like."""
    words = _names().words[value.words]
    for name in value.paths:
        text = values.get(name, "").strip().lower()
        if not text or text in ("n/a", "[n/a]") or text.strip("[]. ") in _FAULTS:
            continue
        if text in words:
            return words[text]
        if found := re.match(r"(\d{1,15}(?:\.\d{1,9})?)(?=x| |$)", text):
            return float(found[1])
        if value.other is not None and text.isprintable() and "deprecated" not in text:
            return value.other
    return None


def _reasons(values: Values) -> float | None:
    """Return the bits of the reasons that are active; None if none is listed."""
    found = False
    bits, reasons = 0, _names().reasons
    for path, text in values.items():
        section, _, name = path.partition("/")
        if section in ("clocks_event_reasons", "clocks_throttle_reasons", "clocks_reasons"):
            last = re.sub(r"^clocks_(?:event|throttle)_reason_", "", name.rpartition("/")[2])
            if last in reasons and text.lower() in ("active", "not active"):
                found = True
                bits |= reasons[last] if text.lower() == "active" else 0
    return float(bits) if found else None


def _fabric_health(values: Values) -> float | None:
    mask = 0
    for name, field_ in _names().fabric_health.items():
        text = values.get(f"fabric/health/{name}", "").lower()
        if not text or text in ("n/a", "not supported"):
            continue
        value = field_.words.get(text)
        if value is None:
            value = _WRONG_CONFIGURATION if name == "incorrect_configuration" else 0
        mask |= value << field_.bit
    return float(mask) if mask else None


def _sum(values: Values, errors: _MemoryErrors) -> float | None:
    """Return the sum of the errors of all memories; None if none is listed."""
    start = f"ecc_errors/{errors.section}/"
    numbers = [
        _number(values, _Value(paths=(path,)))
        for path in values
        if path.startswith(tuple(f"{start}{name}" for name in errors.names))
        or path == f"{start}{errors.older}/total"
    ]
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


# NVLink


def read_nvlink(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return the NVLinks of each GPU in the output of `nvidia-smi nvlink -s`."""
    links: dict[int, list[bool]] = {}
    gpus: dict[int, Gpu] = {}
    index = -1
    for raw in lines_of(blocks):
        line = raw.decode("utf-8", "replace")
        if found := re.match(r"GPU (\d{1,3}): (.{1,80}) \(UUID: (GPU-[^)]{0,60})\)", line):
            index = int(found[1])
            if len(links) < _MAX_GPUS:
                links[index] = []
                name, uuid = plain(found[2], 80), plain(found[3], 80)
                gpus[index] = Gpu(index=index, name=name, uuid=uuid)
        elif found := re.match(r"\s+Link \d{1,3}: (<inactive>|[\d.]{1,12} GB/s)", line):
            if index in links:
                links[index].append(found[1] != "<inactive>")
        elif line.strip() and not line.startswith((" ", "\t")):
            index = -1
    if not any(links.values()):
        # `nvidia-smi -L` prints the same names.
        return []
    # A GPU lists all of its links, also those that are down.
    most = {gpu.name: _links_of(gpu.name) or 0 for gpu in gpus.values()}
    for i, active in links.items():
        most[gpus[i].name] = max(most[gpus[i].name], len(active))
    cut = [i for i, active in links.items() if all(active) and len(active) < most[gpus[i].name]]
    devices = [
        Device(kind=DeviceKind.GPU, name=str(i), levels={"nvlinks": float(sum(active))})
        for i, active in links.items()
        if active and i not in cut
    ]
    which = f"GPU {', '.join(map(str, cut))}"
    gap = Gap(reason=f"all links of {which} (their list is cut)", devices=Unread.GPUS)
    numbers = sorted({f"{sum(a)} of {len(a)}" for a in links.values()})
    return [
        Report(
            file=file,
            kind=ReportKind.NVLINK,
            reading=Reading(devices=tuple(devices), unread=(gap,) if cut else ()),
            gpus=tuple(gpus.values()),
            shows=f"{shortened(numbers, 3)} links active on {count(len(links), 'GPU')}",
        )
    ]
