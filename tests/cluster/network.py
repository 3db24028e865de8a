"""The network of the test hosts: a switch in a network namespace of its own, and a link to each.

Nothing but one interface, `accept-...`, appears on the machine itself; it holds the first address
of a /24 that no route of the machine knew before, and its name is taken atomically, so that two
networks at once never share a range. The kernel removes everything when the process that holds the
switch is gone.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, ip_network
from itertools import chain

#: Where the networks are taken from; the second is meant for benchmarks (RFC 2544).
RANGES = (IPv4Network("10.77.0.0/16"), IPv4Network("198.18.0.0/16"))
#: The last byte of the first host's address.
FIRST = 11
#: Most hosts that a network takes.
MOST = 240
#: Above this many hosts, neighbours are written down instead of learned by ARP: the table of all
#: namespaces together holds 1,024 learned ones by default.
LEARNED = 16
#: Bytes of the TCP options of each segment, and of all headers of one.
_TCP_OPTIONS, _HEADERS = 12, 66
UNITS = {"kbit": 1_000, "mbit": 1_000_000, "gbit": 1_000_000_000}


class NoNetwork(Exception):
    """The kernel refused a part of the network, or no range is free."""


def inside(pid: int, *kinds: str) -> list[str]:
    """Return the command that enters the namespaces of process `pid` (default: its network)."""
    return ["nsenter", f"--target={pid}", *(f"--{kind}" for kind in kinds or ("net",))]


def execute(command: Sequence[str], *, text: str = "") -> str:
    """Run a command to its end and return what it printed.

    Raises NoNetwork with the error output if the command fails.
    """
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNetwork(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def bits(rate: str) -> int:
    """Return a rate such as "100mbit" in bits a second."""
    match = re.fullmatch(r"(\d+)(kbit|mbit|gbit)", rate)
    if not match:
        raise ValueError(f"invalid rate {rate!r}: expected a whole number and kbit, mbit or gbit")
    return int(match[1]) * UNITS[match[2]]


def address(network: IPv4Network, index: int) -> IPv4Address:
    """Return the address of the host with this index (0 is the first)."""
    return network[FIRST + index]


def mac(index: int) -> str:
    """Return the hardware address of a host; the workstation's is that of index -1."""
    return f"02:00:00:00:01:{FIRST + index:02x}"


def host_batch(network: IPv4Network, index: int, count: int) -> str:
    """Return what `ip -batch` does inside the host with this index, one of `count`."""
    lines = [
        "link set lo up",
        "link set eth0 gso_max_size 16384",
        f"address add {address(network, index)}/{network.prefixlen} dev eth0",
        "link set eth0 up",
    ]
    return "\n".join([*lines, *_neighbours(network, count, but=index, device="eth0")]) + "\n"


def _neighbours(network: IPv4Network, count: int, *, but: int, device: str) -> Iterable[str]:
    if count <= LEARNED:
        return ()
    return (
        f"neighbour replace {network[1] if other < 0 else address(network, other)}"
        f" lladdr {mac(other)} dev {device} nud permanent"
        for other in range(-1, count)
        if other != but
    )


def _known() -> list[IPv4Network]:
    """Return every network that a route of this machine names, without the default routes."""
    routes = json.loads(execute(["ip", "-4", "-json", "route", "show", "table", "all"]) or "[]")
    named = (
        ip_network(route["dst"], strict=False) for route in routes if route["dst"] != "default"
    )
    return [network for network in named if isinstance(network, IPv4Network)]


def small_segments(share: float) -> int:
    """Return the TCP segment size to advertise so that a shaped link carries `share` of its speed.

    The rest of the link is filled by the headers of Ethernet, IP and TCP.
    """
    usual = 1500 - _TCP_OPTIONS - 40
    rate = share * usual / (usual + _HEADERS)
    return round(rate * _HEADERS / (1 - rate)) + _TCP_OPTIONS


class Switch:
    """A bridge in a network namespace of its own, with an uplink to this machine.

    `network` is its /24; the workstation, which is this machine, has the first address of it, on
    `interface`.
    """

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.interface = ""
        try:
            assert self._holder.stdin
            assert self._holder.stdout
            self._holder.stdin.write("up\n")
            self._holder.stdin.flush()
            if self._holder.stdout.readline() != "up\n":
                raise NoNetwork("no network namespace can be made here")
            self.network = self._take()
            self._batch(
                "link set lo up",
                "link add name bridge type bridge forward_delay 0 mcast_snooping 0",
                "link set bridge up",
                "link set uplink master bridge",
                "link set uplink up",
            )
            execute(["ip", "link", "set", self.interface, "up"])
        except BaseException:
            self.close()
            raise

    def _take(self) -> IPv4Network:
        """Take a free network, by creating the interface that is named after it."""
        known = _known()
        free = [
            candidate
            for candidate in chain.from_iterable(
                random.sample(list(scope.subnets(new_prefix=24)), 256) for scope in RANGES
            )
            if not any(candidate.overlaps(other) for other in known)
        ]
        refused = ""
        for network in free[:64]:
            _, second, third, _ = str(network.network_address).split(".")
            name = f"accept-{second}-{third}"
            peer = ["peer", "name", "uplink", "netns", str(self._holder.pid)]
            try:
                execute(["ip", "link", "add", name, "address", mac(-1), "type", "veth", *peer])
            except NoNetwork as error:
                refused = str(error)
                continue
            self.interface = name
            execute(["ip", "address", "add", f"{network[1]}/24", "dev", name])
            return network
        raise NoNetwork(f"no free network in {RANGES[0]} or {RANGES[1]}. {refused}")

    def _batch(self, *lines: str) -> None:
        execute([*inside(self._holder.pid), "ip", "-batch", "-"], text="\n".join(lines) + "\n")

    def join(self, indexes: Iterable[int], pids: Iterable[int], count: int) -> None:
        """Create a link to each of `count` hosts, whose first processes are `pids`."""
        lines: list[str] = []
        for index, pid in zip(indexes, pids, strict=True):
            port = f"port{index}"
            lines += [
                f"link add name {port} type veth peer name eth0 address {mac(index)} netns {pid}",
                f"link set {port} gso_max_size 16384 master bridge",
                f"link set {port} up",
            ]
        self._batch(*lines)
        device = self.interface
        known = _neighbours(self.network, count, but=-1, device=device)
        execute(["ip", "-batch", "-"], text="\n".join(known) + "\n")

    def leave(self, index: int) -> None:
        """Remove the link of a host, if it has not gone with the host's own end of it."""
        try:
            self._batch(f"link delete port{index}")
        except NoNetwork as error:
            # The kernel may take it between the look and the order.
            if "Cannot find device" not in str(error) and "No such device" not in str(error):
                raise

    def link(self, index: int, *, up: bool) -> None:
        """Take the link of a host down, or up again."""
        self._batch(f"link set port{index} {'up' if up else 'down'}")

    def uplink(self, *, up: bool) -> None:
        """Take the link of the workstation down, or up again."""
        self._batch(f"link set uplink {'up' if up else 'down'}")

    def shape(self, index: int, pid: int, rate: str) -> None:
        """Limit the link of a host, either way, to `rate` ("100mbit").

        A token bucket at each end. It holds 2 ms of traffic (at least two of the 16 KiB that one
        packet can be before it is split), so small messages pass unhindered and a megabyte does
        not. The queue is deeper than what all hosts may have under way to one: nothing is dropped.
        """
        bucket = max(32_768, bits(rate) // 8 // 500)
        limit = ["root", "tbf", "rate", rate, "burst", str(bucket), "limit", "256mb"]
        for where, device in ((self._holder.pid, f"port{index}"), (pid, "eth0")):
            execute([*inside(where), "tc", "qdisc", "replace", "dev", device, *limit])

    def unshape(self, index: int, pid: int) -> None:
        """Lift the limit of a host's link."""
        for where, device in ((self._holder.pid, f"port{index}"), (pid, "eth0")):
            execute([*inside(where), "tc", "qdisc", "replace", "dev", device, "root", "noqueue"])

    def close(self) -> None:
        """Remove the switch, every link to it and the interface on this machine."""
        if self.interface:
            subprocess.run(
                ["ip", "link", "delete", self.interface], capture_output=True, check=False
            )
        self._holder.kill()
        self._holder.communicate()
