"""The pictures of the docs are those of this version."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from tests.factories.paths import ROOT
from tests.factories.pictures import FOLDER, REPORTS, SCREENS, screen


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_up_to_date(name: str) -> None:
    """If this fails: `python -m tests.factories.pictures`, and look at them."""
    assert (FOLDER / f"screen-{name}.svg").read_text(encoding="utf-8") == screen(name)
    ElementTree.fromstring(screen(name))


def test_each_picture_is_shown_on_a_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = {
        name
        for page in pages
        for name in re.findall(r"\((?:docs/)?pictures/([^)]+)\)", page.read_text())
    }
    made = {f"screen-{name}.svg" for name in SCREENS} | {f"{name}.png" for name in REPORTS}
    assert shown == made == {path.name for path in FOLDER.iterdir()}
