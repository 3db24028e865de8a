"""The files that paths stand for, folders and archives too, opened one after another."""

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

#: No corpus is larger; what claims to be is not read on.
_MOST_FILES, _MOST_UNPACKED = 100_000, 64 << 30
_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"


class File(NamedTuple):
    """A file that was opened, by the name that evidence gives it."""

    name: str
    blocks: Iterator[bytes]
    #: Whether the user named it, rather than the folder or archive that it is in.
    named: bool


def walk(path: Path) -> Iterator[File]:
    """Every regular file that `path` stands for. Each must be read before the next is asked for.

    Nothing is unpacked to a disk. Raises BadEvidence for a damaged archive, and for more files or
    bytes than anybody's logs have.
    """
    for count, file in enumerate(_walk(path), 1):
        if count > _MOST_FILES:
            raise BadEvidence(
                f"{plain(path)}: more than {_MOST_FILES} files", hint="name the folder of the logs"
            )
        yield file


def _walk(path: Path) -> Iterator[File]:
    if rundir.kind(path) == "file":
        yield from _one(path, named=True)
        return
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            one = Path(folder) / name
            if not name.startswith(".") and rundir.kind(one) == "file":
                yield from _one(one, named=False)


def _one(path: Path, *, named: bool) -> Iterator[File]:
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
    # Besides their own errors the libraries let through whatever their parsing of headers meets.
    except Exception as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> BadEvidence:
    said = plain(error, 200) or type(error).__name__
    return BadEvidence(f"{plain(path)} cannot be read: {said}", hint="copy it again")


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
    """What a file holds, packed or not, unless it has no end. Who reads it is not `_one`."""
    left = _MOST_UNPACKED
    while left > 0:
        try:
            block = file.read(_BLOCK)
        except Exception as error:
            raise _damaged(path, error) from None
        if not block:
            return
        left -= len(block)
        yield block
    raise BadEvidence(f"{plain(path)} has more than 64 GiB", hint="name the logs alone")
