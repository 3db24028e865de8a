"""`accept render | helm install`: the pods do the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import Desk
from tests.cluster.kube.image import BASE
from tests.cluster.runs import ALL_REDUCE, CONNECT
from tests.factories.helm import pushed_chart
from tests.factories.oci_registry import oci_registry


@pytest.mark.parametrize(("major", "checks"), [(4, [*CONNECT, *ALL_REDUCE]), (3, CONNECT)])
def test_good_nodes_are_accepted(
    cluster: Cluster, namespace: str, tmp_path: Path, major: int, checks: list[str]
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 600})
    values = desk.render(checks=checks)
    if major == 4:
        desk.install(values, major=major)
    else:
        with oci_registry() as registry:
            url = pushed_chart(registry, major, tmp_path)
            desk.install(values, "--plain-http", major=major, chart=url)
    # When the Job has ended, pods that still run are removed with their logs.
    for index in (1, 2):
        desk.wait_for_log("the run is over", index)
    desk.release()
    assert desk.ended() == "Completed"
    log = desk.log()
    assert "hosts: 3 of 3 answered" in log
    assert f"image: {BASE}\n" in log
    assert 'ACCEPT {"event"' not in log
    if major == 4:
        assert re.search(r"\n# all_reduce_perf, \d+ ranks on 3 nodes, ", log)
        assert "# Avg bus bandwidth" in log
    assert "\n✔ ACCEPTED (no GPU tested)" in log
    assert "evidence is kept here" in log
    saved = tmp_path / "pod.log"
    saved.write_text(log)
    again = desk.do("judge", str(saved), "--json")
    assert (again.exit, set(again.result["hosts"])) == (0, set(cluster.nodes))
