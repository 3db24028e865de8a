"""The images of the test pods, made once into the cache: no registry, no Docker.

`BASE` is a small Debian with what a pod of a run needs but Open MPI and torch: these come from this
checkout's virtual environment, which pods mount (see `Cluster.checkout_volumes`). No key is in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.kube.build import NotBuilt, alone, cache, go_build

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "iproute2", "openssh-client", "openssh-server", "procps", "python3")
BASE = "localhost/accept-test-base:1"
PAUSE = "localhost/accept-test-pause:1"
#: Not `select {}`: Go takes that for a deadlock.
_PAUSE_SOURCE = """\
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
}
"""


def archives() -> tuple[Path, ...]:
    """Return the files that every node's containerd imports; make them if they are missing."""
    return pause(), base()


def base() -> Path:
    """Return the archive of `BASE`. Raises NotBuilt with the output of debootstrap."""
    key = hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:12]
    made = cache() / f"pod-base-{key}.tar"
    with alone("image"):
        if made.exists():
            return made
        sys.stderr.write(f"making {BASE} (once)\n")
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            root = Path(scratch) / "root"
            debian(root, SUITE, PACKAGES)
            for path in root.glob("etc/ssh/ssh_host_*"):
                path.unlink()
            _pack(root, BASE, made)
    return made


def debian(root: Path, suite: str, packages: Sequence[str]) -> None:
    """Make a small Debian in a folder. Raises NotBuilt with the output of debootstrap."""
    tool = shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if tool is None:
        raise NotBuilt("the pods' image needs debootstrap: see tests/debian-packages.txt")
    command = [tool, "--variant=minbase", f"--include={','.join(packages)}", suite, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotBuilt(f"debootstrap: {' / '.join(done.stdout.splitlines()[-3:])}")
    for path in root.glob("var/cache/apt/**/*.deb"):
        path.unlink()


def pause() -> Path:
    """Return the archive of the pause image, whose one program waits for ever."""
    made = cache() / f"pod-pause-{hashlib.sha256(_PAUSE_SOURCE.encode()).hexdigest()[:12]}.tar"
    with alone("image"):
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=cache()) as scratch:
                root = Path(scratch) / "root"
                root.mkdir()
                go_build(_PAUSE_SOURCE, root / "pause")
                _pack(root, PAUSE, made, command=["/pause"])
    return made


def _pack(root: Path, name: str, target: Path, command: list[str] | None = None) -> None:
    """Write a folder as a docker-archive of one layer."""
    folder = root.parent
    layer = folder / "layer.tar"
    subprocess.run(["tar", "-C", root, "--numeric-owner", "-cf", layer, "."], check=True)
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": command or ["/bin/sh"], "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    whole = folder / "image.tar"
    with tarfile.open(whole, "w") as tar:
        for part in ("manifest.json", "config.json", "layer.tar"):
            tar.add(folder / part, arcname=part)
    whole.rename(target)
