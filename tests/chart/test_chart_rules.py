"""Rules that the chart and Python both have: they decide alike in every case.

The chart needs them for values that are edited by hand, and Python before anything is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.factories import helm
from tests.factories.chart_runs import KINDS, SITES, Write, resolved, values_file

from accept.backends.kubernetes.client import Api, Place
from accept.backends.kubernetes.doctor import JOBSET_FIELDS
from accept.backends.kubernetes.doctor_storage import claimed_devices
from accept.backends.kubernetes.nodes import request_of_run
from accept.backends.kubernetes.status import makes_jobset
from accept.backends.kubernetes.submit import RunName, check_run_name
from accept.core.error_codes import Code
from accept.core.errors import BadInput

pytestmark = pytest.mark.real

_NETWORKS = "  networks: [{interface: eth2, network: rdma-0}]\n"
#: Sites with the settings that these rules read, besides those of all chart tests.
CASES = {
    **SITES,
    "networks": _NETWORKS,
    "claims": f"{_NETWORKS}  resourceClaims: [{{name: nics, template: t}}]\n",
    "no claims": "  resourceClaims: []\n",
    "part of a node": "  gpusPerPod: 2\n",
    "other limits": "  resources: {limits: {memory: 500Gi}}\n",
    "flex-start": "  flexStart: true\n",
    "spot": "  spot: true\n  tolerations: [{key: mine, operator: Exists}]\n",
}


@pytest.mark.parametrize("machine", [*KINDS, "domain"])
def test_nodes_gpus_and_devices_of_a_pod(machine: str, tmp_path: Path) -> None:
    for name, site in CASES.items():
        if machine == "cpu" and "gpusPerPod" in site:
            continue
        run = resolved(tmp_path, machine, site=site)
        found = helm.objects(4, values_file(tmp_path, run))
        pod, wanted = helm.pod(found), request_of_run(run)
        assert pod.get("nodeSelector", {}) == wanted.selector, name
        assert texts(pod.get("tolerations", ())) == texts(wanted.tolerations), name
        limits = helm.container(found)["resources"].get("limits", {})
        gpus = {key: amount for key, amount in limits.items() if key.endswith("/gpu")}
        assert gpus == ({wanted.resource: wanted.amount} if wanted.resource else {}), name
        claims = [claim["name"] for claim in pod.get("resourceClaims", ())]
        domain = ["compute-domain-channel"] if run.machine.kubernetes.compute_domain else []
        assert claims == [claim.name for claim in claimed_devices(run)] + domain, name


def texts(tolerations: Any) -> set[str]:
    """Return tolerations in a form that can be compared in any order."""
    return {json.dumps(toleration, sort_keys=True) for toleration in tolerations}


@pytest.mark.parametrize("controller", ["auto", "jobset", "job"])
@pytest.mark.parametrize("served", [True, False])
def test_whether_a_run_is_a_jobset(
    controller: str,
    served: bool,  # noqa: FBT001
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Api, "serves", lambda *_: served)
    file = write(site=f"  controller: {controller}\n")
    found = helm.objects(4, file, jobset=served)
    assert makes_jobset(Api(Place()), controller) is ("JobSet" in found)


def test_doctor_checks_fields_that_the_chart_sets(write: Write) -> None:
    site = "  ttlSeconds: 5\n  extraSidecars: [{name: beside, image: mine}]\n"
    jobset = helm.objects(4, write(site=site))["JobSet"]
    assert set(JOBSET_FIELDS) <= set(fields(jobset))


def fields(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the path of every field, through the items of lists."""
    if isinstance(value, list):
        for item in value:
            yield from fields(item, prefix)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{prefix}{key}"
            yield from fields(item, f"{prefix}{key}.")


@pytest.mark.parametrize("nodes", [1, 10, 11, 1000])
def test_the_longest_name_of_a_jobset(nodes: int, write: Write) -> None:
    def accepted(length: int) -> bool:
        try:
            check_run_name(RunName(release="n" * length, attempt="a1"), nodes)
        except BadInput:
            return False
        return True

    longest = max(length for length in range(1, 54) if accepted(length))
    file = write(nodes=nodes)
    given = ("--set", "site.controller=jobset", "--set", "attempt=a1")
    helm.objects(4, file, *given, name="n" * longest)
    assert Code.KUBE_NAME_LONG in helm.refusal(
        4, "--values", file, *given, name="n" * (longest + 1)
    )
