"""Read the explanations of all stable codes: errors, warnings, rows of `doctor`, drill reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from accept.config import resources
from accept.config.yaml_file import read_file


@dataclass(frozen=True, kw_only=True)
class _File:
    """The content of `values/errors.yaml`."""

    explanations: dict[str, str]


@cache
def explanations() -> Mapping[str, str]:
    """Return the problem and the next step of each code, in one to three sentences."""
    return read_file(_File, resources.values() / "errors.yaml").explanations
