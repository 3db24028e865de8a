"""Read untrusted files: only regular ones, and tar archives with bounded headers, front to back."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from accept.core.text import decimal

#: Size of one read, in bytes.
BLOCK = 1 << 20
#: Maximum size of a header with a long name or with pax records. Names have at most 4 KiB.
_MAX_HEADER = 64 << 10
#: Maximum number of such headers before one member.
_MAX_HEADERS = 16
#: Types of the headers that describe the next member, or all later members.
_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.XGLTYPE,
)
#: Errors that damaged archives raise. Errors of our own code, such as TypeError, are not among
#: them.
DAMAGE = (tarfile.TarError, zlib.error, EOFError, OSError, OverflowError, ValueError)


class Readable(Protocol):
    """A file, or a compressed file, that can be read from its beginning to its end."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""
        ...


#: Names of what this process inherited, such as the pipe that a shell makes for `<(command)`.
_INHERITED = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def open_regular(path: Path, *, follow: bool = False, inherited: bool = False) -> BinaryIO:
    """Open a regular file for reading. Follow links only if `follow` is set.

    With `inherited`, also open what this process inherited: for a name of the command line, never
    for one of a file. Raises OSError for anything else, without waiting for a pipe or a device.
    """
    if inherited and str(path).startswith(_INHERITED):
        return path.open("rb")
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        # Some files of /proc can be opened, but not read.
        os.pread(descriptor, 1, 0)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


#: No file of a run folder is larger, in bytes.
_MOST = 16 << 20


def read_whole(path: Path) -> bytes:
    """Return a regular file. Raises OSError for a link, a pipe, or more than 16 MiB."""
    with open_regular(path) as file:
        content = file.read(_MOST + 1)
    if len(content) > _MOST:
        raise OSError(errno.EFBIG, "it is too large", str(path))
    return content


def is_linked(folder: Path, path: Path) -> bool:
    """Return True if a path below a folder, or a folder between them, is a link."""
    parts = path.relative_to(folder).parts
    return any(folder.joinpath(*parts[:end]).is_symlink() for end in range(1, len(parts) + 1))


def is_file(path: Path) -> bool:
    """Return True for a regular file; False also for a name that no file can have."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises OSError for such names


def is_folder(path: Path) -> bool:
    """Return True for a folder; False also for a name that no folder can have."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises OSError for such names


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member of a tar archive."""

    name: str
    #: Size of the content in bytes, and its position in the archive.
    size: int
    start: int
    is_file: bool
    is_folder: bool


class Tar:
    """A tar archive that is read once, front to back, in bounded memory."""

    def __init__(self, file: Readable, *, seek: Callable[[int, int], object] | None = None) -> None:
        """Read from the current position of `file`. Pass its `seek` method only if that is fast."""
        self._file, self._seek = file, seek
        self._position = 0
        #: Bytes of the current content that were not read yet, without and with its padding.
        self._content = self._left = 0

    def __iter__(self) -> Iterator[Member]:
        """Yield the members. Raises an error of `DAMAGE` if the archive is damaged or cut off."""
        name = ""
        records: dict[str, str] = {}
        headers = 0
        while (block := self._read(tarfile.BLOCKSIZE)) != bytes(tarfile.BLOCKSIZE):
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            if info.type in _HEADERS:
                headers += 1
                if not 0 <= info.size <= _MAX_HEADER or headers > _MAX_HEADERS:
                    raise ValueError(f"header {headers} of a member has {info.size} bytes")
                text = self._read(_padded(info.size))[: info.size]
                if info.type == tarfile.GNUTYPE_LONGNAME:
                    name = text.rstrip(b"\0").decode("utf-8", "surrogateescape")
                elif info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                    records = dict(_pax_records(text))
                continue
            yield self._member(info, name, records)
            name, records, headers = "", {}, 0
            self._skip()

    def _member(self, info: tarfile.TarInfo, name: str, records: dict[str, str]) -> Member:
        size = decimal(records["size"]) if "size" in records else info.size
        if size is None or size < 0 or info.type == tarfile.GNUTYPE_SPARSE:
            raise ValueError("a member is sparse, or its size is not valid")
        has_content = info.isreg() or info.type not in tarfile.SUPPORTED_TYPES
        self._content = size if has_content else 0
        self._left = _padded(self._content)
        return Member(
            name=records.get("path", name or info.name),
            size=size,
            start=self._position,
            is_file=info.isreg() and not any(key.startswith("GNU.sparse") for key in records),
            is_folder=info.isdir(),
        )

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes of the current content; none at its end.

        Raises ValueError if the archive is cut off.
        """
        content = self._read(min(size, BLOCK, self._content))
        self._content -= len(content)
        self._left -= len(content)
        return content

    def _skip(self) -> None:
        """Go to the next header."""
        if self._seek is not None:
            self._seek(self._left, os.SEEK_CUR)
            self._position += self._left
            self._left = 0
        while self._left:
            self._left -= len(self._read(min(BLOCK, self._left)))
        self._content = 0

    def _read(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises ValueError if the file ends earlier."""
        parts, left = [], size
        while left:
            part = self._file.read(left)
            if not part:
                raise ValueError("its end is missing")
            parts.append(part)
            left -= len(part)
        self._position += size
        return b"".join(parts)


def _padded(size: int) -> int:
    """Return a size in bytes, rounded up to whole blocks."""
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _pax_records(text: bytes) -> Iterator[tuple[str, str]]:
    """Yield the records `LENGTH KEY=VALUE` of a pax header. Raises ValueError if one is invalid."""
    while text:
        length, _, rest = text.partition(b" ")
        size = decimal(length.decode("ascii", "replace"))
        if (
            size is None
            or not len(length) + 3 <= size <= len(text)
            or text[size - 1 : size] != b"\n"
        ):
            raise ValueError("a pax header is not valid")
        key, _, value = rest[: size - len(length) - 2].partition(b"=")
        yield key.decode("utf-8", "replace"), value.decode("utf-8", "surrogateescape")
        text = text[size:]
