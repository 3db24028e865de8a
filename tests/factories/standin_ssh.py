"""A stand-in `ssh` on PATH that runs the command on this machine, as if it were the host.

A test can let it print greetings, refuse or cut connections. It needs no sshd, key or network.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from tests.factories.shell import write_program

_SCRIPT = """\
#!/bin/sh
control={control}
printf '%s\\n' "$*" >> "$control/calls"
while [ "$1" != -- ]; do shift; done
if [ -e "$control/down-$2" ]; then
    echo "ssh: connect to host $2 port 22: No route to host" >&2
    exit 255
fi
if [ -s "$control/refusals" ]; then
    sed -i 1d "$control/refusals"
    echo "kex_exchange_identification: Connection closed by remote host" >&2
    exit 255
fi
cat "$control/greeting"
if [ -s "$control/cuts" ]; then
    bytes=$(head -n 1 "$control/cuts")
    sed -i 1d "$control/cuts"
    [ "$bytes" != whole ] || exec sh -c "$3"
    sh -c "$3" | head -c "$bytes"
    exit 255
fi
exec sh -c "$3"
"""


@dataclass(frozen=True, kw_only=True)
class StandinSsh:
    """Control a stand-in and read its calls."""

    control: Path

    def greet(self, text: str) -> None:
        """Let the login shell of every host print `text` before each command."""
        (self.control / "greeting").write_text(text)

    def cut(self, *counts: int | Literal["whole"]) -> None:
        """Cut the next connections, each after so many bytes of the command's output or never."""
        (self.control / "cuts").write_text("".join(f"{count}\n" for count in counts))

    def refuse(self, count: int) -> None:
        """Refuse the next `count` connections, like an sshd with too many connections at once."""
        (self.control / "refusals").write_text("refuse\n" * count)

    def do_not_wait(self) -> None:
        """Let `sleep` on the hosts end at once."""
        write_program(self.control / "bin" / "sleep", "")

    def take_down(self, host: str) -> None:
        """Let no connection reach a host."""
        (self.control / f"down-{host}").touch()

    @property
    def calls(self) -> list[str]:
        """Return the arguments of every call so far, one line each."""
        path = self.control / "calls"
        return path.read_text().splitlines() if path.exists() else []


def standin_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> StandinSsh:
    """Create a stand-in in `folder`, which must not exist, and put it on PATH."""
    folder.mkdir()
    (folder / "greeting").touch()
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(_SCRIPT.format(control=folder))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return StandinSsh(control=folder)
