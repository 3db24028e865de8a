"""Find the site file of a command that names none: in the working folder, or in the user's own.

One in the working folder may have come with a clone or an archive, and it names programs to run. So
it is used only after the user trusted its content at this place.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from enum import Enum, auto
from pathlib import Path

from accept.core.evidence import write_below
from accept.core.safe_read import open_regular

#: The name of a site file that is found without `--site`.
NAME = "site.yaml"
#: The environment variable that names one, as `--site` does.
VARIABLE = "ACCEPT_SITE"
#: The value of `--site` for no site file at all.
NONE = "none"


class Trust(Enum):
    """Name how far the user trusts the content of a site file at its place."""

    UNKNOWN = auto()
    #: The user trusted another content.
    CHANGED = auto()
    TRUSTED = auto()


def candidates() -> tuple[Path, ...]:
    """Return where a site file is looked for, the first place first."""
    settings = _settings()
    return (Path(NAME), settings / NAME) if settings else (Path(NAME),)


def _settings() -> Path | None:
    """Return the user's folder of settings; None if there is no home folder."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        # A relative path is invalid there, and is ignored: XDG Base Directory Specification.
        config = Path(base) if Path(base).is_absolute() else Path("~/.config").expanduser()
    except RuntimeError:
        return None
    return config / "accept"


def named_site() -> str:
    """Return the site file that the environment names; empty: none."""
    return os.environ.get(VARIABLE, "").strip()


def find_site() -> Path | None:
    """Return the first site file that exists and is the user's own, or None.

    A site file names programs to run, so one that another user could have written or changed is
    left out, such as one in /tmp.
    """
    return next((path for path in candidates() if _is_own(path)), None)


def foreign_site() -> Path | None:
    """Return a site file in the working folder that another user could have written, or None."""
    path = candidates()[0]
    return path if path.is_file() and not _is_own(path) else None


def trust_of(found: Path, sha256: str) -> Trust:
    """Return whether the user trusts a file of `find_site` whose content has this hash."""
    settings = _settings()
    if settings is None:
        return Trust.UNKNOWN
    if found == settings / NAME:
        return Trust.TRUSTED
    record = settings / _record(found)
    if not _is_own(record):
        return Trust.UNKNOWN
    line = _line(found, sha256)
    try:
        with open_regular(record) as file:
            return Trust.TRUSTED if file.read(len(line) + 1) == line else Trust.CHANGED
    except OSError:
        return Trust.UNKNOWN


def trust(path: Path, sha256: str) -> None:
    """Trust a content at a place until it changes. Raises OSError if that cannot be stored."""
    settings = _settings()
    if settings is None:
        raise OSError(errno.ENOENT, "there is no home folder")
    settings.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The user may keep the settings elsewhere. Below them, no link is followed.
    write_below(settings.resolve(), _record(path), _line(path, sha256), mode=0o600)


def _record(path: Path) -> str:
    """Return the name of the file below the settings that has the trust in a place."""
    return f"trusted/{hashlib.sha256(os.fsencode(_place(path))).hexdigest()}"


def _line(path: Path, sha256: str) -> bytes:
    """Return the content of that file, in the format of sha256sum."""
    return f"{sha256}  ".encode() + os.fsencode(_place(path)) + b"\n"


def _place(path: Path) -> Path:
    """Return where a file is, by a path without links except for its own name."""
    return path.parent.resolve() / path.name


def _is_own(path: Path) -> bool:
    """Return True for a regular file that only this user, their groups and root can write."""
    try:
        # The owner of a link decides which file it names.
        found, link, folder = path.stat(), path.lstat(), path.absolute().parent.stat()
    except OSError:
        return False
    owners = {found.st_uid, link.st_uid}
    # In a sticky folder, such as /tmp, only the owner of a file can replace it.
    is_replaceable = folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX
    return (
        stat.S_ISREG(found.st_mode)
        and owners <= {os.getuid(), 0}
        and not found.st_mode & stat.S_IWOTH
        and not is_replaceable
    )
