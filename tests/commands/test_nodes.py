"""The nodes of a run as lists, and the evidence on one of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.factories import demo_evidence, sample_evidence
from tests.factories.blame_cases import BAD, CASES, Case, case
from tests.factories.command_line import accept, refused

from accept.commands.demo import unpack_demo
from accept.commands.explain import explain, named
from accept.evidence import rundir
from accept.report.data import Run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return sample_evidence.write(tmp_path / "evidence")


@pytest.mark.usefixtures("runs")
def test_explain_suggests_the_run_of_the_evidence_that_is_named() -> None:
    folder = unpack_demo()
    (folder / rundir.RUN).write_text("{}")
    done = accept("explain", folder / rundir.EVIDENCE, demo_evidence.BAD)
    assert f"accept retest demo {demo_evidence.BAD}, or accept ticket demo " in done.err


def run_of(found: Case) -> Run:
    return Run(plan=found.plan, verdict=found.verdict, records=found.records)


def test_nodes_are_listed_by_state_one_per_line(run: Path) -> None:
    assert accept("show", "nodes", run).out.split() == ["h0", "good"]
    assert accept("show", "nodes", run, "--good").out == "h0\n"
    assert accept("show", "nodes", run, "--good", "--folded").out == "h0\n"
    assert accept("show", "nodes", run, "--bad", "--untested").out == ""
    lists = json.loads(accept("show", "nodes", run, "--json").out)
    assert lists == {"good": ["h0"], "bad": [], "untested": []}


def test_nodes_are_judged_by_the_machine_and_the_thresholds_given(run: Path) -> None:
    assert accept("show", "nodes", run, "--good", "--expect", "all-reduce>=1e6").out == ""
    refused("show", "nodes", run, "--machine", "nonsense", error="E-MACHINE-UNKNOWN")


def test_states_are_options_of_nodes_only() -> None:
    refused("show", "check", "gemm", "--good", error="E-USAGE")
    refused("show", "check", "gemm", "--expect", "gemm>=1", error="E-USAGE")


def test_a_bad_node_has_counts_for_and_against_it_and_the_figures_of_the_model() -> None:
    one = explain(run_of(case("node")), f"h{BAD}")
    assert (one.state, [s.hosts for s in one.suspects]) == ("bad", [(f"h{BAD}",)])
    pairs = [step for step in one.steps if step.groups == "pairs"]
    assert all(step.slow == step.executions > 4 for step in pairs)
    assert all(step.slow == 0 for step in one.steps if step.groups == "each")
    assert all(p.bad == p.executions and p.others_bad < p.others for p in one.partners)
    # The values of both collectives, as their number is.
    assert all("% of normal" in text for p in one.partners for text in (p.values, p.other_values))
    (figures,) = one.model
    # Follow-up waves repeat pairs.
    assert all(f.pairs == f.pairs_hit == len(one.partners) for f in figures.effects)
    assert (len(one.evidence_against), len(one.evidence_for)) == (3, 2)


def test_a_node_beside_a_fault_has_good_pairs_for_it() -> None:
    found = case("fabric")
    pair = found.verdict.suspects[0].pairs[0]
    one = explain(run_of(found), pair.hosts[0])
    assert one.state == "untested"
    assert not any(pair.hosts[0] in s.hosts for s in one.suspects)
    assert sum(step.slow for step in one.steps) < sum(s.executions for s in one.steps) / 2
    assert one.model == ()


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_each_blamed_part_has_its_executions_and_figures_as_a_node_has(name: str) -> None:
    found = case(name)
    run = run_of(found)
    for suspect in found.verdict.suspects:
        one = explain(run, suspect.name)
        assert (one.state, one.suspects) == ("bad", (suspect,))
        bad = sum(step.slow + step.failed for step in one.steps)
        # Full rails are not listed: the reason of the verdict is.
        reason = f"{suspect.cause}: {suspect.why}"
        assert 2 * bad > sum(s.executions for s in one.steps) or reason in one.evidence_against
        assert any(figures.is_fault for figures in one.model)
        hosts = {partner.host for partner in one.partners if partner.bad}
        assert hosts <= {host for pair in suspect.pairs for host in pair.hosts}
        assert suspect.of_network or suspect.hosts[0] not in hosts


@pytest.mark.parametrize("form", ["{0} | {1}", "{1} | {0}", "border {1} | {0}", "{0}_|_{1}"])
def test_a_part_is_found_by_each_name_that_a_screen_prints_in_either_order(form: str) -> None:
    verdict = case("border").verdict
    (name,) = (suspect.name for suspect in verdict.suspects)
    assert named(verdict, form.format(*name.split(" | "))) == name
    assert named(verdict, f"h1 | {name}") == f"h1 | {name}"


def test_explain_is_a_command_and_names_the_nearest_node(run: Path) -> None:
    assert accept("explain", run, "h0").out.startswith("h0: good\n")
    assert json.loads(accept("explain", run, "h0", "--json").out)["node"] == "h0"
    assert "\nFOR\n  nothing" not in accept("explain", run, "h0").out
    refused("explain", run, "h1", error="E-NODE-UNKNOWN")
