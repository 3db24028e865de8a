"""Ask NVIDIA's IMEX service for the NVLink domain of this host.

GPUs of different hosts reach each other over NVLink only if the IMEX services of both are
connected. `nvidia-imex-ctl -N -j` prints {status, nodes: {NUMBER: {status, host, hostName,
connections: {NUMBER: {host, status}}}}}. Only the entry of this host is used: a host can report
that it is READY and another one UNAVAILABLE although both are connected, and that their domain is
DEGRADED (NVIDIA/ai-cloud-validation, imex_departure_test.py).

https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/cmdservice.html
"""

from __future__ import annotations

import json
import shutil
import socket
from typing import Any

import commands

#: Time limit in seconds.
_SECONDS = 20
#: Nodes of a domain that are reported.
_MOST = 80


def state() -> dict[str, Any] | None:
    """Return the state of this host's domain and its connections; None: no such program.

    The keys: `domain`, `state` and `host` (address) of this host, `connections` (address of a node
    -> state) and `names` (address -> host name); only `words` if the program prints no state.
    """
    program = shutil.which("nvidia-imex-ctl")
    if program is None:
        return None
    ran = commands.run(_SECONDS, program, "-N", "-j", "-H")
    try:
        answer = json.loads(ran.out)
        nodes = [node for node in answer["nodes"].values() if isinstance(node, dict)][:_MOST]
    except (ValueError, LookupError, TypeError, AttributeError):
        return {"words": " ".join((ran.err or ran.out).split())[:200] or f"exit {ran.exit}"}
    own = next(
        (node for is_own in (_has_name, _has_address) for node in nodes if is_own(node)), None
    )
    if own is None:
        return {"words": "this host is not a node of the domain"}
    links = own.get("connections")
    links = links.values() if isinstance(links, dict) else ()
    return {
        "domain": answer.get("status"),
        "state": own.get("status"),
        "host": own.get("host"),
        "connections": {
            str(link.get("host")): link.get("status") for link in links if isinstance(link, dict)
        },
        "names": {str(node.get("host")): node.get("hostName") for node in nodes},
    }


def _has_name(node: dict[str, Any]) -> bool:
    """Return True if a node has the name of this host."""
    return node.get("hostName") == socket.gethostname()


def _has_address(node: dict[str, Any]) -> bool:
    """Return True if a node has an address of this host: only own ones can be bound."""
    host = str(node.get("host"))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as own:
        try:
            own.bind((host, 0))
        except (OSError, OverflowError, ValueError):
            return False
    return True
