"""Compare the discovery of 128 reachable ssh hosts with `mpirun hostname` on the same hosts.

Discovery is that of the coordinator: it logs in to each host, collects the information that a run
needs, and writes the hostfile. Both start on the first host, take turns, and use the same ssh and
keys. The time of mpirun ends when the last host has printed its name. Its exit does not count,
because Open MPI 5.0 sometimes hangs there; for the same reason the ranks wait before they end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

from tests.cluster.hosts import Hosts

from benchmarks import Row, beside

_HOSTS = 128
_TIMES = 3
_BAR = 0.5
_ROOT = Path(__file__).resolve().parents[1]
_FOLDER = "/root/accept-bench"

#: Runs on the first host and prints the number of hosts that it found.
_DISCOVER = """
import asyncio, sys, time
from pathlib import Path
from accept.core.runner.discovery import Candidate, discover
folder, names = Path(sys.argv[1]), sys.argv[2:]
candidates = [Candidate(name=n, addresses=(n,), local=n == names[0]) for n in names]
found = asyncio.run(discover(
    candidates, folder=folder, attempt="bench", ranks=1, topology="", seconds=120))
(folder / "group").write_text("".join(h.group_line() for h in found.hosts))
print(len(found.hosts), [p.message for p in found.problems][:3])
"""


def _prepare(hosts: Hosts) -> None:
    """Write the files that a run's set-up writes on every host: keys, configuration, its name."""
    hosts.trust()
    pattern = (_ROOT / "launchers" / "ssh_config.in").read_text()
    known = [line.split(" ", 1)[1] for line in hosts.known_hosts.read_text().splitlines()]
    for name in hosts.names:
        folder = hosts.path(name, _FOLDER)
        folder.mkdir(mode=0o700)
        (folder / "host").write_text(name + "\n")
    first = hosts.path(hosts.names[0], _FOLDER)
    (first / "c").mkdir()
    (first / "ssh_config").write_text(pattern.replace("@FOLDER@", _FOLDER))
    key = first / "key"
    key.touch(mode=0o600)
    key.write_text(hosts.path(hosts.names[0], "/root/.ssh/id_ed25519").read_text())
    (first / "known_hosts").write_text("".join(f"accept-run {line}\n" for line in known))
    lines = "".join(f"{name} slots=1\n" for name in hosts.names)
    (first / "hostfile").write_text(lines)
    (first / "discover.py").write_text(_DISCOVER)


def discovery(hosts: Hosts) -> float:
    """Return the seconds until the hostfile is written, with the start of Python."""
    first = hosts.names[0]
    command = [sys.executable, f"{_FOLDER}/discover.py", _FOLDER, *hosts.names]
    began = time.perf_counter()
    output = hosts.run(first, command, env={"PYTHONPATH": str(_ROOT / "cli")}, timeout=180).stdout
    taken = time.perf_counter() - began
    # Open connections would make the next measurement faster.
    hosts.run(
        first, f"for s in {_FOLDER}/c/*; do ssh -o ControlPath=$s -O exit x; done", timeout=60
    )
    if not output.startswith(f"{len(hosts.names)} "):
        raise RuntimeError(f"not all hosts were found: {output}")
    return taken


def hostname(hosts: Hosts) -> float:
    """Return the seconds from the start of mpirun until every host has printed its name."""
    mpirun = Path(sys.executable).parent / "mpirun"
    # A rank must not end while others still start.
    command = [
        *(str(mpirun), "--allow-run-as-root", "-np", str(len(hosts.names))),
        *("--hostfile", f"{_FOLDER}/hostfile", "--map-by", "ppr:1:node", "--bind-to", "none"),
        *("--prtemca", "plm_ssh_agent", f"ssh -F {_FOLDER}/ssh_config"),
        *("--prtemca", "plm_ssh_no_tree_spawn", "1", "--prtemca", "plm_ssh_num_concurrent", "128"),
        *("sh", "-c", "hostname; sleep 2"),
    ]
    began = time.perf_counter()
    with hosts.popen(hosts.names[0], command) as process:
        assert process.stdout is not None
        seen: set[str] = set()
        while len(seen) < len(hosts.names) and (line := process.stdout.readline()):
            seen.add(line.strip())
        taken = time.perf_counter() - began
        try:
            process.wait(20)
        finally:
            process.kill()
    if len(seen) < len(hosts.names):
        raise RuntimeError(f"mpirun reached {len(seen)} of {len(hosts.names)} hosts")
    return taken


def rows(count: int = _HOSTS, times: int = _TIMES) -> list[Row]:
    """Return the medians of `times` measurements of each."""
    with Hosts(count, rate=None) as hosts:
        _prepare(hosts)
        taken = [(discovery(hosts), hostname(hosts)) for _ in range(times)]
    ours, theirs = (median(column) for column in zip(*taken, strict=True))
    return [
        beside(
            f"{count} ssh hosts until the hostfile is written",
            f"{ours:.2f} s",
            f"`mpirun hostname` {theirs:.2f} s",
            ours=ours,
            theirs=theirs,
            bar=_BAR,
        )
    ]
