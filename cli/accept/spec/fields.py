"""Fields and tests of them that machines, suites and sites share."""

from __future__ import annotations

from typing import Annotated, Any

from accept.core import checks
from accept.core.shape import Doc, Invalid, Pattern, known

Name = Annotated[
    str,
    Pattern(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", "a name of a-z, 0-9, '.' and '-'"),
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


def check_parameters(parameters: dict[str, Plain], path: tuple[str, ...]) -> None:
    """Raise Invalid where parameters are given for a check that does not exist."""
    for name in parameters:
        if name not in checks.names():
            raise Invalid((*path, name), "there is no such check", known(name, checks.names()))
