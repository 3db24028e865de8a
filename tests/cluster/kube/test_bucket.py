"""Evidence on a volume of the pods' own: written there by them, judged from there."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import Desk
from tests.cluster.runs import ALL_REDUCE, CONNECT


def test_pods_leave_their_evidence_and_the_run_ends_at_once(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    # A folder of this machine, which all nodes share: what a mounted bucket is to pods.
    shared = cluster.shared_folder("bucket")
    volumes, mounts = cluster.checkout_volumes()
    volumes.append({"name": "shared", "hostPath": {"path": str(shared)}})
    mounts.append({"name": "shared", "mountPath": "/shared"})
    desk = Desk(
        cluster,
        namespace,
        tmp_path,
        kubernetes={"extraVolumes": volumes, "extraVolumeMounts": mounts},
        results={"location": "file:///shared", "holdSeconds": 600},
    )
    desk.install(desk.render(checks=[*CONNECT, *ALL_REDUCE]))
    assert desk.ended() == "Completed"
    (place,) = (shared / "runs").iterdir()
    assert place.name == desk.jobset()["metadata"]["name"]
    manifest = json.loads((place / "MANIFEST.json").read_text())
    assert "records.jsonl" in manifest["files"]
    assert {p.name for p in (place / "pods").iterdir()} == {"0.log", "1.log", "2.log"}
    judged = desk.do("judge", place.as_uri(), "--json")
    assert (judged.exit, set(judged.result["hosts"])) == (0, set(cluster.nodes))
