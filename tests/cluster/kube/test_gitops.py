"""`helm template | kubectl apply`, as GitOps does it; upgrade, rollback and uninstall."""

from __future__ import annotations

import json
import re
import subprocess
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from tests.cluster.kube.build import helm, program
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import Desk, desk_with_folder
from tests.cluster.runs import ALL_REDUCE, CONNECT, PATIENCE
from tests.factories.helm import JOBSET

from accept.core.evidence import read_plan, read_records
from accept.plan.chart import chart_folder


def message(desk: Desk) -> str:
    """Return the last message of index 0, which Kubernetes keeps."""
    (container,) = desk.pods()[0]["status"]["containerStatuses"]
    return str(container["state"]["terminated"]["message"])


def helm_test(desk: Desk) -> subprocess.CompletedProcess[str]:
    """Call `helm test`, which waits for the verdict."""
    words = [str(helm(4)), "test", "mytest", "--logs", "--timeout", f"{PATIENCE:.0f}s"]
    return subprocess.run(
        [*words, "--namespace", desk.namespace],
        env=desk.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def install_beside_a_foreign_key(desk: Desk, values: Path) -> subprocess.CompletedProcess[str]:
    """Install while a Secret has the labels of the release, which did not create it."""
    kubectl = partial(desk.cluster.kubectl, "-n", desk.namespace)
    kubectl("create", "-f", "-", stdin=json.dumps({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/ssh-auth",
        "metadata": {"name": "theirs", "labels": {"accept-release": "mytest"}},
        "stringData": {"ssh-privatekey": "theirs"},
    }))  # fmt: skip
    try:
        return desk.install(values, check=False)
    finally:
        kubectl("delete", "secret", "theirs")


@pytest.mark.parametrize("side", ["client", "server"])
def test_applied_manifests_run_with_edited_values(
    cluster: Cluster, namespace: str, tmp_path: Path, side: str
) -> None:
    shared = cluster.shared_folder(f"gitops-{side}")
    desk = desk_with_folder(cluster, namespace, tmp_path, shared)
    values = desk.render(checks=[*CONNECT, *ALL_REDUCE])
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(key)], check=True)
    make = ("create", "secret", "generic", "mine", "--type", "kubernetes.io/ssh-auth")
    cluster.kubectl("-n", namespace, *make, "--from-file", f"ssh-privatekey={key}")
    words = [str(helm(4)), "template", "mytest", str(chart_folder()), "--namespace", namespace]
    words += ["--values", str(values), "--api-versions", JOBSET]
    words += ["--set", "attempt=a1,ssh.existingSecret=mine,launcher.env.NCCL_X=7"]
    words += ["--set", "collectives.min=4K,collectives.max=64K,collectives.factor=4"]
    manifests = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    options = ["--server-side"] if side == "server" else []
    for _ in range(2):  # A second one changes nothing.
        cluster.kubectl("apply", *options, "-f", "-", stdin=manifests)
    assert desk.ended() == "Completed"
    edited = [
        "launcher.env.NCCL_X: added, is 7",
        "collectives.factor: is 4",
        "collectives.max: is 64K",
        "collectives.min: is 4K",
    ]
    log = desk.log()
    for one in edited:
        assert f"EDITED after rendering: {one}\n" in log
    folder = shared / "runs" / "mytest-a1"
    plan = read_plan(folder)
    assert list(plan.edited) == edited
    measured = {metric.size for r in read_records(folder) for metric in r.metrics if metric.size}
    assert measured == {4 << 10, 16 << 10, 64 << 10}
    verdict: dict[str, Any] = json.loads((shared / "runs/mytest-a1/verdict.json").read_text())
    assert (verdict["edited"], verdict["run"]) == (edited, plan.hash)
    assert (
        message(desk).splitlines()[0] == log.splitlines()[-1] == f"verdict: {verdict['headline']}"
    )


def test_a_rollback_does_not_run_a_finished_attempt_again(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    shared = cluster.shared_folder("rollback")
    desk = desk_with_folder(cluster, namespace, tmp_path, shared)
    values = desk.render(checks=CONNECT)
    before = desk.everything()
    refused = install_beside_a_foreign_key(desk, values)
    assert "[E-HELM-SECRET-FOREIGN]" in refused.stderr
    assert desk.everything() == before
    (tmp_path / "bin" / "kubectl").symlink_to(program("kubectl"))
    for verb, attempt in (("install", "a1"), ("upgrade", "a2")):
        notes = desk.install(values, "--set", f"attempt={attempt}", verb=verb).stdout
        # At once, when no pod runs yet: it waits, and follows the log to the verdict.
        watch = notes.partition("Watch ")[2].splitlines()[1]
        log = subprocess.run(
            ["sh", "-c", watch], env=desk.environment, check=True, timeout=180, stdout=PIPE
        ).stdout
        assert b"verdict: pass" in log.splitlines()[-1]
        lines = notes.partition("Wait ")[2].partition("\nTest ")[0].splitlines()[1:]
        for line in lines:  # They end with the run, and succeed.
            subprocess.run(["sh", "-c", line], env=desk.environment, check=True, timeout=180)
        assert desk.state() == "Completed"
    tested = helm_test(desk)
    assert tested.returncode == 0, tested.stderr
    assert message(desk).splitlines()[0] in tested.stdout
    first = (shared / "runs" / "mytest-a1" / "MANIFEST.json").read_bytes()
    refused = desk.install(values, "--set", "attempt=a2", verb="upgrade", check=False)
    assert "[E-ATTEMPT-EXISTS]" in refused.stderr
    here = ("--namespace", namespace)
    words = [str(helm(4)), "rollback", "mytest", "1", *here]
    subprocess.run(words, env=desk.environment, check=True, capture_output=True)
    assert desk.ended() == "Failed"
    assert re.match("mytest-a1 has already run", message(desk))
    assert (shared / "runs" / "mytest-a1" / "MANIFEST.json").read_bytes() == first
    assert helm_test(desk).returncode != 0
    cluster.kubectl("-n", namespace, "delete", "pod", "mytest-a1-test", "mytest-a2-test")
    words = [str(helm(4)), "uninstall", "mytest", *here]
    subprocess.run(words, env=desk.environment, check=True, capture_output=True)
    desk.leaves(before)
