"""Pause another host in every wave of a run, while it measures; or pause the link of one host."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.cluster import observe
from tests.cluster.hosts import Hosts
from tests.cluster.machines import HostGone

#: Seconds between two looks at what the hosts send.
_INTERVAL = 0.05
#: A host that sends more bytes than this between two looks measures its largest size.
_BUSY = 200_000
#: A host that is busy after this many seconds of quiet measures in another wave.
_QUIET = 1.0


@contextmanager
def pauses(hosts: Hosts, seconds: float = 0.2) -> Iterator[list[str]]:
    """Pause one host in each wave, the next one each time; yield the list of those paused."""
    paused: list[str] = []
    ended = threading.Event()
    thread = threading.Thread(target=_pause_in_turn, args=(hosts, seconds, paused, ended))
    thread.start()
    try:
        yield paused
    finally:
        ended.set()
        thread.join()


@contextmanager
def interruptions(
    hosts: Hosts, name: str, seconds: float = 0.2, every: float = 2.0
) -> Iterator[None]:
    """Take the link of a host down for a moment, again and again."""
    ended = threading.Event()

    def interrupt() -> None:
        while not ended.wait(every):
            hosts.cut(name)
            time.sleep(seconds)
            hosts.restore(name)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _pause_in_turn(hosts: Hosts, seconds: float, paused: list[str], ended: threading.Event) -> None:
    before = _sent(hosts)
    quiet = _QUIET
    while not ended.wait(_INTERVAL):
        now = _sent(hosts)
        busy = {name for name, sent in now.items() if sent - before.get(name, sent) > _BUSY}
        before = now
        if not busy:
            quiet += _INTERVAL
            continue
        if quiet >= _QUIET:
            last = hosts.names.index(paused[-1]) + 1 if paused else 0
            turn = (*hosts.names[last:], *hosts.names[:last])
            name = next(name for name in turn if name in busy)
            hosts.pause(name, seconds)
            paused.append(name)
            before = _sent(hosts)
        quiet = 0.0


def _sent(hosts: Hosts) -> dict[str, int]:
    found = {}
    for name in hosts.names:
        with suppress(HostGone, OSError):
            found[name] = observe.sent(hosts.init(name))
    return found
