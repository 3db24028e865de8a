"""Fetch and unpack evidence archives, which come from elsewhere: bounded, verified, contained."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from accept.core.errors import BadEvidence
from accept.core.evidence import TAR_DAMAGE
from accept.core.text import plain

#: No evidence is larger; what claims to be is not unpacked, and not fetched.
MOST_FILES, MOST_BYTES = 100_000, 16 << 30
#: Most that is unpacked of each byte: text shrinks to a hundredth at best, a bomb to a thousandth.
_MOST_RATIO, _FREE_RATIO_BYTES = 400, 64 << 20
#: Most that is asked for in one piece: names of members, and blocks of files.
_PIECE = 4 << 20
_BLOCK = 1 << 20
#: Errors of the disk that is written to; the archive is not to blame.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def is_tar(path: Path) -> bool:
    """Return whether a file is a tar archive, damaged or not.

    Raises OSError and EOFError as reading does.
    """
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        raise
    # It begins like an archive, and its headers are damaged.
    except TAR_DAMAGE:
        return True


def unpack(archive: Path | BinaryIO, target: Path, *, source: str) -> None:
    """Unpack a tar archive, plain or with gzip, into the folder `target`, and make that folder.

    `source` names the archive in errors. Raises BadEvidence if the archive is damaged, holds
    anything but files and folders, reaches outside, or is larger than any evidence.
    """
    try:
        if isinstance(archive, Path):
            with archive.open("rb") as file:
                _unpack(file, target)
        else:
            _unpack(archive, target)
    except BadEvidence as error:
        raise BadEvidence(f"{source}: {error.message}", hint=error.hint) from None
    except TAR_DAMAGE as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise BadEvidence(
                f"{source} cannot be unpacked into {target}: {error.strerror}",
                hint="make room on that disk, then try again",
            ) from None
        reason = plain(error, 200) or type(error).__name__
        raise BadEvidence(f"{source} is damaged: {reason}", hint="collect the run again") from None


def _unpack(file: BinaryIO, target: Path) -> None:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    most = max(_FREE_RATIO_BYTES, size * _MOST_RATIO) if packed else MOST_BYTES
    source = _Bounded(cast("BinaryIO", gzip.GzipFile(fileobj=file)) if packed else file, 2 * most)
    target.mkdir(parents=True, exist_ok=True)
    most = min(most, MOST_BYTES, shutil.disk_usage(target).free)
    count = total = 0
    with tarfile.open(fileobj=source, mode="r:") as tar:  # type: ignore[call-overload]
        for member in tar:
            count, total = count + 1, total + member.size
            _refuse(member)
            if count > MOST_FILES or total > most:
                raise BadEvidence(
                    f"it unpacks to more than {most >> 20} MiB or {MOST_FILES} files",
                    hint="no evidence is that large; is it the right archive?",
                )
            _extract(tar, member, target)
    # tarfile takes a header that is cut off or damaged for the end, except the first.
    if source.last != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("its end is missing")


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write one file or folder below `target`, readable by this user alone.

    Only new files are written, and nothing here makes links. So nothing of what `target` held
    before is changed, and the extraction filters that newer Pythons have are not needed.
    """
    folder, parts = target, PurePosixPath(member.name).parts
    for part in parts if member.isdir() else parts[:-1]:
        folder /= part
        folder.mkdir(mode=0o700, exist_ok=True)
    content = None if member.isdir() else tar.extractfile(member)
    if content is None:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        descriptor = os.open(target.joinpath(*parts), flags, 0o600)
    except FileExistsError:
        raise BadEvidence(
            f"it holds {plain(member.name, 100)} twice", hint="is it the right archive?"
        ) from None
    with content, os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file, _BLOCK)


def _refuse(member: tarfile.TarInfo) -> None:
    """Raise BadEvidence for members that evidence never holds."""
    path = PurePosixPath(member.name)
    what = ""
    if not (member.isreg() or member.isdir()) or member.issparse():
        what = "which is neither file nor folder"
    elif path.is_absolute() or ".." in path.parts:
        what = "which reaches outside"
    if what:
        raise BadEvidence(
            f"it holds {plain(member.name, 100)}, {what}", hint="is it the right archive?"
        )


class _Bounded:
    """A file for tarfile to read: no more at once than a header needs, and no more in all."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file, self._left = file, most
        #: What was read last.
        self.last = b""

    def read(self, size: int) -> bytes:
        """Read bytes; raises ValueError beyond the bounds."""
        self._left -= size
        if not 0 <= size <= _PIECE or self._left < 0:
            raise ValueError(f"a header of {size} bytes")
        self.last = self._file.read(size)
        return self.last

    def seek(self, at: int) -> int:
        """Go to a place."""
        return self._file.seek(at)

    def tell(self) -> int:
        """Return the place."""
        return self._file.tell()


@dataclass(frozen=True, kw_only=True)
class Announced:
    """What the holder of an archive announces before it sends it: size in bytes, and SHA-256."""

    size: int
    digest: str


#: Pauses between connections in a row over which nothing came, in seconds.
_PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0)
#: From this size on a download reports its progress, in bytes.
_LARGE = 32 << 20


def download(
    read_from: Callable[[int, Callable[[bytes], None]], None],
    part: Path,
    announced: Announced,
    *,
    source: str,
    say: Callable[[str], None],
) -> None:
    """Complete the file `part`, which may hold the beginning of an archive, and verify it.

    `read_from(at, sink)` passes the archive from byte `at` on to `sink`, and raises ConnectionError
    if the connection fails. It is called again for as long as bytes arrive. Raises BadEvidence if
    no more arrive, if they differ from what was announced, or if there is no room for them. What
    arrived stays in `part` except if it is wrong.
    """
    size = announced.size
    done = _resumable(part, size, source)
    tenths = failures = 0
    error = ""
    try:
        with part.open("r+b") as file:
            file.seek(done)

            def keep(content: bytes) -> None:
                nonlocal done, tenths
                if done + len(content) > size:
                    raise _wrong(part, f"{source} is larger than the announced {size} bytes")
                file.write(content)
                done += len(content)
                if size >= _LARGE and done * 10 // size > tenths:
                    tenths = done * 10 // size
                    say(f"  {done / 1e6:.0f} of {size / 1e6:.0f} MB")

            while done < size:
                before = done
                try:
                    read_from(done, keep)
                except ConnectionError as lost:
                    error = str(lost)
                if done == size:
                    break
                failures = 0 if done > before else failures + 1
                if failures >= len(_PAUSES):
                    raise BadEvidence(
                        f"{source}: {done} of {size} bytes arrived: {plain(error, 200)}",
                        hint="collect again",
                    )
                time.sleep(_PAUSES[failures])
    except OSError as failed:
        raise BadEvidence(
            f"{part} cannot be written: {failed.strerror}",
            hint="make room there, then collect again",
        ) from None
    with part.open("rb") as whole:
        if hashlib.file_digest(whole, "sha256").hexdigest() != announced.digest:
            raise _wrong(part, f"{source} differs from what was announced (SHA-256)")


def _resumable(part: Path, size: int, source: str) -> int:
    """Return how many bytes of an archive `part` holds already, and make sure that all fit."""
    if size > MOST_BYTES:
        raise BadEvidence(
            f"{source} has {size / 1e9:.0f} GB", hint="no evidence is that large; is it a run?"
        )
    try:
        part.touch(mode=0o600)
        done = part.stat().st_size
        if done > size:
            part.write_bytes(b"")
            done = 0
        free = shutil.disk_usage(part.parent).free
    except OSError as failed:
        raise BadEvidence(
            f"{part} cannot be written: {failed.strerror}",
            hint="set ACCEPT_RUNS to a folder with room, or make room; then collect again",
        ) from None
    # The rest of the archive, and everything in it.
    if size - done + size > free:
        raise BadEvidence(
            f"{source} needs {(2 * size - done) / 1e6:.0f} MB, and {part.parent} has "
            f"{free / 1e6:.0f} MB free",
            hint="make room there, then collect again",
        )
    return done


def _wrong(part: Path, message: str) -> BadEvidence:
    part.unlink(missing_ok=True)
    return BadEvidence(message, hint="collect again")
