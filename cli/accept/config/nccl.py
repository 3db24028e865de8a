"""Define the NCCL setup of a machine: the plugin's script and named profiles of settings."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from accept.config.fields import Env, Url, check_env
from accept.core.error_codes import Code
from accept.core.serde import Bounds, Doc, Invalid, Pattern

#: Paths between GPUs: NVLink inside a node, NVLink between nodes of one domain, the NICs.
Path = Literal["nvlink", "domain", "nics"]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A set of NCCL settings, applied after the plugin's own script."""

    env: Annotated[Env, Doc("Environment variables of every rank.")] = field(default_factory=dict)
    script: Annotated[
        str | None, Doc("Script to source first; unset: the machine's; empty: no script.")
    ] = None
    transport: Annotated[
        str | None,
        Doc("Name of the network that NCCL's log must show; unset: the machine's."),
    ] = None
    cpus: Annotated[
        Annotated[str, Pattern(r"(?:\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)?", "CPUs such as 0-7,52-59")],
        Doc("CPUs of ranks that talk to other nodes; empty: all. A node without them uses all."),
    ] = ""
    uses: Annotated[
        tuple[Path, ...],
        Doc("Paths that NCCL uses with it; bounds for other paths do not apply."),
    ] = ("nvlink", "domain", "nics")
    nvlink_share: Annotated[
        float,
        Bounds(min=0.01, max=1),
        Doc("Share of NVLink that collectives can use with it; below 1, NVLS is not required."),
    ] = 1.0
    faster: Annotated[
        bool, Doc("Whether to advise it when collectives between nodes reach less than expected.")
    ] = False
    description: Annotated[str, Doc("When to use the profile.")] = ""
    source: Url | None = None

    def __post_init__(self) -> None:
        """Raise Invalid for settings without a source and for invalid settings."""
        check_env(self.env, ("env",))
        if self.env and self.source is None:
            hint = "add `source:`, a URL"
            raise Invalid(("env",), "settings need a source", hint, code=Code.MACHINE_SOURCE)


@dataclass(frozen=True, kw_only=True)
class Nccl:
    """The NCCL setup of the machine."""

    script: Annotated[
        str, Doc("Environment script of the NCCL plugin, sourced before the profile's settings.")
    ] = ""
    transport: Annotated[
        str,
        Doc("Name of the network that NCCL's log must show; empty: any network is accepted."),
    ] = ""
    transport_aliases: Annotated[
        tuple[str, ...],
        Doc("Other names of that network in the log, such as a plugin's before initialization."),
    ] = ()
    gpu_direct: Annotated[
        bool,
        Doc("Whether the log must show GDRDMA for it: NICs read and write GPU memory directly."),
    ] = False
    find_devices: Annotated[
        bool,
        Doc(
            "Whether each node uses the fastest RDMA devices that are up, instead of a fixed list."
        ),
    ] = False
    profiles: Annotated[
        dict[str, Profile],
        Doc("Profiles of settings by name; a site selects one, otherwise `default` applies."),
    ] = field(default_factory=lambda: {"default": Profile()})
    source: Url | None = None

    def __post_init__(self) -> None:
        """Raise Invalid if `default` is missing, or if a key needs `transport`, which is empty."""
        if "default" not in self.profiles:
            message = 'the profile "default" is missing'
            raise Invalid(("profiles",), message, code=Code.NCCL_PROFILE_UNKNOWN)
        keys = (("gpuDirect", self.gpu_direct), ("transportAliases", self.transport_aliases))
        for key, given in keys:
            if given and not self.transport:
                raise Invalid(
                    (key,),
                    "needs the name of the network",
                    "add `transport`",
                    code=Code.MACHINE_CONTRADICTION,
                )
        if not all(self.transport_aliases):
            raise Invalid(("transportAliases",), "an empty name would match any network")
