"""IMEX services of several hosts: reports that name a host, and others that are only shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accept.core.facts import Imex, Inventory
from accept.core.judge import imex
from accept.core.judge.findings import Problems

CLUSTER = [(hosts, seeing) for hosts in range(2, 9) for seeing in range(hosts)]


def reported(hosts: int, pairs: set[tuple[int, int]]) -> dict[str, Inventory]:
    """Return inventories whose services are not connected with these others; all are READY."""
    links = {n: {str(m): "CONNECTED" for m in range(hosts)} for n in range(hosts)}
    for own, other in pairs:
        links[own][str(other)] = "INVALID"
    return {
        f"h{n}": Inventory(
            domain="cluster/1",
            imex=Imex(domain="UP", state="READY", host=str(n), connections=links[n]),
        )
        for n in range(hosts)
    }


@pytest.mark.parametrize(("hosts", "seeing"), CLUSTER)
def test_a_node_is_named_if_most_others_and_two_have_lost_it(hosts: int, seeing: int) -> None:
    found = imex.problems(reported(hosts, {(n, 0) for n in range(1, seeing + 1)}))
    named = {problem.host for problem in found.problems}
    if seeing > 1 and 2 * seeing > hosts - 1:
        assert named == {"h0"}
    else:
        # The connections are still reported, without a host.
        assert named == ({None} if seeing else set())
    assert (found.unclear, found.notes) == ([], [])


def silent(others: int, joined: int, *, words: str, listed: str = "") -> Problems:
    """Judge h0, whose service shows `words`, and others; the first `joined` show a state.

    `listed`: the state of their connections with h0; empty: they do not list it.
    """
    known = {str(n): "CONNECTED" for n in range(1, others + 1)}
    known |= {"0": listed} if listed else {}
    names = {"0": "h0"} if listed else {}
    view = Imex(domain="UP", state="READY", connections=known, names=names)
    inventories = {"h0": Inventory(domain="cluster/1", imex=Imex(words=words))}
    for n in range(1, others + 1):
        own = replace(view, host=str(n)) if n <= joined else None
        inventories[f"h{n}"] = Inventory(domain="cluster/1", imex=own)
    # Hosts of another domain show nothing about this one.
    for n in range(3):
        inventories[f"x{n}"] = Inventory(domain="cluster/2", imex=replace(view, host=f"x{n}"))
    return imex.problems(inventories)


def hosts_of(found: Problems) -> tuple[list[str | None], list[str | None], int]:
    """Return the hosts that are bad, those that are unclear, and the number of notes."""
    return [p.host for p in found.problems], [p.host for p in found.unclear], len(found.notes)


@pytest.mark.parametrize("others", range(1, 6))
def test_a_silent_service_is_a_fault_if_most_others_are_connected_without_it(others: int) -> None:
    for joined in range(others + 1):
        found = hosts_of(silent(others, joined, words="Connection refused"))
        bad = joined > 1 and 2 * joined > others
        assert found == ((["h0"], [], 0) if bad else ([], ["h0"], 0))


def test_a_silent_service_that_others_list_or_nobody_configured() -> None:
    refused, words = "Connection refused", "Failed to read node configuration file"
    assert hosts_of(silent(4, 4, words=refused, listed="CONNECTED"))[:2] == ([], ["h0"])
    assert hosts_of(silent(3, 0, words=words)) == ([], [], 1)
    assert hosts_of(silent(3, 1, words=words)) == ([], ["h0"], 0)


WAITING = "WAITING_FOR_RECOVERY"


@pytest.mark.parametrize(
    ("state", "lost", "outside", "domain", "expected"),
    [
        ("READY", set(), False, "UP", ([], [], 0)),
        ("READY", set(), False, "DOWN", ([], [None], 0)),
        ("INIT_GPU", set(), False, "DOWN", (["h0"], [], 0)),
        ("INIT_GPU", {(0, 1)}, False, "UP", ([None], [], 0)),
        (WAITING, set(), False, "UP", (["h0"], [], 0)),
        (WAITING, {(0, 1)}, False, "UP", ([None], [], 0)),
        # All have lost a node that is not part of the run.
        (WAITING, set(), True, "UP", ([], [], 1)),
        # What is lost with a named host is not reported again.
        ("READY", {(n, 0) for n in (1, 2, 3)} | {(0, 3)}, False, "UP", (["h0"], [], 0)),
        ("READY", {(n, 0) for n in (1, 2, 3)} | {(1, 2), (2, 1)}, False, "UP",
         (["h0", None], [], 0)),
    ],
)  # fmt: skip
def test_a_host_that_is_not_ready_is_blamed_unless_it_waits_for_another(
    state: str, lost: set[tuple[int, int]], domain: str, expected: object, *, outside: bool
) -> None:
    found = reported(4, lost)
    for name, host in found.items():
        view = host.imex
        assert view is not None
        links = {**view.connections, **({"9": "INVALID"} if outside else {})}
        own = replace(view, connections=links, domain=domain)
        own = replace(own, state=state) if name == "h0" else own
        found[name] = replace(host, imex=own)
    problems = imex.problems(found)
    assert hosts_of(problems) == expected
    # Each lost connection is listed once.
    texts = [problem.message for problem in problems.problems if problem.host is None]
    assert all(text.count(host) <= 1 for text in texts for host in found)
