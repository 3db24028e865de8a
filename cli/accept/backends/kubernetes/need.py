"""How `accept doctor` says what a cluster has or lacks."""

from __future__ import annotations

from accept.backends.requirements import Need


def lack(what: str, found: str, advice: str = "", *, good: bool = False) -> Need:
    """What the run needs and the cluster lacks; `good`: it starts without."""
    return Need(host="cluster", what=what, good=good, found=found, advice=advice)


def fine(what: str, found: str, advice: str = "") -> Need:
    """What the cluster has."""
    return lack(what, found, advice, good=True)
