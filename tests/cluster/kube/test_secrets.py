"""The run's key: in its Secret, in the pods, and nowhere else; and what it opens."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import WAITS, Desk
from tests.cluster.runs import CONNECT

from accept.evidence import rundir

_SSH = "ssh -o BatchMode=yes -o IdentitiesOnly=yes -o HostKeyAlias=accept-run -o ConnectTimeout=5"


def shapes(secret: bytes) -> list[bytes]:
    """Return the forms to search for: the bytes of the key, and their base64, once and twice."""
    body = b"".join(line for line in secret.splitlines() if not line.startswith(b"-----"))
    found = [line for line in secret.splitlines() if len(line) > 40 and b"---" not in line]
    found.append(base64.b64decode(body)[8:40])
    # The base64 of a text depends on its offset: three encodings, without their ends.
    once = [base64.b64encode(b"x" * n + secret[40:120])[4:-4] for n in range(3)]
    twice = [base64.b64encode(b"x" * n + base64.b64encode(secret)[40:120])[4:-4] for n in range(3)]
    return [*found, *once, *twice]


def keys(desk: Desk) -> list[bytes]:
    """Return the private keys of the namespace."""
    return [
        base64.b64decode(one["data"]["ssh-privatekey"])
        for one in desk.objects("secrets")
        if one["type"] == "kubernetes.io/ssh-auth"
    ]


def dumped(desk: Desk) -> bytes:
    """Return all objects of the namespace except Secrets, and all logs, as text."""
    kinds = {name.partition("/")[0] for name in desk.everything()} - {"secret"}
    words = ("get", ",".join(sorted(kinds | {"events"})), "-n", desk.namespace, "-o", "yaml")
    text = desk.cluster.kubectl(*words).stdout
    return (text + "".join(desk.log(index) for index in desk.pods())).encode()


@pytest.mark.parametrize("way", ["accept run", "helm install"])
def test_the_key_is_in_the_secret_and_nowhere_else(
    cluster: Cluster, namespace: str, tmp_path: Path, way: str
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 120})
    if way == "accept run":
        assert desk.run(checks=CONNECT).exit == 0
    else:
        desk.install(desk.render(checks=CONNECT))
        desk.wait_for_log("evidence is kept here")
    (key,) = keys(desk)
    wanted = shapes(key)
    assert any(each in key for each in wanted)
    written = {"objects and logs": dumped(desk)}
    written |= {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    if way == "accept run":
        # Helm's own record of the release is a Secret, and holds none either.
        written |= {
            one["metadata"]["name"]: base64.b64decode(base64.b64decode(one["data"]["release"]))
            for one in desk.objects("secrets")
            if "release" in one["data"]
        }
        # The public half in it verifies signatures of the evidence.
        (job,) = tmp_path.glob(f"runs/*/{rundir.JOB}")
        public = json.loads(job.read_text())["signer"].encode()
        written[str(job)] = job.read_bytes().replace(public, b"")
        written |= {
            name: gzip.decompress(text) for name, text in written.items() if text[:2] == b"\x1f\x8b"
        }
    assert [name for name, text in written.items() if any(each in text for each in wanted)] == []


def test_another_key_opens_nothing(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    desk = Desk(cluster, namespace, tmp_path)
    desk.install(desk.render(checks=[*CONNECT, WAITS]))
    desk.wait_for_log("[1/2]")
    pods = desk.pods()
    address = pods[0]["status"]["podIP"]
    name = pods[1]["metadata"]["name"]

    def login(key: str) -> str:
        known = "-o UserKnownHostsFile=/opt/accept/known_hosts -o StrictHostKeyChecking=yes"
        command = f"{_SSH} {known} -i {key} -p 2222 {address} echo in 2>&1"
        words = ("exec", name, "-c", "accept", "--", "sh", "-c", command)
        return cluster.kubectl("-n", namespace, *words, check=False).stdout

    make = "ssh-keygen -q -t ecdsa -N '' -f /tmp/other"
    cluster.kubectl("-n", namespace, "exec", name, "-c", "accept", "--", "sh", "-c", make)
    assert login("/opt/accept/key") == "in\n"
    assert "Permission denied" in login("/tmp/other")
