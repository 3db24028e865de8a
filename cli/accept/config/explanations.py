"""Read the explanations of all stable codes: errors, warnings, rows of `doctor`, drill reasons."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from accept.config.yaml_file import read_values


@cache
def explanations() -> Mapping[str, str]:
    """Return the problem and the next step of each code, in one to three sentences."""
    return read_values(dict[str, dict[str, str]], "errors")["explanations"]
