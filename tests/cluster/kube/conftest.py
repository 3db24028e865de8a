"""One cluster for all tests below this folder; each test undoes its changes to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.kube.cluster import Cluster, why_not


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Run a cluster of three nodes with equal links; keep its logs if a test failed."""
    if reason := why_not():
        pytest.skip(reason)
    with Cluster(3) as made:
        failed = request.session.testsfailed
        yield made
        if request.session.testsfailed > failed:
            made.keep_logs()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """Create a namespace for the test."""
    with cluster.namespace() as name:
        yield name
