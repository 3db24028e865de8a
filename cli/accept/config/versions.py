"""Read the versions that their makers support together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated

from accept.config.fields import Url
from accept.config.machine import Machine
from accept.config.yaml_file import read_values
from accept.core.plan import Supported
from accept.core.serde import Doc


@dataclass(frozen=True, kw_only=True)
class Row(Supported):
    """A row of `values/versions.yaml`; see the comments there."""

    source: Url
    device: Annotated[str | None, Doc("GPU of the machines that it is about; None: all.")] = None


@cache
def rows() -> tuple[Row, ...]:
    """Return the rows that come with `accept`."""
    return read_values(dict[str, tuple[Row, ...]], "versions")["supported"]


def supported(machine: Machine) -> tuple[Supported, ...]:
    """Return the versions that concern a machine; none without GPUs."""
    return tuple(
        Supported(**{name: value for name, value in vars(row).items() if name != "device"})
        for row in rows()
        if machine.gpus.count != 0 and row.device in (None, machine.gpus.device)
    )
