"""What NCCL's own lines say: which networks it uses on which hosts, and its warnings."""

from __future__ import annotations

import re

from accept.core.nccl_lines import text_of

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
_USES = ((b" via NET/", b"/"), (b" Using network ", b"\n"))


class Info:
    """What NCCL said so far."""

    def __init__(self) -> None:
        self.lines = 0
        self.warnings: list[str] = []
        self._networks: dict[str, set[str]] = {}

    def inform(self, lines: bytes) -> None:
        """Take lines of NCCL's that begin with their host, after a tag of mpirun's at most."""
        self.lines += lines.count(b"\n")
        for mark, stop in _USES:
            at = lines.find(mark)
            while at >= 0:
                start = lines.rfind(b"\n", 0, at) + 1
                if lines.startswith(b"[", start):
                    start = lines.find(b">:", start) + 2
                at += len(mark)
                end = lines.find(stop, at, at + _MAX_NAME + 1)
                if end >= 0:
                    self._use(lines[at:end], lines[start : lines.find(b":", start)])
                at = lines.find(mark, at)

    def _use(self, raw: bytes, host: bytes) -> None:
        name = text_of(raw).strip()
        hosts = self._networks.get(name)
        if hosts is None:
            if not name or b"\n" in raw or len(self._networks) >= _MAX_NAMES:
                return
            hosts = self._networks[name] = set()
        if len(hosts) < _MAX_HOSTS:
            hosts.add(text_of(host).strip())

    def say(self, host: str, message: bytes) -> None:
        """Take one message, from the word NCCL on."""
        if message.startswith(b"NCCL INFO "):
            self.inform(host.encode() + b": " + message + b"\n")
            return
        self.lines += 1
        if message.startswith(b"NCCL WARN") and len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(f"{host}: {text_of(message[10:510])}")

    def networks(self) -> dict[str, tuple[str, ...]]:
        """Return the networks in use, and the hosts that use them."""
        return {name: tuple(sorted(hosts)) for name, hosts in sorted(self._networks.items())}
