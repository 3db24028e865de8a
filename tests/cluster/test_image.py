"""The image, built by the build step of cloudbuild.yml, and what is in it.

buildah stands in for docker. No registry can be reached, hence a Debian of debootstrap instead of
the pinned base, and no cache; PyPI's torch alone is 5 GB, hence without it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import cloudbuild, dockerfile
from tests.cluster.kube import image
from tests.cluster.kube.build import NotBuilt

from accept import probe

ROOT = Path(__file__).parent.parent.parent
PACKAGES = [p for p in dockerfile.arguments()["PIP_PACKAGES"].split() if p[:4] in ("mpi4", "obst")]
NAME = "localhost/accept"
PRIVATE = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}")

#: In the image, as a pod does it: the run's own sshd, and a login with the run's one key.
LOGIN = """
set -eu
export ACCEPT_DIR=/run/accept
mkdir -p "$ACCEPT_DIR" /run/sshd && cd "$ACCEPT_DIR"
ssh-keygen -q -t ed25519 -N '' -f key
cp key.pub authorized_keys
echo 'eval "$SSH_ORIGINAL_COMMAND"' > session.sh
. /launchers/sshd.sh
write_sshd_config "$(find_sshd)"
listen "$(find_sshd)" PORT || { cat sshd.log; exit 1; }
ssh -i key -p PORT -o StrictHostKeyChecking=no -o BatchMode=yes 127.0.0.1 'echo uid $(id -u)' ||
    cat sshd.log
kill "$daemon"
"""


class Store:
    """Images of buildah in a folder; what it mounts goes with each call, however that ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str | Path) -> str:
        """Call buildah in the checkout; return its stdout."""
        where = [f"--root={self.folder}/root", f"--runroot={self.folder}/run"]
        buildah = ["unshare", "--mount", "buildah", *where, "--storage-driver=overlay"]
        done = subprocess.run(
            [*buildah, *map(str, words)],
            cwd=ROOT,
            env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout.strip()

    def run(self, script: str) -> str:
        """Run a shell script in the image, with the launchers of this checkout."""
        volume = f"{ROOT / 'launchers'}:/launchers:ro"
        return self("run", "--volume", volume, "tried", "--", "sh", "-c", script)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The image, built."""
    if os.geteuid() or not shutil.which("buildah"):
        pytest.skip("building the image needs root and buildah: see tests/debian-packages.txt")
    made = Store(tmp_path_factory.mktemp("images"))
    try:
        made("pull", f"docker-archive:{image.base()}")
    except NotBuilt as error:
        pytest.skip(str(error))
    container = made("from", image.BASE)
    # So that installing it makes host keys, as on a base that has no sshd.
    made("run", container, "--", "dpkg", "--purge", "--force-depends", "openssh-server")
    # A certificate authority of this machine's must be in the base, as docker/README.md says.
    if authority := os.environ.get("PIP_CERT"):
        made("copy", container, authority, "/etc/registry-ca.crt")
        made("config", "--env", "PIP_CERT=/etc/registry-ca.crt", container)
    made("commit", "--squash", "--rm", container, "localhost/bare:1")

    step = cloudbuild.steps(_NAME=NAME, _TARGET="cpu", _BASE="localhost/bare:1", _TAG="test")
    command, *words = step["build"].args
    *options, context = (word for word in words if not word.startswith("--cache-from="))
    few = f"--build-arg=PIP_PACKAGES={' '.join(PACKAGES)}"
    # Layer by layer, as docker does it: what a later one removes would still be in the earlier.
    made(command, "--layers", *options, few, context)
    made("from", "--name", "tried", f"{NAME}:test")
    yield made
    made("rm", "--all")
    shutil.rmtree(made.folder)


def test_no_layer_has_a_key(store: Store, tmp_path: Path) -> None:
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


def test_has_what_the_checks_need(store: Store) -> None:
    found = probe.answers(store.run(probe.TOOLS))
    assert {"bash", "ip", "mpi4py", "mpirun", "python", "sshd"} <= set(found)
    assert found["mpi4py"] == [p.partition("==")[2] for p in PACKAGES if p.startswith("mpi4py")]
    assert "torch" not in found


def test_has_what_a_pod_starts_with(store: Store) -> None:
    tools = "sh tar sshd ssh ssh-keygen getent python3 mpirun ps ip"
    said = store.run(f"for tool in {tools}; do command -v $tool >/dev/null || echo $tool; done")
    assert said == ""
    store.run("python3 -c 'import asyncio, json, tarfile, zlib, obstore'")


def test_ranks_find_each_other(store: Store) -> None:
    program = "from mpi4py import MPI; print('rank', MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)"
    mpirun = "mpirun --allow-run-as-root --oversubscribe -n 2"
    said = store.run(f'{mpirun} python3 -c "{program}"')
    assert sorted(said.splitlines()) == ["rank 0 2", "rank 1 2"]


def test_takes_a_login_with_the_runs_key_and_has_no_password(store: Store) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "uid 0" in store.run(LOGIN.replace("PORT", str(port)))
    assert store.run("grep ^root: /etc/shadow").startswith("root:*:")


def test_says_what_it_is_and_starts_nothing_of_its_own(store: Store) -> None:
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
