"""Make the pictures of the docs from simulated runs: `python -m tests.factories.pictures`.

Screens are SVG, with the same bytes each time. Pictures of `report.html` are PNG and need Chromium.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.text import Text
from tests.factories import blame_picture
from tests.factories.browser import PROGRAM, browser
from tests.factories.paths import ROOT
from tests.factories.reported_runs import reported

from accept.commands import report
from accept.commands.demo import unpack_demo
from accept.commands.judged import judge_path
from accept.core.report import text
from accept.core.report.text import Place
from accept.report.data import Run
from accept.report.html import render_html

FOLDER = ROOT / "docs" / "pictures"
#: Case of `reported_runs` -> title of its screen; `node` is the run of `accept demo`.
SCREENS = {
    "pass": "64 good nodes",
    "node": "accept demo: 32 simulated nodes",
    "leaf": "a leaf switch that is slow for one GPU of eight nodes",
    "fabric": "a network with bad pairs, and good nodes",
    "wrong": "wrong data",
}
#: Name of a picture -> its case, and the selector of the part of the page; empty: its first screen.
REPORTS = {
    "report-node": ("node", ""),
    "report-leaf-pairs": ("leaf", "#pairs"),
}
#: The report of the demo on a machine of a user.
_REPORT = "~/.local/state/accept/runs/demo/report.html"
_COLUMNS = 80
_WIDTH, _HEIGHT = 1100, 1200
#: As the format of rich, without a font that would be loaded from the network.
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; \
line-height: {line_height}px }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">\
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


@cache
def _run(name: str) -> Run:
    """Return the demo, or the run of a case under names such as a real run has."""
    if name == "node":
        with (
            tempfile.TemporaryDirectory() as runs,
            mock.patch.dict(os.environ, {"ACCEPT_RUNS": runs}),
        ):
            return report.reported(judge_path(str(unpack_demo())))
    run = reported(name)
    verdict = replace(run.verdict, machine="h100-8", suite="standard", attempt="20260921-1413-7c1e")
    return replace(run, verdict=verdict)


def screen(name: str) -> str:
    """Return the screen of a case as SVG."""
    run = _run(name)
    place = Place(report=_REPORT if run.commands else "", commands=run.commands)
    shown = Text.from_ansi(text.table(run.verdict, _COLUMNS, color=True, place=place))
    width = max(line.cell_len for line in shown.split())
    console = Console(
        record=True, file=io.StringIO(), width=width, force_terminal=True, color_system="standard"
    )
    # Without another line, the underscores of the last one are cut off.
    console.print(shown, end="\n\n")
    svg = console.export_svg(title=SCREENS[name], code_format=_FORMAT, unique_id=f"screen-{name}")
    return "".join(f"{line.rstrip()}\n" for line in svg.splitlines())


def _photograph(folder: Path) -> None:
    """Write the pictures of pages."""
    with browser() as tab:
        tab.resize(_WIDTH, _HEIGHT)
        for name, (case, part) in REPORTS.items():
            path = folder / f"{case}.html"
            path.write_text(render_html(_run(case)), encoding="utf-8")
            complaints = tab.open(path)
            assert not complaints, complaints
            tab.look(FOLDER / f"{name}.png", part=part)


def main() -> int:
    """Write all pictures. Returns 1 if there is no Chromium for those of pages."""
    FOLDER.mkdir(exist_ok=True)
    blame_picture.PICTURE.write_text(blame_picture.picture(), encoding="utf-8")
    for name in SCREENS:
        (FOLDER / f"screen-{name}.svg").write_text(screen(name), encoding="utf-8")
    if PROGRAM is None:
        sys.stderr.write("no Chromium (the Debian package chromium): the pages stay as they are\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        _photograph(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
