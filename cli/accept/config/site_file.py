"""Find the site file of a command that names none: in the working folder, or in the user's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: The name of a site file that is found without `--site`.
NAME = "site.yaml"
#: The environment variable that names one, as `--site` does.
VARIABLE = "ACCEPT_SITE"
#: The value of `--site` for no site file at all.
NONE = "none"


def candidates() -> tuple[Path, ...]:
    """Return where a site file is looked for, the first place first."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        # A relative path is invalid there, and is ignored: XDG Base Directory Specification.
        config = Path(base) if Path(base).is_absolute() else Path("~/.config").expanduser()
    except RuntimeError:
        # There is no home folder.
        return (Path(NAME),)
    return (Path(NAME), config / "accept" / NAME)


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
