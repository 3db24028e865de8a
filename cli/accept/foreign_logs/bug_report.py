"""Read the file of nvidia-bug-report.sh: its kernel log, `nvidia-smi -q` and NVLink parts.

The script separates its parts by a line of underscores. A part begins with the command that wrote
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from accept.foreign_logs import kernel_log, nvidia_smi
from accept.foreign_logs.host_state import Report, ReportKind, lines_of

_START = re.compile(rb"^Start of NVIDIA bug report log file", re.MULTILINE)
_LINE = re.compile(rb"_{20,}\s*$")
_UNAME = re.compile(rb"^uname: Linux ([A-Za-z0-9][\w.-]{0,254}) ", re.MULTILINE)
#: The command that wrote a part.
_COMMAND = re.compile(rb"\A\s*/\S{1,200}/nvidia-smi [^\n]{0,200}\n")
_END = b"End of NVIDIA bug report log file"
#: The part with lines of all kernel logs, which may be of any boot, and those of this boot in it.
_SCAN, _THIS_BOOT = b"Scanning kernel log files", re.compile(rb"\s*journalctl -b -?0:")
_OTHER_BOOT = re.compile(rb"\s*(?:journalctl -b -[1-9]\d*:|/\S+:\s*$)")
#: Upper limits of a part that is kept, and of its head, in bytes.
_MAX_PART, _HEAD = 64 << 20, 4096


def is_bug_report(start: bytes) -> bool:
    """Return True if a file begins like that of nvidia-bug-report.sh."""
    return bool(_START.search(start[:_HEAD]))


def read(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return the state of the host. No content raises an error."""
    host, ended = "", False
    reports: list[Report] = []
    scanned: list[bytes] = []
    for part in _parts(blocks):
        text = _COMMAND.sub(b"", b"\n".join(part))
        if found := _UNAME.search(text[:_HEAD]):
            host = host or found[1].decode("ascii", "replace")
        ended = ended or _END in text[-_HEAD:]
        if text.lstrip().startswith(_SCAN):
            scanned = list(_of_this_boot(part))
        elif text.lstrip().startswith(b"dmesg:"):
            reports += kernel_log.read(file, [text.lstrip().removeprefix(b"dmesg:")])
        elif nvidia_smi.is_query(text):
            reports += nvidia_smi.read_query(file, [text])
        elif nvidia_smi.is_nvlink(text):
            reports += nvidia_smi.read_nvlink(file, [text])
    if not any(report.kind is ReportKind.KERNEL_LOG for report in reports):
        reports += kernel_log.read(file, [b"\n".join(scanned)])
    reports = [replace(report, host=host or report.host) for report in reports]
    return [report if ended else _cut(report) for report in _one_of_each(reports)]


def _cut(report: Report) -> Report:
    return replace(report, shows=f"{report.shows} (the bug report is cut off)")


def _one_of_each(reports: Iterable[Report]) -> Iterator[Report]:
    """Yield the first report of each kind that shows something; later ones repeat parts of it."""
    kinds: set[ReportKind] = set()
    for report in reports:
        shows = report.reading.devices or report.reading.log or report.problems
        if report.kind not in kinds and shows:
            kinds.add(report.kind)
            yield report


def _parts(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for line in lines_of(blocks):
        if _LINE.match(line):
            yield part
            part, size = [], 0
        elif size < _MAX_PART:
            part.append(line)
            size += len(line)
    yield part


def _of_this_boot(part: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of the current boot in the part with lines of all kernel logs."""
    this_boot = False
    for line in part:
        if _THIS_BOOT.match(line):
            this_boot = True
        elif _OTHER_BOOT.match(line):
            this_boot = False
        elif this_boot:
            yield line
