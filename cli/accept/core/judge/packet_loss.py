"""Find the RDMA port that loses packets, from counters of both ends and different partners.

A lost packet counts at both ends: the sender sends it again, and the receiver gets the next ones
out of sequence. So the two directions are compared separately. A port is a suspect only if it
explains all losses of a step with several pairs: it lost far more than other hosts, each of its
partners saw losses, and no other host did. It must be among the worst of another step, too.
Congestion and adaptive routing raise the counters of most ports, and accuse none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.health_readings import Loss, Reading, counts_losses
from accept.core.judge.health import Sweep, device_problem
from accept.core.model import Problem, Record, Step
from accept.core.text import count, shortened

#: A port loses packets if its share is this many times that of most ports.
_ABOVE_MOST = 100
#: Ports that lose less than the worst one divided by this are not among the worst. Each partner of
#: a bad port meets it in one of several rounds of pairs.
_ABOVE_NEXT = 2
#: Partners that a port must have had one by one, and the share of the limit that counts as seen.
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
    losses: Mapping[_Port, tuple[int, int]]
    shares: Mapping[_Port, float]
    #: Hosts with losses in the opposite direction, which are the other ends.
    ends: frozenset[str]
    #: Hosts with losses in any direction.
    lossy: frozenset[str]
    #: The ports that lose far more than most, worst first.
    worst: tuple[_Port, ...]
    #: Hosts that took part in an execution with the worst port, and those that were alone with it.
    mates: frozenset[str]
    partners: frozenset[str]

    @property
    def named(self) -> tuple[_Port, ...]:
        """Return the worst ports if they are of one host, and if its losses explain all others."""
        explained = self.partners <= self.ends and self.lossy <= self.mates
        # Of three hosts with losses, two may have bad ports.
        others = {host for host, _ in self.shares} - self.lossy
        several = len(self.partners) >= (_FEWEST if others else _FEWEST + 1)
        return self.worst if explained and several and len({p[0] for p in self.worst}) == 1 else ()


def examine(
    sweeps: Sequence[Sweep],
    readings: Mapping[str, Reading],
    records: Mapping[str, Sequence[Record]],
    limit: float,
) -> tuple[list[Problem], list[str]]:
    """Return a problem for each port that loses packets, and a text for losses that name none.

    `records`: those of each step. `limit`: lost packets as a share of all packets of a port that a
    healthy one may have.
    """
    ports = {
        (host, device.title)
        for host, reading in readings.items()
        for device in reading.devices
        if counts_losses(reading, device)
    }
    directions = [d for d in _directions(sweeps, ports, records, limit) if d.worst]
    problems: dict[_Port, Problem] = {}
    for direction, port in ((d, port) for d in directions for port in d.named):
        again = [
            other
            for other in directions
            if other.text == direction.text and other.step.id != direction.step.id
            if port in other.worst
        ]
        if again and port not in problems:
            message = f"{_share_text(direction, port)}, and {_share_text(again[0], port)}"
            message += f"; most ports {median_low(direction.shares.values()):.1g}, {limit:g} is "
            message += f"allowed: {port[1]} of {port[0]}"
            problems[port] = device_problem(Cause.NIC_ERRORS, *port, message)
    named = {host for host, _ in problems}
    texts = [
        f"{_share_text(direction, direction.worst[0])}, {limit:g} is allowed: "
        + shortened([f"{title} of {host}" for host, title in direction.worst], _MAX_NAMED)
        + _advice(direction)
        for direction in directions
        if not named & (direction.ends | {host for host, _ in direction.worst})
    ]
    return list(problems.values()), texts


def _share_text(direction: _Direction, port: _Port) -> str:
    lost, packets = direction.losses[port]
    return (
        f"{direction.shares[port]:.2g} of its packets ({lost} of {packets}) {direction.text} "
        f"during {direction.step.id}"
    )


def _advice(direction: _Direction) -> str:
    """Return why the worst ports are not named."""
    if direction.named:
        return "; no other step shows it, so it is not named; run more steps"
    if len(direction.partners) < _FEWEST:
        return "; measure these hosts with other partners to name one"
    return (
        f"; it had {count(len(direction.partners), 'partner')}, and no single host explains the "
        f"losses of {count(len(direction.lossy), 'host')}: check these ports"
    )


def _directions(
    sweeps: Iterable[Sweep],
    ports: Collection[_Port],
    records: Mapping[str, Sequence[Record]],
    limit: float,
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
            ends = _seeing(opposite, limit)
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
            lossy = ends | _seeing(own, limit)
            host = worst[0][0] if worst else ""
            joint = [r for r in records.get(step.id, ()) if host in r.hosts]
            mates = {name for r in joint for name in r.hosts}
            partners = {
                name for r in joint if r.exit == 0 and len(r.hosts) == 2 for name in r.hosts
            }
            partners.discard(host)
            yield _Direction(
                text=text,
                step=step,
                losses=own,
                shares=shares,
                ends=ends,
                lossy=lossy,
                worst=tuple(worst),
                mates=frozenset(mates),
                partners=frozenset(partners),
            )


def _seeing(losses: Mapping[_Port, tuple[int, int]], limit: float) -> frozenset[str]:
    """Return the hosts that lost packets."""
    return frozenset(p[0] for p, counts in losses.items() if _share(*counts) > limit * _SEEN)


def _share(lost: int, packets: int) -> float:
    """Return the lost packets as a share of all, 0 to 1; 0 if these were not counted."""
    if lost <= 0 or packets <= 0:
        return 0.0
    return 1.0 if lost >= packets else lost / packets
