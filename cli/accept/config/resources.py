"""Where the chart, the launchers and the data files are: in the wheel, else in the checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE / "_assets" if (_PACKAGE / "_assets").is_dir() else _PACKAGE.parents[1]


def launchers() -> Path:
    """The folder of step templates, scripts and programs."""
    return _ROOT / "launchers"


def values() -> Path:
    """The folder of machine and suite files."""
    return _ROOT / "values"


def core() -> Path:
    """The package that runs on nodes."""
    return _PACKAGE / "core"


def causes() -> Path:
    """The page that explains every cause."""
    return _ROOT / "docs" / "causes.md"


def chart() -> Path:
    """The Helm chart."""
    return _ROOT / "chart"
