"""Back ends: what obtains the hosts, starts the coordinator on the first, and fetches the evidence.

One module each, found by listing this folder; a module is a `Backend`.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from accept.backends.requirements import Need
from accept.backends.ssh.client import SshAccess, access_from_options
from accept.config import Site
from accept.config.hostlist import is_host_name
from accept.core.errors import BadInput
from accept.core.serde import Invalid, escaped, known
from accept.plan.bundle import Bundle
from accept.plan.resolve import Resolved

#: Says one line of progress.
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that was submitted, as `job.json` keeps it: enough to find it again from anywhere."""

    schema: int
    backend: str
    attempt: str
    #: Hosts that were asked for, by the names the run knows them by.
    hosts: tuple[str, ...]
    #: The host of the coordinator; empty: this machine.
    first: str
    #: The run's folder there.
    folder: str
    #: How ssh reaches the hosts; used by the ssh back end only.
    ssh_access: SshAccess = field(default_factory=SshAccess)
    #: Read from job.json of version 0.1, which stored ssh options; always None afterwards.
    ssh: tuple[str, ...] | None = None
    submitted: str = ""
    #: Where a cluster keeps it: what finds it again, and never a secret.
    place: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise Invalid for an ssh job that `submit` would not have written.

        A run folder may come from somebody else, and these values end up in commands.
        """
        if self.ssh is not None:
            object.__setattr__(self, "ssh_access", _access_of_0_1(self))
            object.__setattr__(self, "ssh", None)
        if self.backend != "ssh":
            return
        for host in (*self.hosts, *filter(None, [self.first])):
            if not is_host_name(host):
                raise Invalid(("hosts",), f'invalid host name "{escaped(host)}"')
        if self.first and self.first not in self.hosts:
            raise Invalid(("first",), f"{escaped(self.first)} is not one of the run's hosts")
        if not _SSH_FOLDER.fullmatch(self.folder) or "/../" in self.folder:
            raise Invalid(("folder",), f'"{escaped(self.folder)}" is not a folder of a run')
        if not self.folder.endswith(f"/accept-{self.attempt}"):
            raise Invalid(("folder",), f"{escaped(self.folder)} belongs to another run")


#: As `tools.scratch` allows it, and the run's own folder in it.
_SSH_FOLDER = re.compile(r"(?:/[A-Za-z0-9._/+@-]*)?/accept-[a-z0-9][a-z0-9-]{0,62}")


def _access_of_0_1(job: Job) -> SshAccess:
    if job.ssh_access != SshAccess():
        raise Invalid(("ssh",), "sshAccess and ssh exclude each other")
    try:
        return access_from_options(job.ssh) if job.ssh else SshAccess()
    except Invalid as error:
        raise Invalid(("ssh",), error.message, error.hint) from None


class Backend(Protocol):
    """What every module here provides."""

    def detect(self, hosts: tuple[str, ...], site: Site, place: dict[str, str]) -> str:
        """The machine to take where the user names none: `gpu`, `cpu`, or the cluster's own."""

    def named(self, attempt: str, place: dict[str, str]) -> str:
        """The name of an attempt: as it was chosen, where the back end needs no other."""

    def submit(self, run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, say: Say) -> Job:
        """Start the run; raises NotStarted where nothing could be started, with nothing left."""

    def watch(self, job: Job, *, folder: Path, say: Say) -> int:
        """Follow the run to its end, saying what it says; returns the coordinator's exit status."""

    def collect(self, job: Job, *, folder: Path, say: Say) -> Path:
        """Fetch the evidence into the run's folder, release it there, and return its place.

        Asked once at a time, and only while the folder has none, or `rundir.FROM_LOG` says that it
        is only what a log told. Raises NoEvidence where nothing holds any.
        """

    def cancel(self, job: Job, *, folder: Path, say: Say) -> None:
        """End the run, so that its evidence so far can be collected."""

    def delete(self, job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
        """Remove what the run made and is still there, and only that; returns what it was."""

    def doctor(self, run: Resolved, *, say: Say) -> tuple[Need, ...]:
        """What the hosts have and lack for this run."""


def names() -> tuple[str, ...]:
    """The back ends there are."""
    return tuple(
        sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    )


def load(name: str) -> Backend:
    """The back end called `name`. Raises BadInput."""
    if name not in names():
        raise BadInput(f"there is no back end {name!r} yet", hint=known(name, names()))
    return cast(Backend, import_module(f"{__name__}.{name}"))
