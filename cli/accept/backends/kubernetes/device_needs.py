"""What a run whose devices are claimed (DRA) needs of a cluster: its API, templates, the domain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.look import CLAIMS, CLAIMS_VERSIONS, DOMAINS, path
from accept.backends.kubernetes.need import fine, lack
from accept.backends.requirements import Need
from accept.config.pod import Claim
from accept.core.text import plain
from accept.plan.resolve import Resolved


def claimed(run: Resolved) -> tuple[Claim, ...]:
    """Devices by DRA, by the rule of accept.devicesClaimed in chart/templates/_pod.tpl."""
    of_site = run.site.kubernetes
    if of_site.resource_claims is not None:
        return of_site.resource_claims
    return () if of_site.networks else run.machine.kubernetes.resource_claims


def devices(api: Api, run: Resolved) -> Iterator[Need]:
    """What claims are made of; nothing where the run claims no devices."""
    claims, domain = claimed(run), run.machine.kubernetes.compute_domain
    if not claims and not domain:
        return
    version = _served(api)
    if version:
        yield fine("claims of devices", f"{_short(CLAIMS)}/{version}")
        for name in sorted({c.template for c in claims if c.template}):
            yield _template(api, version, name)
    else:
        *newer, last = CLAIMS_VERSIONS
        found = f"the cluster serves no {_short(CLAIMS)}/{', '.join(newer)} or {last}"
        advice = "Kubernetes 1.34 or newer does, older ones where that API is switched on"
        yield lack("claims of devices", found, advice)
    if domain:
        yield _domains(api)


def _short(group: str) -> str:
    """A group of the API as people write it."""
    return group.removeprefix("apis/")


def _served(api: Api) -> str:
    """The newest version of claims that the cluster has; empty: none that the chart writes."""
    there = (api.find(f"/{CLAIMS}") or {}).get("versions") or ()
    served = {v.get("version") for v in there}
    return next((version for version in CLAIMS_VERSIONS if version in served), "")


def _template(api: Api, version: str, name: str) -> Need:
    """A ResourceClaimTemplate that the machine or the site names: without it no pod is made."""
    what = "claim template"
    try:
        there = api.find(path(api, f"{CLAIMS}/{version}", "resourceclaimtemplates", name))
    except ApiError as error:
        return fine(what, f"{name} cannot be looked at: {error.message}")
    if there is None:
        found = f"{plain(name, 253)} is not in namespace {api.place.namespace}"
        return lack(what, found, "make it there, or set kubernetes.resourceClaims in the site file")
    return fine(what, name)


def _domains(api: Api) -> Need:
    """NVIDIA's kind for nodes that share NVLink, which the chart makes one of."""
    served: dict[str, Any] = api.find(f"/{DOMAINS}") or {}
    kinds = {r.get("name") for r in served.get("resources") or ()}
    if "computedomains" in kinds:
        return fine("ComputeDomain", _short(DOMAINS))
    advice = "install NVIDIA's DRA driver: https://github.com/NVIDIA/k8s-dra-driver-gpu"
    return lack("ComputeDomain", f"the cluster has no such kind in {_short(DOMAINS)}", advice)
