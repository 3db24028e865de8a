"""Find the files in folders and archives that may be logs, and read each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from accept.evidence.untrusted import Entry, Limits, walk
from accept.foreign_logs.host_state import words_of
from accept.foreign_logs.tables import NoLog, Read, read

#: Beginnings of the names of files and folders that describe a host, not a launch. Such a file is
#: a log only if it contains results; without results it is not a log that ended early.
_CONTEXT = re.compile(
    r"(?:dcgmi|dmesg|dmidecode|env|ethtool|hostname|ibdev2netdev|ibstat|ibstatus|ibv_devinfo|"
    r"ifconfig|journal|journalctl|kern|license|lscpu|lsmod|lspci|nvidia[-_]bug|nvidia[-_]smi|"
    r"os-release|readme|sosreport|sysinfo|syslog|uname)(?![a-z])",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """The content of a file that may be a log."""

    log: Read
    #: True if the user named this file, and not its folder or archive.
    named: bool
    #: True if the name of the file or of its folder shows that it describes a host or a run.
    is_context: bool


def read_all(
    path: Path, limits: Limits, *, collective: str | None = None, title: str = ""
) -> Iterator[LogFile]:
    """Read every file in a file, folder or archive, one after another.

    `title` is what people call the path; empty: the path.
    Raises BadEvidence for a damaged archive, and if something exceeds the limits.
    """
    for entry in walk(path, limits):
        if entry.is_hidden and not entry.named:
            continue
        name = entry.name.replace(str(path), title, 1) if title else entry.name
        if entry.is_other_kind:
            log = Read(file=name, no_log=NoLog.OTHER_KIND)
        elif entry.unread:
            log = Read(file=name, no_log=entry.unread)
        else:
            log = read(name, entry.blocks, collective=collective)
        if log.reports:
            words = words_of((title,) if title and entry.named else _parts(path, entry))
            log = replace(log, reports=tuple(replace(one, words=words) for one in log.reports))
        is_context = any(_CONTEXT.match(part) for part in entry.parts[-2:])
        yield LogFile(log=log, named=entry.named, is_context=is_context)


def _parts(path: Path, entry: Entry) -> tuple[str, ...]:
    """Return the parts of a path that may name the host of a file.

    These are the parts that the user wrote, if it is not an absolute path of a file.
    """
    if not entry.named:
        return (path.name, *entry.parts)
    return path.parts if not path.is_absolute() else (path.name,)
