"""Pods announce themselves to the coordinator; their announcements are untrusted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept.core.causes import Cause
from accept.core.facts import PLACE
from accept.core.runner import discovery
from accept.core.runner.discovery import Candidate, Found, discover
from accept.core.runner.registration import REGISTRATIONS, Registrations
from accept.core.runner.ssh import Answer

ATTEMPT = "mytest-a1"
GOOD = f"{ATTEMPT} 1 node-1 10.0.0.1 10.0.0.1"


def registered(folder: Path, *lines: str, hosts: int = 4) -> Registrations:
    """Return the registrations after index 0 got these lines."""
    (folder / REGISTRATIONS).write_text("".join(f"{line}\n" for line in lines))
    found = Registrations(folder, attempt=ATTEMPT, indexes=range(1, hosts))
    found.read()
    return found


def test_a_pod_registers_with_all_its_addresses(tmp_path: Path) -> None:
    found = registered(tmp_path, f"{ATTEMPT} 3 node-3 10.0.0.3,fd00::3 10.0.0.3")
    assert found.by_index[3].addresses == ("10.0.0.3", "fd00::3")
    assert (found.by_index[3].node, found.refused) == ("node-3", [])


def test_a_line_counts_when_it_is_complete(tmp_path: Path) -> None:
    found = Registrations(tmp_path, attempt=ATTEMPT, indexes=range(1, 2))
    assert not found.read()
    with (tmp_path / REGISTRATIONS).open("a") as file:
        file.write(GOOD)
        file.flush()
        assert not found.read()
        file.write("\n")
        file.flush()
        assert found.read()
    assert not found.read()
    assert set(found.by_index) == {1}


INVALID = {
    "index too large": f"{ATTEMPT} 4 node-4 10.0.0.4 10.0.0.4",
    "index of the coordinator": f"{ATTEMPT} 0 node-0 10.0.0.4 10.0.0.4",
    "negative index": f"{ATTEMPT} -1 node-0 10.0.0.4 10.0.0.4",
    "another attempt": "another-a1 2 node-2 10.0.0.2 10.0.0.2",
    "name as address": f"{ATTEMPT} 2 node-2 example.org 10.0.0.2",
    "own address": f"{ATTEMPT} 2 node-2 127.0.0.1 10.0.0.2",
    "multicast": f"{ATTEMPT} 2 node-2 224.0.0.1 10.0.0.2",
    "address of another pod": f"{ATTEMPT} 2 node-2 10.0.0.1 10.0.0.2",
    "index of another pod": f"{ATTEMPT} 1 node-2 10.0.0.2 10.0.0.2",
    "words missing": f"{ATTEMPT} 2 node-2",
    "too long": f"{ATTEMPT} 2 {'n' * 2000} 10.0.0.2 10.0.0.2",
    "empty": "",
}


@pytest.mark.parametrize("line", INVALID.values(), ids=list(INVALID))
def test_an_invalid_registration_is_refused_and_changes_no_other(tmp_path: Path, line: str) -> None:
    found = registered(tmp_path, GOOD, line)
    assert set(found.by_index) == {1}
    assert found.by_index[1].addresses == ("10.0.0.1",)
    assert len(found.refused) == 1


def test_a_run_of_one_pod_refuses_every_registration(tmp_path: Path) -> None:
    assert registered(tmp_path, GOOD, hosts=1).by_index == {}


def test_a_pod_that_registers_again_replaces_its_entry(tmp_path: Path) -> None:
    found = registered(tmp_path, GOOD, f"{ATTEMPT} 1 node-1 10.0.0.9 10.0.0.9")
    assert (found.by_index[1].addresses, found.refused) == (("10.0.0.9",), [])


@given(raw=st.binary(max_size=400))
def test_any_registration_is_read_or_refused(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / REGISTRATIONS).write_bytes(raw + b"\n")
    found = Registrations(folder, attempt=ATTEMPT, indexes=range(1, 4))
    found.read()
    assert all(0 < index < 4 for index in found.by_index)


async def answer(argv: list[str], **_: object) -> Answer:
    """Answer as the pod that is asked would."""
    name = argv[-2] if argv[0] == "ssh" else "p0"
    return Answer(exit=0, out=f"1.0\n{name}\n{name}\n\n8\n{name}\n".encode())


Discover = Callable[..., Found]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Discover:
    """Return a function that discovers `hosts` pods; each answers at the address it announced."""
    monkeypatch.setattr(discovery, "run", answer)
    monkeypatch.setattr(discovery, "_QUORUM_SECONDS", 0.2)

    def discovered(
        *lines: str,
        hosts: int,
        seconds: float = 600.0,
        require_all: bool = False,
        positions: Mapping[str, str] | None = None,
        local: int | None = 0,
    ) -> Found:
        (tmp_path / REGISTRATIONS).write_text("".join(f"{line}\n" for line in lines))
        candidates = [Candidate(name=f"p{n}", port=1, local=n == local) for n in range(hosts)]
        looking = discover(
            candidates,
            folder=tmp_path,
            attempt=ATTEMPT,
            ranks=None,
            topology="",
            seconds=seconds,
            register=True,
            require_all=require_all,
            positions=lambda: positions or {},
        )
        return asyncio.run(asyncio.wait_for(looking, 300.0))

    return discovered


def lines(*indexes: int) -> list[str]:
    return [f"{ATTEMPT} {n} n{n} 10.0.{n // 250}.{n % 250 + 1} x" for n in indexes]


def missing(found: Found) -> list[tuple[str | None, Cause]]:
    return [(problem.host, problem.cause) for problem in found.problems]


def test_all_registered_pods_take_part_in_the_order_of_their_indexes(search: Discover) -> None:
    found = search(*lines(2, 1), hosts=3)
    assert [(host.name, host.address) for host in found.hosts[1:]] == [
        ("p1", "10.0.0.2"),
        ("p2", "10.0.0.3"),
    ]
    assert found.problems == ()


def test_index_0_registers_too_if_the_coordinator_has_a_pod_of_its_own(search: Discover) -> None:
    found = search(*lines(0, 1), hosts=2, local=None)
    assert ([host.name for host in found.hosts], found.problems) == (["p0", "p1"], ())


def test_a_run_of_many_pods_starts_without_the_last_one_if_no_other_comes(search: Discover) -> None:
    found = search(*lines(*range(1, 15)), hosts=16)
    assert len(found.hosts) == 15
    assert missing(found) == [("p15", Cause.NOT_REGISTERED)]


@pytest.mark.parametrize(
    ("hosts", "late", "require_all"),
    [(15, 1, False), (16, 2, False), (16, 1, True)],
    ids=["few pods", "two pods", "all nodes are required"],
)
def test_late_pods_are_waited_for(
    tmp_path: Path,
    search: Discover,
    monkeypatch: pytest.MonkeyPatch,
    *,
    hosts: int,
    late: int,
    require_all: bool,
) -> None:
    monkeypatch.setattr(discovery, "_QUORUM_SECONDS", 0.0)
    first_late = hosts - late

    async def register_late(argv: list[str], **options: Any) -> Answer:
        if "p2" in argv:
            with (tmp_path / REGISTRATIONS).open("a") as file:
                file.writelines(f"{line}\n" for line in lines(*range(first_late, hosts)))
        return await answer(argv, **options)

    monkeypatch.setattr(discovery, "run", register_late)
    found = search(*lines(*range(1, first_late)), hosts=hosts, require_all=require_all)
    assert found.problems == ()


def test_the_reason_of_a_missing_pod_is_that_its_registration_was_refused(search: Discover) -> None:
    found = search(*lines(1), f"{ATTEMPT} 2 n2 localhost x", hosts=3, seconds=0.5)
    assert len(found.refused) == 1
    (problem,) = found.problems
    assert found.refused[0] in problem.message


def test_the_log_names_the_missing_pods_while_it_waits(
    search: Discover, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(discovery, "_REPORT_SECONDS", 0.3)
    search(*lines(1, 2, 4), hosts=7, seconds=1.0)
    reports = [one.split(" ", 1)[1] for one in capsys.readouterr().out.splitlines()]
    assert reports
    assert all(one.startswith("hosts: 4 of 7 after ") for one in reports)
    assert all(one.endswith("; missing: p[3,5-6]") for one in reports)


def test_hosts_are_in_the_order_of_their_positions_if_all_are_known(search: Discover) -> None:
    positions = {"p0": "b1/r1/h0", "p1": "b1/r2/h1", "p2": "b1/r1/h2"}
    found = search(*lines(1, 2), hosts=3, positions=positions)
    assert [host.name for host in found.hosts] == ["p0", "p2", "p1"]
    assert {f.host: f.value for f in found.facts if f.name == PLACE.name} == positions
    found = search(*lines(1, 2), hosts=3, positions={"p2": "b1/r1/h2"})
    assert [host.name for host in found.hosts] == ["p0", "p1", "p2"]


def test_a_thousand_pods_register(search: Discover) -> None:
    found = search(*lines(*range(1, 1000)), hosts=1000)
    assert (len(found.hosts), found.problems) == (1000, ())
