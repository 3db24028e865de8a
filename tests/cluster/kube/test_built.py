"""The image of docker/Dockerfile as the pods' own, with nothing of this checkout mounted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.buildah import why_not
from tests.cluster.kube import built
from tests.cluster.kube.build import NotBuilt
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import Desk
from tests.cluster.runs import ALL_REDUCE, CONNECT


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    """Load the image on two nodes only, because it takes memory."""
    if reason := why_not():
        pytest.skip(reason)
    try:
        archive = built.archive()
    except NotBuilt as error:
        pytest.skip(str(error))
    chosen = cluster.nodes[:2]
    cluster.load_image(archive, *chosen)
    yield chosen
    cluster.remove_image(built.IMAGE, *chosen)


def test_pods_of_the_image_are_accepted(
    cluster: Cluster, namespace: str, tmp_path: Path, nodes: tuple[str, ...]
) -> None:
    keys = {"image": built.IMAGE, "extraVolumes": [], "extraVolumeMounts": []}
    results = {"holdSeconds": 120}
    desk = Desk(cluster, namespace, tmp_path, venv=False, kubernetes=keys, results=results)
    done = desk.run(nodes=",".join(nodes), checks=[*CONNECT, *ALL_REDUCE])
    assert done.ending == ("pass", 0), done.err
    assert set(done.result["hosts"]) == set(nodes)
    assert desk.ended() == "Completed"
    for pod in desk.pods().values():
        (container,) = pod["spec"]["containers"]
        assert container["image"] == built.IMAGE
        assert not any("hostPath" in volume for volume in pod["spec"]["volumes"])
