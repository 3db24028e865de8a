"""Divide what a command printed on several hosts, as pdsh, clush, srun and Ansible collect it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from accept.config.hostlist import expand
from accept.core.errors import BadInput
from accept.core.health_readings import Gap, Reading, Unread
from accept.core.text import plain
from accept.foreign_logs.host_state import Report, ReportKind, is_label, label, lines_of

#: `node1: line` of pdsh and clush, `12: line` of `srun --label`.
_PREFIX = re.compile(rb"([A-Za-z0-9][\w.-]{0,253}): ?")
#: The line above the output of a host: of Ansible, and of `clush -b` and dshbak between two rules.
_ANSIBLE = re.compile(rb"([A-Za-z0-9][\w.-]{0,253}) \| [A-Z]{2,20}!?(?: \| rc=\d{1,6})? (?:>>|=>)")
_RULE = re.compile(rb"-{8,}")
_NAMES = re.compile(rb"[\w.,\[\]-]{1,4000}(?: \(\d{1,6}\))?")
#: Upper limit of what is read, in bytes.
_MOST = 256 << 20
#: Programs that begin their own lines in this way.
_PROGRAM = re.compile("bash|clush|error|pdsh|salloc|sh|slurmstepd|srun|ssh|sudo|warning")
#: Share of the lines at the start that may be of no host.
_MAX_OTHERS = 0.1


@dataclass
class _Outputs:
    """The outputs of hosts, each as the lines of its file."""

    hosts: dict[str, list[bytes]] = field(default_factory=dict)
    #: Lines of no host, and bytes of all lines.
    others: int = 0
    size: int = 0


def is_of_hosts(start: bytes, is_known: Callable[[bytes], bool]) -> bool:
    """Return True if a file with this beginning has outputs of hosts, one of them of a known kind.

    `is_known` returns True for the beginning of a file of a known kind.
    """
    outputs = _divided(lines_of([start[: start.rfind(b"\n") + 1]]))
    most = _MAX_OTHERS * sum(map(len, outputs.hosts.values()))
    return outputs.others <= most and any(map(is_known, map(b"\n".join, outputs.hosts.values())))


def read(
    file: str, blocks: Iterable[bytes], read_one: Callable[[str, bytes], Iterable[Report]]
) -> list[Report]:
    """Return the reports of each host, as `read_one` reads the output of one host."""
    outputs = _divided(lines_of(blocks))
    gaps: tuple[Gap, ...] = ()
    if outputs.size > _MOST:
        gaps = (Gap(reason=f"what follows {_MOST >> 20} MiB", devices=Unread.XIDS),)
    reports: list[Report] = []
    for host, lines in outputs.hosts.items():
        found = list(read_one(file, b"\n".join(lines) + b"\n")) or [_unknown(file, lines)]
        for report in found:
            # Numbers are those of the tasks of srun.
            own = f"{label(report)}:{host}" if host.isdigit() else host
            own = report.host if report.host and not is_label(report.host) else own
            reading = replace(report.reading, unread=(*report.reading.unread, *gaps))
            reports.append(replace(report, host=own, reading=reading))
    return reports


def _unknown(file: str, lines: Sequence[bytes]) -> Report:
    """Return the report of a host whose output shows nothing, such as a command that failed."""
    first = next((line for line in lines if line.strip()), b"")
    text = plain(first.decode("utf-8", "replace"), 100)
    return Report(
        file=file,
        kind=ReportKind.NVIDIA_SMI,
        reading=Reading(unread=(Gap(reason=f"its GPUs ({text})", devices=Unread.GPUS),)),
        shows=f"nothing that is known: {text}",
    )


def _divided(lines: Iterator[bytes]) -> _Outputs:
    """Return the lines of each host."""
    first = next((line for line in lines if line.strip()), b"")
    lines = chain((first,), lines)
    by_line = _by_headers if _RULE.fullmatch(first) or _ANSIBLE.match(first) else _by_prefix
    outputs = _Outputs()
    for hosts, line in by_line(lines):
        outputs.size += len(line) + 1
        if outputs.size > _MOST:
            break
        for host in hosts:
            outputs.hosts.setdefault(host, []).append(line)
        outputs.others += not hosts
    if any(map(str.isdigit, outputs.hosts)):
        # What srun writes itself has no number of a task.
        outputs.hosts = {host: own for host, own in outputs.hosts.items() if host.isdigit()}
    return outputs


def _by_prefix(lines: Iterable[bytes]) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Yield the host and the rest of each line; no host for one that names none."""
    for line in lines:
        found = _PREFIX.match(line)
        host = found[1].decode() if found else ""
        if found and not _PROGRAM.fullmatch(host):
            yield (host,), line[found.end() :]
        elif line.strip() and not found:
            yield (), line


def _by_headers(lines: Iterable[bytes]) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Yield the hosts and each line below a header; no host above the first one."""
    hosts: tuple[str, ...] = ()
    before: list[bytes] = []
    for line in lines:
        if found := _ANSIBLE.match(line):
            hosts = (found[1].decode(),)
        elif _RULE.fullmatch(line) and len(before) == 2:
            hosts, before = _listed(before[1]), []
        elif _RULE.fullmatch(line) and not before:
            before = [line]
        elif len(before) == 1 and _NAMES.fullmatch(line):
            before.append(line)
        else:
            for held in (*before, line):
                yield hosts, held
            before = []


def _listed(names: bytes) -> tuple[str, ...]:
    """Return the hosts of a header such as `node[1-3] (3)`."""
    text = names.decode("utf-8", "replace").partition(" ")[0]
    try:
        return tuple(expand([text], say=lambda _: None))
    except BadInput:
        return ()
