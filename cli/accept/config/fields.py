"""Fields and tests of them that machines, suites and sites share."""

from __future__ import annotations

from typing import Annotated, Any

from accept.core import checks
from accept.core.serde import Doc, Invalid, Pattern, known

#: Most GPUs that a node can have.
MOST_GPUS = 64
#: What a machine or suite may be called.
NAME = r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
Name = Annotated[
    str,
    Pattern(NAME, "a name of a-z, 0-9, '.' and '-'"),
    Doc("What it is called: equal to the file's name without .yaml."),
]
Url = Annotated[str, Pattern(r"https?://\S+", "a URL"), Doc("Where the figure or setting is from.")]
#: Values of environment variables; numbers are taken as they are written.
Env = dict[str, str | int]
Plain = dict[str, Any]


def check_env(env: Env, path: tuple[str, ...]) -> None:
    """Raise Invalid for a name that no shell accepts, or a value of more than one line."""
    for name, value in env.items():
        if not (name.isascii() and name.isidentifier()):
            raise Invalid((*path, name), "this is no name of an environment variable")
        if not str(value).isprintable():
            raise Invalid((*path, name), "the value must be one line of printable text")


def check_capabilities(context: Plain, path: tuple[str | int, ...]) -> None:
    """Raise Invalid for a capability of a securityContext that no container runtime knows.

    Runtimes put CAP_ before each name by themselves, and end at what is no capability then:
    https://kubernetes.io/docs/tasks/configure-pod-container/security-context/
    """
    given = context.get("capabilities")
    for kind in ("add", "drop"):
        names = given.get(kind) if isinstance(given, dict) else None
        for name in names if isinstance(names, list | tuple) else ():
            if str(name).upper().startswith("CAP_"):
                raise Invalid(
                    (*path, "capabilities", kind),
                    f"{name}: Kubernetes names capabilities without CAP_",
                    f"write {str(name)[4:]}",
                )


def check_containers(containers: tuple[Plain, ...], path: str) -> None:
    """The same of containers as a pod has them."""
    for index, one in enumerate(containers):
        context = one.get("securityContext")
        if isinstance(context, dict):
            check_capabilities(context, (path, index, "securityContext"))


def check_parameters(parameters: dict[str, Plain], path: tuple[str, ...]) -> None:
    """Raise Invalid where parameters are given for a check that does not exist."""
    for name in parameters:
        if name not in checks.names():
            raise Invalid((*path, name), "there is no such check", known(name, checks.names()))
