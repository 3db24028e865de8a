"""Parse docker/Dockerfile into instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.factories.paths import ROOT

FILE = ROOT / "docker" / "Dockerfile"


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction with its lines joined; `stage` is "" before the first FROM."""

    stage: str
    word: str
    rest: str


def instructions() -> list[Instruction]:
    """Return all instructions in order."""
    kept = [line for line in FILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", "", "\n".join(kept))
    found, stage = [], ""
    for line in filter(str.strip, joined.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stage = rest.split(" AS ")[1]
        found.append(Instruction(stage=stage, word=word, rest=rest.strip()))
    return found


def arguments() -> dict[str, str]:
    """Return the default of each build argument, or "" if it has none."""
    pairs = (one.rest.partition("=") for one in instructions() if one.word == "ARG")
    return {name: value.strip('"') for name, _, value in pairs}


def stages() -> dict[str, str]:
    """Return the base image or base stage of each stage."""
    rests = (one.rest.split(" AS ") for one in instructions() if one.word == "FROM")
    return {name: base for base, name in rests}
