"""Back ends: what obtains the hosts, starts the coordinator on the first, and fetches the evidence.

One module each, found by listing this folder; a module is a `Backend`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from accept.core.errors import BadInput
from accept.core.shape import known
from accept.probe import Need
from accept.render import Bundle
from accept.resolve import Resolved
from accept.spec import Site

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
    #: Options of ssh that reach the hosts; empty for `local`.
    ssh: tuple[str, ...] = ()
    submitted: str = ""
    #: Where a cluster keeps it: what finds it again, and never a secret.
    place: dict[str, str] = field(default_factory=dict)


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
