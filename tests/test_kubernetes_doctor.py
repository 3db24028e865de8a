"""What `accept doctor` says of a cluster, and what a run is refused for, before anything is made.

The cluster is the stand-in of tests/apiserver.py: it plays what a test cluster has not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.apiserver import ApiServer, api_server
from tests.commandline import accept, refused
from tests.test_kubernetes_capacity import node

MACHINE = "a4-highgpu-8g"
#: Called with what follows `kubernetes: {image: …}` in a site file; returns what was said.
Ask = Callable[..., str]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A cluster of one node with eight free GPUs."""
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    with api_server() as one:
        monkeypatch.setenv("KUBECONFIG", str(one.kubeconfig(tmp_path)))
        one.says("/version", {"gitVersion": "v1.34.4"})
        one.says("/api/v1/namespaces/lab", {"metadata": {"name": "lab"}})
        there = node("n1")
        there["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-b200"}
        one.says("/api/v1/nodes", {"items": [there]})
        one.says("/api/v1/pods", {"items": []})
        yield one


@pytest.fixture
def options(server: ApiServer, tmp_path: Path) -> Callable[..., list[str]]:
    def make(site: str = "", *words: str, nodes: int = 2, machine: str = MACHINE) -> list[str]:
        file = tmp_path / "site.yaml"
        file.write_text(f"kubernetes:\n  image: img:1\n{site}", encoding="utf-8")
        named = [f"--machine={machine}"] if machine else []
        return [*named, "--backend=kubernetes", f"--nodes={nodes}", f"--site={file}", *words]

    return make


@pytest.fixture
def ask(options: Callable[..., list[str]]) -> Ask:
    def doctor(site: str = "", **keys: int) -> str:
        done = accept("doctor", *options(site, **keys))
        assert done.code in (0, 4)
        return done.out

    return doctor


def line(said: str, what: str) -> tuple[str, str]:
    """How `what` is marked, and what is said of it with the advice."""
    found = re.search(rf"^(ok|missing) +\S+: {re.escape(what)}: (.*(?:\n {{9}}.*)?)", said, re.M)
    assert found, said
    return found[1], found[2]


BROUGHT = [
    ("  queue: a4\n", "queue a4"),
    ("  suspend: true\n", "to be released"),
    ("  flexStart: true\n", "flex-start"),
    ("  autoscaling: true\n", "kubernetes.autoscaling"),
]


class TestTooFewNodes:
    def test_are_no_start(self, options: Callable[..., list[str]]) -> None:
        assert "2 nodes are wanted, and there are 1" in refused("submit", *options(), code=4)

    @pytest.mark.parametrize(("site", "who"), BROUGHT)
    def test_are_said_where_something_brings_the_others(
        self,
        options: Callable[..., list[str]],
        monkeypatch: pytest.MonkeyPatch,
        site: str,
        who: str,
    ) -> None:
        # As far as helm, which is not there.
        monkeypatch.setenv("PATH", "/nonexistent")
        said = accept("submit", *options(site))
        assert said.code == 4
        assert "there is no helm here" in said.err
        assert re.search(rf"2 nodes are wanted, and there are [01] .*; .*{who}", said.err)

    def test_are_missing_for_doctor(self, ask: Ask) -> None:
        assert line(ask(), "free nvidia.com/gpu")[0] == "missing"

    @pytest.mark.parametrize(("site", "who"), [one for one in BROUGHT if "flex" not in one[0]])
    def test_are_fine_for_doctor_where_something_brings_the_others(
        self, ask: Ask, site: str, who: str
    ) -> None:
        mark, said = line(ask(site), "free nvidia.com/gpu")
        assert mark == "ok"
        assert who in said

    @pytest.mark.parametrize(("site", "who"), BROUGHT)
    def test_may_be_none_at_all(self, server: ApiServer, ask: Ask, site: str, who: str) -> None:
        server.says("/api/v1/nodes", {"items": []})
        mark, said = line(ask(site), "nodes")
        assert mark == "ok"
        assert who in said

    def test_do_not_say_which_machine_is_meant(
        self, server: ApiServer, options: Callable[..., list[str]]
    ) -> None:
        server.says("/api/v1/nodes", {"items": []})
        words = options("  autoscaling: true\n", machine="")
        assert "give --machine NAME" in refused("submit", *words, code=4)
