"""One cluster for all tests below this folder; what a test does to it, it undoes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.kube.cluster import Cluster, why_not


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of three nodes whose links are alike; its logs are kept where a test failed."""
    if reason := why_not():
        pytest.skip(reason)
    with Cluster(3) as made:
        failed = request.session.testsfailed
        yield made
        if request.session.testsfailed > failed:
            made.keep_logs()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own."""
    with cluster.namespace() as name:
        yield name
