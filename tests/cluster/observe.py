"""Observe a test host from outside: processes, listening ports, files.

Everything is read from /proc of the host's first process, so an observation starts nothing on the
host and leaves nothing there.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

#: The places every host has for itself, on a file system of their own each.
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/root")
LISTEN = "0A"


@dataclass(frozen=True, kw_only=True, order=True)
class Process:
    """A process of a host: its ids there, and its command line."""

    pid: int
    parent: int
    command: str
    environment: tuple[str, ...] = ()


def _process(folder: Path) -> Process | None:
    """Return the process of a /proc folder; None for one that ended or only waits to be reaped."""
    try:
        # The name, in brackets, may hold anything.
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        command = (folder / "cmdline").read_bytes()
        environment = (folder / "environ").read_bytes()
    except OSError:
        return None
    if state in "ZX":
        return None
    return Process(
        pid=int(folder.name),
        parent=int(parent),
        command=command.replace(b"\0", b" ").decode(errors="replace").strip(),
        environment=tuple(environment.decode(errors="replace").rstrip("\0").split("\0")),
    )


def processes(init: int) -> tuple[Process, ...]:
    """Return the processes of the host whose first process is `init`, by id, without that one."""
    folders = Path(f"/proc/{init}/root/proc").iterdir()
    found = (_process(folder) for folder in folders if folder.name.isdigit())
    return tuple(sorted(each for each in found if each and each.pid != 1))


def global_ids(init: int) -> tuple[int, ...]:
    """Return the machine's ids of the host's processes, without its first."""
    space = _space(Path(f"/proc/{init}"))
    folders = (folder for folder in Path("/proc").iterdir() if folder.name.isdigit())
    found = (int(folder.name) for folder in folders if _space(folder) == space)
    return tuple(pid for pid in found if pid != init)


def _space(folder: Path) -> str:
    try:
        return str((folder / "ns" / "pid").readlink())
    except OSError:
        return ""


def sent(init: int) -> int:
    """Return how many bytes the host has sent over its network, without itself."""
    rows = (row.split() for row in Path(f"/proc/{init}/net/dev").read_text().splitlines()[2:])
    return sum(int(row[9]) for row in rows if row[0] != "lo:")


def _address(text: str) -> str:
    """Return "host:port" out of what /proc/net/tcp shows (words in the order of the machine)."""
    host, port = text.split(":")
    raw = b"".join(bytes.fromhex(host[start : start + 8])[::-1] for start in range(0, len(host), 8))
    shown = f"[{IPv6Address(raw)}]" if len(raw) == 16 else str(IPv4Address(raw))
    return f"{shown}:{int(port, 16)}"


def listening(init: int) -> tuple[str, ...]:
    """Return where the host's processes accept TCP connections: "0.0.0.0:22", "[::]:22"."""
    found = []
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{init}/net/{table}")
        rows = path.read_text().splitlines()[1:] if path.exists() else ()
        found += [_address(row.split()[1]) for row in rows if row.split()[3] == LISTEN]
    return tuple(sorted(found))


def _description(path: str, status: os.stat_result) -> str:
    """Return kind, access bits and contents of a file."""
    mode = stat.filemode(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return f"{mode} {os.readlink(path)}"  # noqa: PTH115 # the text of the link itself
    if not stat.S_ISREG(status.st_mode):
        return mode
    with open(path, "rb") as file:  # noqa: PTH123 # the paths here are os.walk's
        return f"{mode} {status.st_size} {hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"


def tree(init: int, *, places: tuple[str, ...] = PRIVATE) -> dict[str, str]:
    """Return every path under the host's private places, with what it is.

    Times are left out, and so is what other file systems show there.
    """
    found: dict[str, str] = {}
    root = f"/proc/{init}/root"
    for place in places:
        device = os.lstat(root + place).st_dev
        for folder, folders, files in os.walk(root + place):
            for name in [*folders, *files]:
                path = f"{folder}/{name}"
                try:
                    status = os.lstat(path)
                    if status.st_dev == device:
                        found[path.removeprefix(root)] = _description(path, status)
                except FileNotFoundError:
                    continue
            folders[:] = [
                each for each in folders if f"{folder}/{each}".removeprefix(root) in found
            ]
    return dict(sorted(found.items()))
