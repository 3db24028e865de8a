"""Gather nccl-tests logs from files and folders into executions and comparable populations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from accept.core.errors import BadEvidence
from accept.core.model import GroupKind, Problem
from accept.core.nccl_tests.json import UNKNOWN_BUS
from accept.core.nccl_tests.table import Device
from accept.core.text import plain
from accept.nccl_logs.files import walk
from accept.nccl_logs.hosts import HostNames, natural
from accept.nccl_logs.tables import EMPTY, NO_TABLE, Measured, Read, once, read


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One measurement: a collective on some hosts, and on which GPUs of each."""

    file: str
    #: The check that the collective belongs to; None: the log does not say.
    check: str | None
    hosts: tuple[str, ...]
    #: Numbers of the GPUs that took part, of each host; fewer than hosts where not all are known.
    gpus: dict[str, tuple[int, ...]]
    problems: tuple[Problem, ...]
    #: None: the log ends before it.
    measured: Measured | None = None

    @property
    def count(self) -> int:
        """GPUs a host; those of most hosts, where they differ."""
        return Counter(map(len, self.gpus.values())).most_common(1)[0][0] if self.gpus else 0


@dataclass(frozen=True, kw_only=True)
class Logs:
    """What was read: of each log what it says, and what was left out."""

    read: tuple[tuple[Read, tuple[Execution, ...]], ...]
    #: Sorted, numbers in names as numbers.
    hosts: tuple[str, ...]
    names: HostNames
    #: Names of devices, each once.
    devices: tuple[str, ...]
    #: Files that are no logs, and why not.
    skipped: tuple[tuple[str, str], ...]


def gather(paths: Sequence[Path]) -> Logs:
    """Read all logs that `paths` stand for: files, folders, archives.

    Raises BadEvidence for a file that was named and is no log, and where there is none at all.
    """
    found: list[Read] = []
    others: list[tuple[Read, bool]] = []
    for path in paths:
        for file in walk(path):
            one = read(file.name, file.blocks)
            if one.reason:
                others.append((one, file.named))
            else:
                found.append(one)
    found, twice = once(found)
    measured = [table for one in found for table in one.tables if table.hosts]
    hosts = {host for one in measured for host in one.hosts}
    names = HostNames(hosts, [one.file for one in found if one.tables])
    useless = _useless(found, names)
    skipped = [(one.file, one.reason) for one in twice]
    for one, named in others:
        if useless(one):
            text = f"the log is of no use: {one.reason}"
            said = Problem(cause="incomplete-log", message=text)
            found.append(Read(file=one.file, problems=(said,)))
        elif named:
            raise BadEvidence(
                f"{plain(one.file)} is no log of nccl-tests and holds no packed evidence: "
                f"{one.reason}",
                hint="name a run, its evidence, or what all_reduce_perf and its like printed",
            )
        else:
            skipped.append((one.file, one.reason))
    if not measured:
        raise _nothing(paths, found, len(others))
    number = _numbering(measured)
    return Logs(
        read=tuple((one, tuple(_execution(t, number) for t in one.tables)) for one in found),
        hosts=tuple(sorted(hosts, key=natural)),
        names=names,
        devices=tuple(dict.fromkeys(d.name for one in measured for d in one.devices if d.name)),
        skipped=tuple(skipped),
    )


def _useless(found: Sequence[Read], names: HostNames) -> Callable[[Read], bool]:
    """Whether a file without results was to be a log: it is called like those that are.

    A log that ended before its first line says by its name alone what it was to be, and of whom.
    """
    suffixes = {Path(one.file).suffix for one in found if one.tables}

    def useless(one: Read) -> bool:
        if names.fits(one.file):
            return True
        silent = one.reason in (EMPTY, NO_TABLE) and Path(one.file).suffix in suffixes
        return silent and names.names_one(one.file)

    return useless


def _nothing(paths: Sequence[Path], found: Sequence[Read], others: int) -> BadEvidence:
    what = ", ".join(plain(path, 200) for path in paths[:3])
    if found:
        said = next((p.message for one in found for p in one.problems), "no list of devices")
        return BadEvidence(
            f"{what}: no table in any log says who took part; the first says: {plain(said, 200)}",
            hint="look why nothing was measured; the list is `# Using devices`",
        )
    return BadEvidence(
        f"{what} holds no evidence (there is no plan.json) and no log of nccl-tests; "
        f"{others} files were looked at",
        hint="name a run, an evidence folder, or what all_reduce_perf and its like printed",
    )


_Numbering = Callable[[str, Sequence[Device]], tuple[int, ...]]


def _numbering(measured: Iterable[Measured]) -> _Numbering:
    """What numbers the GPUs of a host: as its ranks say.

    Where each process was shown one GPU alone, all are device 0 to it, and the PCI addresses tell.
    """
    buses: dict[str, dict[int, set[str]]] = {}
    for one in measured:
        for device in one.devices:
            if device.bus != UNKNOWN_BUS:
                buses.setdefault(device.host, {}).setdefault(device.device, set()).add(device.bus)
    hidden = {
        host: sorted(set().union(*several.values()))
        for host, several in buses.items()
        if any(len(some) > 1 for some in several.values())
    }

    def number(host: str, devices: Sequence[Device]) -> tuple[int, ...]:
        if host in hidden and all(device.bus != UNKNOWN_BUS for device in devices):
            found = {hidden[host].index(device.bus) for device in devices}
        else:
            found = {device.device for device in devices}
        # Without GPUs all ranks are on the one device.
        return tuple(sorted(found)) if len(found) == len(devices) else tuple(range(len(devices)))

    return number


def _execution(one: Measured, number: _Numbering) -> Execution:
    by_host: dict[str, list[Device]] = {}
    for device in one.devices:
        by_host.setdefault(device.host, []).append(device)
    gpus = {host: number(host, devices) for host, devices in by_host.items()}
    usual = Counter(map(len, gpus.values())).most_common(1)[0][0] if gpus else 0
    fewer = [host for host, mine in gpus.items() if len(mine) < usual]
    problems = tuple(
        Problem(
            cause="gpu-missing",
            message=f"{len(gpus[host])} GPUs of {host} took part, {usual} of most hosts",
            host=host,
            check=one.check,
        )
        for host in fewer
        if len(fewer) * 2 < len(gpus)
    )
    return Execution(
        file=one.file,
        check=one.check,
        hosts=one.hosts,
        gpus=gpus,
        problems=(*one.problems, *problems),
        measured=one,
    )


#: Takes the place of a collective that a log does not say.
UNKNOWN = "unknown-collective"


class Population(NamedTuple):
    """What makes executions equal. `min`, `max`, `factor` and `type` are None where not said."""

    kind: GroupKind
    check: str
    #: GPUs of each host; 0: all of them.
    gpus: int
    #: Not the same GPUs of each host, so that their traffic crosses from rail to rail.
    crossed: bool
    #: For rails: the hosts that they span.
    hosts: tuple[str, ...]
    min: int | None = None
    max: int | None = None
    factor: int | None = None
    type: str | None = None
    #: What their GPUs are called, each once.
    devices: tuple[str, ...] = ()


def populations(
    executions: Sequence[Execution], hosts: Sequence[str], whole: int
) -> dict[Population, list[Execution]]:
    """Put executions together with their equals. `whole`: GPUs that a host has."""
    rails: dict[tuple[str | None, tuple[str, ...]], set[tuple[int, ...]]] = {}
    for one in executions:
        if one.count == 1 and not _crossed(one):
            rails.setdefault(_spanned(one), set()).update(one.gpus.values())
    blocks = _blocks(executions)
    result: dict[Population, list[Execution]] = {}
    later = []
    for one in executions:
        key = Population(
            kind="ladder" if one.hosts in blocks else _kind(one, len(hosts)),
            check=one.check or UNKNOWN,
            gpus=0 if one.count == whole else one.count,
            crossed=_crossed(one),
            hosts=(),
        )
        several = len(rails.get(_spanned(one), ())) > 1 and one.count == 1 and not key.crossed
        if several and (len(one.hosts) > 2 or len(hosts) == 2):
            key = key._replace(kind="rails", hosts=_spanned(one)[1])
        table = one.measured.table if one.measured else None
        if table is None or table.min_bytes is None or not table.rows:
            later.append((key, table, one))
            continue
        key = key._replace(
            min=table.min_bytes,
            max=table.max_bytes,
            factor=table.factor,
            type=table.rows[0].type,
            devices=_devices(one),
        )
        result.setdefault(key, []).append(one)
    for key, table, one in later:
        # What died early belongs to those that were to measure the same.
        asked = (table.min_bytes, table.max_bytes) if table else (None, None)
        like = [k for k in result if k[:5] == key[:5]]
        same = [k for k in like if (k.min, k.max) == asked] or like
        best = max(same, key=lambda k: len(result[k]), default=key)
        result.setdefault(best, []).append(one)
    return result


def _devices(one: Execution) -> tuple[str, ...]:
    return tuple(sorted({d.name for d in one.measured.devices if d.name} if one.measured else ()))


def _blocks(executions: Sequence[Execution]) -> set[tuple[str, ...]]:
    """Pairs of hosts that are the smallest blocks of a ladder: no host is in two of them, and each
    is in a larger block that is not all hosts."""
    pairs: set[tuple[str, ...]] = {one.hosts for one in executions if len(one.hosts) == 2}
    everybody = len({host for one in executions for host in one.hosts})
    larger = [{*one.hosts} for one in executions if 2 < len(one.hosts) < everybody]
    met = [host for pair in {frozenset(pair) for pair in pairs} for host in pair]
    if len({*met}) < len(met):
        return set()
    whole = all(any(block.issuperset(pair) for block in larger) for pair in pairs)
    return pairs if whole else set()


def _crossed(one: Execution) -> bool:
    return len(set(one.gpus.values())) > 1


def _spanned(one: Execution) -> tuple[str | None, tuple[str, ...]]:
    return one.check, tuple(sorted(one.hosts))


def _kind(one: Execution, all_hosts: int) -> GroupKind:
    if one.measured and len({device.group for device in one.measured.devices}) > 1:
        # One figure for several groups at once.
        return "halves"
    hosts = len(one.hosts)
    if hosts < 3:
        return "pairs" if hosts == 2 else "each"
    return "all" if hosts == all_hosts else "ladder"
