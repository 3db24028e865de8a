"""Settings of Sphinx for the documentation site: `make docs` builds it."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "cli")]

from docs.site.pages import complete  # noqa: E402 - needs the path above

from accept import __version__  # noqa: E402

project = "gpu-accept"
author = "The accept authors"
copyright = author  # noqa: A001 - Sphinx's name
version = release = __version__
extensions = ["myst_parser"]
exclude_patterns = ["site"]
# Options such as --hosts keep their dashes.
smartquotes = False
myst_heading_anchors = 4
# In examples of the documentation, `console` blocks show commands after `$`.
highlight_language = "text"

html_theme = "furo"
# Part of every page's title: CUPS has an `accept`, too.
html_title = f"accept (gpu-accept) {__version__}"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_use_index = False


def setup(app: Sphinx) -> None:
    """Complete every page when Sphinx reads it."""

    def read_page(_app: Sphinx, name: str, source: list[str]) -> None:
        source[0] = complete(f"docs/{name}.md", source[0])

    app.connect("source-read", read_page)
