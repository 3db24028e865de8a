"""A test cluster for manual use: it lives in a process of its own until `down`, one at a time.

Tests make clusters of their own. The process that holds the cluster describes it in a state file,
and removes that file when a signal ends it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import folders


@dataclass(frozen=True, kw_only=True)
class Manual:
    """Starts, shows and ends the cluster of a module that has a verb `hold`."""

    module: str
    state: Path
    log: Path
    #: Seconds that a start may take.
    seconds: float
    #: Print what users need to use the cluster.
    show: Callable[[Mapping[str, str]], None]
    #: Why this machine cannot have such a cluster; empty if it can.
    why_not: Callable[[], str]

    def running(self) -> dict[str, str]:
        """Return the stored description of the running cluster; empty if none runs."""
        try:
            found: dict[str, str] = json.loads(self.state.read_text())
            os.kill(int(found["pid"]), 0)
        except (OSError, ValueError, KeyError):
            return {}
        return found

    def up(self, nodes: int) -> int:
        """Start a cluster and wait until it is up; only print it if one is up already."""
        if found := self.running():
            self.show(found)
            return 0
        if reason := self.why_not():
            sys.stderr.write(f"{reason}\n")
            return 2
        self.state.unlink(missing_ok=True)
        with self.log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", self.module, "hold", "--nodes", str(nodes)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        sys.stderr.write(
            f"starting {nodes} nodes; what is built the first time takes minutes: {self.log}\n"
        )
        end = time.monotonic() + self.seconds
        while not (found := self.running()):
            if process.poll() is not None or time.monotonic() > end:
                process.terminate()
                sys.stderr.write(f"{self.log.read_text()[-2000:]}no cluster; see {self.log}\n")
                return 1
            time.sleep(0.1)
        self.show(found)
        return 0

    def hold(self, **described: str) -> int:
        """Describe the cluster, and wait until a signal ends this process."""
        half = self.state.with_suffix(".new")
        half.write_text(json.dumps({"pid": str(os.getpid()), **described}))
        half.rename(self.state)
        try:
            signal.pause()
        finally:
            self.state.unlink(missing_ok=True)
        return 0

    def down(self) -> int:
        """End the cluster and wait until it is removed."""
        found = self.running()
        if not found:
            # One that was killed ended by itself, and left a little.
            folders.sweep()
            sys.stderr.write("no cluster is running\n")
            return 0
        pid = int(found["pid"])
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        with suppress(OSError):
            while self.module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                time.sleep(0.1)
        return 0


def end_by_signal() -> None:
    """Let SIGTERM end this process like an exception, so that `with` removes the cluster."""

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
