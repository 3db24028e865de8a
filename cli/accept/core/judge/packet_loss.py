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
from accept.core.judge.findings import Problems
from accept.core.judge.health import Sweep, problems_of
from accept.core.plan import Step
from accept.core.records import Problem, Record
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
    records: Sequence[Record]
    losses: Mapping[_Port, tuple[int, int]]
    shares: Mapping[_Port, float]
    #: Hosts with losses in the opposite direction, which are the other ends.
    ends: frozenset[str]
    #: Hosts with losses in any direction.
    lossy: frozenset[str]
    #: The ports that lose far more than most, worst first.
    high: tuple[_Port, ...]

    def worst(self, without: Collection[str] = ()) -> tuple[_Port, ...]:
        """Return the ports that lose most, except those of some hosts."""
        left = [port for port in self.high if port[0] not in without]
        return tuple(p for p in left if _ABOVE_NEXT * self.shares[p] >= self.shares[left[0]])

    def partners(self, host: str) -> set[str]:
        """Return the hosts that were alone with a host in an execution that worked."""
        pairs = (r.hosts for r in self.records if r.exit == 0 and len(r.hosts) == 2)
        return {name for pair in pairs if host in pair for name in pair} - {host}

    def explained(self, hosts: Collection[str]) -> set[str]:
        """Return the hosts whose losses may be those of `hosts`, and these.

        A lost packet counts at both ends, so one of the `hosts` in an execution saw losses in the
        opposite direction. In an execution that failed, it may have stopped to answer.
        """
        seeing = self.ends.intersection(hosts)
        joint = (
            record.hosts
            for record in self.records
            if not (seeing if record.exit == 0 else {*hosts}).isdisjoint(record.hosts)
        )
        return {*hosts}.union(*joint)

    def share_text(self, port: _Port) -> str:
        """Return the loss of a port."""
        lost, packets = self.losses[port]
        return f"{self.shares[port]:.2g} of its packets ({lost} of {packets}) {self.text}"

    @property
    def named(self) -> tuple[_Port, ...]:
        """Return the worst ports if they are of one host, and if its losses explain all others."""
        worst = self.worst()
        host = worst[0][0]
        partners = self.partners(host)
        mates = {name for r in self.records if host in r.hosts for name in r.hosts}
        # Of three hosts with losses, two may have bad ports.
        others = {name for name, _ in self.shares} - self.lossy
        several = len(partners) >= (_FEWEST if others else _FEWEST + 1)
        explained = partners <= self.ends and self.lossy <= mates
        return worst if explained and several and len({p[0] for p in worst}) == 1 else ()


def examine(
    sweeps: Sequence[Sweep],
    readings: Mapping[str, Reading],
    records: Mapping[str, Sequence[Record]],
    limit: float,
    set_aside: Collection[str] = (),
) -> Problems:
    """Return a problem for each port that loses packets; losses that name none are unclear.

    `records`: those of each step. `limit`: lost packets as a share of all packets of a port that a
    healthy one may have. `set_aside`: hosts whose losses count only as a reason of others.
    """
    ports = {
        (host, device.title)
        for host, reading in readings.items()
        for device in reading.devices
        if counts_losses(reading, device)
    }
    directions = [d for d in _directions(sweeps, ports, records, limit, set_aside) if d.high]
    problems: dict[_Port, Problem] = {}
    for direction, port in ((d, port) for d in directions for port in d.named):
        again = [
            other
            for other in directions
            if other.text == direction.text and other.step.id != direction.step.id
            if port in other.worst()
        ]
        if again and port not in problems and port[0] not in direction.explained(set_aside):
            text = f"{direction.share_text(port)}, and {again[0].share_text(port)}; most ports "
            text += f"{median_low(direction.shares.values()):.1g}, {limit:g} is allowed"
            when = f"during {direction.step.id} and {again[0].step.id}"
            (problems[port],) = problems_of(when, *port, [(Cause.NIC_ERRORS, text)])
    aside = {*set_aside, *(host for host, _ in problems)}
    unclear = []
    for direction in directions:
        if left := direction.worst(without=direction.explained(aside)):
            names = shortened([f"{title} of {host}" for host, title in left], _MAX_NAMED)
            text = f"during {direction.step.id}: {direction.share_text(left[0])}, {limit:g} is "
            text += f"allowed: {names}; {_advice(direction, left[0])}"
            unclear.append(Problem(cause=Cause.NIC_ERRORS, message=text))
    return Problems(list(problems.values()), unclear, [])


def _advice(direction: _Direction, port: _Port) -> str:
    """Return why a port, one of the worst, is not named."""
    partners = direction.partners(port[0])
    if port in direction.named:
        return "no other step shows it, so it is not named; run more steps"
    if len(partners) < _FEWEST:
        return "measure these hosts with other partners to name one"
    if not partners <= direction.ends:
        return "partners saw none, so no port is named"
    return f"one port does not explain the losses of {count(len(direction.lossy), 'node')}"


def _directions(
    sweeps: Iterable[Sweep],
    ports: Collection[_Port],
    records: Mapping[str, Sequence[Record]],
    limit: float,
    set_aside: Collection[str],
) -> Iterator[_Direction]:
    """Yield both directions of each step in which packets were lost."""
    steps: dict[str, tuple[Step, dict[_Port, Loss]]] = {}
    for sweep in sweeps:
        if sweep.step is None:
            continue
        for title, loss in sweep.change.losses.items():
            if sweep.host in set_aside or (sweep.host, title) in ports:
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
            high = [
                port
                for port, share in shares.items()
                if share >= lowest and own[port][0] >= _FEWEST_PACKETS
            ]
            if text == _OUT_OF_SEQUENCE and not ends:
                # Packets took different paths, as with adaptive routing, and none was lost.
                continue
            yield _Direction(
                text=text,
                step=step,
                records=records.get(step.id, ()),
                losses=own,
                shares=shares,
                ends=ends,
                lossy=ends | _seeing(own, limit),
                high=tuple(sorted(high, key=lambda port: (-shares[port], port))),
            )


def _seeing(losses: Mapping[_Port, tuple[int, int]], limit: float) -> frozenset[str]:
    """Return the hosts that lost packets."""
    return frozenset(p[0] for p, counts in losses.items() if _share(*counts) > limit * _SEEN)


def _share(lost: int, packets: int) -> float:
    """Return the lost packets as a share of all, 0 to 1; 0 if these were not counted."""
    if lost <= 0 or packets <= 0:
        return 0.0
    return 1.0 if lost >= packets else lost / packets
