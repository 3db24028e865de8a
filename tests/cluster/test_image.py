"""The image that the build step of cloudbuild.yml builds, and its contents.

No registry can be reached, hence a Debian of debootstrap instead of the pinned base, and no cache;
PyPI's torch alone is 5 GB, hence without it; with Debian's it is in tests/cluster/kube/built.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.buildah import NAME, Store, why_not
from tests.cluster.kube import image
from tests.cluster.kube.build import NotBuilt
from tests.cluster.runs import CONNECT, Workstation, until
from tests.factories import cloudbuild, dockerfile
from tests.factories.paths import ROOT
from tests.factories.ports import free_port
from tests.factories.standin_ssh import standin_ssh

from accept.backends import requirements
from accept.core.catalog.tools import python_package

PACKAGES = [p for p in dockerfile.arguments()["PIP_PACKAGES"].split() if p[:4] in ("mpi4", "obst")]
PRIVATE = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}")

#: In the image, as a pod does it: the run's own sshd, and a login with the run's one key.
LOGIN = """
set -eu
export ACCEPT_DIR=/run/accept
mkdir -p "$ACCEPT_DIR" /run/sshd && cd "$ACCEPT_DIR"
ssh-keygen -q -t ed25519 -N '' -f key
cp key.pub authorized_keys
echo 'eval "$SSH_ORIGINAL_COMMAND"' > force_command.sh
. /launchers/sshd.sh
write_sshd_config "$(find_sshd)"
listen "$(find_sshd)" PORT || { cat sshd.log; exit 1; }
ssh -i key -p PORT -o StrictHostKeyChecking=no -o BatchMode=yes 127.0.0.1 'echo uid $(id -u)' ||
    cat sshd.log
kill "$daemon"
"""


#: Uses the images of buildah. Its mounts end with each call. Debian's podman would prefer crun.
PODMAN = """\
#!/bin/sh
export CONTAINERS_CONF={conf}
exec unshare --mount /usr/bin/podman --root={folder}/root --runroot={state} \
    --storage-driver=overlay --runtime=runc --cgroup-manager=cgroupfs --events-backend=file "$@"
"""


class Tried(Store):
    """A store with a container of the image, to run scripts in."""

    def run(self, script: str) -> str:
        """Run a shell script in the image, with the launchers of this checkout."""
        volume = f"{ROOT / 'launchers'}:/launchers:ro"
        return self("run", "--volume", volume, "tried", "--", "sh", "-c", script)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    """Build the image."""
    if reason := why_not():
        pytest.skip(reason)
    made = Tried(tmp_path_factory.mktemp("images"))
    try:
        made("pull", f"docker-archive:{image.base()}")
    except NotBuilt as error:
        pytest.skip(str(error))
    container = made("from", image.BASE)
    # So that installing it makes host keys, as on a base that has no sshd.
    made("run", container, "--", "dpkg", "--purge", "--force-depends", "openssh-server")
    built = made.build(
        container,
        f"--build-arg=PIP_PACKAGES={' '.join(PACKAGES)}",
        "--build-arg=TORCH_PACKAGES=",
    )
    made("from", "--name", "tried", built)
    yield made
    made.close()


def test_no_layer_has_a_key(store: Tried, tmp_path: Path) -> None:
    store("push", f"{NAME}:test", f"docker-archive:{tmp_path}/image.tar")
    with tarfile.open(tmp_path / "image.tar") as whole:
        names = json.load(_open(whole, "manifest.json"))[0]["Layers"]
        assert len(names) >= 3
        seen = set()
        for name in names:
            with tarfile.open(fileobj=_open(whole, name)) as layer:
                for member in layer:
                    seen.add(member.name.lstrip("./"))
                    if member.isfile() and member.size < 100_000:
                        assert not PRIVATE.search(_open(layer, member).read()), member.name
    assert {"usr/sbin/sshd", "etc/ssh/sshd_config"} <= seen
    assert [name for name in seen if "ssh_host_" in name or name.startswith("root/.ssh")] == []


def _open(archive: tarfile.TarFile, member: str | tarfile.TarInfo) -> tarfile.ExFileObject:
    """Open a file of an archive."""
    file = archive.extractfile(member)
    assert isinstance(file, tarfile.ExFileObject)
    return file


def test_has_what_the_checks_need(store: Tried) -> None:
    found = requirements.answers(store.run(requirements.survey_script()))
    assert {"bash", "ip", "mpirun", "python", "sshd"} <= set(found)
    mpi4py = python_package("mpi4py", "").find
    version = store.run(f"python=python3; {mpi4py}").strip()
    assert [version] == [p.partition("==")[2] for p in PACKAGES if p.startswith("mpi4py")]
    assert "torch" not in found


def test_has_what_a_pod_starts_with(store: Tried) -> None:
    tools = "sh tar sshd ssh ssh-keygen getent python3 mpirun ps ip"
    missing = store.run(f"for tool in {tools}; do command -v $tool >/dev/null || echo $tool; done")
    assert missing == ""
    store.run("python3 -c 'import asyncio, json, tarfile, zlib, obstore'")


def test_ranks_find_each_other(store: Tried) -> None:
    program = "from mpi4py import MPI; print('rank', MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)"
    mpirun = "mpirun --allow-run-as-root --oversubscribe -n 2"
    output = store.run(f'{mpirun} python3 -c "{program}"')
    assert sorted(output.splitlines()) == ["rank 0 2", "rank 1 2"]


def test_takes_a_login_with_the_runs_key_and_has_no_password(store: Tried) -> None:
    assert "uid 0" in store.run(LOGIN.replace("PORT", str(free_port())))
    assert store.run("grep ^root: /etc/shadow").startswith("root:*:")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Make a folder with a path that is short enough for the sockets of ssh."""
    with tempfile.TemporaryDirectory(prefix="accept-scratch-") as folder:
        yield Path(folder)


def test_podman_runs_a_host_over_ssh_in_it(
    store: Tried, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin_ssh(tmp_path / "ssh", monkeypatch)
    podman = tmp_path / "ssh" / "bin" / "podman"
    conf = tmp_path / "containers.conf"
    podman.write_text(PODMAN.format(folder=store.folder, state=store.state, conf=conf))
    podman.chmod(0o755)
    # This machine may not raise the limits that podman sets by default.
    conf.write_text("[containers]\ndefault_ulimits = []\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    # Only the container has this Python.
    (tools / "python").write_text('#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
    (tools / "python").chmod(0o755)
    site = (
        f"container: {{runtime: podman, mounts: ['{tools}:/inside:ro']}}\n"
        f"tools: {{scratch: {scratch}, python: /inside/python}}\n"
    )
    workstation = Workstation(tmp_path, site=site, environment={})
    done = workstation.command(
        *("run", "--hosts", "h1", "--machine", "cpu", "--image", f"{NAME}:test", "--json"),
        *("--site", str(workstation.site), "--suite", str(workstation.suite(CONNECT))),
    ).wait()
    workstation.close()
    assert done.ending == ("pass", 0), done.err
    workstation.evidence_holds(done)
    # The container ends a moment after its last file.
    until(lambda: not list(scratch.iterdir()))
    until(lambda: not subprocess.check_output([podman, "ps", "--all", "--quiet"]))


def test_has_labels_and_starts_nothing_of_its_own(store: Tried) -> None:
    found = json.loads(store("inspect", "--type", "image", f"{NAME}:test"))
    config = found["OCIv1"]["config"]
    labels = {
        name.removeprefix("org.opencontainers.image."): value
        for name, value in config["Labels"].items()
    }
    assert labels["title"] == "accept"
    assert labels["version"] == cloudbuild.values()["_VERSION"]
    assert labels["licenses"] == "Apache-2.0"
    assert "Entrypoint" not in config
    assert "ExposedPorts" not in config
