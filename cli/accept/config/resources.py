"""Locate the chart, the launchers and the data files, in the wheel or else in the checkout."""

from __future__ import annotations

from pathlib import Path

#: The folder of the package `accept`.
_PACKAGE = Path(__file__).resolve().parents[1]
_ROOT = _PACKAGE / "_assets" if (_PACKAGE / "_assets").is_dir() else _PACKAGE.parents[1]


def launchers() -> Path:
    """Return the folder of step templates, scripts and programs."""
    return _ROOT / "launchers"


def values() -> Path:
    """Return the folder of machine and suite files."""
    return _ROOT / "values"


def demo() -> Path:
    """Return the archive with the evidence of a simulated run."""
    return values() / "demo.tgz"


def core() -> Path:
    """Return the folder of the package that runs on nodes."""
    return _PACKAGE / "core"


def causes() -> Path:
    """Return the page of the documentation that explains every cause."""
    return _ROOT / "docs" / "causes.md"


def cause_section(cause: str) -> str:
    """Return the section of that page about one cause, without its heading."""
    page = causes().read_text(encoding="utf-8")
    return page.partition(f"\n### {cause}\n")[2].partition("\n##")[0].strip()


def chart() -> Path:
    """Return the folder of the Helm chart; in a checkout it lacks the code for the nodes."""
    return _ROOT / "chart"


def build() -> Path:
    """Return the folder of build results in a checkout."""
    return _ROOT / "build"
