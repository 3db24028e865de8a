"""A hold of a plain Job after its verdict: the evidence is complete, and pods take commands."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.cluster.kube.build import program
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import desk_with_folder
from tests.cluster.runs import CONNECT
from tests.factories.command_line import accept
from tests.factories.paths import ROOT

from accept.core.verdict import Verification
from accept.evidence import bucket


def test_held_pods_take_commands_and_have_sent_the_evidence(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    shared = cluster.shared_folder("hold")
    desk = desk_with_folder(cluster, namespace, tmp_path, shared)
    (tmp_path / "bin" / "kubectl").symlink_to(program("kubectl"))

    def typed(line: str) -> str:
        words = ["sh", "-c", line]
        done = subprocess.run(
            words, env=desk.environment, cwd=tmp_path, check=True, timeout=120, stdout=-1, text=True
        )
        return done.stdout

    values = desk.render("--hold", "always:10m", checks=CONNECT)
    notes = desk.install(values, "--set", "attempt=a1,site.controller=job").stdout
    shell, release = notes.partition("Hold ")[2].splitlines()[1:3]
    desk.wait_for_log("held for 10 min")
    assert bucket.fetch(str(shared / "runs" / "mytest-a1"), tmp_path / "sent")
    assert accept("judge", tmp_path / "sent").code == 0
    # The command of the documentation saves the public key.
    command = re.search("`(kubectl .* get secret .*)`", (ROOT / "docs/evidence.md").read_text())
    assert command is not None
    typed(command[1].replace("NAMESPACE", namespace).replace("NAME", "mytest-a1"))
    for place in (tmp_path / "sent", f"file://{shared}/runs/mytest-a1"):
        verified = accept("verify", place, "--public-key", tmp_path / "run.pub", "--json")
        assert verified.error == ""
        assert json.loads(verified.out)["outcome"] == Verification.SIGNED
    # Without a terminal here.
    shell = shell.replace(" exec -it ", " exec ")
    names = sorted(pod["metadata"]["name"] for pod in desk.pods().values())
    hosts = typed(f"{shell} accept-mpirun -N 1 hostname").split()
    assert len(names) == 3
    assert all(name.startswith(f"{host}-") for name, host in zip(names, sorted(hosts), strict=True))
    tar = shell.partition(" -- ")[0] + " -- tar -cf - -C /opt/accept evidence"
    typed(f"{tar} > evidence.tar && tar -xf evidence.tar")
    assert accept("judge", tmp_path / "evidence").code == 0
    typed(release)
    # They end with the run, and succeed.
    for line in notes.partition("Wait ")[2].partition("\nTest ")[0].splitlines()[1:]:
        typed(line)
