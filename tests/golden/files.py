"""The files with the golden verdicts, one for each family of runs."""

from __future__ import annotations

import json

from tests.factories.paths import TESTS
from tests.golden.runs import FAMILIES
from tests.golden.view import View, text, view

_FOLDER = TESTS / "data" / "golden"


def stored(family: str) -> dict[str, View]:
    """Return the verdicts in the file of a family; none if there is no file."""
    path = _FOLDER / f"{family}.json"
    data: dict[str, View] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return data


def judged(family: str) -> dict[str, View]:
    """Judge all runs of a family."""
    return {name: view(make()) for name, make in FAMILIES[family].items()}


def store(family: str, views: dict[str, View]) -> None:
    """Write the file of a family."""
    _FOLDER.mkdir(exist_ok=True)
    (_FOLDER / f"{family}.json").write_text(text(views), encoding="utf-8")
