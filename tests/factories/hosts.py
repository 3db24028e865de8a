"""Hosts of a run that all are this machine."""

from __future__ import annotations

from accept.core.runner.ssh import Host


def here(*names: str, slots: int = 1) -> tuple[Host, ...]:
    """Return hosts of these names, on which commands run without ssh."""
    return tuple(
        Host(name=name, mpi_name=name, address="127.0.0.1", port=22, slots=slots, local=True)
        for name in names
    )
