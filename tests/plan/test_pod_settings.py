"""Settings of pods: those of the machine with those of the site, and what both imply."""

from __future__ import annotations

import pytest

from accept.config import load_machine
from accept.config.fields import Plain
from accept.config.kubernetes import Claim, Kubernetes, Network, PodSettings
from accept.plan.placement import gpu_resource, pod_settings

GPU, OTHER = "nvidia.com/gpu", "amd.com/gpu"
MACHINE = PodSettings(
    node_selector={"kind": "b200", "pool": "shared"},
    tolerations=({"key": GPU, "operator": "Exists"},),
    resources={"limits": {GPU: 8, "memory": "500Gi"}},
    resource_claims=(Claim(name="nics", template="theirs"),),
    networks=(Network(interface="eth1", network="rdma-0"),),
    shared_memory="250Gi",
)


def keys(pod: PodSettings) -> list[str]:
    """Return the keys of the taints that are tolerated."""
    return [str(toleration["key"]) for toleration in pod.tolerations]


class TestPlacement:
    def test_labels_of_the_site_replace_those_of_the_machine(self) -> None:
        pod = pod_settings(MACHINE, Kubernetes(node_selector={"pool": "mine"}, flex_start=True))
        flex_start = {"cloud.google.com/gke-flex-start": "true"}
        assert pod.node_selector == {"kind": "b200", "pool": "mine", **flex_start}

    def test_tolerations_add_up_and_occur_once(self) -> None:
        mine: Plain = {"key": "mine", "operator": "Exists"}
        assert keys(pod_settings(MACHINE, Kubernetes(tolerations=(mine,)))) == [GPU, "mine"]
        spot = keys(pod_settings(MACHINE, Kubernetes(spot=True)))
        assert "cloud.google.com/gke-spot" in spot

    @pytest.mark.parametrize(("resource", "tolerated"), [(GPU, [GPU]), (OTHER, [])])
    def test_only_pods_with_nvidia_gpus_tolerate_their_taint(
        self, resource: str, tolerated: list[str]
    ) -> None:
        site = Kubernetes(resources={"limits": {resource: 8}})
        assert keys(pod_settings(PodSettings(), site)) == tolerated


class TestGpus:
    def test_are_those_of_the_machine(self) -> None:
        site = Kubernetes(resources={"requests": {"cpu": 8}})
        resources = pod_settings(MACHINE, site).resources
        assert resources == {**MACHINE.resources, "requests": {"cpu": 8}}

    @pytest.mark.parametrize("resource", [GPU, OTHER])
    def test_part_of_a_node_uses_the_resource_of_the_machine(self, resource: str) -> None:
        amounts = {resource: 8, "memory": "500Gi"}
        machine = PodSettings(resources={"limits": amounts, "requests": amounts})
        expected = {resource: 2, "memory": "500Gi"}
        pod = pod_settings(machine, Kubernetes(), 2)
        assert pod.resources == {"limits": expected, "requests": expected}
        assert gpu_resource(pod.resources) == resource

    def test_of_any_machine_are_nvidias(self) -> None:
        pod = pod_settings(PodSettings(), Kubernetes(), 8)
        assert pod.resources == {"limits": {GPU: 8}}

    def test_an_amount_of_zero_requests_none(self) -> None:
        pod = pod_settings(MACHINE, Kubernetes(resources={"limits": {GPU: 0}}))
        assert gpu_resource(pod.resources) == ""


class TestDevices:
    def test_networks_of_the_site_replace_networks_and_claims(self) -> None:
        assert pod_settings(MACHINE, Kubernetes()).resource_claims == MACHINE.resource_claims
        networks = (Network(interface="eth2", network="n"),)
        pod = pod_settings(MACHINE, Kubernetes(networks=networks))
        assert (pod.networks, pod.resource_claims) == (networks, ())

    def test_claims_of_the_site_replace_all(self) -> None:
        claims = (Claim(name="mine", template="t"),)
        site = Kubernetes(networks=MACHINE.networks, resource_claims=claims)
        assert pod_settings(MACHINE, site).resource_claims == claims
        assert pod_settings(MACHINE, Kubernetes(resource_claims=())).resource_claims == ()


class TestContainer:
    @pytest.mark.parametrize(("given", "size"), [(None, "250Gi"), ("9Gi", "9Gi")])
    def test_shared_memory(self, given: str | None, size: str) -> None:
        assert pod_settings(MACHINE, Kubernetes(shared_memory=given)).shared_memory == size

    def test_is_not_privileged_by_default(self) -> None:
        context = {"privileged": False, "allowPrivilegeEscalation": False}
        assert pod_settings(MACHINE, Kubernetes()).security_context == context

    @pytest.mark.parametrize(
        "given", [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}]
    )
    def test_may_escalate_if_it_has_the_rights_already(self, given: dict[str, object]) -> None:
        context = pod_settings(MACHINE, Kubernetes(security_context=given)).security_context
        assert context == {"privileged": False, **given}

    def test_a_sidecar_of_the_machine_can_be_changed(self) -> None:
        """The version of the daemon belongs to that of the plugin, which is the cluster's."""
        machine = load_machine("a3-megagpu-8g").value.kubernetes
        changes: Plain = {"name": "tcpxo-daemon", "image": "mine:2"}
        beside: Plain = {"name": "beside", "image": "i"}
        pod = pod_settings(machine, Kubernetes(extra_sidecars=(changes, beside)))
        assert pod.sidecars == ({**machine.sidecars[0], **changes}, beside)
