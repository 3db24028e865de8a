"""Name the faults of drills, as in `planted` of a plan and in the facts of a run."""

from __future__ import annotations

from collections.abc import Sequence

#: Faults of single hosts: injected by `launchers/inject_fault.sh`, or as a closed port.
ON_HOSTS = ("full-disk", "slow-link", "unreachable")
#: Faults of all hosts, injected by the settings of the run.
EVERYWHERE = ("sockets",)
#: Facts for a fault that was injected, that could not be injected, and that could not be undone.
PLANTED, NOT_PLANTED, NOT_UNDONE = "planted", "not-planted", "not-undone"


def for_ranks(planted: Sequence[str]) -> str:
    """Return the value of ACCEPT_PLANT for the launchers and programs of the ranks."""
    return ",".join(text for text in planted if ":" in text or text.startswith("full-disk@"))
