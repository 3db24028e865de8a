"""Files that the pages for users show as examples."""

from __future__ import annotations

import re

from tests.factories.paths import ROOT

#: A fenced block of a page: its language, the file it shows if it names one, and the text.
CODE_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> dict[str, str]:
    """Return the files that a page shows in full, by name."""
    blocks = CODE_BLOCK.findall((ROOT / page).read_text())
    return {name: content for _, name, content in blocks if name}
