"""Find the RDMA port that loses packets, from counters of both ends and different partners.

A lost packet counts at both ends: the sender sends it again, and the receiver gets the next ones
out of sequence. So the two directions are compared separately, and a port is a suspect only if it
is the only bad one of a step in which several hosts saw its losses, and again among the worst of
another step. Congestion and adaptive routing raise the counters of most ports, and accuse none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.health_readings import Loss, Reading, counts_losses
from accept.core.judge.health import Sweep, device_problem
from accept.core.model import Problem, Step
from accept.core.text import shortened

#: A port loses packets if its share is this many times that of most ports.
_ABOVE_MOST = 100
#: Ports that lose less than the worst one divided by this are not among the worst. Each partner of
#: a bad port meets it in one of several rounds of pairs.
_ABOVE_NEXT = 2
#: Other hosts that must have seen the losses of a port, each at least this share of the limit.
_FEWEST, _SEEN = 2, 0.1
#: Fewer lost packets give no usable share.
_FEWEST_PACKETS = 100
_MAX_NAMED = 4
_SENT_AGAIN, _OUT_OF_SEQUENCE = "were sent again", "came out of sequence"

#: Host, and title of the device.
_Port = tuple[str, str]


class _Direction(NamedTuple):
    """Shares of the packets in one direction that were lost, of each port in one step."""

    text: str
    step: Step
    shares: Mapping[_Port, float]
    #: Hosts with losses in the opposite direction, which are the other ends.
    ends: frozenset[str]
    #: The ports that lose far more than most, worst first.
    worst: tuple[_Port, ...]

    @property
    def single(self) -> bool:
        """Return True if one port is worse than all others, and several hosts saw its losses."""
        others = self.ends - {port[0] for port in self.worst}
        return len(self.worst) == 1 and len(others) >= _FEWEST


def examine(
    sweeps: Sequence[Sweep], readings: Mapping[str, Reading], limit: float
) -> tuple[list[Problem], list[str]]:
    """Return a problem for each port that loses packets, and a text for losses that name none.

    `limit`: lost packets as a share of all packets of a port that a healthy one may have.
    """
    ports = {
        (host, device.title)
        for host, reading in readings.items()
        for device in reading.devices
        if counts_losses(reading, device)
    }
    directions = [d for d in _directions(sweeps, ports, limit) if d.worst]
    problems: dict[_Port, Problem] = {}
    for direction in (d for d in directions if d.single):
        port = direction.worst[0]
        again = [
            other
            for other in directions
            if other.text == direction.text and other.step.id != direction.step.id
            if port in other.worst
        ]
        if again and port not in problems:
            message = f"{_share_text(direction, port)}, and {_share_text(again[0], port)}"
            message += f"; most ports {median_low(direction.shares.values()):.1g}"
            message += f": {port[1]} of {port[0]}"
            problems[port] = device_problem(Cause.NIC_ERRORS, *port, message)
    named = {host for host, _ in problems}
    texts = [
        f"{_share_text(direction, direction.worst[0])}: "
        + shortened([f"{title} of {host}" for host, title in direction.worst], _MAX_NAMED)
        + "; measure these hosts with other partners to name one"
        for direction in directions
        if not named & (direction.ends | {host for host, _ in direction.worst})
    ]
    return list(problems.values()), texts


def _share_text(direction: _Direction, port: _Port) -> str:
    return (
        f"{direction.shares[port]:.2g} of its packets {direction.text} during {direction.step.id}"
    )


def _directions(
    sweeps: Iterable[Sweep], ports: Collection[_Port], limit: float
) -> Iterator[_Direction]:
    """Yield both directions of each step in which packets were lost."""
    steps: dict[str, tuple[Step, dict[_Port, Loss]]] = {}
    for sweep in sweeps:
        if sweep.step is None:
            continue
        for title, loss in sweep.change.losses.items():
            if (sweep.host, title) in ports:
                steps.setdefault(sweep.step.id, (sweep.step, {}))[1][sweep.host, title] = loss
    for step, losses in steps.values():
        sent = {port: (loss.sent_again, loss.sent) for port, loss in losses.items()}
        received = {port: (loss.out_of_sequence, loss.received) for port, loss in losses.items()}
        for text, own, opposite in (
            (_SENT_AGAIN, sent, received),
            (_OUT_OF_SEQUENCE, received, sent),
        ):
            shares = {port: _share(*own.get(port, (0, 0))) for port in ports}
            ends = {port[0] for port, counts in opposite.items() if _share(*counts) > limit * _SEEN}
            lowest = max(limit, _ABOVE_MOST * median_low(shares.values()))
            top = max(shares.values())
            worst = [
                port
                for port, share in shares.items()
                if share >= lowest
                and _ABOVE_NEXT * share >= top
                and own[port][0] >= _FEWEST_PACKETS
            ]
            if text == _OUT_OF_SEQUENCE and not ends:
                # Packets took different paths, as with adaptive routing, and none was lost.
                continue
            worst.sort(key=lambda port: (-shares[port], port))
            yield _Direction(text, step, shares, frozenset(ends), tuple(worst))


def _share(lost: int, packets: int) -> float:
    """Return the lost packets as a share of all, 0 to 1; 0 if these were not counted."""
    if lost <= 0 or packets <= 0:
        return 0.0
    return 1.0 if lost >= packets else lost / packets
