"""A launcher script of the user on real hosts: as a check, and by hand during a hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.runs import CONNECT, VENV, VENV_MPI4, Lab

#: Counts the hosts on which a plain mpirun, and ours, start ranks.
LAUNCHER = """\
#!/bin/sh
report() {
    printf 'ACCEPT {"metric":"%s","value":%s,"unit":"hosts"}\\n' "$1" "$(sort -u | wc -l)"
}
mpirun hostname | report plain
accept-mpirun -N 1 hostname | report ours
"""


@pytest.mark.parametrize("venv", [VENV, VENV_MPI4], ids=["mpi5", "mpi4"])
def test_a_launcher_script_of_the_user_reaches_all_hosts(
    make_lab: Callable[..., Lab], venv: Path
) -> None:
    lab = make_lab(3, venv=venv)
    (lab.folder / "launch").write_text(LAUNCHER)
    script = "check: script, script: launch, groups: all, timeout: 2m"
    bounds = ("--expect", "script.plain>=3", "--expect", "script.ours>=3")
    run = lab.start("--hold", "always:10m", *bounds, checks=[*CONNECT, script])
    run.wait_for("held for 10 min")
    (folder,) = lab.hosts.run("h1", "ls -d /tmp/accept-*").stdout.split()
    by_hand = (
        "accept-mpirun -N 1 hostname",
        "accept-shell mpirun hostname",
        "accept-shell accept-mpirun hostname",
    )
    for command in by_hand:
        names = lab.hosts.run("h1", f"{folder}/bin/{command}").stdout.split()
        assert sorted(names) == ["h1", "h2", "h3"], command
    lab.hosts.run("h1", f"touch {folder}/release")
    done = run.wait()
    assert done.ending == ("pass", 0), done.err
    lab.nothing_is_left()
