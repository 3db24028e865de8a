"""What NCCL's own lines say: which networks it uses on which hosts, and its warnings."""

from __future__ import annotations

import re

from accept.core.nccl_tests.lines import text_of

MAX_WARNINGS = 8
_MAX_NAMES, _MAX_NAME, _MAX_HOSTS = 64, 64, 8192

#: Clean lines of NCCL's, one after another, with or without the tags of mpirun. They must mean what
#: they mean one by one; the limit keeps out lines that are too long to be read.
RUN = re.compile(
    rb"^(?:(?:\[[^][\s]{1,200}\]<std(?:out|err)>: ?)?"
    rb"[\w.-]{1,255}:\d{1,10}:\d{1,10} \[-?\d{1,4}\] NCCL INFO [^\n]{0,60000}\n)+",
    re.MULTILINE,
)
#: What stands before and after the name of a network in use.
_NET = b" via NET/"
_USES = ((_NET, b"/"), (b" Using network ", b"\n"))
#: Between GPUs of one host, past the way that GPUs have to each other.
_SHM = b" via SHM/"
#: NCCL's word for NICs that read and write GPU memory.
_DIRECT = b"GDRDMA"
_P2P_OFF = b"P2P is disabled between"


class Info:
    """What NCCL said so far."""

    def __init__(self) -> None:
        self.lines = 0
        self.warnings: list[str] = []
        self._networks: dict[str, set[str]] = {}
        #: Ways that are slower than others there may be, and the hosts that took them.
        self._detours: dict[str, set[str]] = {}

    def inform(self, lines: bytes) -> None:
        """Take lines of NCCL's that begin with their host, after a tag of mpirun's at most."""
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
        """Take one message, from the word NCCL on."""
        if message.startswith(b"NCCL INFO "):
            self.inform(host.encode() + b": " + message + b"\n")
            return
        self.lines += 1
        if message.startswith(b"NCCL WARN") and _P2P_OFF in message:
            _note(self._detours, b"P2P off", host.encode())
        if message.startswith(b"NCCL WARN") and len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(f"{host}: {text_of(message[10:510])}")

    def networks(self) -> dict[str, tuple[str, ...]]:
        """Return the networks in use, and the hosts that use them."""
        return {name: tuple(sorted(hosts)) for name, hosts in sorted(self._networks.items())}

    def detours(self) -> dict[str, tuple[str, ...]]:
        """Return ways that may be slower than they need be, and the hosts that took them.

        "NET/gIB": that network without GDRDMA; "NET": any network, which inside one host none is
        needed for; "SHM": host memory between GPUs of one host; "P2P off": NCCL's own warning.
        """
        return {name: tuple(sorted(hosts)) for name, hosts in sorted(self._detours.items())}


def _host(lines: bytes, at: int) -> bytes:
    """The host that the line around `at` begins with."""
    start = lines.rfind(b"\n", 0, at) + 1
    if lines.startswith(b"[", start):
        start = lines.find(b">:", start) + 2
    return lines[start : lines.find(b":", start)]


def _note(found: dict[str, set[str]], raw: bytes, host: bytes) -> None:
    name = text_of(raw).strip()
    hosts = found.get(name)
    if hosts is None:
        if not name or len(found) >= _MAX_NAMES:
            return
        hosts = found[name] = set()
    if len(hosts) < _MAX_HOSTS:
        hosts.add(text_of(host).strip())
