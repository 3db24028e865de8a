"""How NCCL is set up on a machine: the plugin's script, and named sets of settings on top of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from accept.config.fields import Env, Url, check_env
from accept.core.serde import Doc, Invalid

#: Paths between GPUs: NVLink inside a node, NVLink between nodes of one domain, the NICs.
Path = Literal["nvlink", "domain", "nics"]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A set of NCCL settings, applied after the plugin's own script."""

    env: Annotated[Env, Doc("Environment variables of every rank.")] = field(default_factory=dict)
    script: Annotated[
        str | None, Doc("Script to source first; none: the machine's; empty: no script.")
    ] = None
    transport: Annotated[
        str | None, Doc("The network NCCL's own log must name; none: the machine's.")
    ] = None
    uses: Annotated[
        tuple[Path, ...],
        Doc("Paths it leaves in use; bounds that follow from the others do not apply."),
    ] = ("nvlink", "domain", "nics")
    description: Annotated[str, Doc("When to use it.")] = ""
    source: Url | None = None

    def __post_init__(self) -> None:
        """Raise Invalid for settings without a source, or that no shell accepts."""
        check_env(self.env, ("env",))
        if self.env and self.source is None:
            raise Invalid(("env",), "settings need a source", "add `source:`, a URL")


@dataclass(frozen=True, kw_only=True)
class Nccl:
    """How NCCL is set up on the machine."""

    script: Annotated[str, Doc("The NCCL plugin's own environment script, sourced first.")] = ""
    transport: Annotated[
        str, Doc("The network NCCL's own log must name; empty: nothing is promised.")
    ] = ""
    transport_aliases: Annotated[
        tuple[str, ...],
        Doc("Other names of it in that log, such as a plugin's before it was initialised."),
    ] = ()
    gpu_direct: Annotated[
        bool, Doc("Whether that log must name GDRDMA for it: NICs that reach GPU memory.")
    ] = False
    find_devices: Annotated[
        bool,
        Doc("Whether a node picks its RDMA devices by itself: the fastest ones that are up."),
    ] = False
    profiles: Annotated[
        dict[str, Profile], Doc("Settings by name; a site picks one, else `default`.")
    ] = field(default_factory=lambda: {"default": Profile()})
    source: Url | None = None

    def __post_init__(self) -> None:
        """Raise Invalid where no profile is called `default`, or a key is about no network."""
        if "default" not in self.profiles:
            raise Invalid(("profiles",), 'a profile called "default" is needed')
        keys = (("gpuDirect", self.gpu_direct), ("transportAliases", self.transport_aliases))
        for key, given in keys:
            if given and not self.transport:
                raise Invalid((key,), "of which network?", "name it: transport")
        if not all(self.transport_aliases):
            raise Invalid(("transportAliases",), "an empty name would be any network's")
