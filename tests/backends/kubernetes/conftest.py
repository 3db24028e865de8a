"""Fixtures of several test files about clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.factories.api_server import ApiServer, api_server
from tests.factories.places import Kubernetes, place


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty folder of runs, and hide all clusters from the test."""
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)


@pytest.fixture
def server(nowhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Run a stand-in cluster that reports its version and that commands find."""
    with api_server() as one:
        monkeypatch.setenv("KUBECONFIG", str(one.kubeconfig(tmp_path)))
        one.answer_with("/version", {"gitVersion": "v1.34.0"})
        yield one


@pytest.fixture
def here(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    """Run a stand-in cluster whose pod is real, and a stand-in helm."""
    with place("kubernetes", tmp_path, monkeypatch) as made:
        assert isinstance(made, Kubernetes)
        yield made
