"""`accept pick` without hosts: the choice from a judged run, variables of Slurm, bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.factories.command_line import accept, refused
from tests.factories.simulated_runs import run_of
from tests.factories.simulated_worlds import BY_NAME
from tests.golden.runs import FAMILIES

from accept.commands.pick import chosen_of, slurm_variables
from accept.commands.ranking import choose
from accept.core.text import folded

NODES, NEED = 20, 18


@pytest.mark.parametrize("family", ["recorded", "small"])
def test_every_node_is_chosen_or_left_out_and_no_accused_one_is_chosen(family: str) -> None:
    for name, make in FAMILIES[family].items():
        verdict = make()
        measured = verdict.hosts[1:]
        for need in (1, len(verdict.hosts) // 2, len(verdict.hosts)):
            choice = choose(verdict, need, measured=measured, in_doubt={})
            left_out = [one.host for one in choice.left_out]
            assert sorted((*choice.chosen, *left_out)) == sorted({*verdict.requested}), name
            assert {*choice.chosen} <= {*measured} - verdict.accused, name
            spares = [one for one in choice.left_out if one.is_spare]
            assert len(choice.chosen) == min(need, len(choice.chosen) + len(spares)), name
            assert all(one.reason for one in choice.left_out), name


@pytest.mark.parametrize("world", ["node-15", "node-dead", "link-dead", "w4", "switch", "rail"])
def test_bad_nodes_are_left_out_and_a_slow_network_stops_nothing(world: str) -> None:
    for seed in range(2):
        cluster = BY_NAME[world].cluster(NODES, 4, seed, schedule=seed)
        run = run_of(cluster, 4, seed=seed, again=True)
        choice, refusal = chosen_of(run, NEED)
        assert (refusal, len(choice.chosen)) == ("", NEED)
        assert not {cluster.hosts[bad] for bad in cluster.bad} & {*choice.chosen}
        used = [
            suspect
            for suspect in run.verdict.suspects
            if suspect.of_network and (not suspect.hosts or {*suspect.hosts} <= {*choice.chosen})
        ]
        assert not [one for one in used for pair in one.pairs if one.hosts and pair.share is None]
        assert all(any(one.name in text for text in choice.shared) for one in used)
        assert used or world not in ("w4", "rail")
        # One of the two nodes of a link that fails.
        if bad := len(cluster.bad) + (world == "link-dead"):
            none, refusal = chosen_of(run, NODES)
            assert refusal == f"only {NODES - bad} of the {NODES} nodes needed are good"
            assert len(none.chosen) < NODES


def test_wrong_data_that_nothing_explains_starts_nothing() -> None:
    made = (make() for family in ("recorded", "small") for make in FAMILIES[family].values())
    verdict = next(one for one in made if one.unexplained_wrong_data)
    run = run_of(BY_NAME["w0"].cluster(NODES, 4, 1), 4)
    assert chosen_of(run, NEED)[1] == ""
    assert chosen_of(replace(run, verdict=verdict), 1)[1] == verdict.headline


def test_variables_of_slurm_are_those_of_an_allocation_of_the_chosen_nodes() -> None:
    environment = {
        "SLURM_TASKS_PER_NODE": "8(x3),4,2(x2)",
        "SLURM_JOB_CPUS_PER_NODE": "96(x6)",
        "SLURM_NTASKS": "32",
    }
    nodes = ("n1", "n2", "n3", "n4", "n5", "n6")
    variables = slurm_variables(environment, nodes, ("n1", "n3", "n4", "n5"))
    assert variables == {
        "SLURM_NODELIST": "n1,n3,n4,n5",
        "SLURM_JOB_NODELIST": "n1,n3,n4,n5",
        "SLURM_NNODES": "4",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_TASKS_PER_NODE": "8(x2),4,2",
        "SLURM_JOB_CPUS_PER_NODE": "96(x4)",
        "SLURM_NTASKS": "22",
        "SLURM_NPROCS": "22",
    }
    # Numbers that do not fit the nodes are left alone.
    assert "SLURM_NTASKS" not in slurm_variables(environment, nodes[1:], nodes[1:3])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--need", "1"], "E-NODES-UNKNOWN"),
        (["--need", "3", "--hosts", "a,b"], "E-NODES-MISMATCH"),
        (["--need", "0", "--hosts", "a,b"], "E-USAGE"),
        (["--hosts", "a,b"], "E-USAGE"),
        (["--need", "1", "--hosts", "a,b", "ls"], "E-USAGE"),
        (["--need", "1", "--hosts", "a,b", "--", "no-such-program"], "E-USAGE"),
        (["--need", "1", "--hosts", "a,b", "--json", "--", "ls"], "E-USAGE"),
        (["--need", "1", "--hosts", "a,b", "--time", "soon"], "E-OPTION-DURATION"),
        (["--need", "1", "--hosts", "a,b", "--hostfile", "/no/folder/f"], "E-OUTPUT-WRITE"),
    ],
)
def test_bad_input_is_refused_before_a_host_is_asked(words: list[str], error: str) -> None:
    refused("pick", "--machine", "cpu", *words, error=error)


_ON_KUBERNETES = "kubernetes: {image: lab/accept}"


@pytest.mark.parametrize(
    ("site", "words", "error"),
    [
        ("backend: kubernetes", [], "E-NODES-UNKNOWN"),
        ("slurm: {partition: gpu}", ["--nodes", "4"], "E-NODES-UNKNOWN"),
        (_ON_KUBERNETES, ["--nodes", "1"], "E-NODES-MISMATCH"),
        (_ON_KUBERNETES, ["--nodes", "node-7"], "E-NODES-MISMATCH"),
        (_ON_KUBERNETES, ["--nodes", "4", "--launcher", "resident"], "E-OPTION-BACKEND"),
    ],
)
def test_nodes_of_a_cluster_are_refused_before_it_is_asked(
    tmp_path: Path, site: str, words: list[str], error: str
) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(f"{site}\n")
    refused("pick", "--need", "2", "--machine", "cpu", "--site", path, *words, error=error)


def test_a_dry_run_shows_the_plan(tmp_path: Path) -> None:
    hosts = [f"node{number:02}" for number in range(1, 19)]
    done = accept("pick", "--hosts", folded(hosts), "--need", "16", "-m", "h100-8", "--dry-run")
    assert (done.code, "18 nodes over ssh" in done.out) == (0, True)
