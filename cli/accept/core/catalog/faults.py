"""The faults of a drill by name, as a plan's `planted` and a run's facts have them."""

from __future__ import annotations

from collections.abc import Sequence

#: Planted on a host: by `launchers/inject_fault.sh`, or by a closed port for the coordinator.
ON_HOSTS = ("full-disk", "slow-link", "unreachable")
#: Planted on all hosts alike, by the settings of the run.
EVERYWHERE = ("sockets",)
#: Facts of a fault that struck, that could not be planted, and that could not be taken back.
PLANTED, NOT_PLANTED, NOT_UNDONE = "planted", "not-planted", "not-undone"


def for_ranks(planted: Sequence[str]) -> str:
    """What the launchers and programs of the ranks are told, as ACCEPT_PLANT."""
    return ",".join(text for text in planted if ":" in text or text.startswith("full-disk@"))
