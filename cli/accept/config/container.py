"""Define the container in which a run's programs can run: on hosts, in Slurm jobs, and locally."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from accept.config.fields import check_mount
from accept.core.serde import Doc, Pattern


class Runtime(StrEnum):
    """A program that runs containers."""

    APPTAINER = "apptainer"
    DOCKER = "docker"
    PODMAN = "podman"
    #: A plugin of Slurm, with options of srun.
    PYXIS = "pyxis"


#: Without a runtime in the site file, the first of these that a host has is used.
_ON_HOSTS = (Runtime.DOCKER, Runtime.PODMAN, Runtime.APPTAINER)
#: Docker is missing because its containers do not belong to the job, so Slurm could not end them.
_IN_JOBS = (Runtime.APPTAINER, Runtime.PODMAN)

_Image = Annotated[
    str, Pattern(r"[A-Za-z0-9/][^\s,\x00-\x1f\x7f]{0,1023}", "an image such as registry/name:tag")
]
_Mount = Annotated[
    str,
    Pattern(
        r"/[A-Za-z0-9._/+@-]*(:/[A-Za-z0-9._/+@-]*(:r[ow])?)?",
        "SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro, with absolute paths",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container for the programs of a run on hosts; on Kubernetes, kubernetes.image applies."""

    runtime: Annotated[
        Runtime | None, Doc("Program that runs the container; unset: one that the hosts have.")
    ] = None
    image: Annotated[
        _Image | None, Doc("Image of the run; for apptainer and pyxis, a file works too.")
    ] = None
    mounts: Annotated[
        tuple[_Mount, ...],
        Doc("More folders of the host to see in the container: SOURCE, or SOURCE:TARGET:ro."),
    ] = ()

    def __post_init__(self) -> None:
        """Raise Invalid for a mount by which the container could control the host."""
        for index, mount in enumerate(self.mounts):
            check_mount(mount.partition(":")[0], ("mounts", index))

    def runtimes(self, *, in_job: bool) -> tuple[Runtime, ...]:
        """Return the runtimes to look for on a host, in this order."""
        return (self.runtime,) if self.runtime else _IN_JOBS if in_job else _ON_HOSTS

    @property
    def full_mounts(self) -> tuple[str, ...]:
        """Return the mounts with source and target."""
        return tuple(m if ":" in m else f"{m}:{m}" for m in self.mounts)
