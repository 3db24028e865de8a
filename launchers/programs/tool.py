"""Run a program of others on this host, and leave nothing of it behind.

    tool.py TOOL.json

The file is a `Tool` of the plan (accept/core/plan.py) as JSON. Its command runs without a shell,
if it is for single NICs once for each. Output is printed after `tool out| ` and `tool err| `; a
line that is longer than `PIECE` continues after `tool out+| `. In a pair, and for the NICs after
the first, `@RANK.NUMBER` follows the word. The fact `tool` states how it ended; the reader judges
it (accept/core/tool_output.py).

In a pair, rank 1 runs the tool's server and rank 0 its command. A connection between the two, on
the port after the server's, states when the server listens, and when one of them is gone: then the
other one ends its program. Exit status: 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

import commands
import nic_loop
import rank_io

#: Bytes of a line that are printed at once, and most bytes and lines of output and of errors.
PIECE, MOST, MOST_LINES = 8000, {"out": 4 << 20, "err": 256 << 10}, 50_000
#: Seconds until a version must be printed, until the children of a tool end after it, in which a
#: killed process ends, and between two looks.
VERSION_SECONDS, GRACE_SECONDS, END_SECONDS, LOOK_SECONDS = 30.0, 2.0, 4.0, 0.2
#: Seconds in which the two hosts of a pair must meet, and in which the server must listen.
MEET_SECONDS = 20.0
#: The state of a listening socket in /proc/net/tcp.
LISTENING = "0A"
#: Statuses of a shell or loader that cannot start a program: it, or a library of it, is missing.
NOT_STARTED = (126, 127)
#: Free space that must remain, as a share of what the tool needs.
SPARE = 0.05
#: `prctl`: orphans below this process become its children, also if they leave its session.
SUBREAPER = 36
#: Removes a folder when the process that holds the other end of its input is gone.
GUARD = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"


class Missing(Exception):
    """The tool is not installed."""


class Unusable(Exception):
    """The host lacks something that the tool needs."""


class Gone(Exception):
    """The other host of a pair cannot take part, and states why itself."""


class Needs(TypedDict):
    """The needs of a tool on a host, as in `accept.core.plan.ToolNeeds`."""

    root: bool
    devices: list[str]
    capabilities: dict[str, int]
    space: int


class Tool(TypedDict):
    """The keys of TOOL.json that this program reads, as in `accept.core.plan.Tool`."""

    name: str
    command: list[str]
    server: list[str]
    port: int
    perNic: bool
    env: dict[str, str]
    version: list[str]
    least: str
    install: str
    folder: str
    needs: Needs
    timeout: float


class Ran(NamedTuple):
    """The end of a tool: its status (None: it was ended), the reason to end it, what it left."""

    exit: int | None
    ended: str
    left: tuple[str, ...]


def main(path: str) -> None:
    """Run the tool, and print how that ended."""
    tool: Tool = json.loads(Path(path).read_text(encoding="utf-8"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    rank = rank_io.identity("mpirun").rank if tool["server"] else 0
    nics = rdma_ports() if tool["perNic"] else []
    with contextlib.ExitStack() as open_:
        listener = open_.enter_context(control(tool["port"] + 1)) if rank else None
        for number, nic in enumerate(nics or [None]):
            value: dict[str, object] = {"rank": rank, "number": number, "nic": nic and nic.name}
            label = f"@{rank}.{number}" if rank or number else ""
            try:
                if tool["perNic"] and not nic:
                    raise Unusable("it has no active RDMA port")
                with meet(tool, number, listener) as partner:
                    value |= ended(tool, nic, rank, label, partner)
            except Missing as error:
                value["missing"] = str(error)
            except Unusable as error:
                value["unusable"] = str(error)
            except Gone as error:
                value["gone"] = str(error)
            rank_io.fact("tool", value, check=tool["name"], host=rank_io.host_name())


def ended(
    tool: Tool,
    nic: nic_loop.Port | None,
    rank: int,
    label: str,
    partner: socket.socket | None,
) -> dict[str, object]:
    """Run the command of this rank, and return how it ended. Raises Missing, Unusable, Gone."""
    command = tool["server"] if rank else tool["command"]
    program = find(command[0], tool["install"])
    number = version(tool)
    check_needs(tool["needs"])
    peers = [*os.environ.get("ACCEPT_PEERS", "").split(), "", ""]
    with own_folder(tool) as folder:
        values = {"program": program, "folder": folder}
        values |= {"peer": peers[1 - rank], "port": str(tool["port"])}
        if nic:
            nearest = nic.gpus[0].uuid if nic.gpus else ""
            values |= {"nic": nic.device, "nicport": nic.number, "gpu": nearest}
        filled = [program, *(fill(one, values) for one in command[1:])]
        if partner and not rank and partner.recv(1) != b"r":
            raise Gone("its server did not start")
        rank_io.say("# " + " ".join(filled))
        env = {**os.environ, **{k: fill(v, values) for k, v in tool["env"].items()}}
        place, seconds = folder or "/", tool["timeout"]
        if partner and rank:
            ran = run(filled, env, seconds, place, label, Server(partner, tool["port"]))
        else:
            ran = run(filled, env, seconds, place, label)
    left = [*ran.left, *([folder] if folder and os.path.lexists(folder) else [])]
    return {"version": number, "exit": ran.exit, "ended": ran.ended, "left": left}


def rdma_ports() -> list[nic_loop.Port]:
    """Return the RDMA ports of this host that its GPUs use."""
    script = Path(os.environ.get("ACCEPT_DIR", "")) / "interface.sh"
    found = commands.run(VERSION_SECONDS, "sh", "-c", '. "$0"; rdma_devices', str(script))
    return nic_loop.ports(found.out.strip(), nic_loop.usable_gpus())


# The two hosts of a pair


def control(port: int) -> socket.socket:
    """Return a socket on which the server's host waits for the other one."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, reuse_port=True
            )
    return socket.create_server(("", port), reuse_port=True)


@contextlib.contextmanager
def meet(tool: Tool, number: int, listener: socket.socket | None) -> Iterator[socket.socket | None]:
    """Yield the connection to the other host of a pair; None for a host alone. Raises Gone."""
    if not tool["server"]:
        yield None
        return
    word = f"{os.environ.get('ACCEPT_EXEC', '')} {number}\n".encode()
    until = time.monotonic() + MEET_SECONDS
    while time.monotonic() < until:
        try:
            if listener:
                listener.settimeout(max(0.1, until - time.monotonic()))
                found, _ = listener.accept()
                found.settimeout(MEET_SECONDS)
                # Anybody may connect.
                known = found.recv(len(word), socket.MSG_WAITALL) == word
            else:
                address = os.environ.get("ACCEPT_PEERS", "").split()[-1]
                found = socket.create_connection((address, tool["port"] + 1), MEET_SECONDS)
                found.sendall(word)
                # It waits for the server, which may take as long.
                found.settimeout(2 * MEET_SECONDS)
                known = True
        except OSError:
            time.sleep(LOOK_SECONDS / 2)
            continue
        with found:
            if known:
                try:
                    yield found
                except OSError as error:
                    raise Gone(f"the connection to the other node: {error}") from None
                return
    raise Gone(f"the other node did not connect within {MEET_SECONDS:g} s")


class Server:
    """The server of a pair, as its program runs: it has to listen, and ends with the other host."""

    def __init__(self, partner: socket.socket, port: int) -> None:
        self._partner, self._port, self._listens = partner, f":{port:04X}", False
        self._until = time.monotonic() + MEET_SECONDS
        partner.setblocking(False)

    def is_over(self) -> bool:
        """Report to the other host if the program listens; return True if it is not needed now."""
        if not self._listens and self._is_listening():
            self._listens = True
            self._partner.sendall(b"r")
        try:
            return not self._partner.recv(1)
        except BlockingIOError:
            return not self._listens and time.monotonic() > self._until
        except OSError:
            return True

    @property
    def listens(self) -> bool:
        """Return True if it has listened."""
        return self._listens

    def _is_listening(self) -> bool:
        tables = (rank_io.read(Path("/proc/net") / name) for name in ("tcp", "tcp6"))
        rows = (line.split()[1:4] for table in tables for line in table.splitlines()[1:])
        return any(r[0].endswith(self._port) and r[2] == LISTENING for r in rows if len(r) == 3)


def find(name: str, install: str) -> str:
    """Return the path of a program. Raises Missing."""
    if found := shutil.which(name):
        return found
    raise Missing(f"{name} is not installed{': ' if install else ''}{install}")


def version(tool: Tool) -> str:
    """Return the version of the tool. Raises Unusable if it is unknown or too old."""
    if not tool["version"]:
        return ""
    ran = commands.run(VERSION_SECONDS, *tool["version"])
    # perftest ends with status 1 after its version.
    found = re.search(r"(?<!\d)\d{1,9}(?:\.\d{1,9})+(?!\d)", ran.out + ran.err)
    if not found or ran.exit in NOT_STARTED:
        words = (ran.err.strip() or ran.out.strip()).splitlines()
        quote = f": {words[-1][:160]}" if words else ""
        raise Unusable(f"{' '.join(tool['version'])} prints no version{quote}")
    if tool["least"] and numbers(found[0]) < numbers(tool["least"]):
        raise Unusable(f"{tool['name']} {found[0]} is too old: {tool['least']} is required")
    return found[0][:40]


def numbers(text: str) -> list[int]:
    """Return the numbers of a version."""
    return [int(one) for one in text.split(".")]


def check_needs(needs: Needs) -> None:
    """Raise Unusable if this user or host lacks something that the tool needs."""
    if needs["root"] and os.geteuid() != 0:
        raise Unusable(f"it needs root, and the user is number {os.geteuid()}")
    for device in needs["devices"]:
        if not os.access(device, os.R_OK | os.W_OK):
            raise Unusable(f"it needs {device}, which cannot be opened or is missing")
    status = rank_io.read(Path("/proc/self/status"))
    effective = int((re.search(r"CapEff:\s*([0-9a-f]+)", status) or ("", "0"))[1], 16)
    for name, bit in needs["capabilities"].items():
        if not effective >> bit & 1:
            raise Unusable(f"it needs the capability {name}")


@contextlib.contextmanager
def own_folder(tool: Tool) -> Iterator[str]:
    """Yield a folder of the tool's own, and remove it; "" if it needs none. Raises Unusable."""
    parent, space = tool["folder"], tool["needs"]["space"]
    if not parent:
        yield ""
        return
    try:
        state = os.statvfs(parent)
        free = state.f_bavail * state.f_frsize
        if free < space * (1 + SPARE):
            shares = (f"{n / 1e9:,.0f}" if n > 1e12 else f"{n / 1e9:.3g}" for n in (free, space))
            raise Unusable("{} has {} GB free; {} GB needed".format(parent, *shares))
        folder = tempfile.mkdtemp(prefix="accept-", dir=parent)
    except OSError as error:
        raise Unusable(f"{parent}: {error.strerror}") from None
    # Without the mark of the run in its environment, so that it outlives this process.
    guard = subprocess.Popen(
        (sys.executable, "-ISc", GUARD, folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        # The guard removes it also in the usual case, so this way is never untried.
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return an argument with what only this host knows."""
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), text)


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    seconds: float,
    folder: str,
    label: str = "",
    server: Server | None = None,
) -> Ran:
    """Run a command, print its output, and end everything that it started. Raises Unusable."""
    others = children()
    try:
        process = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Unusable(f"{command[0]} cannot be started: {reason}") from None
    assert process.stdout is not None
    assert process.stderr is not None
    ended, finished, until, over = "", 0.0, time.monotonic() + seconds, 0.0
    try:
        with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, Copied("out", label))
            selector.register(process.stderr, selectors.EVENT_READ, Copied("err", label))
            # What it leaves behind may keep its output open for ever.
            while (open_ := selector.get_map()) or process.poll() is None or children() - others:
                if not open_:
                    time.sleep(LOOK_SECONDS)
                for key, _ in selector.select(LOOK_SECONDS) if open_ else ():
                    if not key.data.take(os.read(key.fd, 1 << 16)):
                        selector.unregister(key.fileobj)
                    ended = "output" if key.data.name == "out" and key.data.is_full else ended
                now = time.monotonic()
                if process.poll() is not None:
                    finished = finished or now
                elif now > until:
                    ended = "time"
                elif server and (over or server.is_over()):
                    over = over or now
                    if now > over + GRACE_SECONDS:
                        ended = "over" if server.listens else "deaf"
                if ended or (finished and now > finished + GRACE_SECONDS):
                    break
        left = () if ended else names(others)
    finally:
        end(others)
    return Ran(None if ended else process.returncode, ended, left)


class Copied:
    """Print the output of a tool while it comes, line by line."""

    def __init__(self, name: str, label: str) -> None:
        self.name, self.size, self.lines, self._rest, self._inside = name, 0, 0, b"", ""
        self._label = label

    @property
    def is_full(self) -> bool:
        """Return True if nothing more is printed."""
        return self.size > MOST[self.name] or self.lines > MOST_LINES

    def take(self, block: bytes) -> bool:
        """Print the lines that are complete; at the end also the last one, and return False."""
        self.size += len(block)
        self.lines += block.count(b"\n")
        if self.is_full:
            return bool(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            self._say(line)
        if len(self._rest) >= PIECE or (not block and self._rest):
            self._say(self._rest, complete=not block)
            self._rest = b""
        return bool(block)

    def _say(self, line: bytes, *, complete: bool = True) -> None:
        for start in range(0, max(len(line), 1), PIECE):
            piece = line[start : start + PIECE].decode(errors="replace").rstrip("\r")
            rank_io.say(f"tool {self.name}{self._label}{self._inside}| {piece}")
            self._inside = "+"
        self._inside = "" if complete else "+"


def children() -> frozenset[int]:
    """Return all processes below this one. Orphans become its children."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # The name of a process may contain blanks and parentheses.
        state, parent, *_ = rank_io.read(path).rpartition(")")[2].split() or ("Z", "0")
        if state != "Z":
            parents[int(path.parent.name)] = int(parent)
    found, new = set[int](), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return frozenset(found)


def names(others: frozenset[int]) -> tuple[str, ...]:
    """Return the names of the processes below this one, without `others`."""
    found = (rank_io.read(Path(f"/proc/{pid}/comm")) for pid in sorted(children() - others))
    return tuple(name for name in found if name)[:10]


def end(others: frozenset[int]) -> None:
    """Kill the processes below this one, without `others`, until none is left."""
    until = time.monotonic() + END_SECONDS
    while (living := children() - others) and time.monotonic() < until:
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
