"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a free port below the range from which the kernel assigns ports by itself."""
    for port in random.sample(range(20000, 32768), 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")
