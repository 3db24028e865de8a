"""Files on this machine's disk for the hosts, and the folders of this machine that hosts see.

One state folder contains all files. It has a folder for each host (its /etc/ssh and some of its
/etc), and one for the workstation (its key, its ssh configuration, the host keys it knows).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cluster.network import execute

PREFIX = "accept-hosts-"
#: Places that hide what this machine has there (init.sh).
HIDDEN = tuple(map(Path, ("/tmp", "/var/tmp", "/run", "/root", "/dev/shm", "/var/log")))
SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
KbdInteractiveAuthentication no
PasswordAuthentication no
PidFile /run/sshd.pid
PrintLastLog no
PrintMotd no
Subsystem sftp internal-sftp
UsePAM no
"""
SSH_CONFIG = """\
Host {name}
  HostName {address}
  HostKeyAlias {name}
  User root
  IdentityFile {folder}/id_ed25519
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


def environment_of(python: Path) -> list[Path]:
    """Return the folders an interpreter needs: its own, and each one its links lead through."""
    needed = []
    for _ in range(10):
        needed.append(python.parent.parent)
        if not python.is_symlink():
            break
        python = python.parent / python.readlink()
    return needed


def shares(folders: Iterable[Path], *, all_of_them: bool = False) -> list[str]:
    """Return SOURCE TARGET... of what is to be seen in spite of the hidden places, widest first.

    `all_of_them`: also of folders in other places.
    """
    hidden = {
        folder
        for folder in folders
        if (all_of_them or any(place in folder.parents for place in HIDDEN)) and folder.is_dir()
    }
    widest = [folder for folder in hidden if not hidden.intersection(folder.parents)]
    return [part for folder in sorted(widest) for part in (str(folder.resolve()), str(folder))]


@contextmanager
def _alone() -> Iterator[Path]:
    """Hold the lock on making and sweeping state folders; yield where they are made."""
    base = Path(tempfile.gettempdir())
    handle = os.open(base, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield base
    finally:
        os.close(handle)


def make() -> tuple[Path, int]:
    """Make a state folder; return it and the descriptor that marks it as in use while open."""
    with _alone() as base:
        state = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        owner = os.open(state / "owner", os.O_CREAT | os.O_RDONLY, 0o600)
        fcntl.flock(owner, fcntl.LOCK_EX)
    # "root" is where each host, in mounts of its own, puts together what it sees.
    for name in ("root", "workstation"):
        (state / name).mkdir()
    return state, owner


def sweep() -> None:
    """Remove the state folders whose owner is dead; everything else of it went when it died."""
    with _alone() as base:
        for owner in base.glob(f"{PREFIX}*/owner"):
            with owner.open() as handle, suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)


def keygen(path: Path, comment: str) -> str:
    """Make a key pair, in place of what was there, and return the public half with its type."""
    for old in (path, path.with_suffix(".pub")):
        old.unlink(missing_ok=True)
    execute(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


def prepare(folder: Path, name: str, *, authorized: str, network: str) -> str:
    """Make the files of one host, for init.sh; return its public host key."""
    (folder / "ssh").mkdir(parents=True)
    (folder / "ssh" / "sshd_config").write_text(SSHD_CONFIG)
    (folder / "ssh" / "ssh_config").touch()
    (folder / "authorized_keys").write_text(authorized + "\n")
    (folder / "hostname").write_text(name + "\n")
    (folder / "shadow").write_text("root:*:19000::::::\n")
    (folder / "hosts").touch()
    (folder / "resolv.conf").touch()
    (folder / "network").write_text(network)
    return keygen(folder / "ssh" / "ssh_host_ed25519_key", name)
