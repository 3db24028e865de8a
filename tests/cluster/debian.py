"""Debian systems in folders, which tests use in place of this machine's own; built once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

CACHE = Path.home() / ".cache" / "accept-tests"


def why_not() -> str:
    """Return why no Debian can be made here, or "" if it can."""
    if os.geteuid() != 0:
        return "a Debian system is made as root"
    if shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
        return "a Debian system is made with debootstrap, which is not here"
    return ""


def make(suite: str, included: Sequence[str], *, added: Sequence[str] = ()) -> Path:
    """Return the folder of a minimal Debian, outside the checkout; its name encodes its contents.

    debootstrap itself installs `included`; apt installs `added`, without recommended packages.
    """
    key = hashlib.sha256(" ".join((suite, *included, *added)).encode()).hexdigest()[:12]
    made = CACHE / f"bare-{key}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{made.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            half = made.with_suffix(".half")
            shutil.rmtree(half, ignore_errors=True)
            _run(
                ["debootstrap", "--variant=minbase", f"--include={','.join(included)}", suite, half]
            )
            if added:
                # 101: no package may start its daemon.
                policy = half / "usr" / "sbin" / "policy-rc.d"
                policy.write_text("#!/bin/sh\nexit 101\n")
                policy.chmod(0o755)
                install = ["apt-get", "install", "--yes", "--no-install-recommends", *added]
                _run(chroot(half, *install))
            shutil.rmtree(half / "var" / "cache" / "apt")
            half.rename(made)
    return made


def chroot(base: Path, *words: str) -> list[str]:
    """Return the command that runs another one in a Debian, with this machine's devices and /tmp.

    The mounts end with the command.
    """
    script = (
        'for place in dev proc sys tmp; do mount --rbind "/$place" "$0/$place" || exit; done; '
        'mount -t tmpfs none "$0/run"; exec chroot "$0" "$@"'
    )
    return ["unshare", "--mount", "/bin/sh", "-c", script, str(base), *words]


def _run(words: Sequence[str | Path]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    environment["PATH"] += ":/usr/sbin:/sbin"
    subprocess.run(words, check=True, timeout=900, env=environment)
