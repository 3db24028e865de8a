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


def core() -> Path:
    """Return the folder of the package that runs on nodes."""
    return _PACKAGE / "core"


def causes() -> Path:
    """Return the page of the documentation that explains every cause."""
    return _ROOT / "docs" / "causes.md"


def chart() -> Path:
    """Return the folder of the Helm chart."""
    return _ROOT / "chart"
