"""What a log says of a launch that failed, in the launcher's own words.

Open MPI 4.1 and 5.0, PRRTE and ssh; the texts are theirs, as they print them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accept.core.model import Problem

#: What is found in a line -> cause and what it means. The first that matches a line counts.
_SIGNS: tuple[tuple[bytes, str, str], ...] = (
    (b"not enough slots available", "rank-count", "the launcher has fewer slots than ranks"),
    (b"A daemon failed to report back", "launch-failed", "a daemon of mpirun never reported back"),
    (b"unable to reliably start one or more daemons", "launch-failed", "a daemon did not start"),
    (b"has lost communication with a remote daemon", "launch-failed", "a daemon fell silent"),
    (b"No network interfaces were found", "launch-failed", "no network for mpirun's own traffic"),
    (b"orted: command not found", "launch-failed", "mpirun's daemon is not on PATH there"),
    (b"prted: command not found", "launch-failed", "mpirun's daemon is not on PATH there"),
    (b"Host key verification failed", "launch-failed", "the pinned host key was refused"),
    (b"Permission denied (publickey", "launch-failed", "the run's key was refused"),
    (b"No space left on device", "disk-full", "nothing more can be written"),
)
#: Launchers say so at the beginning or not at all; what programs print comes after.
_LINES = 500
_MOST = 4


def watch(lines: Iterable[bytes], found: list[Problem]) -> Iterator[bytes]:
    """Pass `lines` on, and add to `found` what the first of them say of the launch."""
    source = iter(lines)
    for _, line in zip(range(_LINES), source, strict=False):
        if not line.startswith(b"ACCEPT ") and len(found) < _MOST:
            sign = next((s for s in _SIGNS if s[0] in line), None)
            if sign is not None and all(problem.message != sign[2] for problem in found):
                found.append(Problem(cause=sign[1], message=sign[2]))
        yield line
    yield from source
