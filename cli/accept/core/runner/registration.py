"""Read the registrations of pods, which announce themselves to the coordinator.

`pod_entrypoint.sh` of every other pod logs in to the coordinator's pod and appends one line to the
file `registrations`: attempt, index, node, addresses and the address that the login came from. So
the coordinator needs no name lookups. The lines are untrusted.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from accept.core.limits import is_host_name
from accept.core.text import decimal, plain

REGISTRATIONS = "registrations"
_MAX_LINE, _MAX_BYTES = 1000, 8 << 20
#: Maximum number of refused registrations that are reported.
_MAX_REFUSED = 100


@dataclass(frozen=True, kw_only=True)
class Registration:
    """The announcement of a pod."""

    index: int
    #: Name of its node.
    node: str
    #: Numeric addresses, tried in this order.
    addresses: tuple[str, ...]


class _Refused(Exception):
    """An invalid registration: the reason, and its index if that is valid."""

    def __init__(self, reason: str, index: int | None = None) -> None:
        super().__init__(reason)
        self.index = index


class Registrations:
    """The registrations of a run so far.

    The same pod may register again, for example after a restart. Then the new entry counts.
    """

    def __init__(self, folder: Path, *, attempt: str, indexes: range) -> None:
        self.by_index: dict[int, Registration] = {}
        #: Reasons for refused registrations, and the last reason by index.
        self.refused: list[str] = []
        self.refused_by_index: dict[int, str] = {}
        self._path = folder / REGISTRATIONS
        self._attempt = attempt
        self._indexes = indexes
        self._read_bytes = 0

    def read(self) -> bool:
        """Read new lines; return True if a pod registered."""
        before = dict(self.by_index)
        for line in self._new_lines():
            try:
                registration = self._parse(line)
                self._check(registration)
            except _Refused as refused:
                reason = f"registration {plain(line, 200)!r} refused: {refused}"
                if len(self.refused) < _MAX_REFUSED:
                    self.refused.append(reason)
                if refused.index is not None:
                    self.refused_by_index[refused.index] = reason
                continue
            self.by_index[registration.index] = registration
        return self.by_index != before

    def _new_lines(self) -> list[str]:
        """Return the complete lines since the last call."""
        block = b""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read_bytes)
            block = file.read(max(0, _MAX_BYTES - self._read_bytes))
        block = block[: block.rfind(b"\n") + 1]
        self._read_bytes += len(block)
        return [line.decode(errors="replace") for line in block.splitlines()]

    def _parse(self, line: str) -> Registration:
        """Return the registration in a line: ATTEMPT INDEX NODE ADDRESS[,ADDRESS…] SOURCE."""
        words = line.split()
        if len(line) > _MAX_LINE or len(words) != 5:
            raise _Refused("it is from another version of accept")
        attempt, number, node, announced, _ = words
        if attempt != self._attempt:
            raise _Refused(f"it is not from the attempt {self._attempt}")
        index = decimal(number)
        if index is None or index not in self._indexes:
            first, last = self._indexes.start, self._indexes.stop - 1
            raise _Refused(f"the index must be from {first} to {last}")
        addresses = tuple(announced.split(","))
        if not all(map(_is_address_of_host, addresses)):
            raise _Refused("the address cannot be that of a pod", index)
        if not is_host_name(node):
            raise _Refused("the name of its node is not valid", index)
        return Registration(index=index, node=node, addresses=addresses)

    def _check(self, registration: Registration) -> None:
        """Raise _Refused if another pod has the index or an address."""
        known = self.by_index.get(registration.index)
        if known is not None and known.node != registration.node:
            reason = f"index {known.index} is already registered from node {known.node}"
            raise _Refused(reason, known.index)
        for other in self.by_index.values():
            if other.index != registration.index and not set(other.addresses).isdisjoint(
                registration.addresses
            ):
                reason = f"index {other.index} is already registered with that address"
                raise _Refused(reason, registration.index)


def _is_address_of_host(text: str) -> bool:
    """Return True for a numeric address that another host can have."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (
        address.is_loopback
        or address.is_multicast
        or address.is_unspecified
        or address.is_link_local
    )
