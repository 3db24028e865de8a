"""Count the nodes that a run matches and that are free, from nodes and pods of the API."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from tests.factories.kubernetes import GPU, GPU_TAINT, node, pod_on

from accept.backends.kubernetes.nodes import (
    Fit,
    Misfit,
    PodRequest,
    expected_nodes,
    node_fits,
    pod_request,
    shortage,
    tolerates,
)
from accept.backends.kubernetes.objects import Node, Pod, Taint, whole_number
from accept.config import Site, load_machine
from accept.config.kubernetes import Kubernetes
from accept.plan.placement import pod_settings

TAINT = Taint(**GPU_TAINT)
WANTED = PodRequest(
    selector={"kind": "b200"},
    tolerations=({"key": GPU, "operator": "Exists"},),
    resource=GPU,
    amount=8,
)


def fits(
    nodes: Iterable[dict[str, Any]], *pods: dict[str, Any], wanted: PodRequest = WANTED
) -> tuple[Fit, ...]:
    return node_fits(map(Node.read, nodes), map(Pod.read, pods), wanted)


def misfit(one: dict[str, Any], *pods: dict[str, Any]) -> Misfit | None:
    (fit,) = fits([one], *pods)
    return fit.misfit


def requested_amount(spec: dict[str, Any]) -> int:
    return Pod.read({"spec": spec}).requests.get(GPU, 0)


class TestANode:
    def test_that_is_ready_and_free_fits(self) -> None:
        assert misfit(node("a")) is None

    def test_counts_what_its_pods_request(self) -> None:
        assert misfit(node("a"), pod_on("a", 2)) is Misfit.GPUS_IN_USE
        assert misfit(node("a"), pod_on("b", 2)) is None

    @pytest.mark.parametrize(
        ("label", "named", "left_out"),
        [("999", (), True), ("1001", (), False), ("soon", (), False), ("999", ("a",), False)],
    )
    def test_is_left_out_if_its_host_is_maintained_during_the_run(
        self, label: str, named: tuple[str, ...], *, left_out: bool
    ) -> None:
        due = node("a")
        due["metadata"]["labels"]["cloud.google.com/scheduled-maintenance-time"] = label
        (fit,) = fits([due], wanted=replace(WANTED, include=named, end=1000))
        assert (fit.misfit is Misfit.MAINTENANCE) is left_out

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_does_not_count_pods_that_ended(self, phase: str) -> None:
        assert misfit(node("a"), pod_on("a", 8, phase)) is None

    def test_that_has_lost_a_gpu_does_not_fit(self) -> None:
        assert misfit(node("a", gpus=7)) is Misfit.GPUS_IN_USE

    def test_that_is_not_ready_does_not_fit(self) -> None:
        assert misfit(node("a", ready="Unknown")) is Misfit.NOT_READY

    def test_that_is_cordoned_does_not_fit(self) -> None:
        taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        (fit,) = fits([node("a", unschedulable=True, taints=[taint])])
        assert (fit.misfit, fit.taints) == (Misfit.CORDONED, ())

    def test_with_a_taint_that_nothing_tolerates_does_not_fit(self) -> None:
        other = {"key": "team", "value": "x", "effect": "NoExecute"}
        (fit,) = fits([node("a", taints=[GPU_TAINT, other])])
        assert (fit.misfit, fit.taints) == (Misfit.TAINT, ("team=x:NoExecute",))

    def test_with_a_taint_that_only_prefers_fits(self) -> None:
        assert misfit(node("a", taints=[{"key": "x", "effect": "PreferNoSchedule"}])) is None

    def test_with_another_label_does_not_match(self) -> None:
        one = node("a")
        one["metadata"]["labels"]["kind"] = "h200"
        (fit,) = fits([one])
        assert (fit.misfit, fit.matches) == (Misfit.LABEL, False)

    def test_matches_only_if_the_lists_of_nodes_allow_it(self) -> None:
        listed = PodRequest(
            selector={}, tolerations=WANTED.tolerations, include=("a",), exclude=("b",)
        )
        found = fits([node("a"), node("b"), node("c")], wanted=listed)
        assert [f.misfit for f in found] == [None, Misfit.NOT_INCLUDED, Misfit.NOT_INCLUDED]
        assert [f.node for f in found if f.matches] == ["a"]


class TestTheRequestOfAPod:
    def test_is_the_sum_over_its_containers(self) -> None:
        two = {"resources": {"limits": {GPU: "2"}}}
        assert requested_amount({"containers": [two, two]}) == 4

    def test_is_that_of_the_init_containers_if_it_is_larger(self) -> None:
        eight = {"resources": {"limits": {GPU: "8"}}}
        assert requested_amount({"initContainers": [eight], "containers": [{}]}) == 8

    def test_includes_sidecars(self) -> None:
        one = {"restartPolicy": "Always", "resources": {"requests": {GPU: 1}}}
        two = {"resources": {"limits": {GPU: 2}}}
        assert requested_amount({"initContainers": [one], "containers": [two]}) == 3

    @pytest.mark.parametrize(
        ("text", "number"),
        [("8", 8), (8, 8), ("2k", 2000), ("x", 0), (None, 0), ("²", 0), ("9" * 5000, 0)],
    )
    def test_is_a_whole_number(self, text: object, number: int) -> None:
        assert whole_number(text) == number


class TestATolerationCovers:
    @pytest.mark.parametrize(
        ("toleration", "covers"),
        [
            ({"operator": "Exists"}, True),
            ({"key": GPU, "operator": "Exists"}, True),
            ({"key": GPU, "value": "present"}, True),
            ({"key": GPU, "operator": "Equal", "value": "other"}, False),
            ({"key": GPU, "operator": "Exists", "effect": "NoExecute"}, False),
            ({"key": "other", "operator": "Exists"}, False),
            ({}, False),
        ],
    )
    def test_the_same_taints_as_in_kubernetes(
        self, toleration: dict[str, str], *, covers: bool
    ) -> None:
        assert tolerates(toleration, TAINT) is covers


class TestAShortage:
    def test_is_not_reported_if_enough_nodes_are_free(self) -> None:
        assert shortage(fits([node("a"), node("b")]), 2, WANTED) == ""

    def test_shows_the_reason_of_each_other_node(self) -> None:
        found = fits([node("a"), node("b"), node("c", gpus=7)], pod_on("b", 8))
        text = shortage(found, 3, WANTED)
        assert [fit.why in text for fit in found if fit.misfit] == [True, True]

    def test_is_reported_if_no_node_has_the_required_label(self) -> None:
        other = node("a")
        other["metadata"]["labels"] = {}
        assert misfit(other) is Misfit.LABEL
        assert shortage(fits([other]), 1, WANTED)

    @pytest.mark.parametrize(
        "site",
        [
            Kubernetes(queue="a4"),
            Kubernetes(suspend=True),
            Kubernetes(flex_start=True),
            Kubernetes(autoscaling=True),
            Kubernetes(priority_class_name="high"),
        ],
    )
    def test_is_not_certain_if_nodes_may_become_free_or_be_added(self, site: Kubernetes) -> None:
        assert expected_nodes(Site(kubernetes=site))
        assert not expected_nodes(Site())


class TestTheRequestOfARun:
    def requested(self, machine: str, **of_site: Any) -> PodRequest:
        site = Kubernetes(**of_site)
        return pod_request(pod_settings(load_machine(machine).value.kubernetes, site), site)

    @pytest.mark.parametrize(("machine", "tolerated"), [("cpu", False), ("a4-highgpu-8g", True)])
    def test_tolerates_the_taint_of_gpus_if_the_pods_do(
        self, machine: str, *, tolerated: bool
    ) -> None:
        found = self.requested(machine)
        assert any(tolerates(one, TAINT) for one in found.tolerations) is tolerated

    def test_is_the_gpus_of_the_machine_beside_other_limits_of_the_site(self) -> None:
        found = self.requested("a4-highgpu-8g", resources={"limits": {"memory": "500Gi"}})
        assert (found.resource, found.amount) == (GPU, 8)
