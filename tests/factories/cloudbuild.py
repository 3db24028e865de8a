"""Parse cloudbuild.yml as Cloud Build does: steps in order, with substitutions filled in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml
from tests.factories.paths import ROOT

FILE = ROOT / "cloudbuild.yml"
#: Substitutions that Cloud Build sets for every build, also without a trigger:
#: https://cloud.google.com/build/docs/configuring-builds/substitute-variable-values
BUILT_IN = {
    "BUILD_ID": "11111111-2222",
    "LOCATION": "region1",
    "PROJECT_ID": "project1",
    "PROJECT_NUMBER": "1",
}
_NAME = re.compile(r"\$(?:(\$)|\{(\w+)\}|([A-Z_][A-Z0-9_]*))")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A build step with all substitutions filled in."""

    id: str
    image: str
    entrypoint: str | None
    args: list[str]
    env: dict[str, str]


def document() -> dict[str, Any]:
    """Return the parsed file without substitutions."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def names(text: str) -> set[str]:
    """Return the names of the substitutions in a text."""
    return {braced or bare for _, braced, bare in _NAME.findall(text)} - {""}


def values(**given: str) -> dict[str, str]:
    """Return the value of every substitution; `given` overrides the defaults.

    With dynamicSubstitutions, values may refer to each other in any order.
    """
    known = {**BUILT_IN, **document()["substitutions"], **given}
    for _ in known:
        known = {name: filled(value, known) for name, value in known.items()}
    return known


def filled(text: str, known: dict[str, str]) -> str:
    """Fill in the substitutions of a text. Raise KeyError for an unknown name."""
    return _NAME.sub(lambda m: "$" if m[1] else known[m[2] or m[3]], text)


def steps(**given: str) -> dict[str, Step]:
    """Return the steps by id, in order."""
    known = values(**given)
    found = {}
    for step in document()["steps"]:
        pairs = (filled(text, known).partition("=") for text in step.get("env", ()))
        found[step["id"]] = Step(
            id=step["id"],
            image=step["name"],
            entrypoint=step.get("entrypoint"),
            args=[filled(text, known) for text in step["args"]],
            env={name: value for name, _, value in pairs},
        )
    return found
