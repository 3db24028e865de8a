"""Combine files about the state of hosts into the readings that a run takes of its hosts."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TypeVar

from accept.core.causes import Cause
from accept.core.facts import INVENTORY
from accept.core.health_readings import (
    HEALTH_READING,
    Device,
    DeviceKind,
    Event,
    Gap,
    Log,
    Reading,
    Unread,
    counters_by_kind,
)
from accept.core.plan import GroupKind, Plan, PlannedMachine, Step, Tool
from accept.core.records import Fact, Metric, Problem, Record
from accept.core.serde import dump
from accept.core.text import TextEnum, count, plain

_T = TypeVar("_T", Metric, Fact)

#: The check that judges these files.
HEALTH = "health"
#: The check that holds figures of programs that no run starts.
FIGURES = "script"
#: Longer lines are cut, in bytes.
_MAX_LINE = 1 << 16
#: Words in the names of files and folders that name no host.
_GENERIC = frozenset(
    """
    a all b boot bug collect collected current d data dcgm dcgmi dev diag dmesg dump evidence files
    full gpu gpus gz home host hosts html info journal journalctl json k kern kernel kmsg level link
    links list log logs messages mnt node nodes nvidia nvlink nvsmi old out output proc q query r r1
    r2 r3 r4 report reports result results root s smi state status stdin stdout sys syslog t test
    tmp txt var x xml xz
    """.split()  # noqa: SIM905 - a list of words
)


class ReportKind(TextEnum):
    """The kinds of files that describe the state of a host."""

    KERNEL_LOG = "kernel log"
    NVIDIA_SMI = "nvidia-smi -q"
    NVLINK = "nvidia-smi nvlink"
    DCGM = "dcgmi diag"
    #: Figures of a network test, which show no state.
    PERFTEST = "perftest"
    #: The output of another tool, by its file.
    TOOL = "tool"


#: Kinds without a state of a host.
OF_FIGURES = (ReportKind.PERFTEST, ReportKind.TOOL)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The identity of a GPU, as a report shows it."""

    index: int
    name: str = ""
    uuid: str = ""
    serial: str = ""
    driver: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Describe the state of one host as one file shows it."""

    file: str
    kind: ReportKind
    #: The name in the file, or else a label of the file; empty: not labelled yet.
    host: str = ""
    #: What the path shows of the host: files with the same words are of one host.
    words: str = ""
    reading: Reading = field(default_factory=Reading)
    gpus: tuple[Gpu, ...] = ()
    #: Number of GPUs that the driver found, whether the file lists them or not; 0: unknown.
    attached: int = 0
    problems: tuple[Problem, ...] = ()
    metrics: tuple[Metric, ...] = ()
    facts: tuple[Fact, ...] = ()
    #: The tool that printed it; None: another one, whose figures are all that is judged.
    tool: Tool | None = None
    #: What it shows, from when to when, in one line.
    shows: str
    #: The time at which it was written, in seconds; 0: unknown.
    written: float = 0.0
    #: The time at which the boot of a kernel log began; 0: unknown.
    booted: float = 0.0

    @property
    def line(self) -> str:
        """Return the host and what the file shows of it, for people."""
        of = ", which names no host" if is_label(self.host) else f" of {self.host}"
        return f"{plain(self.file, 200)}: {self.kind}{of}, {self.shows}"


#: What is missing without a kind of file: the gap, and the file that closes it.
_GAPS = {
    ReportKind.NVIDIA_SMI: Gap(
        reason="the state of the GPUs (add the output of `nvidia-smi -q`)", devices=Unread.GPUS
    ),
    ReportKind.KERNEL_LOG: Gap(
        reason="Xids (add the kernel log: `journalctl -k -b` or `dmesg`)", devices=Unread.XIDS
    ),
}

#: GPUs that are alone on their host need no links.
_NVLINKS = Gap(reason="NVLinks (add the output of `nvidia-smi nvlink -s`)", devices=Unread.GPUS)


def lines_of(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file without their ends; long lines are cut."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        rest = rest[:_MAX_LINE]
        for line in lines:
            yield line[:_MAX_LINE].rstrip(b"\r")
    if rest:
        yield rest


def words_of(parts: Sequence[str]) -> str:
    """Return the words in the path of a file that may be its host; empty: there are none.

    `gpu017/dmesg.txt` and `nvidia-smi-q-gpu017.xml` have such words, `dmesg.txt` does not.
    """
    *folders, file = parts
    words = re.split(r"([-_.]+)", file)
    while words and _is_generic(words[-1]):
        words.pop()
    while words and _is_generic(words[0]):
        words.pop(0)
    named = [part for part in folders if not all(map(_is_generic, re.split("[-_.]+", part)))]
    for name in ("".join(words), *reversed(named)):
        if re.fullmatch(r"(?=.*[A-Za-z])[\w.:-]{1,100}", name, re.ASCII):
            return name
    return ""


#: The beginnings of labels of one file, and of those with the same words. A host has no colon.
_FILE, _FILES = "file:", "files:"


def is_label(host: str) -> bool:
    """Return True if this is a label of files that name no host."""
    return host.startswith((_FILE, _FILES))


def label(report: Report) -> str:
    """Return the label of a report whose file names no host."""
    return f"{_FILE}{plain(PurePath(report.file).name, 100)}"


def labelled(reports: Sequence[Report], hosts: Iterable[str]) -> list[Report]:
    """Return reports that all have a host, or else a label; `hosts` are those that logs show.

    The path of a file shows its host only if another file shows that there is such a host.
    """
    known = {*hosts, *(report.host for report in reports)}
    folders = {id(r): folder for folder, own in _by_folder(reports) for r in own}
    reports = [replace(r, words=r.words or folders.get(id(r), "")) for r in reports]
    alike = Counter(report.words for report in reports if not report.host)

    def host_of(report: Report) -> str:
        if report.host or not report.words:
            return report.host or label(report)
        if report.words in known:
            return report.words
        is_alone = alike[report.words] == 1 and report.words in PurePath(report.file).name
        return label(report) if is_alone else f"{_FILES}{report.words}"

    return [replace(report, host=host_of(report)) for report in reports]


def _by_folder(reports: Sequence[Report]) -> Iterator[tuple[str, list[Report]]]:
    """Yield the files of one folder that describe one host, although no word in a path shows it.

    Those are different kinds of files, such as `dmesg.txt` and `nvlink.txt`, with the same GPUs.
    """
    here, folders = Path.cwd(), dict[Path, list[Report]]()
    for report in reports:
        if not (report.host or report.words or report.kind in OF_FIGURES):
            folders.setdefault(here / PurePath(report.file).parent, []).append(report)
    for folder, own in folders.items():
        uuids = [one for r in own if (one := {gpu.uuid for gpu in r.gpus if gpu.uuid})]
        same_gpus = all(one & uuids[0] for one in uuids)
        is_of_one = same_gpus and len({report.kind for report in own}) == len(own)
        if is_of_one and len({report.file for report in own}) > 1:
            yield plain(folder.name, 100), own


def _is_generic(word: str) -> bool:
    return word.lower() in _GENERIC or not word.strip("-_.") or word.isdecimal()


@dataclass(frozen=True, kw_only=True)
class HostState:
    """Describe one host as all of its files together show it."""

    host: str
    reports: tuple[Report, ...]

    @property
    def reading(self) -> Reading:
        """Return the reading that a run would have taken, as far as the files show it."""
        devices: dict[str, Device] = {}
        for report in self.reports:
            for device in report.reading.devices:
                old = devices.get(device.title)
                devices[device.title] = device if old is None else _joined(old, device)
        logs = [report.reading.log for report in self.reports if report.reading.log]
        log = None
        if logs:
            log = _joined_logs(logs)
            known = {device.pci for device in devices.values()}
            for pci in dict.fromkeys(e.pci for e in log.events if e.kind in ("xid", "lost")):
                if pci and pci not in known:
                    lost = Device(kind=DeviceKind.GPU, name=pci, pci=pci)
                    devices[lost.title] = lost
        kinds = {report.kind for report in self.reports}
        gpus = [device for device in devices.values() if device.levels]
        several, linked = len(gpus) > 1, any("nvlinks" in gpu.levels for gpu in gpus)
        return Reading(
            read=counters_by_kind(report.reading for report in self.reports),
            devices=tuple(devices.values()),
            log=log,
            unread=(
                *(gap for kind, gap in _GAPS.items() if kind not in kinds),
                *([_NVLINKS] if several and not linked else ()),
                *(gap for report in self.reports for gap in report.reading.unread),
            ),
            whole=True,
        )

    def record(self, step: Step, number: int, machine: PlannedMachine) -> Record:
        """Return the record of the step `health` on this host."""
        reading = self.reading
        problems = [problem for report in self.reports for problem in report.problems]
        attached = max(report.attached for report in self.reports)
        if 0 < attached < (machine.gpus or 0):
            hint = f"if the node was given only {attached}, judge it with --machine gpu"
            # Virtual machines have an equal share of the GPUs: all, a half, a quarter, one.
            if machine.gpus and machine.gpus % attached:
                text = f"the driver found {attached} GPUs on {self.host}, and {machine.name} has "
                text += f"{machine.gpus}; {hint}"
                problems.append(Problem(cause=Cause.GPU_MISSING, message=text))
            reason = f"more than {attached} of the {machine.gpus} GPUs of {machine.name} ({hint})"
            gap = Gap(reason=reason, devices=Unread.GPUS)
            reading = replace(reading, unread=(*reading.unread, gap))
        fact = Fact(name=HEALTH_READING.name, check=HEALTH, host=self.host, value=dump(reading))
        return Record(
            step=step.id,
            checks=step.checks,
            wave=0,
            group=number,
            hosts=(self.host,),
            exit=0,
            log=self.reports[0].file,
            facts=(fact,),
            problems=tuple(replace(problem, host=self.host) for problem in problems),
        )

    def inventory(self) -> Fact | None:
        """Return the GPUs of the host as its inventory lists them; None if no file lists them."""
        gpus = {gpu.index: gpu for report in reversed(self.reports) for gpu in report.gpus}
        if not gpus:
            return None
        listed = [
            {
                "index": gpu.index,
                **{
                    key: value
                    for key, value in vars(gpu).items()
                    if key in ("name", "uuid", "serial", "driver") and value
                },
            }
            for gpu in gpus.values()
        ]
        return Fact(name=INVENTORY.name, host=self.host, value={"gpus": listed})


def _joined(first: Device, second: Device) -> Device:
    """Return one device from what two files show of it."""
    return replace(
        first,
        pci=first.pci or second.pci,
        counters={**first.counters, **second.counters},
        levels={**first.levels, **second.levels},
        errors=(*first.errors, *second.errors),
    )


def _joined_logs(logs: Sequence[Log]) -> Log:
    """Return one log from those of one boot, although each counts time in its own way.

    An event that was followed by a reset in one of them is left out.
    """
    if len(logs) == 1:
        return logs[0]
    events: dict[tuple[str, str, int, bool, str], Event] = {}
    cleared: set[tuple[str, str, int, bool, str]] = set()
    for log in logs:
        resets = {event.pci: event.at for event in log.events if event.kind == "reset"}
        for event in log.events:
            key = (event.kind, event.pci, event.code, event.fatal, event.words)
            if event.at < resets.get(event.pci, 0.0):
                cleared.add(key)
            elif event.kind != "reset":
                events[key] = event
    return Log(
        first=min(log.first for log in logs),
        last=max(log.last for log in logs),
        events=tuple(event for key, event in events.items() if key not in cleared),
    )


def by_host(reports: Iterable[Report]) -> tuple[list[HostState], list[tuple[str, str]]]:
    """Return the hosts of reports, and the files that were left out with the reason.

    Of two reports of one kind about the same GPUs, the newer one counts. If their GPUs differ, they
    are of several hosts, which are labelled by their files.
    """
    hosts: dict[str, list[Report]] = {}
    skipped: list[tuple[str, str]] = []
    newest_first = sorted(reports, key=lambda report: report.written, reverse=True)
    for newer in newest_first:
        report = newer
        of_host = [other for other in newest_first if other.host == report.host]
        if 0 < report.written < max(other.booted for other in of_host):
            skipped.append((report.file, f"from before the last boot of {report.host}"))
            continue
        same = [r for r in hosts.get(report.host, ()) if r.kind is report.kind]
        if same and report.kind is not ReportKind.KERNEL_LOG:
            uuids = {gpu.uuid for gpu in report.gpus}
            if not uuids or any(uuids & {gpu.uuid for gpu in other.gpus} for other in same):
                skipped.append((report.file, f"an older {report.kind} of {report.host}"))
                continue
            report = replace(report, host=label(report))
        hosts.setdefault(report.host, []).append(report)
    order = {kind: number for number, kind in enumerate(ReportKind)}
    states = [
        HostState(host=host, reports=tuple(sorted(of_host, key=lambda r: order[r.kind])))
        for host, of_host in sorted(hosts.items())
    ]
    return states, skipped


def _of_host(one: _T, host: str) -> _T:
    """Return a metric of a tool, or its end, with its host."""
    return replace(one, host=host) if one.check != FIGURES else one


def with_figures(
    plan: Plan, records: Sequence[Record], reports: Sequence[Report]
) -> tuple[Plan, tuple[Record, ...]]:
    """Return the plan and records of a run that also executed the tests of `reports`.

    The first record lists the hosts of the run.
    """
    tests: dict[str, list[Report]] = {}
    for report in reports:
        name = report.metrics[0].name if report.metrics else str(report.kind)
        name = report.tool.name if report.tool else name
        tests.setdefault(name, []).append(report)
    steps = []
    of_steps = []
    for number, (name, of_test) in enumerate(sorted(tests.items()), 1):
        tool = of_test[0].tool
        step = Step(
            id=f"02-{name}-{number}",
            checks=((tool.name if tool else FIGURES),),
            script="",
            groups=GroupKind.EACH,
            params={} if tool else {"name": name},
            rounds=len(of_test),
            tool=tool,
        )
        steps.append(step)
        of_steps += [
            Record(
                step=step.id,
                checks=step.checks,
                wave=wave,
                group=0,
                hosts=(report.host,),
                exit=0,
                log=report.file,
                metrics=tuple(_of_host(m, report.host) for m in report.metrics),
                facts=tuple(_of_host(f, report.host) for f in report.facts),
                problems=report.problems,
            )
            for wave, report in enumerate(of_test)
        ]
    hosts = dict.fromkeys((*records[0].hosts, *(report.host for report in reports)))
    content = [(report.host, report.metrics, report.problems) for report in reports]
    plan = _with_steps(plan, steps, content, f"figures of {count(len(reports), 'file')}")
    return plan, (replace(records[0], hosts=tuple(hosts)), *of_steps, *records[1:])


def _with_steps(plan: Plan, steps: Sequence[Step], content: object, shown: str) -> Plan:
    """Return the plan with more steps at its beginning; `content` is what they measured."""
    return replace(
        plan,
        hash=hashlib.sha256(f"{plan.hash}{content!r}".encode()).hexdigest(),
        steps=(*steps, *plan.steps),
        origin=f"{shown}; {plan.origin if plan.steps else 'from files alone'}",
    )


def with_states(
    plan: Plan, records: Sequence[Record], states: Sequence[HostState]
) -> tuple[Plan, tuple[Record, ...]]:
    """Return the plan and records of a run that also read the state of hosts.

    The first record lists the hosts of the run.
    """
    step = Step(
        id=f"01-{HEALTH}",
        checks=(HEALTH,),
        script="",
        groups=GroupKind.EACH,
        params={},
        # Beside measurements, files need not show the whole state of their hosts.
        optional=bool(plan.steps),
    )
    hosts = records[0].hosts
    names = [state.host for state in states]
    files = count(len({report.file for state in states for report in state.reports}), "file")
    shown = f"state of {count(len(states), 'node')} in {files}"
    first = replace(
        records[0],
        hosts=tuple(dict.fromkeys((*hosts, *names))),
        facts=(*records[0].facts, *filter(None, (state.inventory() for state in states))),
    )
    shown += "" if plan.steps else ", nothing measured"
    plan = _with_steps(plan, [step], [(state.host, state.reading) for state in states], shown)
    of_states = (state.record(step, number, plan.machine) for number, state in enumerate(states))
    return plan, (first, *of_states, *records[1:])
