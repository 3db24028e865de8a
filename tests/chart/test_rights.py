"""The promises of SECURITY.md and docs/kubernetes-rights.md about the rights of rendered pods."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tests.factories.chart_runs import MACHINES, values
from tests.factories.helm import Objects, objects, pod
from tests.factories.pod_rights import PodRights, pod_rights

from accept import config
from accept.backends.kubernetes.objects import text_at, value_at
from accept.config.chart_rules import chart_rules
from accept.config.kubernetes import MachinePods
from accept.config.yaml_file import read_file

ROOT = Path(__file__).parents[2]
every_machine = pytest.mark.parametrize("machine", MACHINES)
#: The machines that can be nodes of GKE.
GOOGLES = [one for one in MACHINES if "Google" in config.load_machine(one).value.description]


@dataclass(frozen=True, kw_only=True)
class GooglesTest:
    """A test of NCCL by Google: the folders of the node that its pods mount."""

    source: str
    folders: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Autopilot:
    """The list of what GKE Autopilot admits, by Google's documentation."""

    source: str
    capabilities: tuple[str, ...]
    volumes: tuple[str, ...]
    read_only_folder: str
    seccomp_profiles: tuple[str, ...]
    tested_folders: dict[str, GooglesTest]

    def admits(self, rights: PodRights, *, folders: tuple[str, ...] = ()) -> bool:
        """Return True if a pod has nothing that is refused; `folders` of the node are admitted."""
        admitted = (self.read_only_folder, *folders)
        writable = frozenset[str]().union(*(one.writes for one in rights.containers))
        return not (
            rights.is_privileged
            or rights.host_namespaces
            or rights.added - {*self.capabilities}
            or rights.volumes - {*self.volumes, "hostPath"}
            or any(path not in admitted for path in rights.folders.values())
            or rights.folders.keys() & writable
            or any(one.has_host_ports for one in rights.containers)
            or rights.seccomp not in self.seccomp_profiles
        )


AUTOPILOT = read_file(Autopilot, ROOT / "tests/data/gke-autopilot.yaml")


#: A container beside the main one, and the logs of the node.
BESIDE: dict[str, object] = {"name": "beside", "image": "mine"}
LOGS: dict[str, object] = {"name": "logs", "hostPath": {"path": "/var/log"}}


@cache
def rendered(machine: str, site: str = "") -> Objects:
    """Return the objects of a run of a machine, rendered by helm."""
    with tempfile.TemporaryDirectory() as folder:
        return objects(4, values(Path(folder), machine, site=site))


def rights_of(machine: str, site: str = "") -> PodRights:
    return pod_rights(pod(rendered(machine, site)))


#: The template of the pods in a replicated Job.
_TEMPLATE = ("template", "spec", "template")


def given_capabilities(machine: str) -> set[str]:
    """Return the capabilities in a machine's file."""
    added = value_at(machine_pods(machine).security_context, "capabilities", "add")
    return set(map(str, added)) if isinstance(added, list) else set()


def machine_pods(machine: str) -> MachinePods:
    return config.load_machine(machine).value.kubernetes


def documented(first: str) -> set[str]:
    """Return the machines in the row of docs/kubernetes-rights.md whose first cell is a text."""
    page = (ROOT / "docs/kubernetes-rights.md").read_text()
    (row,) = re.findall(rf"^\| {re.escape(first)} \| (.*) \|$", page, re.MULTILINE)
    return set(re.findall("`([^`]+)`", row))


@pytest.mark.real
@pytest.mark.sampled
class TestEveryMachine:
    @every_machine
    def test_no_container_can_gain_rights_or_system_calls_that_it_was_not_given(
        self, machine: str
    ) -> None:
        """SECURITY.md: `RuntimeDefault`, and "no container can gain rights, unless …"."""
        rights = rights_of(machine)
        assert rights.seccomp == "RuntimeDefault"
        for one in rights.containers:
            assert not one.can_gain_rights or one.is_privileged or "SYS_ADMIN" in one.added
        if not rights.main.is_privileged:
            sshd = set() if rights.is_non_root else {*chart_rules().sshd_capabilities}
            assert rights.main.dropped == {"ALL"}
            assert rights.main.added == given_capabilities(machine) | sshd

    @every_machine
    def test_is_root_only_if_it_adds_something_that_may_need_that(self, machine: str) -> None:
        """SECURITY.md: "Pods are not root, unless the machine … adds something"."""
        rights, given = rights_of(machine), config.load_machine(machine).value.kubernetes
        adds = (
            given.security_context
            or given.host_network
            or given.init_containers
            or given.sidecars
            or any("hostPath" in volume for volume in (*given.volumes, *given.plugin.volumes))
        )
        assert rights.is_non_root is not bool(adds)
        assert (rights.user == 1000) is not bool(adds)

    @every_machine
    def test_meets_the_pod_security_standard_that_the_docs_name(self, machine: str) -> None:
        """SECURITY.md: "Machines of each Pod Security Standard"."""
        standard = rights_of(machine).standard
        assert machine in documented(f"`{standard}`")

    @every_machine
    def test_is_reached_by_the_pods_of_its_run_alone(self, machine: str) -> None:
        """SECURITY.md: "a NetworkPolicy"; it does not cover pods on the node's network."""
        found = rendered(machine)
        policy = found["NetworkPolicy"]["spec"]
        (replicated,) = found["JobSet"]["spec"]["replicatedJobs"]
        run = text_at(replicated, *_TEMPLATE, "metadata", "labels", "accept-run")
        own = {"podSelector": {"matchLabels": {"accept-run": run}}}
        assert run.startswith("mytest-")
        assert policy == {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}

    @every_machine
    def test_has_an_immutable_secret_and_no_rights_on_the_api(self, machine: str) -> None:
        """SECURITY.md: "an immutable Secret for each run", and a pod needs no rights on the API."""
        found = rendered(machine)
        assert found["Secret"]["immutable"] is True
        assert {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}.isdisjoint(found)
        assert pod(found)["automountServiceAccountToken"] is False


def test_the_docs_name_every_machine_once() -> None:
    restricted, privileged = documented("`restricted`"), documented("`privileged`")
    assert restricted | privileged == {*MACHINES}
    assert not restricted & privileged


@pytest.mark.real
class TestAutopilot:
    """docs/kubernetes-rights.md, "Rights": which of Google's machines GKE Autopilot admits."""

    def test_the_docs_name_the_machines_that_it_admits(self) -> None:
        found: dict[str, set[str]] = {"yes": set(), "with `plugin: init`": set(), "no": set()}
        for machine in GOOGLES:
            installs = bool(machine_pods(machine).plugin.installer)
            if AUTOPILOT.admits(rights_of(machine)):
                found["yes"].add(machine)
            elif installs and AUTOPILOT.admits(rights_of(machine, "  plugin: init\n")):
                found["with `plugin: init`"].add(machine)
            else:
                found["no"].add(machine)
        assert {answer: documented(answer) for answer in found} == found
        assert AUTOPILOT.source in (ROOT / "docs/kubernetes-rights.md").read_text()

    @pytest.mark.parametrize("machine", AUTOPILOT.tested_folders)
    def test_pods_mount_what_googles_own_tests_mount_there(self, machine: str) -> None:
        tested = AUTOPILOT.tested_folders[machine]
        rights = rights_of(machine)
        assert sorted(rights.folders.values()) == sorted(tested.folders)
        assert AUTOPILOT.admits(rights, folders=tested.folders)
        assert tested.source in (ROOT / "docs/kubernetes-rights.md").read_text()

    @pytest.mark.parametrize(
        "keys",
        [
            {"securityContext": {"privileged": True}},
            {"hostNetwork": True},
            {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}},
            {"extraSidecars": [{**BESIDE, "securityContext": {"capabilities": {"add": ["ALL"]}}}]},
            {"extraSidecars": [{**BESIDE, "ports": [{"containerPort": 80, "hostPort": 80}]}]},
            {"extraVolumes": [{"name": "a", "iscsi": {"targetPortal": "a", "iqn": "b", "lun": 0}}]},
            {"extraVolumes": [{"name": "a", "hostPath": {"path": "/data"}}]},
            {"extraVolumes": [LOGS], "extraVolumeMounts": [{"name": "logs", "mountPath": "/a"}]},
            {"podSecurityContext": {"seccompProfile": {"type": "Localhost"}}},
        ],
    )
    def test_refuses_what_a_site_file_may_add(self, keys: dict[str, object]) -> None:
        site = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in keys.items())
        assert AUTOPILOT.admits(rights_of("gpu"))
        assert not AUTOPILOT.admits(rights_of("gpu", site))

    def test_admits_the_logs_of_the_node_for_reading(self) -> None:
        site = f"  extraVolumes: [{json.dumps(LOGS)}]\n"
        mounted = "  extraVolumeMounts: [{name: logs, mountPath: /a, readOnly: true}]\n"
        assert AUTOPILOT.admits(rights_of("gpu", site + mounted))
