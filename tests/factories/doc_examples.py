"""The parts of pages for users that tests compare: examples, and generated tables."""

from __future__ import annotations

import re
from pathlib import Path

from tests.factories.paths import ROOT

#: A fenced block of a page: its language, the file it shows if it names one, and the text.
CODE_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> dict[str, str]:
    """Return the files that a page shows in full, by name."""
    blocks = CODE_BLOCK.findall((ROOT / page).read_text())
    return {name: content for _, name, content in blocks if name}


def with_generated(page: Path, begin: str, table: str, end: str) -> str:
    """Return the text of a page with a new table between two marks."""
    head, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{table}\n{end}{tail}"
