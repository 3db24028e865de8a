"""Find and call Helm 3 and 4: render the chart, and return objects or error messages."""

from __future__ import annotations

import base64
import gzip
import json
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
from tests.factories.oci_registry import OciRegistry
from tests.factories.shell import run_program

from accept import __version__
from accept.plan.chart import chart_folder

CHART = chart_folder()
#: The version of the test cluster, and the API version that it reports for JobSet.
KUBERNETES = "1.34.0"
JOBSET = "jobset.x-k8s.io/v1alpha2"

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: Objects by their kind.
Objects = dict[str, dict[str, Any]]


class _Loader(_Base):  # type: ignore[misc]
    """Load YAML like strict readers: duplicate keys are an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001 - yaml's own
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"{sorted(keys)}: one of them twice"
        return super().construct_mapping(node, deep)


@cache
def helm(major: int) -> Path:
    """Return the path of helm 3 or 4, built for the test cluster or from PATH; skip without one."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = sorted((base / "accept-tests" / "bin").glob(f"helm{major}-*"))
    named = [shutil.which(name) for name in (f"helm{major}", "helm")]
    for path in (*reversed(built), *(Path(name) for name in named if name)):
        printed = subprocess.run(
            [str(path), "version", "--short"], capture_output=True, text=True, check=False
        )
        if re.match(rf"v{major}\b", printed.stdout):
            return path
    pytest.skip(f"no helm {major} here: python -m tests.cluster.kube.build")


def call(major: int, *words: object) -> subprocess.CompletedProcess[str]:
    """Call helm without access to any cluster."""
    env = {"PATH": os.environ["PATH"], **dict.fromkeys(("HOME", "KUBECONFIG"), "/nonexistent")}
    return run_program([helm(major), *words], env=env | SHORT_LIVED)


def text(
    major: int, values: Path, *words: object, name: str = "mytest", jobset: bool = True
) -> str:
    """Return the text that helm renders."""
    kinds = ("--api-versions", JOBSET) if jobset else ()
    done = call(
        major, "template", name, CHART, "--namespace", "team", "--values", values,
        "--kube-version", KUBERNETES, *kinds, *words,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "warning" not in done.stderr.lower(), done.stderr
    return done.stdout


def record(values: Path, *words: object) -> bytes:
    """Return the record that Helm 4 keeps of a release: JSON, compressed and encoded."""
    done = call(
        4, "install", "mytest", CHART, "--dry-run=client", "--output", "json", "--values", values,
        *words,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    release = json.dumps(json.loads(done.stdout), separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(release.encode()))


def pushed_chart(registry: OciRegistry, major: int, folder: Path) -> str:
    """Package the chart, push it to a registry, and return its URL there."""
    url = f"oci://127.0.0.1:{registry.port}/team/charts"
    done = call(major, "package", CHART, "--destination", folder)
    assert done.returncode == 0, done.stderr
    done = call(major, "push", folder / f"accept-{__version__}.tgz", url, "--plain-http")
    assert done.returncode == 0, done.stderr
    return f"{url}/accept"


def objects(
    major: int, values: Path, *words: object, name: str = "mytest", jobset: bool = True
) -> Objects:
    """Return the objects that helm renders, by kind; each kind occurs once.

    ConfigMaps of a part of the run have keys such as `ConfigMap programs`.
    """
    rendered = yaml.load_all(text(major, values, *words, name=name, jobset=jobset), Loader=_Loader)
    found = [one for one in rendered if one]
    by_kind = {_key(one): one for one in found}
    assert len(by_kind) == len(found), [one["kind"] for one in found]
    return by_kind


#: Ends of the names of ConfigMaps with code or positions.
_PARTS = ("programs", "bindings", "coordinator", "positions")


def _key(one: dict[str, Any]) -> str:
    _, _, last = str(one["metadata"]["name"]).rpartition("-")
    return f"{one['kind']} {last}" if last in _PARTS else str(one["kind"])


def values_in(file: Path) -> dict[str, Any]:
    """Return the values in a file."""
    found: dict[str, Any] = yaml.load(file.read_text(), Loader=_Loader)
    return found


def refusal(major: int, *words: object, name: str = "mytest") -> str:
    """Render values that helm refuses; return stderr after checking that stdout is empty."""
    done = call(major, "template", name, CHART, "--kube-version", KUBERNETES, *words)
    assert done.returncode != 0
    assert done.stdout.strip() == ""
    return done.stderr


def job(found: Objects) -> dict[str, Any]:
    """Return the spec of the Job, which is plain or in a JobSet."""
    if "Job" in found:
        return dict(found["Job"]["spec"])
    (replicated,) = found["JobSet"]["spec"]["replicatedJobs"]
    return dict(replicated["template"]["spec"])


def pod(found: Objects) -> dict[str, Any]:
    """Return the spec of the pods."""
    return dict(job(found)["template"]["spec"])


def container(found: Objects) -> dict[str, Any]:
    """Return the main container."""
    (one,) = pod(found)["containers"]
    assert one["name"] == "accept"
    return dict(one)


def notes_of(found: Objects) -> dict[str, str]:
    """Return the annotations of the pods."""
    return dict(job(found)["template"]["metadata"]["annotations"])


def environment(found: Objects) -> dict[str, str]:
    """Return the environment variables that have a literal value."""
    return {one["name"]: one["value"] for one in container(found)["env"] if "value" in one}
