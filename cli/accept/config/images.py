"""Define the public images of `values/images.yaml`: what each has, and which checks run in it."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Literal

from accept.config.fields import Url
from accept.config.yaml_file import read_values
from accept.core.checks import REGISTRY
from accept.core.serde import Doc


class ImageTool(StrEnum):
    """A tool of an image; checks name those that they need in the same way."""

    SSHD = "sshd"
    SSH = "ssh"
    PYTHON = "python3"
    MPIRUN = "mpirun"
    NCCL_TESTS = "nccl-tests"
    TORCH = "torch"
    MPI4PY = "mpi4py"
    OBSTORE = "obstore"


#: Without these, the entry script ends the pod, and names them.
REQUIRED = frozenset({ImageTool.SSHD, ImageTool.SSH, ImageTool.PYTHON})


@dataclass(frozen=True, kw_only=True)
class ToolFact:
    """Tools that an image has or lacks, with the page that shows it."""

    tool: tuple[ImageTool, ...]
    has: bool
    source: Url


@dataclass(frozen=True, kw_only=True)
class PublicImage:
    """An image that anybody can pull."""

    image: str
    description: str
    architectures: tuple[Literal["amd64", "arm64"], ...]
    #: Machines whose makers run it; empty: any with GPUs.
    machines: tuple[str, ...] = ()
    #: The target of docker/Dockerfile that adds what is missing.
    target: Annotated[str | None, Doc("None: there is no such target.")] = None
    source: Url
    tools: tuple[ToolFact, ...]

    @property
    def has(self) -> frozenset[ImageTool]:
        """Return the tools that it is known to have."""
        return frozenset(tool for fact in self.tools if fact.has for tool in fact.tool)

    @property
    def lacks(self) -> frozenset[ImageTool]:
        """Return the tools that it is known to lack."""
        return frozenset(tool for fact in self.tools if not fact.has for tool in fact.tool)

    @property
    def unknown(self) -> frozenset[ImageTool]:
        """Return the other tools: no page shows if it has them."""
        return frozenset(ImageTool) - self.has - self.lacks

    @property
    def starts(self) -> bool:
        """Return whether it is not known to lack a tool that every run needs."""
        return not self.lacks & REQUIRED


def checks_with(tools: frozenset[ImageTool]) -> tuple[str, ...]:
    """Return the names of the checks that need nothing else, in the order of names."""
    return tuple(
        name
        for name, check in REGISTRY.items()
        if all(any(tool.name in tools for tool in choice) for choice in check.needs)
    )


@cache
def public_images() -> tuple[PublicImage, ...]:
    """Return all public images, in the order of the file."""
    return read_values(dict[str, tuple[PublicImage, ...]], "images")["images"]


def images_for(machine: str) -> tuple[PublicImage, ...]:
    """Return the images that the maker of `machine` runs there, without those that cannot start."""
    return tuple(one for one in public_images() if machine in one.machines and one.starts)
