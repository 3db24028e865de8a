"""Parse NCCL's own log lines: the networks and NICs in use on each host, and warnings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from accept.core.nccl_tests.lines import clean, plain_nccl, text_of

#: Upper limit of the different warnings of a log, and of the length of each in bytes.
MAX_WARNINGS = 64
_MAX_WARNING = 300
_MAX_NAMES, _MAX_HOSTS = 64, 8192
#: GPUs with higher numbers are damage.
_MAX_GPUS = 64
_MAX_VALUE = 256

#: A variable, as NCCL reports it.
_SET = re.compile(rb" (NCCL_[A-Z0-9_]{1,60}) set by environment to (.*?)\.?$")
#: A network in use.
_NETWORK = re.compile(rb" via NET/([^/]{0,64})/| Using network (.{0,64})$")
#: The number of the NIC of a channel, and the names of a host's NICs by number.
_CHANNEL = re.compile(rb"(?:send|receive)\] via NET/[^/]{0,64}/(\d{1,3})(?![\d.])")
_USING = re.compile(rb"^NCCL INFO NET/\S{1,40} : Using \[0\]")
_NAMED = re.compile(rb"\[(\d{1,3})\]([\w.-]{1,64}):")
#: Traffic between GPUs of one host through host memory.
_SHM = b" via SHM/"
#: NCCL's term for NICs that access GPU memory directly.
_DIRECT = b"GDRDMA"
_P2P_OFF = b"P2P is disabled between"
#: NCCL writes this for groups of several GPUs of one host, unless a setting turns NVLS off:
#: https://github.com/NVIDIA/nccl/blob/178b6b7/src/transport/nvls.cc
_NVLS_OFF = b"NVLS multicast support is not available"
#: Whether a group uses NVLink between its hosts, and before that how many of its GPUs are connected
#: by it: https://github.com/NVIDIA/nccl/blob/192610c9321b23deb0fad81cf51b99bc06849e85/src/mnnvl.cc
_MNNVL = re.compile(rb" nRanks (\d{1,7}) nNodes (\d{1,7}) .{0,80} MNNVL ([01])\b")
_CLIQUE = re.compile(rb" MNNVL 1 cliqueId \S{1,20} cliqueSize (\d{1,7})\b")
#: NCCL with the CUDA that it was built with, and a network plugin, as each reports its version.
_VERSION = rb"(\d{1,4}(?:\.\d{1,4}){1,3})"
_NCCL = re.compile(rb"^NCCL INFO NCCL version " + _VERSION + rb"(?:\+cuda" + _VERSION + rb")?")
_PLUGIN = re.compile(rb"^NCCL INFO NET/.{1,20} Initializing (gIB|aws-ofi-nccl) v?" + _VERSION)
_MAX_VERSIONS = 8

_WARNING = b" NCCL WARN "


def is_warning(line: bytes) -> bool:
    """Return True if a line is a warning of NCCL and nothing else."""
    found = plain_nccl(line)
    return found is not None and found[2].startswith(_WARNING.lstrip())


def watch(blocks: Iterable[bytes], warnings: list[str]) -> Iterator[bytes]:
    """Pass blocks of whole lines on, and add each warning of NCCL in them to `warnings`."""
    for block in blocks:
        if _WARNING in block:
            for line in block.split(b"\n"):
                found = plain_nccl(clean(line)) if _WARNING in line else None
                if found is not None:
                    _add_warning(warnings, found[0], found[2])
        yield block


def _add_warning(warnings: list[str], host: str, message: bytes) -> None:
    text = f"{host}: {text_of(message[10 : 10 + _MAX_WARNING])}"
    if len(warnings) < MAX_WARNINGS and text not in warnings:
        warnings.append(text)


class Info:
    """Collects the contents of NCCL's lines."""

    def __init__(self) -> None:
        self.lines = 0
        self.warnings: list[str] = []
        #: Variables of NCCL, by name.
        self.environment: dict[str, str] = {}
        self._networks: dict[str, set[str]] = {}
        #: Paths that may be slower than others, and the hosts that used them.
        self._detours: dict[str, set[str]] = {}
        #: Host -> GPU -> numbers of its NICs; host -> names of its NICs by number.
        self._nics: dict[str, dict[int, set[int]]] = {}
        self._names: dict[str, dict[int, str]] = {}
        #: Component -> its versions.
        self._versions: dict[str, set[str]] = {}
        #: Host -> number of GPUs that NVLink connects in its newest group.
        self._cliques: dict[str, int] = {}

    def add(self, host: str, gpu: int, message: bytes) -> None:
        """Add one message of a GPU's process on a host; it begins with the word NCCL."""
        self.lines += 1
        if message.startswith(b"NCCL INFO "):
            if b" via " in message or b" Using network " in message:
                self._add_path(host, gpu, message)
            elif _NVLS_OFF in message:
                _note(self._detours, "NVLS off", host)
            elif b" MNNVL " in message:
                self._add_domain(host, message)
            elif b" set by environment " in message and (found := _SET.search(message)):
                self.set(found[1], found[2])
            elif b" NCCL version " in message or b" Initializing " in message:
                self._add_versions(message)
            elif _USING.match(message) and len(self._names) < _MAX_HOSTS:
                names = ((int(found[1]), text_of(found[2])) for found in _NAMED.finditer(message))
                self._names[host] = dict(names)
        elif message.startswith(b"NCCL WARN"):
            if _P2P_OFF in message:
                _note(self._detours, "P2P off", host)
            _add_warning(self.warnings, host, message)

    def set(self, name: bytes, value: bytes) -> None:
        """Add a variable of NCCL, unless it only changes what is printed."""
        key = name.decode()
        if "DEBUG" not in key and (key in self.environment or len(self.environment) < _MAX_NAMES):
            self.environment[key] = text_of(value[:_MAX_VALUE])

    def _add_versions(self, message: bytes) -> None:
        """Add the versions that a message reports."""
        pairs: tuple[tuple[bytes, bytes | None], ...] = ()
        if found := _NCCL.match(message):
            pairs = (b"NCCL", found[1]), (b"CUDA", found[2])
        elif found := _PLUGIN.match(message):
            pairs = ((found[1], found[2]),)
        for name, version in pairs:
            versions = self._versions.setdefault(name.decode(), set())
            if version is not None and len(versions) < _MAX_VERSIONS:
                versions.add(version.decode())

    def versions(self) -> dict[str, tuple[str, ...]]:
        """Return the versions that were loaded, by component."""
        return {name: tuple(sorted(found)) for name, found in self._versions.items() if found}

    def _add_domain(self, host: str, message: bytes) -> None:
        """Add what a message reports about NVLink between hosts."""
        if found := _CLIQUE.search(message):
            if host in self._cliques or len(self._cliques) < _MAX_HOSTS:
                self._cliques[host] = int(found[1])
        elif found := _MNNVL.search(message):
            ranks, hosts, used = (int(text) for text in found.groups())
            connected = self._cliques.pop(host, ranks) if used else 0
            if hosts > 1 and connected < ranks:
                _note(self._detours, "MNNVL off", host)

    def _add_path(self, host: str, gpu: int, message: bytes) -> None:
        """Add the network or the host memory that a message reports."""
        if _SHM in message:
            _note(self._detours, "SHM", host)
        for found in _NETWORK.finditer(message):
            path, chosen = found.groups()
            name = text_of(chosen if path is None else path).strip()
            _note(self._networks, name, host)
            if path is not None:
                self._add_nic(host, gpu, message)
                _note(self._detours, "NET", host)
                if _DIRECT not in message[found.end() :]:
                    _note(self._detours, f"NET/{name}", host)

    def _add_nic(self, host: str, gpu: int, message: bytes) -> None:
        """Add the NIC of a channel between hosts."""
        found = _CHANNEL.search(message)
        if found and 0 <= gpu < _MAX_GPUS and (host in self._nics or len(self._nics) < _MAX_HOSTS):
            numbers = self._nics.setdefault(host, {}).setdefault(gpu, set())
            if len(numbers) < _MAX_NAMES:
                numbers.add(int(found[1]))

    def nics(self) -> dict[str, dict[int, tuple[str, ...]]]:
        """Return the NICs that NCCL uses for each GPU of the hosts whose NICs all have a name."""
        return {
            host: {
                gpu: tuple(sorted(names[number] for number in numbers))
                for gpu, numbers in sorted(gpus.items())
            }
            for host, gpus in sorted(self._nics.items())
            if (names := self._names.get(host)) and set().union(*gpus.values()) <= names.keys()
        }

    def networks(self) -> dict[str, tuple[str, ...]]:
        """Return the networks in use, each with its hosts."""
        return {name: tuple(sorted(hosts)) for name, hosts in sorted(self._networks.items())}

    def detours(self) -> dict[str, tuple[str, ...]]:
        """Return the paths that may be slower than necessary, each with its hosts.

        "NET/gIB": this network without GDRDMA. "NET": any network, which is unnecessary inside one
        host. "SHM": host memory between GPUs of one host. "P2P off": a warning of NCCL. "NVLS
        off": the switches between the GPUs cannot reduce. "MNNVL off": not all GPUs of the group
        use NVLink between hosts.
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
