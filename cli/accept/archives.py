"""Unpacks evidence archives, which come from elsewhere: bounded, and into their target alone."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from accept.core.errors import BadEvidence
from accept.core.plaintext import plain

#: No evidence is larger; what claims to be is not unpacked, and not fetched.
MOST_FILES, MOST_BYTES = 100_000, 16 << 30
#: Most that is unpacked of each byte: text shrinks to a hundredth at best, a bomb to a thousandth.
_MOST_RATIO, _FREE_RATIO_BYTES = 400, 64 << 20
#: Most that is asked for in one piece: names of members, and blocks of files.
_PIECE = 4 << 20


def is_tar(path: Path) -> bool:
    """Whether a file is a tar archive, damaged or not. Raises OSError, EOFError as reading does."""
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        raise
    # It begins like one, and its headers lie: whatever their parsing meets is let through.
    except Exception:
        return True


def unpack(archive: Path | BinaryIO, target: Path, *, source: str) -> None:
    """Unpack a tar archive, plain or with gzip, into `target`, a folder that is made.

    `source` names the archive in errors. Raises BadEvidence where it is damaged, holds anything
    but files and folders, reaches outside, or is larger than any evidence.
    """
    try:
        if isinstance(archive, Path):
            with archive.open("rb") as file:
                _unpack(file, target)
        else:
            _unpack(archive, target)
    except BadEvidence as error:
        raise BadEvidence(f"{source}: {error.message}", hint=error.hint) from None
    # Besides its own errors tarfile lets through whatever its parsing of damaged headers meets.
    except Exception as error:
        said = plain(error, 200) or type(error).__name__
        raise BadEvidence(f"{source} is damaged: {said}", hint="collect the run again") from None


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
            tar.extract(member, target, filter="data")


def _refuse(member: tarfile.TarInfo) -> None:
    """Refuse what evidence never holds."""
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

    def read(self, size: int) -> bytes:
        """Read bytes; raises ValueError beyond the bounds."""
        self._left -= size
        if not 0 <= size <= _PIECE or self._left < 0:
            raise ValueError(f"a header of {size} bytes")
        return self._file.read(size)

    def seek(self, at: int) -> int:
        """Go to a place."""
        return self._file.seek(at)

    def tell(self) -> int:
        """Return the place."""
        return self._file.tell()
