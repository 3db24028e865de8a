"""Parse NCCL's own log lines: the networks in use on each host, and warnings."""

from __future__ import annotations

import re

from accept.core.nccl_tests.lines import text_of

MAX_WARNINGS = 8
_MAX_NAMES, _MAX_NAME, _MAX_HOSTS = 64, 64, 8192

#: Consecutive undamaged lines of NCCL, with or without the tags of mpirun. Parsing them together
#: must give the same result as one by one. The limit excludes lines that are too long to be parsed.
RUN = re.compile(
    rb"^(?:(?:\[[^][\s]{1,200}\]<std(?:out|err)>: ?)?"
    rb"[\w.-]{1,255}:\d{1,10}:\d{1,10} \[-?\d{1,4}\] NCCL INFO [^\n]{0,60000}\n)+",
    re.MULTILINE,
)
_NET = b" via NET/"
#: Text before and after the name of a network in use.
_USES = ((_NET, b"/"), (b" Using network ", b"\n"))
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

    def inform(self, lines: bytes) -> None:
        """Add INFO lines that begin with their host, or with a tag of mpirun and their host."""
        self.lines += lines.count(b"\n")
        for mark, stop in _USES:
            at = lines.find(mark)
            while at >= 0:
                host = _host(lines, at)
                at += len(mark)
                end = lines.find(stop, at, at + _MAX_NAME + 1)
                line_end = lines.find(b"\n", at)
                if 0 <= end <= line_end:
                    _note(self._networks, lines[at:end], host)
                    if mark is _NET:
                        _note(self._detours, b"NET", host)
                        if lines.find(_DIRECT, end, line_end) < 0:
                            _note(self._detours, b"NET/" + lines[at:end], host)
                at = lines.find(mark, at)
        at = lines.find(_SHM)
        while at >= 0:
            _note(self._detours, b"SHM", _host(lines, at))
            at = lines.find(_SHM, lines.find(b"\n", at))

    def say(self, host: str, message: bytes) -> None:
        """Add one message that begins with the word NCCL."""
        if message.startswith(b"NCCL INFO "):
            self.inform(host.encode() + b": " + message + b"\n")
            return
        self.lines += 1
        if message.startswith(b"NCCL WARN") and _P2P_OFF in message:
            _note(self._detours, b"P2P off", host.encode())
        if message.startswith(b"NCCL WARN") and len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(f"{host}: {text_of(message[10:510])}")

    def networks(self) -> dict[str, tuple[str, ...]]:
        """Return the networks in use, each with its hosts."""
        return {name: tuple(sorted(hosts)) for name, hosts in sorted(self._networks.items())}

    def detours(self) -> dict[str, tuple[str, ...]]:
        """Return the paths that may be slower than necessary, each with its hosts.

        "NET/gIB": this network without GDRDMA. "NET": any network, which is unnecessary inside one
        host. "SHM": host memory between GPUs of one host. "P2P off": a warning of NCCL.
        """
        return {name: tuple(sorted(hosts)) for name, hosts in sorted(self._detours.items())}


def _host(lines: bytes, at: int) -> bytes:
    """Return the host at the beginning of the line that contains position `at`."""
    start = lines.rfind(b"\n", 0, at) + 1
    if lines.startswith(b"[", start):
        start = lines.find(b">:", start) + 2
    return lines[start : lines.find(b":", start)]


def _note(hosts_by_name: dict[str, set[str]], raw_name: bytes, host: bytes) -> None:
    name = text_of(raw_name).strip()
    hosts = hosts_by_name.get(name)
    if hosts is None:
        if not name or len(hosts_by_name) >= _MAX_NAMES:
            return
        hosts = hosts_by_name[name] = set()
    if len(hosts) < _MAX_HOSTS:
        hosts.add(text_of(host).strip())
