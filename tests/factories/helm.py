"""Helm 3 and 4 as tests call them: where they are, what they render, what they refuse."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.kube.build import SHORT_LIVED

from accept.config import resources

CHART = resources.chart()
#: What the test cluster runs, and the group of JobSet's kinds, as a cluster that has it says.
KUBERNETES = "1.34.0"
JOBSET = "jobset.x-k8s.io/v1alpha2"

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: Objects by their kind.
Objects = dict[str, dict[str, Any]]


class _Loader(_Base):  # type: ignore[misc]
    """YAML as strict readers take it: a key comes once in a mapping."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001 - yaml's own
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"{sorted(keys)}: one of them twice"
        return super().construct_mapping(node, deep)


@cache
def helm(major: int) -> Path:
    """Helm 3 or 4: as the test cluster built it, else from PATH. Skips where there is none."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = sorted((base / "accept-tests" / "bin").glob(f"helm{major}-*"))
    named = [shutil.which(name) for name in (f"helm{major}", "helm")]
    for path in (*reversed(built), *(Path(name) for name in named if name)):
        said = subprocess.run(
            [str(path), "version", "--short"], capture_output=True, text=True, check=False
        )
        if re.match(rf"v{major}\b", said.stdout):
            return path
    pytest.skip(f"no helm {major} here: `make cluster` builds it")


def call(major: int, *words: object) -> subprocess.CompletedProcess[str]:
    """Call helm; it is told of no cluster, so that it can ask none."""
    return subprocess.run(
        [str(helm(major)), *map(str, words)],
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "KUBECONFIG": "/nonexistent",
            **SHORT_LIVED,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def text(
    major: int, values: Path, *words: object, name: str = "mytest", jobset: bool = True
) -> str:
    """What helm renders, as text."""
    kinds = ("--api-versions", JOBSET) if jobset else ()
    done = call(
        major, "template", name, CHART, "--namespace", "team", "--values", values,
        "--kube-version", KUBERNETES, *kinds, *words,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "warning" not in done.stderr.lower(), done.stderr
    return done.stdout


def objects(
    major: int, values: Path, *words: object, name: str = "mytest", jobset: bool = True
) -> Objects:
    """What helm renders, by kind; a kind comes once."""
    rendered = yaml.load_all(text(major, values, *words, name=name, jobset=jobset), Loader=_Loader)
    found = [one for one in rendered if one]
    by_kind = {one["kind"]: one for one in found}
    assert len(by_kind) == len(found), [one["kind"] for one in found]
    return by_kind


def values_in(file: Path) -> dict[str, Any]:
    """The values in a file, half a megabyte of them."""
    found: dict[str, Any] = yaml.load(file.read_text(), Loader=_Loader)
    return found


def refusal(major: int, *words: object, name: str = "mytest") -> str:
    """What helm says of values that it refuses, with nothing on stdout."""
    done = call(major, "template", name, CHART, "--kube-version", KUBERNETES, *words)
    assert done.returncode != 0
    assert done.stdout.strip() == ""
    return done.stderr


def job(found: Objects) -> dict[str, Any]:
    """The spec of the Job, a JobSet's child or a plain one."""
    if "Job" in found:
        return dict(found["Job"]["spec"])
    (replicated,) = found["JobSet"]["spec"]["replicatedJobs"]
    return dict(replicated["template"]["spec"])


def pod(found: Objects) -> dict[str, Any]:
    """The spec of the pods."""
    return dict(job(found)["template"]["spec"])


def container(found: Objects) -> dict[str, Any]:
    """The main container."""
    (one,) = pod(found)["containers"]
    assert one["name"] == "accept"
    return dict(one)


def notes_of(found: Objects) -> dict[str, str]:
    """The annotations of the pods."""
    return dict(job(found)["template"]["metadata"]["annotations"])


def environment(found: Objects) -> dict[str, str]:
    """What stands in the environment as text."""
    return {one["name"]: one["value"] for one in container(found)["env"] if "value" in one}
