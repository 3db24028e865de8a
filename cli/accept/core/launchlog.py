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
_BYTES = 64 << 10


def watch(blocks: Iterable[bytes], found: list[Problem]) -> Iterator[bytes]:
    """Pass `blocks` of whole lines on, and add to `found` what the first say of the launch."""
    left = _BYTES
    for block in blocks:
        if left > 0:
            for sign, cause, message in _SIGNS:
                at = block.find(sign, 0, left)
                line = block.rfind(b"\n", 0, max(at, 0)) + 1
                known = any(problem.message == message for problem in found)
                if at >= 0 and not known and not block.startswith(b"ACCEPT ", line):
                    found.append(Problem(cause=cause, message=message))
            left -= len(block)
        yield block
