"""Evidence on a volume of the pods: they write it, and it is judged from there."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import WAITS, desk_with_folder
from tests.cluster.runs import CONNECT, until


def test_what_was_measured_is_there_after_every_step(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    shared = cluster.shared_folder("steps")
    desk = desk_with_folder(cluster, namespace, tmp_path, shared)
    desk.install(desk.render(checks=[*CONNECT, WAITS]))
    desk.wait_for_log("[1/2]")
    place = shared / "runs" / desk.jobset()["metadata"]["name"]
    until((place / "records.jsonl").exists)
    assert "10-connectivity" in (place / "records.jsonl").read_text()
    assert not (place / "MANIFEST.json").exists()
    judged = desk.do("judge", place.as_uri())
    assert (judged.exit, "error[E-BUCKET-UNFINISHED]" in judged.err) == (6, True)


def test_pods_leave_their_evidence_and_the_run_ends_at_once(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    shared = cluster.shared_folder("bucket")
    desk = desk_with_folder(cluster, namespace, tmp_path, shared)
    desk.install(desk.render(checks=CONNECT))
    assert desk.ended() == "Completed"
    (place,) = (shared / "runs").iterdir()
    assert place.name == desk.jobset()["metadata"]["name"]
    manifest = json.loads((place / "MANIFEST.json").read_text())
    assert "records.jsonl" in manifest["files"]
    assert {p.name for p in (place / "pods").iterdir()} == {"0.log", "1.log", "2.log"}
    answers = (place / "connectivity-test.log").read_text()
    assert all(f"\n{node} " in answers for node in cluster.nodes)
    modes = {path.stat().st_mode & 0o777 for path in place.rglob("*") if path.is_file()}
    assert modes == {0o644}
    assert desk.do("report", place.as_uri()).exit == 0
    assert (place / "report.html").is_file()
    judged = desk.do("judge", place.as_uri(), "--json")
    assert (judged.exit, set(judged.result["hosts"])) == (0, set(cluster.nodes))
