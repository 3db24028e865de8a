"""Build docker/Dockerfile with the build step of cloudbuild.yml; buildah stands in for docker."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.factories import cloudbuild
from tests.factories.paths import ROOT

NAME = "localhost/accept"
BARE = "localhost/bare:1"


def why_not() -> str:
    """Return why this machine cannot build images, or "" if it can."""
    if os.geteuid() or not shutil.which("buildah"):
        return "building the image needs root and buildah: see tests/debian-packages.txt"
    return ""


class Store:
    """Images of buildah in a folder; its mounts end with each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # podman refuses more than 50 characters.
        self.state = Path(tempfile.mkdtemp(prefix="accept-images-"))

    def __call__(self, *words: str | Path) -> str:
        """Call buildah in the checkout; return its stdout."""
        where = [f"--root={self.folder}/root", f"--runroot={self.state}"]
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

    def build(self, container: str, *options: str) -> str:
        """Build the target `cpu` on a container's contents; remove that; return the name."""
        # The base must contain a certificate authority of this machine: see docker/README.md.
        if authority := os.environ.get("PIP_CERT"):
            self("copy", container, authority, "/etc/registry-ca.crt")
            self("config", "--env", "PIP_CERT=/etc/registry-ca.crt", container)
        self("commit", "--squash", "--rm", container, BARE)
        command, *words = step()
        # Layer by layer, as docker does it: what a later one removes would still be in the earlier.
        self(command, "--layers", *words[:-1], *options, words[-1])
        return f"{NAME}:test"

    def close(self) -> None:
        """Remove all images and containers."""
        self("rm", "--all")
        shutil.rmtree(self.folder)
        shutil.rmtree(self.state)


def step() -> list[str]:
    """Return the words of the build step; the last one is the context folder."""
    given = {"_NAME": NAME, "_TARGET": "cpu", "_BASE": BARE, "_RUNTIME_BASE": BARE, "_TAG": "test"}
    # A shell script passes the other words to docker, for each platform.
    _, _, *words = cloudbuild.steps(**given)["build"].args
    return [words[0], f"--tag={NAME}:test", *words[1:]]
