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


def labelled(**labels: str) -> dict[str, Any]:
    one = node("a")
    one["metadata"]["labels"] = labels
    return one


CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
OTHER = {"key": "team", "value": "x", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("one", "pods", "misfit", "taints"),
    [
        (node("a"), [], None, ()),
        (node("a"), [pod_on("a", 2)], Misfit.GPUS_IN_USE, ()),
        (node("a"), [pod_on("b", 2)], None, ()),
        (node("a"), [pod_on("a", 8, "Succeeded"), pod_on("a", 8, "Failed")], None, ()),
        (node("a", gpus=7), [], Misfit.GPUS_IN_USE, ()),
        (node("a", ready="Unknown"), [], Misfit.NOT_READY, ()),
        (node("a", unschedulable=True, taints=[CORDONED]), [], Misfit.CORDONED, ()),
        (node("a", taints=[GPU_TAINT, OTHER]), [], Misfit.TAINT, ("team=x:NoExecute",)),
        (node("a", taints=[{"key": "x", "effect": "PreferNoSchedule"}]), [], None, ()),
        (labelled(kind="h200"), [], Misfit.LABEL, ()),
        (labelled(), [], Misfit.LABEL, ()),
    ],
)
def test_a_node_fits_or_has_a_reason(
    one: dict[str, Any], pods: list[dict[str, Any]], misfit: Misfit | None, taints: tuple[str, ...]
) -> None:
    (fit,) = fits([one], *pods)
    assert (fit.misfit, fit.taints) == (misfit, taints)
    assert fit.matches is (misfit is not Misfit.LABEL)
    assert bool(shortage([fit], 1, WANTED)) is (misfit is not None)


@pytest.mark.parametrize(
    ("label", "named", "left_out"),
    [("999", (), True), ("1001", (), False), ("soon", (), False), ("999", ("a",), False)],
)
def test_a_node_is_left_out_if_its_host_is_maintained_during_the_run(
    label: str, named: tuple[str, ...], *, left_out: bool
) -> None:
    due = labelled(**{"kind": "b200", "cloud.google.com/scheduled-maintenance-time": label})
    (fit,) = fits([due], wanted=replace(WANTED, include=named, end=1000))
    assert (fit.misfit is Misfit.MAINTENANCE) is left_out


def test_nodes_match_only_if_the_lists_of_nodes_allow_it() -> None:
    wanted = PodRequest(selector={}, tolerations=WANTED.tolerations, include=("a",), exclude=("b",))
    found = fits([node("a"), node("b"), node("c")], wanted=wanted)
    assert [f.misfit for f in found] == [None, Misfit.NOT_INCLUDED, Misfit.NOT_INCLUDED]
    assert [f.node for f in found if f.matches] == ["a"]


def gpus(number: int, **more: object) -> dict[str, object]:
    return {"resources": {"limits": {GPU: str(number)}}, **more}


@pytest.mark.parametrize(
    ("spec", "amount"),
    [
        ({"containers": [gpus(2), gpus(2)]}, 4),
        # The larger one, because init containers end before the others start; sidecars do not.
        ({"initContainers": [gpus(8)], "containers": [{}]}, 8),
        ({"initContainers": [gpus(1, restartPolicy="Always")], "containers": [gpus(2)]}, 3),
    ],
)
def test_a_pod_requests_what_its_containers_need(spec: dict[str, Any], amount: int) -> None:
    assert Pod.read({"spec": spec}).requests == {GPU: amount}


@pytest.mark.parametrize(
    ("text", "number"),
    [("8", 8), (8, 8), ("2k", 2000), ("x", 0), (None, 0), ("²", 0), ("9" * 5000, 0)],
)
def test_an_amount_is_a_whole_number(text: object, number: int) -> None:
    assert whole_number(text) == number


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
def test_a_toleration_covers_the_same_taints_as_in_kubernetes(
    toleration: dict[str, str], *, covers: bool
) -> None:
    assert tolerates(toleration, TAINT) is covers


def test_a_shortage_shows_the_reason_of_each_other_node() -> None:
    found = fits([node("a"), node("b"), node("c", gpus=7)], pod_on("b", 8))
    text = shortage(found, 3, WANTED)
    assert [fit.why in text for fit in found if fit.misfit] == [True, True]


def test_a_shortage_names_a_requested_node_that_does_not_exist() -> None:
    found = fits([node("a")])
    assert "z: no such node" in shortage(found, 2, replace(WANTED, include=("a", "z")))


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
def test_a_shortage_is_not_certain_if_nodes_may_become_free_or_be_added(site: Kubernetes) -> None:
    assert expected_nodes(Site(kubernetes=site))
    assert not expected_nodes(Site())


@pytest.mark.parametrize(
    ("machine", "resource", "amount", "tolerated"),
    [("cpu", "", 0, False), ("a4-highgpu-8g", GPU, 8, True)],
)
def test_a_run_requests_the_gpus_of_the_machine_beside_other_limits_of_the_site(
    machine: str, resource: str, amount: int, *, tolerated: bool
) -> None:
    site = Kubernetes(resources={"limits": {"memory": "500Gi"}})
    found = pod_request(pod_settings(load_machine(machine).value.kubernetes, site), site)
    assert (found.resource, found.amount) == (resource, amount)
    assert any(tolerates(one, TAINT) for one in found.tolerations) is tolerated
