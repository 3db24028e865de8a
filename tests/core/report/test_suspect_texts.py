"""Texts for an engineer on call: the output on a terminal for four faults among 64 hosts."""

from __future__ import annotations

import re

import pytest
from tests.factories.blame_cases import BAD, BEHIND_LEAF, COUNT, SLOW, case

from accept.core.causes import Cause
from accept.core.report import text
from accept.core.report.markdown import render_markdown
from accept.core.verdict import State, Suspect, SuspectKind

LEAF = tuple(f"h{index}" for index in BEHIND_LEAF)


def screen(name: str, width: int = 100) -> list[str]:
    return text.table(case(name).verdict, width).splitlines()


def only_suspect(name: str) -> Suspect:
    (suspect,) = case(name).verdict.suspects
    return suspect


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", ["node", "leaf", "fabric", "wrong"])
def test_a_fault_fits_on_a_screen(name: str, width: int) -> None:
    lines = screen(name, width)
    assert len(lines) <= 30
    assert max(map(len, lines[1:])) <= width


@pytest.mark.parametrize("name", ["node", "leaf", "border", "fabric", "wrong", "wrong-node"])
def test_the_first_lines_have_the_name_and_the_counts_of_the_worst_suspect(name: str) -> None:
    first = case(name).verdict.suspects[0]
    top = " ".join(" ".join(screen(name)[:5]).split())
    assert first.name in top
    assert first.why[:60] in top


def test_bad_node_among_random_bad_pairs_comes_before_the_network() -> None:
    node, fabric = case("node").verdict.suspects
    assert (node.kind, node.hosts) == (SuspectKind.NODE, (f"h{BAD}",))
    assert (node.around, node.innocent) == ("", "")
    assert all(f"h{BAD}" in pair.hosts for pair in node.pairs)
    assert f"slow in {len(node.pairs)} of {len(node.pairs)} pairs" in node.why
    assert fabric.kind is SuspectKind.FABRIC
    assert all(f"h{BAD}" not in pair.hosts for pair in fabric.pairs)
    assert f"h{BAD}" in fabric.innocent
    command = f"accept show cause {node.cause}"
    assert any(command in line for line in screen("node"))


def test_leaf_reports_what_is_normal_around_it() -> None:
    leaf = only_suspect("leaf")
    assert (leaf.kind, leaf.hosts, leaf.device) == (SuspectKind.LEAF, LEAF, "3")
    assert leaf.cause is Cause.SLOW_NETWORK
    assert all(set(LEAF).intersection(pair.hosts) for pair in leaf.pairs)
    assert all(host in leaf.around for host in LEAF)
    assert re.search(r"through other GPUs: (\d\d) of \1 normal", leaf.around)
    assert "8 nodes" in leaf.innocent


def test_flaky_fabric_lists_its_pairs_and_drains_nobody() -> None:
    found = case("fabric")
    fabric = only_suspect("fabric")
    assert (fabric.kind, fabric.hosts, fabric.cause) == (SuspectKind.FABRIC, (), Cause.SLOW_NETWORK)
    assert f"{len(fabric.pairs)} of 160 pairs" in fabric.why
    assert [pair.share or 0 for pair in fabric.pairs] == sorted(
        pair.share or 0 for pair in fabric.pairs
    )
    lines = screen("fabric")
    assert "drain none" in lines[1]
    page = render_markdown(found.verdict, found.plan)
    flat = " ".join("\n".join(lines).split())
    for index, pair in enumerate(fabric.pairs):
        assert (" - ".join(pair.hosts) in flat) is (index < 5)
        assert f"{pair.hosts[0]} \\- {pair.hosts[1]}" in page or " - ".join(pair.hosts) in page
        assert pair.log


def test_border_names_both_sides() -> None:
    border = only_suspect("border")
    assert (len(border.hosts), len(border.others)) == (COUNT // 2, COUNT // 2)
    assert re.search(r"inside the two groups: (\d+) of \1 normal", border.around)


def test_wrong_data_that_follows_no_host_comes_first() -> None:
    verdict = case("wrong").verdict
    assert verdict.suspects[0].cause is Cause.WRONG_DATA
    assert re.search(r"wrong data in \d+ of 233 logs", verdict.headline)
    assert "follows no node: software" in verdict.headline
    assert "take the node out of use" not in "\n".join(screen("wrong"))


def test_wrong_data_of_a_host_comes_before_a_slow_host() -> None:
    verdict = case("wrong-node").verdict
    assert [(s.hosts, s.cause) for s in verdict.suspects] == [
        ((f"h{BAD}",), Cause.WRONG_DATA),
        ((f"h{SLOW}",), Cause.SLOW_OUTLIER),
    ]
    assert verdict.state is State.DEGRADED
    assert verdict.headline.index(f"h{BAD}") < verdict.headline.index(f"h{SLOW}")
    assert f"{COUNT - 2} OF {COUNT} NODES GOOD" in screen("wrong-node")[0]
