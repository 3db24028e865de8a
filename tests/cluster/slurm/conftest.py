"""One cluster for all tests below this folder; each test undoes its changes to it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cluster.runs import VENV
from tests.cluster.slurm.cluster import NEWER, SlurmCluster, newer, why_not
from tests.cluster.slurm.login import Login


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    """Run a cluster of four nodes with equal links."""
    if reason := why_not():
        pytest.skip(reason)
    base = newer() if os.environ.get("SLURM_OF") == NEWER else Path("/")
    with SlurmCluster(4, venv=VENV, base=base) as made:
        yield made


@pytest.fixture
def make_login(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Callable[..., Login]]:
    """Return a function that makes a user's login node; with `shared`, nodes see the home."""
    with ExitStack() as stack:

        def make(*, shared: bool = False) -> Login:
            folder = Path(tempfile.mkdtemp(dir=cluster.home if shared else tmp_path))
            login = Login(cluster, folder)
            stack.callback(login.close)
            return login

        yield make
        cluster.stop_jobs()
        cluster.wait_until_idle()
