"""Choose the nodes that can run a pod of a run, from nodes and pods of the API."""

from __future__ import annotations

from typing import Any

import pytest
from tests.factories.kubernetes import GPU, GPU_TAINT, node, pod_on

from accept.backends.kubernetes.scheduling import (
    PodRequest,
    affinity_matches,
    node_fits,
    pod_request,
    requested_amount,
    shortage,
    tolerates,
    whole_number,
)
from accept.config import Site, load_machine
from accept.config.kubernetes import Kubernetes

WANTED = PodRequest(
    selector={"kind": "b200"},
    tolerations=({"key": GPU, "operator": "Exists"},),
    resource=GPU,
    amount=8,
)


def why(one: dict[str, Any], *pods: dict[str, Any], pod_request: PodRequest = WANTED) -> str:
    (fit,) = node_fits([one], pods, pod_request)
    return fit.why


class TestANode:
    def test_that_is_ready_and_free_is_good(self) -> None:
        assert why(node("a")) == ""

    def test_counts_what_pods_there_ask_for(self) -> None:
        assert why(node("a"), pod_on("a", 2)) == f"6 of its 8 {GPU} are free, 8 are wanted"
        assert why(node("a"), pod_on("b", 2)) == ""

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_does_not_count_pods_that_ended(self, phase: str) -> None:
        assert why(node("a"), pod_on("a", 8, phase)) == ""

    def test_that_has_lost_a_gpu_is_no_good(self) -> None:
        assert why(node("a", gpus=7)) == f"it has 7 {GPU}, 8 are wanted"

    def test_that_is_not_ready_is_no_good(self) -> None:
        assert why(node("a", ready="Unknown")) == "it is not Ready"

    def test_that_is_cordoned_is_no_good(self) -> None:
        taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        assert why(node("a", unschedulable=True, taints=[taint])) == "it is cordoned"

    def test_with_a_taint_that_nothing_tolerates_is_no_good(self) -> None:
        other = {"key": "team", "value": "x", "effect": "NoExecute"}
        assert (
            why(node("a", taints=[GPU_TAINT, other])) == "taint team=x:NoExecute is not tolerated"
        )

    def test_with_a_taint_that_only_prefers_is_good(self) -> None:
        assert why(node("a", taints=[{"key": "x", "effect": "PreferNoSchedule"}])) == ""

    def test_with_another_label_is_not_meant(self) -> None:
        one = node("a")
        one["metadata"]["labels"]["kind"] = "h200"
        (fit,) = node_fits([one], [], WANTED)
        assert (fit.meant, fit.why) == (False, "label kind is h200, b200 is wanted")

    def test_is_meant_only_where_the_lists_say_so(self) -> None:
        listed = PodRequest(
            selector={}, tolerations=WANTED.tolerations, include=("a",), exclude=("b",)
        )
        found = node_fits([node("a"), node("b"), node("c")], [], listed)
        assert [f.node for f in found if f.meant] == ["a"]

    def test_is_named_by_its_name_whatever_its_hostname_label(self) -> None:
        one = node("a")
        one["metadata"]["labels"]["kubernetes.io/hostname"] = "host-7"
        by_label = PodRequest(selector={}, tolerations=WANTED.tolerations, include=("host-7",))
        by_name = PodRequest(selector={}, tolerations=WANTED.tolerations, include=("a",))
        assert why(one, pod_request=by_name) == ""
        assert why(one, pod_request=by_label) == (
            "not among the nodes that are named; host-7 is its host name, not the name of the node"
        )

    def test_that_the_sites_affinity_rules_out_is_not_meant(self) -> None:
        asked = PodRequest(selector={}, tolerations=WANTED.tolerations, affinity=zone("b"))
        (fit,) = node_fits([node("a")], [], asked)
        assert (fit.meant, "kubernetes.affinity" in fit.why) == (False, True)


HARD = "requiredDuringSchedulingIgnoredDuringExecution"


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {HARD: {"nodeSelectorTerms": list(terms)}}}


def zone(*values: str) -> dict[str, Any]:
    return affinity({"matchExpressions": [{"key": "zone", "operator": "In", "values": values}]})


class TestAnAffinity:
    """Follow https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/ ."""

    NODE = {"metadata": {"name": "n1", "labels": {"zone": "a", "generation": "4"}}}

    @pytest.mark.parametrize(
        ("operator", "key", "values", "holds"),
        [
            ("In", "zone", ["a", "b"], True),
            ("In", "zone", ["b"], False),
            ("In", "rack", ["a"], False),
            ("NotIn", "zone", ["a"], False),
            ("NotIn", "rack", ["a"], True),
            ("Exists", "zone", [], True),
            ("Exists", "rack", [], False),
            ("DoesNotExist", "rack", [], True),
            ("DoesNotExist", "zone", [], False),
            ("Gt", "generation", ["3"], True),
            ("Lt", "generation", ["3"], False),
            ("Gt", "zone", ["3"], False),
            ("Gt", "rack", ["3"], False),
            ("Near", "zone", ["a"], False),
        ],
    )
    def test_asks_for_labels(
        self, operator: str, key: str, values: list[str], *, holds: bool
    ) -> None:
        rule = {"key": key, "operator": operator, "values": values}
        assert affinity_matches(affinity({"matchExpressions": [rule]}), self.NODE) is holds

    def test_asks_for_a_node_by_name(self) -> None:
        def named(operator: str, name: str) -> dict[str, Any]:
            rule = {"key": "metadata.name", "operator": operator, "values": [name]}
            return affinity({"matchFields": [rule]})

        assert affinity_matches(named("In", "n1"), self.NODE)
        assert not affinity_matches(named("In", "n2"), self.NODE)
        assert not affinity_matches(named("NotIn", "n1"), self.NODE)

    def test_takes_terms_as_alternatives_and_rules_together(self) -> None:
        good, bad = ({"key": "zone", "operator": "In", "values": [v]} for v in ("a", "b"))
        either = affinity({"matchExpressions": [bad]}, {"matchExpressions": [good]})
        assert affinity_matches(either, self.NODE)
        assert not affinity_matches(affinity({"matchExpressions": [good, bad]}), self.NODE)

    def test_without_a_rule_in_a_term_takes_no_node(self) -> None:
        assert not affinity_matches(affinity({}), self.NODE)

    @pytest.mark.parametrize(
        "value", ["x", {"nodeAffinity": 1}, {"nodeAffinity": {HARD: [1]}}, affinity()]
    )
    def test_that_is_none_is_left_to_the_api_to_refuse(self, value: Any) -> None:
        found = value if isinstance(value, dict) else {"nodeAffinity": value}
        assert affinity_matches(found, self.NODE) is (found != affinity())

    def test_that_only_prefers_takes_every_node(self) -> None:
        soft = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
        assert affinity_matches({"nodeAffinity": soft, "podAntiAffinity": {}}, self.NODE)


class TestWhatAPodAsksFor:
    def test_is_what_its_containers_ask_for_together(self) -> None:
        two = {"resources": {"limits": {GPU: "2"}}}
        assert requested_amount({"spec": {"containers": [two, two]}}, GPU) == 4

    def test_is_the_start_where_that_asks_for_more(self) -> None:
        eight = {"resources": {"limits": {GPU: "8"}}}
        assert requested_amount({"spec": {"initContainers": [eight], "containers": [{}]}}, GPU) == 8

    def test_holds_side_cars_as_well(self) -> None:
        one = {"restartPolicy": "Always", "resources": {"requests": {GPU: 1}}}
        two = {"resources": {"limits": {GPU: 2}}}
        assert requested_amount({"spec": {"initContainers": [one], "containers": [two]}}, GPU) == 3

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
    def test_what_kubernetes_says(self, toleration: dict[str, str], *, covers: bool) -> None:
        assert tolerates(toleration, GPU_TAINT) is covers


class TestAShortage:
    def test_is_none_where_enough_are_free(self) -> None:
        assert shortage(node_fits([node("a"), node("b")], [], WANTED), 2, WANTED) == ""

    def test_says_how_many_there_are_and_what_each_other_lacks(self) -> None:
        nodes = [node("a"), node("b"), node("c", gpus=7)]
        found = node_fits(nodes, [pod_on("b", 8)], WANTED)
        assert shortage(found, 3, WANTED) == (
            f"3 nodes are wanted, and there are 1 with 8 {GPU} free; "
            f"b: 0 of its 8 {GPU} are free, 8 are wanted; c: it has 7 {GPU}, 8 are wanted"
        )

    def test_says_which_label_was_looked_for_where_no_node_is_meant(self) -> None:
        other = node("a")
        other["metadata"]["labels"] = {}
        assert "label kind is missing, b200 is wanted" in shortage(
            node_fits([other], [], WANTED), 1, WANTED
        )

    def test_adds_nothing_where_every_node_is_good(self) -> None:
        assert shortage(node_fits([node("a")], [], WANTED), 2, WANTED) == (
            f"2 nodes are wanted, and there are 1 with 8 {GPU} free"
        )


class TestWhatARunAsksOfANode:
    def test_is_the_sites_affinity_too(self) -> None:
        machine = load_machine("a4-highgpu-8g").value
        site = Site(kubernetes=Kubernetes(affinity=zone("a"), tolerations=({"key": "mine"},)))
        found = pod_request(machine, site)
        assert found.affinity == zone("a")
        assert {"key": "mine"} in found.tolerations

    @pytest.mark.parametrize(("machine", "tolerated"), [("cpu", False), ("a4-highgpu-8g", True)])
    def test_tolerates_the_taint_of_gpus_where_the_pods_do(
        self, machine: str, *, tolerated: bool
    ) -> None:
        found = pod_request(load_machine(machine).value, Site())
        assert any(tolerates(one, GPU_TAINT) for one in found.tolerations) is tolerated

    def test_is_as_many_gpus_as_the_site_says_of_a_pod(self) -> None:
        machine = load_machine("a4-highgpu-8g").value
        assert pod_request(machine, Site(kubernetes=Kubernetes(gpus_per_pod=4))).amount == 4


def test_a_pod_asks_for_the_machines_gpus_whatever_else_the_site_limits() -> None:
    machine = load_machine("a4-highgpu-8g").value
    site = Site(kubernetes=Kubernetes(resources={"limits": {"memory": "500Gi"}}))
    found = pod_request(machine, site)
    assert (found.resource, found.amount) == (GPU, 8)
