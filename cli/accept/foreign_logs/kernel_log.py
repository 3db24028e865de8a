"""Read a kernel log in the forms that people save: dmesg, journalctl -k, /dev/kmsg, syslog.

The messages themselves are read by a program that runs start on their hosts
(`launchers/programs/health_host.py`). This module finds hosts, boots and times, and writes the
lines as `dmesg` does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from types import ModuleType
from typing import Any

from accept.config import resources
from accept.core.health_readings import Gap, Log, Reading, Unread
from accept.core.serde import read as parse
from accept.core.signs import catalog
from accept.core.text import count, duration, plain, shortened
from accept.foreign_logs.host_state import Report, ReportKind, lines_of

#: `kernel:`, after the name of the host, which `journalctl --no-hostname` leaves out.
_TAG = rb" (?:(?P<host>[A-Za-z0-9][\w.:-]{0,254}) )?kernel(?:\[\d{1,9}\])?: ?"
_SECONDS = rb"(?P<seconds>\d{1,10}\.\d{3,9})"
_UPTIME = rb"(?:\[ *" + _SECONDS + rb"\] ?)?"
_CLOCK = rb"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_MONTH = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
#: A month in the language of the host, in UTF-8.
_ANY_MONTH = rb"[A-Za-z\x80-\xff]{3,8}\.?"
_DAY = rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LEVEL = rb"[a-z0-9]{1,8} *: *[a-z]{1,8} *: *"
_ISO = rb"\d{4}-\d\d-\d\d[T ]" + _CLOCK
_CTIME = _DAY + rb" " + _MONTH + rb" {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}"
_ZONE = rb"(?:Z|[+-]\d\d:?\d\d)"
#: The beginnings of lines: `seconds` (or `micro`) is the time since boot, `stamp` a time of day,
#: `delta` the time since the line before.
_FORMS = tuple(
    re.compile(form)
    for form in (
        # /dev/kmsg
        rb"\d{1,4},\d{1,20},(?P<micro>\d{1,18}),[^;]{0,80};",
        # dmesg, also --raw, --decode, --show-delta and with the caller; journalctl short-monotonic.
        # UCX writes the time of day, then the process: [1700000000.123456] [node1:31180:0]
        rb"(?:<\d{1,3}>|"
        + _LEVEL
        + rb")?\[(?! *\d{10}) *"
        + _SECONDS
        + rb"(?: *<[ \d.]{1,20}>)?\](?! *\[[\w.-]{1,255}:\d)(?:\[ *[TC]\d{1,8}\])?(?:"
        + _TAG
        + rb"| ?)",
        # syslog, journalctl
        rb"(?P<stamp>" + _ANY_MONTH + rb" +\d{1,2} " + _CLOCK + rb")" + _TAG + _UPTIME,
        # journalctl -o short-iso and short-iso-precise, rsyslog
        rb"(?P<stamp>" + _ISO + _ZONE + rb"?)" + _TAG + _UPTIME,
        # journalctl -o short-full
        _DAY + rb" (?P<stamp>" + _ISO + rb") [A-Z+\d-]{2,6}" + _TAG + _UPTIME,
        # journalctl -o short-unix
        rb"(?P<stamp>\d{10}\.\d{6})" + _TAG + _UPTIME,
        # dmesg --decode with --time-format iso or --ctime
        _LEVEL + rb"\[?(?P<stamp>" + _CTIME + rb"|" + _ISO + _ZONE + rb")\]? ",
        # talosctl dmesg
        rb"(?P<host>[A-Za-z0-9][\w.:-]{0,254}): [a-z0-9]{1,8}: {1,8}[a-z]{1,8}: \[(?P<stamp>"
        + _ISO
        + _ZONE
        + rb")\]: ",
        # dmesg --ctime, --time-format iso, --reltime
        rb"\[(?P<stamp>" + _CTIME + rb")\] ?",
        rb"(?P<stamp>" + _ISO + _ZONE + rb") ",
        rb"\[(?P<stamp>" + _MONTH + rb" ?\d{1,2} \d\d:\d\d)\] ?",
        rb"\[ *\+(?P<delta>\d{1,10}\.\d{1,9})\] ?",
        # without a time
        rb"(?:kernel: ?)?(?=NVRM: |nvidia-nvswitch\d{1,3}: )",
    )
)
_UNIX = re.compile(r"\d{10}\.\d{6}")
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_STAMP = re.compile(
    r"(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) *(\d{1,2}) (\d\d):(\d\d)(?::(\d\d))?(?:[.,](\d{1,9}))?"
    r"(?: (\d{4}))?"
)
#: The number of the first forms that only kernel logs have. Logs of other programs have the others.
_ONLY_KERNEL = 8
#: The kernel writes at least five characters before the point. Other programs may not.
_SHORT = re.compile(rb"\[\d{1,4}\.")
#: Words of the kernel and of drivers that every host with GPUs has.
_KERNEL_WORDS = re.compile(
    rb"NVRM: |nvidia[-_]\w|Linux version |Command line: |ACPI: |pci(?:eport)? 0000:|mlx5_core |"
    rb"audit: type=|IPv6: ADDRCONF|EXT4-fs |systemd\[1\]: |Memory cgroup |usb \d|INFO: task "
)
#: Lines that a reader of messages may need; those of a message that has several.
_NEEDED = re.compile(
    rb"NVRM|SXid|nvidia|Hardware Error|Linux version |Killed process |Kernel panic|\[#|LOCKUP"
)
#: An Xid whose address was removed from the log.
_UNNAMED_XID = re.compile(
    rb"NVRM: Xid \(PCI:(?![0-9a-fA-F:.]{7,20}[) ])[^)\n]{0,60}\): (\d{1,6})\b"
)
_CONTINUES = re.compile(rb"\s*NVRM: (?:\(PCI ID|installed in|fallen off)")
#: A form of a file counts if it has this share of the lines at its start.
_SHARE = 0.3
_START_LINES = 400
#: A line with an earlier time belongs to another boot. Lines of several processors are that much
#: out of order, in seconds.
_OUT_OF_ORDER = 10.0
_DAYS = 86400.0
_MAX_HOSTS, _MAX_TEXT, _MAX_EARLIER = 10_000, 2000, 64
#: Most events that are shown with their meanings.
_MAX_MEANINGS = 2
#: Messages that are read at once.
_BATCH = 5000


@cache
def _program() -> ModuleType:
    """Return the program of a run that reads lines in the form of dmesg."""
    folder = str(resources.launchers() / "programs")
    if folder not in sys.path:
        sys.path.append(folder)
    import health_host

    return health_host


def is_kernel_log(start: bytes) -> bool:
    """Return True if a file that begins with these bytes is a kernel log."""
    lines = [line for line in start.split(b"\n")[:_START_LINES] if line.strip()]
    whole = [line for line in lines if not line.startswith((b" ", b"\t", b"-- "))]
    numbers = [number for line in whole if (number := _form(line)) is not None]
    if not numbers:
        return False
    if sum(number < _ONLY_KERNEL for number in numbers) >= max(1, _SHARE * len(whole)):
        return True
    known = sum(bool(_KERNEL_WORDS.search(line)) for line in whole)
    # Of a system log, any line may be the kernel's.
    return known > 0 and (len(numbers) >= _SHARE * len(whole) or min(numbers) < _ONLY_KERNEL)


def is_message(line: bytes) -> bool:
    """Return True if this line alone shows that the kernel wrote it."""
    number = _form(line)
    return number is not None and (number < _ONLY_KERNEL or bool(_KERNEL_WORDS.search(line)))


def _form(line: bytes) -> int | None:
    """Return the number of the form of a line; None if it has none."""
    number = next((number for number, form in enumerate(_FORMS) if form.match(line)), None)
    return _ONLY_KERNEL if number is not None and _SHORT.match(line) else number


def read(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return the kernel log of each host in a file. No content raises an error."""
    hosts: dict[str, _HostLog] = {}
    form = _FORMS[0]
    host, current = "", _HostLog()
    for line in lines_of(blocks):
        found = form.match(line)
        if found is None:
            if _CONTINUES.match(line):
                current.continues(line)
                continue
            others = (other for other in _FORMS if other.match(line))
            if (other := next(others, None)) is None:
                continue
            form = other
            found = form.match(line)
        assert found is not None
        groups = found.groupdict()
        name = groups.get("host")
        if name is not None and (shown := name.decode("ascii", "replace")) != host:
            host = shown
        if host not in hosts and len(hosts) < _MAX_HOSTS:
            hosts[host] = _HostLog()
        current = hosts.get(host, current)
        current.add(groups, line[found.end() :])
    return [log.report(file, host) for host, log in hosts.items() if log.lines]


@dataclass
class _HostLog:
    """The log of one host. Only its last boot counts, as for a run."""

    lines: int = 0
    #: Stamp or uptime of the first and the last line of this boot.
    first: str = ""
    last: str = ""
    #: True if the log has the first message of this boot.
    begins: bool = False
    #: Seconds since the boot, or since the first line.
    first_at: float = 0.0
    at: float = 0.0
    boots: int = 1
    #: Events of earlier boots, as texts.
    earlier: dict[str, None] = field(default_factory=dict)
    #: The Xids without a valid address.
    unnamed: dict[str, None] = field(default_factory=dict)
    _shown: bool = False
    _base: float | None = None
    _wall: float = 0.0
    _messages: list[bytes] = field(default_factory=list)
    #: Time of a message -> its stamp.
    _stamps: dict[float, str] = field(default_factory=dict)
    _events: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)

    def add(self, groups: dict[str, bytes | None], text: bytes) -> None:
        """Add a message."""
        stamp = (groups.get("stamp") or b"").decode("ascii", "replace")
        starts = text.startswith(b"Linux version ")
        if groups.get("delta"):
            stamp = self.last
        if starts and self.lines:
            self._next_boot()
        at = self._time(groups, stamp)
        if at < self.at - _OUT_OF_ORDER and (groups.get("seconds") or groups.get("micro")):
            self._next_boot()
        self.lines += 1
        self.begins = self.begins or starts
        if (found := _UNNAMED_XID.search(text)) and len(self.unnamed) < _MAX_EARLIER:
            self.unnamed[found[1].decode("ascii")] = None
        self.at = max(self.at, at)
        if not self._shown:
            self.first, self.first_at, self._shown = stamp, at, True
        self.last = stamp or self.last
        if _CONTINUES.match(text):
            self.continues(text)
        elif _NEEDED.search(text):
            # Each message has a time of its own, by which its stamp is found again.
            at = round(at + 1e-6 * (0 if self._base is None else len(self._messages)), 6)
            undated = not (stamp or groups.get("seconds") or groups.get("micro"))
            self._stamps[at] = "an unknown date" if undated else stamp
            self._messages.append(b"[%.6f] %s" % (at, text[:_MAX_TEXT]))
            if len(self._messages) >= _BATCH:
                self._flush()

    def continues(self, text: bytes) -> None:
        """Add a line to the last message."""
        if self._messages:
            self._messages[-1] += b"\n " + text.strip()[:_MAX_TEXT]

    def _time(self, groups: dict[str, bytes | None], stamp: str) -> float:
        """Return the seconds since boot, or else since the first line of this boot."""
        if seconds := groups.get("seconds"):
            return float(seconds)
        if micro := groups.get("micro"):
            return int(micro) / 1e6
        if delta := groups.get("delta"):
            self._wall += float(delta)
        elif stamp:
            wall = wall_time(stamp)
            # A log without years continues in the next one.
            self._wall = wall if wall > self._wall - 180 * _DAYS else wall + 366 * _DAYS
        if self._base is None:
            self._base = self._wall
        return max(0.0, self._wall - self._base)

    def _flush(self) -> None:
        found = _program().read_messages(b"\n".join(self._messages))
        for event in found["events"]:
            key = _program().identity(event)
            self._events.pop(key, None)
            self._events[key] = {**event, "stamp": self._stamps.get(event["at"], "")}
        self._messages, self._stamps = [], {}

    def _next_boot(self) -> None:
        self._flush()
        for event in self._events.values():
            if len(self.earlier) < _MAX_EARLIER:
                self.earlier[_described(event)] = None
        self._events, self._base = {}, None
        self._shown = False
        self.at, self.first, self.begins, self.boots = 0.0, "", False, self.boots + 1

    def report(self, file: str, host: str) -> Report:
        """Return what the log shows."""
        self._flush()
        first = 0.0 if self.begins or self._base is not None else self.first_at
        events = [*self._events.values()]
        log = parse(Log, {"first": first, "last": self.at, "events": events})
        span = f" from {self.first} to {self.last}" if self.first and self.last else ""
        if self._base is None:
            span = f" from {duration(self.first_at)} to {duration(self.at)} after the boot"
        if not self.begins and self._base is not None:
            span += ", which may begin after the boot"
        events = [event for event in events if event["kind"] != "reset"]
        texts = [_described(event, means=len(events) <= _MAX_MEANINGS) for event in events]
        xid = "" if self.unnamed else "Xid, "
        shown = shortened(texts, 4) if texts else f"no {xid}SXid, lost GPU, machine check or crash"
        if self.earlier:
            shown += f"; before the last boot: {shortened([*self.earlier], 4)}"
        why = f"the GPUs of {count(len(self.unnamed), 'Xid')} ({shortened([*self.unnamed], 4)})"
        return Report(
            file=file,
            kind=ReportKind.KERNEL_LOG,
            host=host,
            reading=Reading(
                log=log, unread=(Gap(reason=why, devices=Unread.XIDS),) if self.unnamed else ()
            ),
            written=wall_time(self.last),
            booted=wall_time(self.first) if self.begins else 0.0,
            shows=f"{count(self.lines, 'message')}{span}: {shown}",
        )


def _described(event: dict[str, Any], *, means: bool = False) -> str:
    """Return an event for people; `means`: with the meaning of an Xid."""
    kind, code = event["kind"], str(event.get("code", ""))
    sign = catalog().find("Xid") if means else None
    if kind == "oom":
        name = f"{plain(event['process'], 64)} (process {code}) killed because memory ran out"
    elif kind == "xid" and sign and code in sign.codes:
        name = sign.of_code(code).means
    elif kind == "crash":
        name = f"crash ({plain(event['words'], 80)})"
    elif kind in ("mce", "lost"):
        name = {"mce": "machine check", "lost": "lost GPU"}[kind]
    else:
        name = f"{kind.title()} {code}".strip()
    return f"{name} at {event['pci']}" if event.get("pci") else name


def wall_time(stamp: str) -> float:
    """Return a time of day in seconds; 0 if it is invalid. Without a year it is one of 2000."""
    try:
        if _UNIX.fullmatch(stamp):
            return float(stamp)
        if stamp[:4].isdigit():
            time = datetime.fromisoformat(stamp.replace(",", "."))
        elif found := _STAMP.fullmatch(stamp):
            month, day, hour, minute, second, fraction, year = found.groups()
            time = datetime(
                int(year or 2000),
                1 + _MONTHS.index(month) // 3,
                int(day),
                int(hour),
                int(minute),
                int(second or 0),
                int(f"{fraction or '0':0<6}"[:6]),
                tzinfo=UTC,
            )
        else:
            return 0.0
    except ValueError:
        return 0.0
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
