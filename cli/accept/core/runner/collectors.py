"""Run the site's collectors on suspects, and keep their output as evidence.

The output is untrusted: its time and size are limited, and no judgement depends on it.
"""

from __future__ import annotations

import asyncio
import math
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from accept.core import evidence
from accept.core.plan import Collector
from accept.core.runner.log import say
from accept.core.runner.ssh import Host, environment, marked_arguments, run
from accept.core.runner.state import ALIVE, Run
from accept.core.serde import to_json
from accept.core.text import TextEnum, plain
from accept.core.verdict import Suspect

#: The results of all collectors, beside their output.
INDEX = "index.json"
#: Maximum number of suspects; others share their fault or have none of their own.
_MOST_HOSTS = 8
#: Time in seconds for `timeout` to kill a collector that ignores its signal, and for ssh after it.
_KILL_SECONDS, _SSH_SECONDS = 5, 15.0
_GZIP = b"\x1f\x8b"


class Cut(TextEnum):
    """The reason why the output of a collector is incomplete."""

    NO = ""
    TIMEOUT = "timeout"
    SIZE = "size"
    #: It could not be started, or its output could not be stored.
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The result of one collector on one host."""

    host: str
    collector: str
    #: Path in the evidence.
    file: str
    bytes: int
    #: Exit status; None: unknown.
    exit: int | None
    cut: Cut


@dataclass(frozen=True, kw_only=True)
class Index:
    """The content of `collectors/index.json`."""

    collected: tuple[Collected, ...]


async def collect(state: Run, suspects: Iterable[Suspect]) -> None:
    """Run all collectors on the suspects that answer: hosts in parallel, collectors in order."""
    named = dict.fromkeys(
        host for s in sorted(suspects, key=lambda s: s.of_network) for host in _hosts_of(s)
    )
    known = [host for name in named for host in state.hosts if host.name == name]
    # A host that was left out may still answer.
    answers = await asyncio.gather(*(state.ask(host, ALIVE) for host in known[:_MOST_HOSTS]))
    hosts = [host for host, answer in zip(known, answers, strict=False) if answer.exit == 0]
    if not hosts:
        return
    names = ", ".join(one.name for one in state.plan.collectors)
    say(f"collectors on {', '.join(host.name for host in hosts)}: {names}")
    results = await asyncio.gather(*(_on_host(state, host) for host in hosts))
    collected = tuple(one for of_host in results for one in of_host)
    for one in collected:
        if one.cut is not Cut.NO or one.exit != 0:
            reason = _REASONS[one.cut].format(one.exit)
            say(f"  {one.collector} on {one.host} {reason}; {one.bytes} bytes are kept")
    folder = state.evidence / evidence.COLLECTORS
    evidence.write(folder / INDEX, to_json(Index(collected=collected)) + "\n")


_REASONS = {
    Cut.NO: "ended with exit status {}",
    Cut.TIMEOUT: "did not end in time and was cut off",
    Cut.SIZE: "printed too much and was cut off",
    Cut.FAILED: "could not be run",
}


def _hosts_of(suspect: Suspect) -> Iterable[str]:
    """Return the hosts to collect from: the partners of a bad node are healthy."""
    in_pairs = (host for pair in suspect.pairs for host in pair.hosts)
    return (*suspect.hosts, *(in_pairs if suspect.of_network else ()))


async def _on_host(state: Run, host: Host) -> list[Collected]:
    folder = state.evidence / evidence.COLLECTORS / host.name
    folder.mkdir(parents=True, exist_ok=True)
    return [await _run(state, host, one, folder) for one in state.plan.collectors]


async def _run(state: Run, host: Host, collector: Collector, folder: Path) -> Collected:
    """Run a collector, and store at most `max_bytes` of its output."""
    path = folder / f"{collector.name}.txt"
    output = _Output(path, collector.max_bytes)
    exit_status, is_late, is_failed = None, False, False
    try:
        answer = await run(
            marked_arguments(state.folder, host, bounded_command(collector)),
            env=environment(state.folder, state.attempt),
            timeout=collector.timeout + _KILL_SECONDS + _SSH_SECONDS,
            take=output.write,
        )
        exit_status, is_late = exit_of(answer.err), answer.exit is None
        path = output.close()
    except OSError as error:
        say(f"  {collector.name} on {host.name}: {plain(str(error), 300)}")
        is_failed = True
    # `timeout` exits with 124, or is killed together with what it started.
    is_late = is_late or exit_status in (124, 137)
    cut = Cut.TIMEOUT if is_late else Cut.SIZE if output.is_over else Cut.NO
    return Collected(
        host=host.name,
        collector=collector.name,
        file=path.relative_to(state.evidence).as_posix(),
        bytes=output.size,
        exit=exit_status,
        cut=Cut.FAILED if is_failed else cut,
    )


def bounded_command(collector: Collector) -> str:
    """Return the sh command of a collector, which prints its exit status on stderr.

    `timeout` and `head` end it on its host, even if the connection breaks.
    """
    return (
        f"{{ {{ timeout -k {_KILL_SECONDS} {math.ceil(collector.timeout)} "
        f"/bin/sh -c {shlex.quote(collector.command)} 2>&1 </dev/null 3>&-; "
        f'echo "accept-exit $?" >&3; }} | head -c {collector.max_bytes + 1}; }} 3>&2'
    )


def exit_of(errors: bytes) -> int | None:
    """Return the exit status that `bounded_command` printed; None: unknown."""
    status = re.search(rb"accept-exit (\d{1,3})\s*$", errors)
    return int(status[1]) if status else None


class _Output:
    """A file with the first bytes of an output."""

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._file, self._most = path, path.open("wb"), most
        self._start = b""
        self.size, self.is_over = 0, False

    def write(self, block: bytes) -> None:
        """Write a block, up to the limit of the file."""
        self._start = (self._start + block)[:2]
        kept = block[: self._most - self.size]
        self.is_over = self.is_over or len(kept) < len(block)
        self.size += len(kept)
        self._file.write(kept)

    def close(self) -> Path:
        """Close the file, name it after its content, and return its path."""
        self._file.close()
        if self._start != _GZIP:
            return self._path
        return self._path.replace(self._path.with_suffix(".gz"))
