"""Read untrusted folders and archives: no links, no devices; limited in size, depth and time.

Everything is read front to back, in blocks. Only zip archives inside other archives are copied to a
temporary file. `accept.core.safe_read` opens the files and reads tar archives.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import re
import stat
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.safe_read import BLOCK, DAMAGE, Readable, Tar, is_folder, open_regular
from accept.core.text import plain

Parts = tuple[str, ...]

#: Errors that damaged archives raise.
_DAMAGE = (*DAMAGE, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, RuntimeError)
#: Upper limit of the list of members of a zip archive, in bytes. It holds 100,000 long names.
_MAX_DIRECTORY = 12 << 20
#: Upper limit of a zip archive inside an archive that is kept in memory, in bytes.
_IN_MEMORY = 8 << 20
#: Upper limit of the memory for decompressing xz; `xz -9` needs 65 MiB.
_XZ_MEMORY = 100 << 20
#: Bytes that show the format of a file.
_HEAD = tarfile.BLOCKSIZE
#: A hole in a file on a disk is read as this many bytes.
_HOLE = bytes(4096)

_SUFFIXES = """
a bash c cc cfg cjs class conf cpp css cu cuh cxx deb diff dll docx exe fish gif go h hh hpp htm
html ico ini ipynb j2 jar java jpeg jpg js jsx key lock lua md mdx mjs mk mp4 npy npz o onnx parquet
patch pdf pem pkl png ppt pptx proto ps1 pt pth pub py pyc pyi pyx rb rpm rst scala service sh so
sql svg swift tex tmpl toml tpl ts tsx ttf vue wasm webp whl woff woff2 xls xlsx yaml yml zsh
"""
#: Suffixes of sources, documents, images, programs and packages. Only such a file's name is read,
#: unless the user names the file, or it belongs to evidence.
OTHER_SUFFIXES = frozenset(_SUFFIXES.split())


class _Format(Enum):
    """A format of a file, as its first bytes show it."""

    PLAIN = auto()
    TAR = auto()
    ZIP = auto()
    GZIP = auto()
    BZIP2 = auto()
    XZ = auto()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of what one command may read. More is an error."""

    files: int = 100_000
    total: int = 64 << 30
    #: Depth of folders, and of archives in archives.
    folders: int = 64
    archives: int = 4
    #: Limit of what a file unpacks to: `ratio` times its size, or `free` bytes if that is more.
    #: Logs reach a ratio of about 100.
    ratio: int = 100
    free: int = 64 << 20
    #: End of the time of the whole command, on the monotonic clock.
    until: float = field(default_factory=lambda: time.monotonic() + 3600)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file that was found. Read its content before you request the next one."""

    #: Name for people: PATH, or ARCHIVE:MEMBER.
    name: str
    #: Position below the path that the user named; an archive counts as a folder.
    parts: Parts
    #: Path on this disk; None for a member of an archive.
    path: Path | None
    #: True if the user named this file, and not its folder or archive.
    named: bool = False
    #: Reason why the content is not read; empty: it is.
    unread: str = ""
    blocks: Iterator[bytes] = field(default_factory=lambda: iter(()))

    @property
    def is_hidden(self) -> bool:
        """Return True if the file or one of its folders is hidden, or is an extra of macOS."""
        return any(part == "__MACOSX" or re.match(r"\.[^.]", part) for part in self.parts)

    @property
    def is_other_kind(self) -> bool:
        """Return True if the name shows that this is neither a log nor an archive."""
        return not self.named and is_other_kind(self.parts[-1])


def is_below(parts: Parts, folder: Parts) -> bool:
    """Return True if a position is in a folder or archive, at any depth."""
    return len(parts) > len(folder) and parts[: len(folder)] == folder


def is_other_kind(name: str) -> bool:
    """Return True if the name of a file shows that it is neither a log nor an archive."""
    stem, _, suffix = name.rpartition(".")
    return bool(stem) and suffix.lower() in OTHER_SUFFIXES


def walk(path: Path, limits: Limits, *, whole: Collection[Parts] = ()) -> Iterator[Entry]:
    """Yield all regular files in a file, folder or archive; links and devices are not read.

    Hidden files and folders on the disk are left out. In an archive, all files below a position in
    `whole` are read unmodified, whatever their names and formats. Raises BadEvidence if an archive
    is damaged, or something exceeds a limit.
    """
    reader = _Reader(limits, whole)
    if is_folder(path):
        for file, parts, link in _files(path, limits):
            reader.count(path)
            if link:
                unread = "a link; name it to read it"
                yield Entry(name=str(file), parts=parts, path=file, unread=unread)
            else:
                yield from reader.file(file, parts, named=False)
    else:
        yield from reader.file(path, (path.name,), named=True)


def _files(root: Path, limits: Limits) -> Iterator[tuple[Path, Parts, bool]]:
    """Yield path and position of each regular file or link in a folder, in order."""
    folders: list[tuple[Path, Parts]] = [(root, ())]
    while folders:
        folder, parts = folders.pop()
        if len(parts) > limits.folders:
            raise _too_deep(root, limits)
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            raise _unreadable(folder, error) from None
        visible = [entry for entry in entries if not entry.name.startswith(".")]
        for entry in visible:
            is_link = entry.is_symlink()
            if is_link or entry.is_file(follow_symlinks=False):
                yield folder / entry.name, (*parts, entry.name), is_link
        inner = [entry for entry in visible if entry.is_dir(follow_symlinks=False)]
        folders += ((folder / entry.name, (*parts, entry.name)) for entry in reversed(inner))


class _Reader:
    """The counters of one walk."""

    def __init__(self, limits: Limits, whole: Collection[Parts]) -> None:
        self._limits, self._whole = limits, whole
        self._files = self._bytes = 0
        #: Bytes that the current file on the disk may still unpack to.
        self._left = 0

    def count(self, path: Path) -> None:
        """Count a file. Raises BadEvidence if there are too many."""
        self._files += 1
        if self._files > self._limits.files:
            raise BadEvidence(
                f"{plain(path)}: more than {self._limits.files} files",
                code=Code.LOGS_TOO_MANY,
                hint="name the folder of the logs",
            )

    def file(self, path: Path, parts: Parts, *, named: bool) -> Iterator[Entry]:
        """Yield a file on the disk; if it is an archive, yield its members."""
        entry = Entry(name=str(path), parts=parts, path=path, named=named)
        if entry.is_other_kind or self._is_whole(parts):
            yield entry
            return
        try:
            file = open_regular(path, follow=named)
            status = os.fstat(file.fileno())
        except OSError as error:
            if named:
                raise _unreadable(path, error) from None
            yield Entry(name=str(path), parts=parts, path=path, unread=str(error.strerror))
            return
        with file:
            self._left = max(self._limits.free, status.st_size * self._limits.ratio)
            yield from self._content(file, entry, path, archives=0)

    def _is_whole(self, parts: Parts) -> bool:
        return any(is_below(parts, position) for position in self._whole)

    def _content(
        self, file: BinaryIO | IO[bytes], entry: Entry, path: Path, *, archives: int
    ) -> Iterator[Entry]:
        """Yield a file that can be read from any position, or its members."""
        try:
            head = file.read(_HEAD)
            file.seek(0)
            kind = _format(head)
            if kind is _Format.ZIP:
                yield from self._zip(file, entry, path, archives=archives)
            elif kind is _Format.TAR:
                tar = Tar(file, seek=file.seek)
                yield from self._tar(tar, entry, path, archives=archives)
            elif kind is _Format.PLAIN:
                source = _Holes(file) if archives == 0 else file
                yield replace(entry, blocks=self._blocks(source, path))
            else:
                yield from self._compressed(kind, file, entry, path, archives=archives)
        except _DAMAGE as error:
            raise damaged(path, error) from None

    def _inner(
        self, source: Readable, entry: Entry, path: Path, *, archives: int
    ) -> Iterator[Entry]:
        """Yield a member of an archive, or the members of an inner archive."""
        self.count(path)
        self._check(0, path)
        if self._is_whole(entry.parts):
            yield replace(entry, blocks=self._blocks(source, path))
            return
        if entry.is_other_kind:
            yield entry
            return
        peeked = _Peeked(source)
        kind = _format(peeked.head)
        if kind is _Format.PLAIN:
            yield replace(entry, blocks=self._blocks(peeked, path))
        elif archives > self._limits.archives:
            raise BadEvidence(
                f"{plain(entry.name)}: more than {self._limits.archives} archives in each other",
                code=Code.ARCHIVE_TOO_LARGE,
                hint="unpack it, then name the folder of the logs or of the evidence",
            )
        elif kind is _Format.TAR:
            yield from self._tar(Tar(peeked), entry, path, archives=archives)
        elif kind is _Format.ZIP:
            with tempfile.SpooledTemporaryFile(_IN_MEMORY) as copy:
                for block in self._blocks(peeked, path):
                    copy.write(block)
                copy.seek(0)
                yield from self._zip(copy, entry, path, archives=archives)
        else:
            yield from self._compressed(kind, peeked, entry, path, archives=archives)

    def _compressed(
        self, kind: _Format, file: Readable, entry: Entry, path: Path, *, archives: int
    ) -> Iterator[Entry]:
        source = _Counted(_DECOMPRESS[kind](file), lambda size: self._unpacked(size, path))
        peeked = _Peeked(source)
        if _format(peeked.head) is _Format.TAR:
            yield from self._tar(Tar(peeked), entry, path, archives=archives)
        else:
            yield replace(entry, blocks=self._blocks(peeked, path))

    def _tar(self, tar: Tar, entry: Entry, path: Path, *, archives: int) -> Iterator[Entry]:
        for member in tar:
            inner = self._member(entry, member.name, path)
            if member.is_file:
                yield from self._inner(tar, inner, path, archives=archives + 1)
            elif not member.is_folder:
                self.count(path)
                yield Entry(
                    name=inner.name, parts=inner.parts, path=None, unread="a link or device"
                )

    def _zip(self, file: IO[bytes], entry: Entry, path: Path, *, archives: int) -> Iterator[Entry]:
        with zipfile.ZipFile(_Directory(file)) as packed:
            for info in packed.infolist():
                inner = self._member(entry, info.filename, path)
                if info.is_dir():
                    continue
                if stat.S_ISLNK(info.external_attr >> 16):
                    self.count(path)
                    yield Entry(name=inner.name, parts=inner.parts, path=None, unread="a link")
                    continue
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise NotImplementedError("a compression that is not deflate")
                with packed.open(info) as content:
                    source = _Counted(content, lambda size: self._unpacked(size, path))
                    yield from self._inner(source, inner, path, archives=archives + 1)

    def _member(self, archive: Entry, name: str, path: Path) -> Entry:
        """Return a member of an archive. Raises BadEvidence if it is in too many folders."""
        if (name.count("/") + name.count("\\")) > self._limits.folders:
            raise _too_deep(path, self._limits)
        return _member(archive, name)

    def _blocks(self, source: Readable, path: Path) -> Iterator[bytes]:
        """Yield the content of a file. Raises BadEvidence if it is damaged or too large."""
        while True:
            try:
                block = source.read(BLOCK)
            except _DAMAGE as error:
                raise damaged(path, error) from None
            if not block:
                return
            self._check(len(block), path)
            yield block

    def _unpacked(self, size: int, path: Path) -> None:
        self._left -= size
        if self._left < 0:
            raise BadEvidence(
                f"{plain(path)} unpacks to more than {self._limits.ratio} times its size",
                code=Code.ARCHIVE_TOO_LARGE,
                hint="logs never do; if these do, unpack them and name the folder",
            )
        self._check(size, path)

    def _check(self, size: int, path: Path) -> None:
        """Count bytes. Raises BadEvidence if there are too many, or the time is over."""
        self._bytes += size
        if self._bytes > self._limits.total:
            raise BadEvidence(
                f"{plain(path)}: more than {self._limits.total >> 30} GiB",
                code=Code.ARCHIVE_TOO_LARGE,
                hint="name only the logs",
            )
        if time.monotonic() > self._limits.until:
            raise BadEvidence(
                f"{plain(path)}: reading it took too long",
                code=Code.ARCHIVE_TOO_LARGE,
                hint="name only the logs, in several commands",
            )


def _member(archive: Entry, name: str) -> Entry:
    parts = tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))
    separator = "/" if ":" in archive.name and archive.path is None else ":"
    return Entry(
        name=f"{archive.name}{separator}{name}",
        parts=(*archive.parts, *(parts or (name,))),
        path=None,
    )


def damaged(path: Path, error: Exception) -> BadEvidence:
    """Return the error for an archive that cannot be read."""
    reason = plain(error, 200) or type(error).__name__
    return BadEvidence(
        f"{plain(path)} cannot be read: {reason}", code=Code.ARCHIVE_DAMAGED, hint="copy it again"
    )


def _too_deep(path: Path, limits: Limits) -> BadEvidence:
    return BadEvidence(
        f"{plain(path)} has more than {limits.folders} levels of folders",
        code=Code.LOGS_TOO_MANY,
        hint="name the folder of the logs",
    )


def _unreadable(path: Path, error: OSError) -> BadEvidence:
    return BadEvidence(
        f"{plain(path)}: {error.strerror}", code=Code.LOGS_UNREADABLE, hint="name another file"
    )


def _format(head: bytes) -> _Format:
    """Return the format that the first bytes of a file show."""
    for start, kind in _STARTS.items():
        if head.startswith(start):
            return kind
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return _Format.PLAIN
    return _Format.TAR


_STARTS = {
    b"PK\x03\x04": _Format.ZIP,
    b"PK\x05\x06": _Format.ZIP,
    b"\x1f\x8b\x08": _Format.GZIP,
    b"BZh": _Format.BZIP2,
    b"\xfd7zXZ\x00": _Format.XZ,
}


class _Peeked:
    """A file whose first bytes were read in advance."""

    def __init__(self, source: Readable) -> None:
        self.head = source.read(_HEAD)
        while len(self.head) < _HEAD and (more := source.read(_HEAD - len(self.head))):
            self.head += more
        self._rest, self._source = self.head, source

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""
        first, self._rest = self._rest[:size], self._rest[size:]
        return first + self._source.read(size - len(first)) if size > len(first) else first


class _Counted:
    """A file whose bytes are counted."""

    def __init__(self, source: Readable, count: Callable[[int], None]) -> None:
        self._source, self._count = source, count

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""
        block = self._source.read(size)
        self._count(len(block))
        return block


class _Holes:
    """A file on a disk. Its holes are read as a few NULs, because they may have any size."""

    def __init__(self, file: BinaryIO | IO[bytes]) -> None:
        self._file, self._position = file, 0

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""
        try:
            data = os.lseek(self._file.fileno(), self._position, os.SEEK_DATA)
        except OSError as error:
            # ENXIO: only a hole follows. With other errors, the file system does not know.
            is_hole = error.errno == errno.ENXIO
            data = os.fstat(self._file.fileno()).st_size if is_hole else self._position
        if data > self._position + len(_HOLE):
            self._position = data
            return _HOLE
        # The buffer of the file does not know the position that lseek sets.
        block = os.pread(self._file.fileno(), size, self._position)
        self._position += len(block)
        return block


class _Directory:
    """A zip archive for zipfile, whose list of members must not exceed a limit."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """Read bytes. Raises ValueError beyond the limit."""
        if size > _MAX_DIRECTORY:
            raise ValueError(f"its list of members has {size >> 20} MiB")
        return self._file.read(min(size, _MAX_DIRECTORY) if size >= 0 else _MAX_DIRECTORY)

    def seek(self, at: int, start: int = os.SEEK_SET, /) -> int:
        """Change the position."""
        return self._file.seek(at, start)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def seekable(self) -> bool:
        """Return True."""
        return True


class _Decompressor(Protocol):
    """A decompressor of bz2 or lzma."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Decompressed:
    """A file with one or several compressed streams. Its memory is that of the decompressor."""

    def __init__(self, file: Readable, new: Callable[[], _Decompressor]) -> None:
        self._file, self._new = file, new
        self._decompressor, self._input = new(), b""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end. Raises an error of `_DAMAGE`."""
        while True:
            if self._decompressor.eof:
                rest = self._decompressor.unused_data or self._file.read(BLOCK)
                self._input = rest.lstrip(b"\0")
                if not self._input:
                    return b""
                self._decompressor = self._new()
            elif self._decompressor.needs_input and not self._input:
                self._input = self._file.read(BLOCK)
                if not self._input:
                    raise EOFError("its end is missing")
            content = self._decompressor.decompress(self._input, size)
            self._input = b""
            if content or not size:
                return content


def first_bytes(blocks: Iterable[bytes], most: int) -> bytes:
    """Return the first bytes of a file, at most this many."""
    content = bytearray()
    for block in blocks:
        content += block
        if len(content) > most:
            break
    return bytes(content[:most])


def _gzip(file: Readable) -> Readable:
    return gzip.GzipFile(fileobj=file, mode="rb")  # type: ignore[call-overload, no-any-return]


_DECOMPRESS: dict[_Format, Callable[[Readable], Readable]] = {
    _Format.GZIP: _gzip,
    _Format.BZIP2: lambda file: _Decompressed(file, bz2.BZ2Decompressor),
    _Format.XZ: lambda file: _Decompressed(
        file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
    ),
}
