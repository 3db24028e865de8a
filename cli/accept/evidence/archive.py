"""Fetch and unpack archives of evidence, which are untrusted: limit their size and verify them."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.safe_read import BLOCK, DAMAGE, Member, Tar
from accept.core.text import byte_count, plain

#: Maximum size of evidence; larger archives are neither fetched nor unpacked.
MOST_FILES, MOST_BYTES = 100_000, 16 << 30
#: Maximum compression ratio of archives that unpack to more than `_FREE_RATIO_BYTES`. Logs reach a
#: ratio of about 100, decompression bombs one of 1000.
_MAX_RATIO, _FREE_RATIO_BYTES = 400, 64 << 20
_GZIP = b"\x1f\x8b"
#: Maximum depth of the files in an archive.
_MOST_LEVELS = 64
#: Errors of the target disk, for which the archive is not to blame.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def unpack(archive: Path, target: Path, *, source: str) -> None:
    """Unpack a tar archive, plain or with gzip, into the folder `target`, and make that folder.

    `source` is the archive's name for errors. Raises BadEvidence if the archive is damaged or too
    large, or contains a path outside of it or anything except files and folders.
    """
    try:
        with archive.open("rb") as file:
            _unpack(file, target)
    except BadEvidence as error:
        raise BadEvidence(f"{source}: {error.message}", code=error.code, hint=error.hint) from None
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise BadEvidence(
                f"{source} cannot be unpacked into {target}: {error.strerror}",
                code=Code.ARCHIVE_DISK,
                hint="free space on that disk, then try again",
            ) from None
        reason = plain(error, 200) or type(error).__name__
        raise BadEvidence(
            f"{source} is damaged: {reason}",
            code=Code.ARCHIVE_DAMAGED,
            hint="collect the run again",
        ) from None


def unpack_evidence(archive: Path, target: Path, *, source: str) -> None:
    """Unpack a run's evidence, check it, and make it the folder `target`, which must not exist.

    Raises BadEvidence like `unpack`, and if the evidence contains no plan or was modified. Then
    `target` does not exist.
    """
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target.parent) as scratch:
        unpack(archive, Path(scratch), source=source)
        folder = Path(scratch) / "evidence"
        if not (folder / evidence.PLAN).is_file():
            raise BadEvidence(
                f"{source} contains no plan", code=Code.EVIDENCE_UNREADABLE, hint="collect again"
            )
        has_checksums = (folder / evidence.CHECKSUMS).is_file()
        if has_checksums and (wrong := evidence.check_checksums(folder)):
            raise BadEvidence(
                f"{source}: {'; '.join(wrong[:3])}",
                code=Code.EVIDENCE_CHANGED,
                hint="collect again",
            )
        folder.rename(target)


def _unpack(file: BinaryIO, target: Path) -> None:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    is_gzip = file.read(2) == _GZIP
    file.seek(0)
    limit = max(_FREE_RATIO_BYTES, size * _MAX_RATIO) if is_gzip else MOST_BYTES
    target.mkdir(parents=True, exist_ok=True)
    limit = min(limit, MOST_BYTES, shutil.disk_usage(target).free)
    count = total = 0
    tar = Tar(gzip.GzipFile(fileobj=file) if is_gzip else file)
    for member in tar:
        count, total = count + 1, total + member.size
        _refuse(member)
        if count > MOST_FILES or total > limit:
            raise BadEvidence(
                f"it unpacks to more than {limit >> 20} MiB or {MOST_FILES} files",
                code=Code.ARCHIVE_TOO_LARGE,
                hint="evidence is never that large; check that it is the right archive",
            )
        parts = PurePosixPath(member.name).parts
        if len(parts) > _MOST_LEVELS:
            raise BadEvidence(
                f"it has more than {_MOST_LEVELS} levels of folders",
                code=Code.ARCHIVE_TOO_LARGE,
                hint="evidence is never that deep; check that it is the right archive",
            )
        if member.is_folder:
            make_folders(target, parts)
        else:
            write_new(target, parts, iter(partial(tar.read, BLOCK), b""))


def make_folders(target: Path, parts: Sequence[str]) -> Path:
    """Make a folder below `target`, readable only by this user, unless it exists; return it."""
    for part in parts:
        target /= part
        target.mkdir(mode=0o700, exist_ok=True)
    return target


def write_new(target: Path, parts: Sequence[str], blocks: Iterable[bytes]) -> None:
    """Write a new file below `target`, readable only by this user. Raises BadEvidence if it exists.

    Only new files are written, and no links are made, so existing files stay unchanged.
    """
    folder = make_folders(target, parts[:-1])
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        descriptor = os.open(folder / parts[-1], flags, 0o600)
    except FileExistsError:
        raise BadEvidence(
            f"it contains {plain('/'.join(parts), 100)} twice",
            code=Code.ARCHIVE_UNSAFE,
            hint="check that it is the right archive",
        ) from None
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(blocks)


def _refuse(member: Member) -> None:
    """Raise BadEvidence for members that evidence never contains."""
    path = PurePosixPath(member.name)
    defect = ""
    if not (member.is_file or member.is_folder):
        defect = "which is neither file nor folder"
    elif path.is_absolute() or ".." in path.parts or (member.is_file and not path.parts):
        defect = "which is a path outside of the archive"
    if defect:
        raise BadEvidence(
            f"it contains {plain(member.name, 100)}, {defect}",
            code=Code.ARCHIVE_UNSAFE,
            hint="check that it is the right archive",
        )


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
                        code=Code.ARCHIVE_INCOMPLETE,
                        hint="collect again",
                    )
                time.sleep(_PAUSES[failures])
    except OSError as failed:
        raise BadEvidence(
            f"cannot write {part}: {failed.strerror}",
            code=Code.ARCHIVE_DISK,
            hint="free space on that disk, then collect again",
        ) from None
    with part.open("rb") as complete:
        if hashlib.file_digest(complete, "sha256").hexdigest() != announced.digest:
            raise _wrong(part, f"{source} differs from its announced SHA-256")


def _resume(part: Path, size: int, source: str) -> int:
    """Return how many bytes `part` contains. Raises BadEvidence if the disk is too small."""
    if size > MOST_BYTES:
        raise BadEvidence(
            f"{source} has {size / 1e9:.0f} GB",
            code=Code.ARCHIVE_TOO_LARGE,
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
            code=Code.ARCHIVE_DISK,
            hint="set ACCEPT_RUNS to another disk, or free space on this one; then collect again",
        ) from None
    # The rest of the archive, and its unpacked content.
    if size - done + size > free:
        raise BadEvidence(
            f"{source} needs {byte_count(2 * size - done)}, and {part.parent} has "
            f"{byte_count(free)} free",
            code=Code.ARCHIVE_DISK,
            hint="free space on that disk, then collect again",
        )
    return done


def _wrong(part: Path, message: str) -> BadEvidence:
    """Remove a wrong download and return the error."""
    part.unlink(missing_ok=True)
    return BadEvidence(message, code=Code.ARCHIVE_CHANGED, hint="collect again")
