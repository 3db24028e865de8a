"""A stand-in for `ib_write_bw` and `ib_read_lat` between two test hosts: TCP over their real link.

It prints the recorded output of `ib_write_bw` with the measured rate: Gbit/s for Mbit/s. Test hosts
have no RDMA, so `commands` makes NICs in the sysfs of a host; a slow one waits.
"""

from __future__ import annotations

import itertools
import re
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.factories import perftest  # this file also runs as a program

_RECORDED_LATENCY = (
    "                    RDMA_Read Latency Test\n"
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n"
    " 8       10000          2.10           9.55         {:<7.2f}           {:<7.2f}\n"
)
#: Bytes that the stand-in sends on each NIC.
SENT = 1 << 20


def commands(nics: int, slow: str = "", share: float = 0.4) -> str:
    """Return the shell commands that give a host NICs and the programs; `slow`: name of a NIC."""
    program = f"exec '{sys.executable}' -IS '{__file__}' \"$0\" '{slow}' {share} \"$@\""
    lines = [
        # The kernel makes /sys/class/infiniband only for real devices.
        "mkdir /tmp/net && mount --bind /sys/class/net /tmp/net && mount -t tmpfs none /sys/class",
        "mkdir /sys/class/net && mount --move /tmp/net /sys/class/net",
        "mount -t tmpfs none /usr/local/bin",
    ]
    for number in range(nics):
        port = f"/sys/class/infiniband/mlx5_{number}/ports/1"
        lines.append(f"mkdir -p {port} && cd {port} && echo '4: ACTIVE' > state")
        lines.append("echo '400 Gb/sec (4X NDR)' > rate && echo InfiniBand > link_layer")
    for name in ("ib_write_bw", "ib_read_lat"):
        path = f"/usr/local/bin/{name}"
        lines.append(f"cat > {path} <<'END'\n#!/bin/sh\n{program}\nEND\nchmod 755 {path}")
    return "\n".join(["set -e", *lines])


def main(name: str, slow: str, share: str, *arguments: str) -> int:
    """Run the stand-in, and return its exit status."""
    if arguments == ("--version",):
        print("Version: 6.06")
        return 0
    options = dict(re.findall(r"--([\w-]+)=(\S+)", " ".join(arguments)))
    port, lost = int(options["port"]), 1 / float(share) - 1 if options["ib-dev"] == slow else 0.0
    if arguments[-1].startswith("-"):
        with socket.create_server(("", port)) as server:
            found, _ = server.accept()
            begin = time.perf_counter()
            while block := found.recv(1 << 16):
                if block.endswith(b"!"):
                    time.sleep((time.perf_counter() - begin) * lost)
                    found.sendall(b"!")
        return 0
    with socket.create_connection((arguments[-1], port), timeout=20) as link:
        begin = time.perf_counter()
        link.sendall(b"." * SENT + b"!")
        link.recv(1)
        seconds = (time.perf_counter() - begin) * (1 + lost)
    if name.endswith("lat"):
        sys.stdout.write(_RECORDED_LATENCY.format(seconds * 1e6, seconds * 1e6))
    else:
        rate = SENT * 8 / 1e6 / seconds
        sys.stdout.write(perftest.printed(options["ib-dev"], rate, int(options["size"])))
    return 0


if __name__ == "__main__":
    sys.exit(main(*itertools.islice(sys.argv, 1, None)))
