"""Parse NCCL's own log lines: the networks in use on each host, and warnings."""

from __future__ import annotations

import re

from accept.core.nccl_tests.lines import text_of

MAX_WARNINGS = 8
_MAX_NAMES, _MAX_HOSTS = 64, 8192

#: A network in use.
_NETWORK = re.compile(rb" via NET/([^/]{0,64})/| Using network (.{0,64})$")
#: Traffic between GPUs of one host through host memory.
_SHM = b" via SHM/"
#: NCCL's term for NICs that access GPU memory directly.
_DIRECT = b"GDRDMA"
_P2P_OFF = b"P2P is disabled between"


class Info:
    """Collects the contents of NCCL's lines."""

    def __init__(self) -> None:
        self.lines = 0
        self.warnings: list[str] = []
        self._networks: dict[str, set[str]] = {}
        #: Paths that may be slower than others, and the hosts that used them.
        self._detours: dict[str, set[str]] = {}

    def add(self, host: str, message: bytes) -> None:
        """Add one message of a host; it begins with the word NCCL."""
        self.lines += 1
        if message.startswith(b"NCCL INFO "):
            if b" via " in message or b" Using network " in message:
                self._add_path(host, message)
        elif message.startswith(b"NCCL WARN"):
            if _P2P_OFF in message:
                _note(self._detours, "P2P off", host)
            if len(self.warnings) < MAX_WARNINGS:
                self.warnings.append(f"{host}: {text_of(message[10:510])}")

    def _add_path(self, host: str, message: bytes) -> None:
        """Add the network or the host memory that a message reports."""
        if _SHM in message:
            _note(self._detours, "SHM", host)
        for found in _NETWORK.finditer(message):
            path, chosen = found.groups()
            name = text_of(chosen if path is None else path).strip()
            _note(self._networks, name, host)
            if path is not None:
                _note(self._detours, "NET", host)
                if _DIRECT not in message[found.end() :]:
                    _note(self._detours, f"NET/{name}", host)

    def networks(self) -> dict[str, tuple[str, ...]]:
        """Return the networks in use, each with its hosts."""
        return {name: tuple(sorted(hosts)) for name, hosts in sorted(self._networks.items())}

    def detours(self) -> dict[str, tuple[str, ...]]:
        """Return the paths that may be slower than necessary, each with its hosts.

        "NET/gIB": this network without GDRDMA. "NET": any network, which is unnecessary inside one
        host. "SHM": host memory between GPUs of one host. "P2P off": a warning of NCCL.
        """
        return {name: tuple(sorted(hosts)) for name, hosts in sorted(self._detours.items())}


def _note(hosts_by_name: dict[str, set[str]], name: str, host: str) -> None:
    hosts = hosts_by_name.get(name)
    if hosts is None:
        if not name or len(hosts_by_name) >= _MAX_NAMES:
            return
        hosts = hosts_by_name[name] = set()
    if len(hosts) < _MAX_HOSTS:
        hosts.add(host)
