"""docs/gate/slurm.sh on real nodes: a bad one gets no job, and Slurm shows the reason."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import gpus
from tests.cluster.runs import MACHINE, VENV, until
from tests.cluster.slurm.cluster import SlurmCluster, why_not
from tests.factories import nvml
from tests.factories.paths import ROOT

SCRIPT = (ROOT / "docs/gate/slurm.sh").read_text()
#: The checks that pretended GPUs can pass.
_SUITE = """\
name: gate
description: What pretended GPUs can pass.
checks: [check: inventory, check: health, {check: connectivity, params: {pings: 0}}]
"""
#: n1 has lost a GPU.
_BAD, _GOOD = "n1", ("n2", "n3", "n4")
#: The site's own places, as tests have them.
_REPLACED = {
    "/opt/accept/bin:": f"{VENV}/bin:",
    "/var/spool/accept": "/tmp/gates",
    "--time 20s": "--time 10m",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Run a cluster of four nodes with GPUs. The first is bad."""
    if reason := why_not():
        pytest.skip(reason)
    with SlurmCluster(4, venv=VENV) as made:
        for node in made.names:
            gpus.install(made.hosts, made.host(node), *nvml.failed(3) if node == _BAD else ())
        machine, suite, script = (made.folder / name for name in ("m.yaml", "s.yaml", "gate.sh"))
        machine.write_text(MACHINE.replace("count: 0", "count: 8").replace("parameters:\n", ""))
        suite.write_text(_SUITE)
        text = SCRIPT.replace("--machine h100-8", f"--machine {machine} --suite {suite}")
        for ours, theirs in _REPLACED.items():
            assert ours in text
            text = text.replace(ours, theirs)
        # Only a health check does not get it.
        text = text.replace("export ", f"export SLURM_CONF={made.folder / 'slurm.conf'} ")
        script.write_text(text)
        script.chmod(0o755)
        yield made


def configure(cluster: SlurmCluster, *lines: str) -> None:
    """Use the script as slurm.conf of docs/gate.md shows, and forget earlier answers."""
    conf = cluster.folder / "slurm.conf"
    text = conf.read_text().partition("# gate\n")[0] + "# gate\n"
    script = str(cluster.folder / "gate.sh")
    conf.write_text(text + "".join(f"{line}\n".replace("SCRIPT", script) for line in lines))
    cluster.call("scontrol", "reconfigure")


def reason(cluster: SlurmCluster) -> str:
    """Return why the bad node is drained; "" if it is not."""
    listed = cluster.call("sinfo", "-h", "-R", "-o", "%N|%E").splitlines()
    return dict(line.split("|", 1) for line in listed).get(_BAD, "")


@pytest.fixture(autouse=True)
def resumed(cluster: SlurmCluster) -> Iterator[None]:
    """Let Slurm use all nodes again."""
    yield
    configure(cluster)
    cluster.stop_jobs()
    for node in cluster.names:
        cluster.call("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    cluster.wait_until_idle()


def submit(cluster: SlurmCluster, *options: str) -> Path:
    """Submit a job that writes its nodes to a file; return the file."""
    out = cluster.home / "nodes.txt"
    out.unlink(missing_ok=True)
    command = f"echo $SLURM_RESTART_COUNT $SLURM_JOB_NODELIST > {shlex.quote(str(out))}"
    cluster.call("sbatch", "--requeue", "--output=/dev/null", *options, f"--wrap={command}")
    return out


def test_a_job_whose_prolog_fails_on_a_bad_node_starts_elsewhere(cluster: SlurmCluster) -> None:
    configure(cluster, "Prolog=SCRIPT", "PrologFlags=Alloc", "PrologEpilogTimeout=900")
    # One of three nodes is the bad one, as long as the fourth is away.
    cluster.call("scontrol", "update", "nodename=n4", "state=drain", "reason=test")
    out = submit(cluster, "--nodes=3", "--exclusive")
    until(lambda: reason(cluster))
    cluster.call("scontrol", "update", "nodename=n4", "state=resume")
    until(lambda: "BeginTime" in cluster.call("squeue", "-h", "-o", "%r"))
    (job,) = cluster.jobs()
    # Slurm would wait two minutes.
    cluster.call("scontrol", "update", f"jobid={job}", "starttime=now")
    until(lambda: out.exists() and out.read_text())
    assert out.read_text() == "1 n[2-4]\n"
    assert_named(cluster)
    until(lambda: not cluster.jobs())
    assert {state for node, state in cluster.states().items() if node in _GOOD} == {"idle"}


def test_an_epilog_keeps_the_next_job_off_a_bad_node(cluster: SlurmCluster) -> None:
    configure(cluster, "Epilog=SCRIPT", "PrologEpilogTimeout=900")
    out = submit(cluster, f"--nodelist={_BAD}", "--exclusive")
    until(lambda: reason(cluster))
    assert out.read_text().split() == [_BAD]
    assert_named(cluster)


def test_a_health_check_drains_an_idle_bad_node_alone(cluster: SlurmCluster) -> None:
    configure(
        cluster, "HealthCheckProgram=SCRIPT", "HealthCheckInterval=30", "HealthCheckNodeState=IDLE"
    )
    until(lambda: reason(cluster))
    assert_named(cluster)
    assert {state for node, state in cluster.states().items() if node in _GOOD} == {"idle"}


def assert_named(cluster: SlurmCluster) -> None:
    """Check that Slurm shows the reason, and that the node has the evidence."""
    shown = reason(cluster)
    assert shown.startswith(f"accept: GATE fail {cluster.host(_BAD)} · "), shown
    assert "gpu-lost" in shown or "GPU-LOST" in shown, shown
    runs = cluster.hosts.path(cluster.host(_BAD), "/tmp/gates")
    # The next health check may have begun.
    assert any((run / "evidence" / "verdict.json").is_file() for run in runs.iterdir())
