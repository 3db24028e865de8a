"""Read a text with one or several outputs about a host: nvidia-smi, its NVLinks, a kernel log.

People put such outputs into one file, often below the commands that printed them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby

from accept.foreign_logs import kernel_log, nvidia_smi
from accept.foreign_logs.host_state import Report, ReportKind, label, lines_of

_Reader = Callable[[str, Iterable[bytes]], list[Report]]

#: Words of the logs of other programs, which may begin with such outputs or quote them.
_OTHER_LOG = re.compile(rb"NCCL INFO|NCCL WARN|# +nThread|#wrong")
_KINDS: tuple[tuple[Callable[[bytes], bool], _Reader], ...] = (
    (nvidia_smi.is_query, nvidia_smi.read_query),
    (nvidia_smi.is_nvlink, nvidia_smi.read_nvlink),
    (kernel_log.is_kernel_log, kernel_log.read),
)


def is_state(start: bytes) -> bool:
    """Return True if a file with this beginning has such an output and was not written by a job."""
    return not _OTHER_LOG.search(start) and any(is_of_kind(start) for is_of_kind, _ in _KINDS)


def read(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return what the outputs show. No content raises an error."""
    blocks = iter(blocks)
    start = next(blocks, b"")
    whole = chain((start,), blocks)
    first = kernel_log.read if kernel_log.is_kernel_log(start) else None
    if not any(map(_Sections(first), lines_of([start]))):
        # An excerpt has no line with which an output begins.
        reader = next((reader for is_of_kind, reader in _KINDS if is_of_kind(start)), None)
        return reader(file, whole) if reader else []
    reports: list[Report] = []
    for section, lines in groupby(lines_of(whole), key=_Sections(first)):
        if section:
            reports += section[0](file, (line + b"\n" for line in lines))
    return list(_without_repetitions(reports))


class _Sections:
    """Returns the reader of the output that a line belongs to, and the number of the output."""

    def __init__(self, first: _Reader | None) -> None:
        self._current = (first, 0) if first else None
        self._in_xml = False

    def __call__(self, line: bytes) -> tuple[_Reader, int] | None:
        reader = self._current[0] if self._current else None
        begins: _Reader | None = None
        if nvidia_smi.is_xml(line):
            # Several lines look like the beginning of a document.
            is_inside = self._in_xml and reader is nvidia_smi.read_query
            begins = None if is_inside else nvidia_smi.read_query
            self._in_xml = True
        elif nvidia_smi.begins_query(line):
            begins, self._in_xml = nvidia_smi.read_query, False
        elif nvidia_smi.begins_nvlink(line):
            begins = nvidia_smi.read_nvlink if reader is not nvidia_smi.read_nvlink else None
        elif reader is not kernel_log.read and kernel_log.is_message(line):
            begins = kernel_log.read
        if begins:
            self._current = begins, self._current[1] + 1 if self._current else 0
        return self._current


def _without_repetitions(reports: Iterable[Report]) -> Iterator[Report]:
    """Yield all kernel logs, and of each other kind the report that shows most; failures first.

    Other GPUs are those of another host, which the file does not name.
    """
    hosts: list[set[str]] = [set()]
    best: dict[tuple[int, ReportKind], Report] = {}
    for report in reports:
        if report.kind is ReportKind.KERNEL_LOG:
            yield report
            continue
        uuids = {gpu.uuid for gpu in report.gpus if gpu.uuid}
        if uuids and hosts[-1] and not hosts[-1] & uuids:
            hosts.append(set())
        hosts[-1] |= uuids
        number = len(hosts)
        own = report if number == 1 else replace(report, host=f"{label(report)}:{number}")
        key = (number, report.kind)
        if key not in best or _rank(own) <= _rank(best[key]):
            best[key] = own
    yield from best.values()


def _rank(report: Report) -> tuple[bool, int]:
    failed = report.problems or any(device.errors for device in report.reading.devices)
    return not failed, len(report.reading.unread)
