"""Follows a run on its first host, over connections that may drop."""

from __future__ import annotations

import os
import subprocess
import time
from shlex import quote

from accept.backends import Job, Say
from accept.core.errors import BrokenOff
from accept.core.plaintext import decimal


def follow(job: Job, *, say: Say) -> int:
    """Say what the console says, until the run has ended; returns its exit status.

    Raises BrokenOff where the run is no longer there, or its host does not answer for minutes.
    """
    seen, rest, failures = 0, b"", 0
    while True:
        process = subprocess.Popen(
            [
                "ssh",
                *job.ssh,
                "--",
                job.first,
                f"exec /bin/sh -c {quote(_command(job.folder, seen))}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        code = None
        try:
            while chunk := os.read(process.stdout.fileno(), 1 << 16):
                failures = 0
                rest += chunk
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if line.startswith(b"\x1eended "):
                        code = line.split()[1]
                        break
                    seen += len(line) + 1
                    say(line.decode(errors="replace"))
        finally:
            process.kill()
            process.wait()
        if code is not None:
            status = decimal(code.decode(errors="replace"))
            if status is not None:
                return status
            raise BrokenOff(
                f"{job.attempt} is no longer on {job.first}",
                hint="it was removed, or its time to be kept is over",
            )
        rest = b""
        failures += 1
        if failures > 60:
            raise BrokenOff(
                f"{job.first} has not answered for some minutes; the run goes on there",
                hint=f"later: accept watch {job.attempt}",
            )
        if failures == 2:
            say(f"no connection to {job.first}; the run goes on there, and so does the asking")
        time.sleep(min(5.0, failures))


def _command(folder: str, seen: int) -> str:
    """The sh text that prints the console from byte `seen` on, until the run has ended."""
    return (
        f"cd {quote(folder)} 2>/dev/null || {{ printf '\\036ended gone\\n'; exit; }}; n={seen}; "
        "while :; do s=; [ ! -e status ] || { s=$(cat status); s=${s:-5}; }; "
        "size=$(wc -c < console.log 2>/dev/null || echo 0); "
        '[ "$size" -le "$n" ] || { '
        "tail -c +$((n + 1)) console.log | head -c $((size - n)) || exit; n=$size; }; "
        '[ -z "$s" ] || { printf \'\\036ended %s\\n\' "$s"; exit; }; '
        "[ -e run ] || { printf '\\036ended gone\\n'; exit; }; sleep 0.5; done"
    )
