"""A script of the user's own as a check: its exit status, and metric lines in the record format."""

from __future__ import annotations

from dataclasses import dataclass

from accept.core.checks import param


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of `script`."""

    path: str = param("", "the script, relative to the suite's file")
    name: str = param("", "what the report calls it; empty: the file's name")
