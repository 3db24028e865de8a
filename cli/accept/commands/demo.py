"""Judge the simulated run that comes with `accept`, and open its report."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

from accept.commands.judge import do_judge
from accept.config.resources import demo
from accept.core.errors import Exit
from accept.evidence import archive, rundir
from accept.report.console import Terminal

NAME = "demo"


def do_demo(terminal: Terminal, *, opens: bool) -> int:
    """Judge the demo as a run of this machine; with `opens`, show its report in a browser.

    Raises BadInput if a run of the user has its name.
    """
    folder = unpack_demo()
    terminal.progress("SIMULATED: the nodes of this run do not exist; a real run would exit with 3")
    do_judge((str(folder),), terminal)
    report = folder / rundir.REPORT
    if opens and _is_desktop() and webbrowser.open(report.as_uri()):
        terminal.progress("the report is open in your browser")
    return Exit.PASS


def unpack_demo() -> Path:
    """Make the run folder of the demo, unless it is there, and return it.

    Raises BadInput if a run of the user has its name.
    """
    folder = rundir.runs() / NAME
    if (folder / rundir.RUN).exists() or not folder.exists():
        folder = rundir.create(NAME)
        archive.unpack_evidence(demo(), folder / rundir.EVIDENCE, source=str(demo()))
    return folder


def _is_desktop() -> bool:
    """Return True if a browser would have a window; elsewhere, Python may start a text browser."""
    on_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and (on_display or sys.platform == "darwin")
