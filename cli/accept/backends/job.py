"""Read and validate `job.json`: how to find a submitted run again, and nothing that is executed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated

from accept.core.limits import is_host_name
from accept.core.serde import Bounds, Invalid, Pattern, escaped, fields_of, read
from accept.evidence.rundir import runs

#: Settings of every ssh call. Tested hosts are not trusted, so they get no agent and no connections
#: to this machine. Nothing from the user's own configuration may come between a command and its
#: output.
_SETTINGS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "Tunnel=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "RequestTTY=no",
)

_HOST = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\])"
_USER = r"[A-Za-z0-9_.](?:[A-Za-z0-9_.@+\\-]{0,126}[A-Za-z0-9_.@+$-])?"
_JUMP = rf"(?:ssh://)?(?:[A-Za-z0-9_.][A-Za-z0-9_.+-]*@)?{_HOST}(?::[0-9]{{1,5}})?"

ConfigFile = Annotated[
    str, Pattern(r"/[^\x00-\x1f\x7f]*", "an absolute path without control characters")
]
User = Annotated[str, Pattern(_USER, "a user name of letters, digits and ._+@-")]
Port = Annotated[int, Bounds(min=1, max=65535)]
JumpHost = Annotated[str, Pattern(rf"{_JUMP}(?:,{_JUMP})*", "jump hosts as for ssh -J")]


@dataclass(frozen=True, kw_only=True)
class SshAccess:
    """The user's choices for ssh to the hosts of a run, on top of their own ssh configuration.

    Each field is validated, because it becomes part of a command line. Raises Invalid.
    """

    #: Configuration file in place of the user's own.
    config_file: ConfigFile | None = None
    user: User | None = None
    port: Port | None = None
    jump_host: JumpHost | None = None

    def __post_init__(self) -> None:
        """Raise Invalid for a value that could act as an option or a command."""
        for item, key, hint in fields_of(type(self)):
            try:
                read(hint, getattr(self, item.name))
            except Invalid as error:
                raise error.under(key) from None
        if self.config_file is not None and _is_below(Path(self.config_file), runs()):
            raise Invalid(
                ("configFile",),
                "an ssh configuration file in the folder of all runs is never used",
                "it can start programs; keep it outside that folder",
            )

    def options(self) -> tuple[str, ...]:
        """Return the ssh options for these fields, and for hosts that are not trusted."""
        own = {"-F": self.config_file, "-l": self.user, "-p": self.port, "-J": self.jump_host}
        pairs = [(option, str(value)) for option, value in own.items() if value]
        pairs += [("-o", setting) for setting in _SETTINGS]
        return tuple(word for pair in pairs for word in pair)


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


@dataclass(frozen=True, kw_only=True)
class Place:
    """A namespace of a cluster; an empty text means kubectl's own choice."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""


@dataclass(frozen=True, kw_only=True)
class RunPlace(Place):
    """The namespace, release and results location of a run; no field is a secret."""

    #: The Helm release; empty if there is none.
    release: str = ""
    #: Location to which the pods write the evidence; empty if there is none.
    results: str = ""


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """The Slurm job that a run belongs to."""

    #: 0: the command that submitted it did not learn its number; its name is `accept-ATTEMPT`.
    id: Annotated[int, Bounds(min=0, max=1 << 31)]
    #: True if the job is the user's own allocation, which the run never ends.
    allocation: bool = False


@dataclass(frozen=True, kw_only=True)
class Job:
    """A submitted run, as `job.json` describes it: enough to find it again from anywhere."""

    schema: int
    backend: str
    attempt: str
    #: Requested hosts, by their names in the run; without those on which nothing was created.
    hosts: tuple[str, ...]
    #: The coordinator's host; empty: this machine.
    first: str
    #: The run's folder on that host.
    folder: str
    #: How ssh reaches the hosts; used by the ssh back end only.
    ssh_access: SshAccess = field(default_factory=SshAccess)
    submitted: str = ""
    #: The public half of the key that signs the evidence; empty: this workstation does not know it.
    signer: str = ""
    #: `evidence.root_hash` of the evidence when it was fetched; empty: it was not.
    evidence: str = ""
    #: Where the run is in a cluster; unset for other back ends.
    place: RunPlace | None = None
    #: Unset for other back ends.
    slurm: SlurmJob | None = None

    def __post_init__(self) -> None:
        """Raise Invalid for a job that `submit` would not have written.

        Another person may have made the run folder, and these values become parts of commands.
        """
        if (self.backend == "kubernetes") != self.on_cluster:
            raise Invalid(("place",), "a run on Kubernetes has a place, and no other run")
        if (self.backend == "slurm") != (self.slurm is not None):
            raise Invalid(("slurm",), "a run on Slurm has a job, and no other run")
        if self.backend not in ("ssh", "slurm"):
            return
        for host in (*self.hosts, *filter(None, [self.first])):
            if not is_host_name(host):
                raise Invalid(("hosts",), f'invalid host name "{escaped(host)}"')
        if self.first and self.first not in self.hosts:
            raise Invalid(("first",), f"{escaped(self.first)} is not one of the run's hosts")
        if not _FOLDER.fullmatch(self.folder) or "/../" in self.folder:
            raise Invalid(("folder",), f'"{escaped(self.folder)}" is not a folder of a run')
        if not self.folder.endswith(f"/accept-{self.attempt}"):
            raise Invalid(("folder",), f"{escaped(self.folder)} belongs to another run")

    @property
    def began(self) -> float | None:
        """Return when the run was submitted, in seconds since 1970; None: unknown."""
        try:
            return datetime.fromisoformat(self.submitted).timestamp()
        except (ValueError, OverflowError):
            return None

    @property
    def confirmed(self) -> bool:
        """Return whether the command that started the run has confirmed its start."""
        return bool(self.first) if self.slurm is None else self.slurm.id > 0

    @property
    def on_cluster(self) -> bool:
        """Return whether the run is in a cluster, which keeps its objects after its end."""
        return self.place is not None


#: A folder that `tools.scratch` allows, and the run's own folder in it.
_FOLDER = re.compile(r"(?:/[A-Za-z0-9._/+@-]*)?/accept-[a-z0-9][a-z0-9-]{0,62}")
