"""Test hosts for the tests below this folder; they are skipped if hosts cannot be created."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.faults import BackEnd, FaultRecord
from tests.cluster.here import Here
from tests.cluster.hosts import Hosts, why_not
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.cluster import why_not as why_no_kubernetes
from tests.cluster.kube.desk import Pods
from tests.cluster.runs import VENV, Lab, Place
from tests.cluster.slurm.cluster import SlurmCluster
from tests.cluster.slurm.cluster import why_not as why_no_slurm
from tests.cluster.slurm.login import Login

obstacle = cache(why_not)


@pytest.fixture
def make_hosts() -> Iterator[Callable[..., Hosts]]:
    """Return a function with the arguments of `Hosts`; its hosts end with the test."""
    if reason := obstacle():
        pytest.skip(reason)
    with ExitStack() as stack:

        def make(count: int, **options: Any) -> Hosts:
            return stack.enter_context(Hosts(count, **options))

        yield make


@pytest.fixture
def make_lab(make_hosts: Callable[..., Hosts], tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Return a function that creates hosts and a workstation; arguments as for `Hosts`.

    `venv` is the environment of the ranks. `before` gets the hosts before their first use.
    """
    with ExitStack() as stack:

        def make(
            count: int,
            *,
            venv: Path = VENV,
            before: Callable[[Hosts], object] = lambda hosts: None,
            **options: Any,
        ) -> Lab:
            if not (venv / "bin" / "mpirun").exists():
                pytest.skip(f"there is no Open MPI in {venv}: make setup")
            hosts = make_hosts(count, **options)
            before(hosts)
            lab = Lab(hosts, tmp_path, venv=venv)
            stack.callback(lab.close)
            return lab

        yield make


@pytest.fixture
def make_place(
    back_end: BackEnd, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., Place]]:
    """Return a function that makes nodes of a back end, and a workstation.

    Slurm and Kubernetes run on nodes of their own, so that a test need not undo its fault.
    `shared`: those of Slurm see the folder of the workstation.
    """
    with ExitStack() as stack:

        def make(count: int = 4, *, size: str = "1g", shared: bool = False) -> Place:
            place: Place
            if back_end is BackEnd.SSH:
                place = request.getfixturevalue("make_lab")(count, size=size)
            elif back_end is BackEnd.SLURM:
                if reason := why_no_slurm():
                    pytest.skip(reason)
                cluster = stack.enter_context(SlurmCluster(count, venv=VENV, size=size))
                folder = tempfile.mkdtemp(dir=cluster.home if shared else tmp_path)
                place = Login(cluster, Path(folder))
            elif back_end is BackEnd.KUBERNETES:
                if reason := why_no_kubernetes():
                    pytest.skip(reason)
                pods = stack.enter_context(Cluster(count))
                place = Pods(pods, stack.enter_context(pods.namespace()), tmp_path)
            else:
                request.getfixturevalue("run_extra")
                place = Here(tmp_path)
            stack.callback(place.close)
            return place

        yield make


@pytest.fixture
def fault_record(record_property: Callable[[str, object], None]) -> Iterator[FaultRecord]:
    """Record what the test sees of the fault that its mark names, for docs/reliability.md."""
    record = FaultRecord()
    yield record
    record.save(record_property)
