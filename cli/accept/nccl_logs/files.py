"""Open the files in folders and archives one after another."""

from __future__ import annotations

import gzip
import os
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from accept.core.errors import BadEvidence
from accept.core.text import plain
from accept.evidence import archive as evidence_archive
from accept.evidence import rundir

#: Limits against archives made to exhaust the reader; no collection of logs is that large.
_MAX_FILES = 100_000
#: Bytes of one file.
_MAX_UNPACKED = 64 << 30
#: Bytes.
_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"


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
    for count, file in enumerate(_walk(path), 1):
        if count > _MAX_FILES:
            raise BadEvidence(
                f"{plain(path)}: more than {_MAX_FILES} files", hint="name the folder of the logs"
            )
        yield file


def _walk(path: Path) -> Iterator[File]:
    if rundir.kind(path) == "file":
        yield from _open(path, named=True)
        return
    for folder, subfolders, names in os.walk(path):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder) / name
            if not name.startswith(".") and rundir.kind(file) == "file":
                yield from _open(file, named=False)


def _open(path: Path, *, named: bool) -> Iterator[File]:
    try:
        with path.open("rb") as file:
            start = file.read(512)
        if evidence_archive.is_tar(path):
            yield from _of_tar(path)
        elif zipfile.is_zipfile(path):
            yield from _of_zip(path)
        elif start.startswith(_GZIP):
            with gzip.open(path) as packed:
                yield File(str(path), _blocks(cast("BinaryIO", packed), path), named)
        else:
            with path.open("rb") as file:
                yield File(str(path), _blocks(file, path), named)
    except BadEvidence:
        raise
    # Parsing a damaged header raises more than the libraries' own errors.
    except Exception as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> BadEvidence:
    reason = plain(error, 200) or type(error).__name__
    return BadEvidence(f"{plain(path)} cannot be read: {reason}", hint="copy it again")


def _of_tar(path: Path) -> Iterator[File]:
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            if file is not None:
                blocks = _blocks(cast("BinaryIO", file), path)
                yield File(f"{path}:{member.name}", blocks, named=False)


def _of_zip(path: Path) -> Iterator[File]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                with ExitStack() as stack:
                    file = stack.enter_context(archive.open(member))
                    blocks = _blocks(cast("BinaryIO", file), path)
                    yield File(f"{path}:{member.filename}", blocks, named=False)


def _blocks(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Return the unpacked content of a file. Raises BadEvidence if it is damaged or too large.

    The caller of `walk` consumes this, so `_open` cannot handle its errors.
    """
    left = _MAX_UNPACKED
    while left > 0:
        try:
            block = file.read(_BLOCK)
        except Exception as error:
            raise _damaged(path, error) from None
        if not block:
            return
        left -= len(block)
        yield block
    raise BadEvidence(f"{plain(path)} has more than 64 GiB", hint="name only the logs")
