"""Build the image of docker/Dockerfile for pods of the test cluster, once into the cache.

Its base is a Debian with Debian's own torch, which has no CUDA: PyPI's alone is 5 GB.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path

from tests.cluster.buildah import Store, step
from tests.cluster.kube.build import alone, cache
from tests.cluster.kube.image import debian
from tests.factories import dockerfile

#: The oldest whose torch is new enough (pyproject.toml, under `run`).
SUITE = "trixie"
PACKAGES = ("ca-certificates", "python3-torch")
IMAGE = "localhost/accept-test-built:1"


def archive() -> Path:
    """Return the archive of `IMAGE`. Raise NotBuilt with the output of debootstrap."""
    made_of = [dockerfile.FILE.read_text(), SUITE, PACKAGES, step()]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:12]
    made = cache() / f"pod-built-{key}.tar"
    with alone("built"):
        if not made.exists():
            sys.stderr.write(f"making {IMAGE} (once)\n")
            with tempfile.TemporaryDirectory(dir=cache()) as scratch:
                _build(Path(scratch)).rename(made)
    return made


def _build(folder: Path) -> Path:
    debian(folder / "root", SUITE, PACKAGES)
    store = Store(folder / "store")
    try:
        container = store("from", "scratch")
        store("add", container, folder / "root", "/")
        built = store.build(container)
        store("push", built, f"oci-archive:{folder}/image.tar:{IMAGE}")
    finally:
        store.close()
    return folder / "image.tar"
