"""Read the explanations of all stable codes: errors, warnings, rows of `doctor`, drill reasons."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from accept.config import resources
from accept.config.yaml_file import read_file


@cache
def explanations() -> Mapping[str, str]:
    """Return the problem and the next step of each code, in one to three sentences."""
    file = resources.values() / "errors.yaml"
    return read_file(dict[str, dict[str, str]], file)["explanations"]
