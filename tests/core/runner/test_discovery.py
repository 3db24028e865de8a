"""Discover the hosts of a run, which all are this machine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.factories.paths import LAUNCHERS

from accept.core.causes import Cause
from accept.core.runner.discovery import Candidate, Found, discover, ssh_cause
from accept.core.runner.ssh import Answer

#: Ends when two hosts run it at the same time.
MEET = "if mkdir first; then read -r _ < meet; else echo > meet; fi; echo rack"


def discovered(folder: Path, *names: str, **options: Any) -> Found:
    """Discover hosts that all are this machine."""
    candidates = options.pop("candidates", [Candidate(name=name, local=True) for name in names])
    more = {"ranks": None, "topology": "", "seconds": 300.0, **options}
    looking = discover(candidates, folder=folder, attempt="one", **more)
    return asyncio.run(asyncio.wait_for(looking, 300.0))


def test_a_host_that_is_slow_to_report_its_gpus_does_not_delay_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accept.core.runner.discovery._HANDSHAKES", 1)
    monkeypatch.setattr("accept.core.runner.discovery._SMI_SECONDS", 0.0)
    (tmp_path / "host").write_text("h0\n")
    (tmp_path / "gpus.sh").symlink_to(LAUNCHERS / "gpus.sh")
    os.mkfifo(tmp_path / "meet")
    found = discovered(tmp_path, "h0", "h0", ranks=1, topology=MEET)
    assert [host.name for host in found.hosts] == ["h0"]
    assert [(problem.cause, problem.host) for problem in found.problems] == [
        (Cause.DUPLICATE_HOST, "h0")
    ]


def answered(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: str, name: str = "h0") -> Found:
    """Discover a host that answers these lines; return clock, name, own name, place, GPUs."""

    async def say(*_: Any, **__: Any) -> Answer:
        return Answer(exit=0, out="\n".join([*lines, name, ""]).encode())

    monkeypatch.setattr("accept.core.runner.discovery.run", say)
    return discovered(folder, "h0", seconds=0.1)


def test_a_host_without_an_address_is_missing(tmp_path: Path) -> None:
    found = discovered(tmp_path, candidates=[Candidate(name="h0")], seconds=0.1)
    assert [(problem.host, problem.cause) for problem in found.problems] == [
        ("h0", "unreachable-dns")
    ]


@pytest.mark.parametrize("own", ["gpu 2", "*", "-oX", "a[$(x)]", "h\t2", "n" * 300, ""])
def test_an_invalid_hostname_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    (host,) = answered(monkeypatch, tmp_path, "1700000000.5", "h0", own, "", "8").hosts
    assert (host.mpi_name, host.slots) == ("h0", 8)


def test_mpi_uses_the_own_name_of_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (host,) = answered(monkeypatch, tmp_path, "1700000000.", "h0", "node-7.x", "", "0").hosts
    assert (host.mpi_name, host.slots) == ("node-7.x", 1)


@pytest.mark.parametrize(
    ("clock", "gpus", "name"),
    [
        *((clock, "8", "h0") for clock in ("inf", "nan", "-5", "9" * 400)),
        *(("1", gpus, "h0") for gpus in ("-5", "9" * 5000)),
        # ssh could take such a name for an option.
        *(("1", "8", name) for name in ("-oProxyCommand=x", "-1", ".", "")),
    ],
)
def test_a_host_with_an_invalid_answer_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str, gpus: str, name: str
) -> None:
    found = answered(monkeypatch, tmp_path, clock, "h0", "h0", "", gpus, name=name)
    assert found.hosts == ()
    assert [problem.cause for problem in found.problems] == [Cause.LAUNCH_FAILED]


_CHANGED = "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"


@pytest.mark.parametrize(
    ("warning", "cause"), [("", Cause.HOST_KEY_UNKNOWN), (_CHANGED, Cause.HOST_KEY_MISMATCH)]
)
def test_a_host_key_is_wrong_only_if_ssh_knows_another(warning: str, cause: Cause) -> None:
    assert ssh_cause(f"{warning}Host key verification failed.\n") is cause


@pytest.mark.parametrize(
    ("ranks", "counts", "slots"), [(8, (7, 7, 8), 8), (8, (3,), 8), (None, (8, 7, 8, 0), 8)]
)
def test_the_number_of_ranks_is_that_of_the_machine_or_of_most_hosts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: int | None,
    counts: tuple[int, ...],
    slots: int,
) -> None:
    names = [f"h{number}" for number in range(len(counts))]
    left = [
        f"1\n{name}\n{name}\n\n{gpus}\n{name}\n" for name, gpus in zip(names, counts, strict=True)
    ]

    async def say(*_: Any, **__: Any) -> Answer:
        return Answer(exit=0, out=left.pop(0).encode())

    monkeypatch.setattr("accept.core.runner.discovery.run", say)
    found = discovered(tmp_path, *names, ranks=ranks)
    assert {host.name: host.slots for host in found.hosts} == dict.fromkeys(names, slots)
