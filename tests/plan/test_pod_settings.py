"""Settings of pods: those of the machine, those of the site, and those that both imply."""

from __future__ import annotations

from typing import Literal

import pytest

from accept import config
from accept.config import load_machine
from accept.config.fields import Plain
from accept.config.kubernetes import Claim, Kubernetes, MachinePods, Network, Plugin, PodSettings
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.plan.placement import gpu_resource, pod_security_context, pod_settings

GPU, OTHER = "nvidia.com/gpu", "amd.com/gpu"
MACHINE = MachinePods(
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
        assert keys(pod_settings(MachinePods(), site)) == tolerated


class TestGpus:
    def test_are_those_of_the_machine(self) -> None:
        site = Kubernetes(resources={"requests": {"cpu": 8}})
        resources = pod_settings(MACHINE, site).resources
        assert resources == {**MACHINE.resources, "requests": {"cpu": 8}}

    @pytest.mark.parametrize("resource", [GPU, OTHER])
    def test_part_of_a_node_uses_the_resource_of_the_machine(self, resource: str) -> None:
        amounts = {resource: 8, "memory": "500Gi"}
        machine = MachinePods(resources={"limits": amounts, "requests": amounts})
        expected = {resource: 2, "memory": "500Gi"}
        pod = pod_settings(machine, Kubernetes(), 2)
        assert pod.resources == {"limits": expected, "requests": expected}
        assert gpu_resource(pod.resources) == resource

    def test_of_any_machine_are_nvidias(self) -> None:
        pod = pod_settings(MachinePods(), Kubernetes(), 8)
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

    def test_claims_of_the_site_replace_the_networks_of_the_machine(self) -> None:
        claims = (Claim(name="mine", template="t"),)
        pod = pod_settings(MACHINE, Kubernetes(resource_claims=claims))
        assert (pod.networks, pod.resource_claims) == ((), claims)

    def test_claims_of_the_site_replace_all(self) -> None:
        claims = (Claim(name="mine", template="t"),)
        site = Kubernetes(networks=MACHINE.networks, resource_claims=claims)
        assert pod_settings(MACHINE, site).resource_claims == claims
        assert pod_settings(MACHINE, Kubernetes(resource_claims=())).resource_claims == ()


class TestPlugin:
    MACHINE = MachinePods(
        plugin=Plugin(
            volumes=(
                {"name": "driver", "hostPath": {"path": "/driver"}},
                {"name": "gib", "hostPath": {"path": "/gib"}},
            ),
            volume_mounts=(
                {"name": "driver", "mountPath": "/usr/local/driver"},
                {"name": "gib", "mountPath": "/usr/local/gib", "readOnly": True},
            ),
            installer={
                "name": "installer",
                "image": "theirs",
                "volumeMounts": [{"name": "gib", "mountPath": "/installed"}],
            },
        )
    )

    def test_comes_from_folders_of_the_node(self) -> None:
        pod = pod_settings(self.MACHINE, Kubernetes())
        assert pod.volumes == self.MACHINE.plugin.volumes
        assert pod.volume_mounts == self.MACHINE.plugin.volume_mounts
        assert pod.init_containers == ()

    def test_is_installed_for_one_pod_without_any_folder_of_the_node(self) -> None:
        mirror: Plain = {"name": "installer", "image": "mirror"}
        pod = pod_settings(self.MACHINE, Kubernetes(plugin="init", extra_init_containers=(mirror,)))
        assert pod.volumes == ({"name": "gib", "emptyDir": {}},)
        assert pod.volume_mounts == (self.MACHINE.plugin.volume_mounts[1],)
        (installer,) = pod.init_containers
        context = {"allowPrivilegeEscalation": False}
        given = {**self.MACHINE.plugin.installer, "image": "mirror"}
        assert installer == {**given, "securityContext": context}

    def test_is_in_the_image(self) -> None:
        pod = pod_settings(self.MACHINE, Kubernetes(plugin="image"))
        assert (pod.volumes, pod.volume_mounts, pod.init_containers) == ((), (), ())

    @pytest.mark.parametrize("name", ["a3-megagpu-8g", "a3-highgpu-8g", "a4x-maxgpu-4g-metal"])
    @pytest.mark.parametrize("plugin", ["init", "image"])
    def test_is_refused_for_machines_with_a_fixed_source(
        self, name: str, plugin: Literal["init", "image"]
    ) -> None:
        with pytest.raises(BadInput) as error:
            pod_settings(load_machine(name).value.kubernetes, Kubernetes(plugin=plugin))
        assert error.value.code == Code.KUBE_PLUGIN


@pytest.mark.parametrize("name", config.names("machines"))
def test_folders_of_the_node_must_exist(name: str) -> None:
    """Without a type, the runtime makes an empty folder, and NCCL uses another network."""
    pod = pod_settings(load_machine(name).value.kubernetes, Kubernetes())
    for volume in pod.volumes:
        folder = volume.get("hostPath")
        if isinstance(folder, dict) and folder["path"] != "/run/tcpx":
            assert folder["type"] == "Directory"


class TestContainer:
    @pytest.mark.parametrize(("given", "size"), [(None, "250Gi"), ("9Gi", "9Gi")])
    def test_shared_memory(self, given: str | None, size: str) -> None:
        assert pod_settings(MACHINE, Kubernetes(shared_memory=given)).shared_memory == size

    @pytest.mark.parametrize(
        "given", [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}]
    )
    def test_may_escalate_if_it_has_the_rights_already(self, given: dict[str, object]) -> None:
        context = pod_settings(MACHINE, Kubernetes(security_context=given)).security_context
        assert "allowPrivilegeEscalation" not in context

    def test_a_sidecar_of_the_machine_can_be_changed(self) -> None:
        """The version of the daemon belongs to that of the plugin, which is the cluster's."""
        machine = load_machine("a3-megagpu-8g").value.kubernetes
        changes: Plain = {"name": "tcpxo-daemon", "image": "mine:2"}
        beside: Plain = {"name": "beside", "image": "i"}
        pod = pod_settings(machine, Kubernetes(extra_sidecars=(changes, beside)))
        sidecars = [{key: c[key] for key in c if key != "securityContext"} for c in pod.sidecars]
        ours = {k: v for k, v in machine.sidecars[0].items() if k != "securityContext"}
        assert sidecars == [{**ours, **changes}, beside]


class TestRights:
    @pytest.mark.parametrize(
        ("site", "is_root"),
        [
            (Kubernetes(), False),
            (Kubernetes(security_context={"capabilities": {"add": ["IPC_LOCK"]}}), True),
            (Kubernetes(extra_volumes=({"name": "a", "hostPath": {"path": "/a"}},)), True),
            (Kubernetes(extra_sidecars=({"name": "a", "image": "i"},)), True),
            (Kubernetes(host_network=True), True),
            (Kubernetes(pod_security_context={"fsGroup": 7}), False),
            (Kubernetes(pod_security_context={"runAsUser": 0}), True),
            (Kubernetes(pod_security_context={"runAsUser": 7}), False),
            (Kubernetes(security_context={"runAsUser": 0}), True),
            (Kubernetes(pod_security_context={"runAsNonRoot": False}), True),
            (
                Kubernetes(
                    pod_security_context={"runAsNonRoot": True},
                    extra_volumes=({"name": "a", "hostPath": {"path": "/a"}},),
                ),
                False,
            ),
        ],
    )
    def test_a_pod_is_root_only_if_something_in_it_may_need_that(
        self, site: Kubernetes, *, is_root: bool
    ) -> None:
        pod = pod_settings(MachinePods(), site)
        context = pod_security_context(pod, site.pod_security_context)
        assert bool(context.get("runAsNonRoot")) is not is_root
        assert ("SETUID" in str(pod.security_context["capabilities"])) is is_root
        assert context.items() >= site.pod_security_context.items()
