"""Find log files in folders and archives, and open them one after another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.text import plain
from accept.evidence import archive, rundir

#: Limit against archives made to exhaust the reader; no collection of logs is that large.
_MAX_FILES = 100_000


class File(NamedTuple):
    """An open file; a member of an archive is named ARCHIVE:MEMBER."""

    name: str
    blocks: Iterator[bytes]
    #: True if the user named this file, and not its folder or archive.
    named: bool


def walk(path: Path) -> Iterator[File]:
    """Return every regular file in `path`; read each before asking for the next.

    Nothing is unpacked to a disk. Raises BadEvidence for a damaged archive, and for too many files
    or bytes.
    """
    count = 0
    for file in _files(path):
        for member, blocks in archive.contents(file):
            count += 1
            if count > _MAX_FILES:
                raise BadEvidence(
                    f"{plain(path)}: more than {_MAX_FILES} files",
                    code=Code.LOGS_TOO_MANY,
                    hint="name the folder of the logs",
                )
            name = f"{file}:{member}" if member else str(file)
            yield File(name, blocks, named=file == path and not member)


def _files(path: Path) -> Iterator[Path]:
    """Yield a file, or all files in a folder except hidden ones."""
    if rundir.is_file(path):
        yield path
        return
    for folder, subfolders, names in os.walk(path):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder) / name
            if not name.startswith(".") and rundir.is_file(file):
                yield file
