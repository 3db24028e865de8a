"""Fetch and unpack evidence archives, which are untrusted: limit their size and verify them."""

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

from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.evidence import TAR_DAMAGE
from accept.core.text import plain

#: Maximum size of evidence; larger archives are neither fetched nor unpacked.
MOST_FILES, MOST_BYTES = 100_000, 16 << 30
#: Maximum compression ratio of archives that unpack to more than `_FREE_RATIO_BYTES`. Logs reach a
#: ratio of about 100, decompression bombs one of 1000.
_MAX_RATIO, _FREE_RATIO_BYTES = 400, 64 << 20
#: Maximum size of one read by tarfile, for names of members and blocks of files.
_MAX_READ = 4 << 20
_BLOCK = 1 << 20
#: Errors of the target disk, for which the archive is not to blame.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def is_tar(path: Path) -> bool:
    """Return True if a file is a tar archive, damaged or not.

    Raises OSError and EOFError if the file cannot be read.
    """
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        raise
    # The file begins like an archive, but its headers are damaged.
    except TAR_DAMAGE:
        return True


def unpack(archive: Path | BinaryIO, target: Path, *, source: str) -> None:
    """Unpack a tar archive, plain or with gzip, into the folder `target`, and make that folder.

    `source` is the archive's name for errors. Raises BadEvidence if the archive is damaged or too
    large, or contains a path outside of it or anything except files and folders.
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
                hint="free space on that disk, then try again",
            ) from None
        reason = plain(error, 200) or type(error).__name__
        raise BadEvidence(f"{source} is damaged: {reason}", hint="collect the run again") from None


def unpack_evidence(archive: Path, target: Path, *, source: str) -> Path:
    """Unpack a run's evidence into the folder `target`, check it, and return its folder.

    Raises BadEvidence as `unpack`, and if it contains no plan or was modified.
    """
    unpack(archive, target, source=source)
    folder = target / "evidence"
    if not (folder / evidence.PLAN).is_file():
        raise BadEvidence(
            f"{source} contains no plan", code=Code.EVIDENCE_UNREADABLE, hint="collect again"
        )
    if (folder / evidence.CHECKSUMS).is_file() and (wrong := evidence.check_checksums(folder)):
        raise BadEvidence(
            f"{source}: {'; '.join(wrong[:3])}", code=Code.EVIDENCE_CHANGED, hint="collect again"
        )
    return folder


def _unpack(file: BinaryIO, target: Path) -> None:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    is_gzip = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    limit = max(_FREE_RATIO_BYTES, size * _MAX_RATIO) if is_gzip else MOST_BYTES
    content = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if is_gzip else file
    source = _Bounded(content, 2 * limit)
    target.mkdir(parents=True, exist_ok=True)
    limit = min(limit, MOST_BYTES, shutil.disk_usage(target).free)
    count = total = 0
    with tarfile.open(fileobj=source, mode="r:") as tar:  # type: ignore[call-overload]
        for member in tar:
            count, total = count + 1, total + member.size
            _refuse(member)
            if count > MOST_FILES or total > limit:
                raise BadEvidence(
                    f"it unpacks to more than {limit >> 20} MiB or {MOST_FILES} files",
                    hint="evidence is never that large; check that it is the right archive",
                )
            _extract(tar, member, target)
    # For tarfile, a truncated or damaged header after the first one is the end of the archive.
    if source.last != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("its end is missing")


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write one file or folder below `target`, readable only by this user.

    Only new files are written, and no links are made. So existing files in `target` stay unchanged,
    and the extraction filters of newer Pythons are not needed.
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
            f"it contains {plain(member.name, 100)} twice",
            hint="check that it is the right archive",
        ) from None
    with content, os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file, _BLOCK)


def _refuse(member: tarfile.TarInfo) -> None:
    """Raise BadEvidence for members that evidence never contains."""
    path = PurePosixPath(member.name)
    defect = ""
    if not (member.isreg() or member.isdir()) or member.issparse():
        defect = "which is neither file nor folder"
    elif path.is_absolute() or ".." in path.parts:
        defect = "which is a path outside of the archive"
    if defect:
        raise BadEvidence(
            f"it contains {plain(member.name, 100)}, {defect}",
            hint="check that it is the right archive",
        )


class _Bounded:
    """A file for tarfile that limits the size of each read and of all reads."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file, self._left = file, limit
        #: The bytes of the last read.
        self.last = b""

    def read(self, size: int) -> bytes:
        """Read bytes. Raises ValueError beyond the limits."""
        self._left -= size
        if not 0 <= size <= _MAX_READ or self._left < 0:
            raise ValueError(f"a header of {size} bytes")
        self.last = self._file.read(size)
        return self.last

    def seek(self, at: int) -> int:
        """Change the position."""
        return self._file.seek(at)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()


@dataclass(frozen=True, kw_only=True)
class Announced:
    """The size of an archive in bytes and its SHA-256, which the sender announces."""

    size: int
    digest: str


#: Seconds to wait after each successive connection without data.
_PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0)
#: Minimum size of a download, in bytes, for progress messages.
_LARGE = 32 << 20


def download(
    read_from: Callable[[int, Callable[[bytes], None]], None],
    part: Path,
    announced: Announced,
    *,
    source: str,
    say: Callable[[str], None],
) -> None:
    """Complete the file `part`, which may contain the beginning of an archive, and verify it.

    `read_from(at, sink)` passes the archive from byte `at` on to `sink`, and raises ConnectionError
    if the connection fails. It is called again for as long as bytes arrive. Raises BadEvidence if
    no more arrive, if they differ from what was announced, or if the disk is full. `part` is kept,
    so that a later download can resume, unless its content is wrong.
    """
    size = announced.size
    done = _resume(part, size, source)
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
            f"cannot write {part}: {failed.strerror}",
            hint="free space on that disk, then collect again",
        ) from None
    with part.open("rb") as complete:
        if hashlib.file_digest(complete, "sha256").hexdigest() != announced.digest:
            raise _wrong(part, f"{source} differs from its announced SHA-256")


def _resume(part: Path, size: int, source: str) -> int:
    """Return how many bytes of an archive `part` contains. Raises BadEvidence if all do not fit."""
    if size > MOST_BYTES:
        raise BadEvidence(
            f"{source} has {size / 1e9:.0f} GB",
            hint="evidence is never that large; check that it is a run",
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
            f"cannot write {part}: {failed.strerror}",
            hint="set ACCEPT_RUNS to another disk, or free space on this one; then collect again",
        ) from None
    # The rest of the archive, and its unpacked content.
    if size - done + size > free:
        raise BadEvidence(
            f"{source} needs {(2 * size - done) / 1e6:.0f} MB, and {part.parent} has "
            f"{free / 1e6:.0f} MB free",
            hint="free space on that disk, then collect again",
        )
    return done


def _wrong(part: Path, message: str) -> BadEvidence:
    """Remove a wrong download and return the error."""
    part.unlink(missing_ok=True)
    return BadEvidence(message, hint="collect again")
