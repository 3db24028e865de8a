"""A first site file, from the objects of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.factories.api_server import ApiServer
from tests.factories.command_line import accept, refused
from tests.factories.kubernetes import listed, node

from accept.backends.kubernetes.client import Api, find_place
from accept.backends.kubernetes.survey import Survey, match_networks, survey_cluster
from accept.backends.protocol import Question
from accept.commands import cluster
from accept.config import load_machine, load_site
from accept.config.images import PublicImage, images_for, public_images
from accept.core.error_codes import Code
from accept.core.errors import BadInput

pytestmark = pytest.mark.usefixtures("nowhere")


class TestASiteFile:
    SEEN = Survey(
        context="lab",
        namespace="gpu",
        questions=(),
        networks={"a4-highgpu-8g": (("eth0", "default"), ("eth2", "my-rdma-0"))},
        claims={},
        jobsets=True,
        notes=(),
    )

    def read(self, tmp_path: Path, text: str) -> Any:
        file = tmp_path / "site.yaml"
        file.write_text(text, encoding="utf-8")
        return load_site(str(file)).value

    def test_can_be_read_by_accept(self, tmp_path: Path) -> None:
        answers = {
            "machine": "a4-highgpu-8g",
            "queue": "a4",
            "serviceAccount": "runner",
            "image": "img:1",
            "results": "gs://bucket/x",
        }
        site = self.read(tmp_path, self.SEEN.site_text(answers))
        pods = site.kubernetes
        assert (site.backend, pods.namespace, pods.queue) == ("kubernetes", "gpu", "a4")
        assert (site.machine, pods.topology) == ("a4-highgpu-8g", None)
        assert (pods.image, pods.service_account) == ("img:1", "runner")
        assert [n.network for n in pods.networks] == ["default", "my-rdma-0"]
        assert site.results.location == "gs://bucket/x"

    def test_lists_the_settings_that_are_still_open(self, tmp_path: Path) -> None:
        text = self.SEEN.site_text({"machine": "gpu"})
        assert self.read(tmp_path, text).kubernetes.image is None
        assert "kubernetes.image" in text.partition("name:")[0]

    @pytest.mark.parametrize("image", public_images(), ids=lambda one: one.image)
    def test_states_what_a_public_image_is_not_known_to_have(
        self, tmp_path: Path, image: PublicImage
    ) -> None:
        text = self.SEEN.site_text({"machine": "gpu", "image": image.image})
        assert self.read(tmp_path, text).kubernetes.image == image.image
        head = text.partition("name:")[0]
        assert image.source in head
        assert all(tool in head for tool in image.unknown)

    def test_is_never_written_over_another(self, tmp_path: Path) -> None:
        (tmp_path / "site.yaml").write_text("mine\n", encoding="utf-8")
        refused("init", tmp_path / "site.yaml", error=Code.OUTPUT_EXISTS)

    @pytest.mark.parametrize(
        ("there", "matched"),
        [
            (("default", "x-rdma-1", "x-rdma-0"), ("x-rdma-0", "x-rdma-1")),
            (("gvnic-1", "sub-rdma-10", "sub-rdma-9"), ("sub-rdma-9", "sub-rdma-10")),
            (("a-0", "a-1"), ("a-0", "a-1")),
            (("x-rdma-0",), None),
        ],
    )
    def test_has_the_networks_in_the_order_of_their_numbers(
        self, there: tuple[str, ...], matched: tuple[str, ...] | None
    ) -> None:
        wanted = (("eth0", "default"), ("eth2", "rdma-0"), ("eth3", "rdma-1"))
        found = match_networks(wanted, there)
        named = matched and dict(zip(("eth0", "eth2", "eth3"), ("default", *matched), strict=True))
        assert found == (tuple(named.items()) if named else None)


def seen() -> Survey:
    """Return what `accept init` detects in the cluster of the current context."""
    return survey_cluster(Api(find_place()))


def named(*names: str, namespace: str = "lab") -> dict[str, Any]:
    """Return a list of objects with these names."""
    return listed(*({"metadata": {"name": one, "namespace": namespace}} for one in names))


def question(survey: Survey, key: str) -> Question | None:
    return next((one for one in survey.questions if one.key == key), None)


KUEUE = "/apis/kueue.x-k8s.io"
OWN_QUEUES = "v1beta1/namespaces/lab/localqueues"
LISTED = {"items": named("a4")["items"] + named("b", namespace="other")["items"]}


@pytest.mark.parametrize(
    ("answers", "queues", "noted"),
    [
        ({"v1beta1/localqueues": LISTED}, ("a4",), ["other"]),
        # Permission for the namespace is enough.
        (
            {"v1beta2/localqueues": 403, "v1beta1/localqueues": 403, OWN_QUEUES: named("a4")},
            ("a4",),
            [],
        ),
        (
            {"v1beta2/localqueues": 403, "v1beta2/namespaces/lab/localqueues": 403},
            None,
            ["cannot be listed"],
        ),
    ],
)
def test_queues_are_those_of_the_namespace(
    server: ApiServer, answers: dict[str, Any], queues: tuple[str, ...] | None, noted: list[str]
) -> None:
    for path, answer in answers.items():
        server.answer_with(f"{KUEUE}/{path}", answer)
    found = seen()
    asked = question(found, "queue")
    assert (asked.candidates if asked else None) == queues
    notes = [note for note in found.notes if "queues" in note]
    for note, part in zip(notes, noted, strict=True):
        assert part in note


BLOCK, RACK = "cloud.google.com/gce-topology-block", "cloud.google.com/gce-topology-subblock"


@pytest.mark.parametrize("queues", [("a4",), ()])
def test_a_topology_is_offered_with_a_queue(server: ApiServer, queues: tuple[str, ...]) -> None:
    levels = [{"nodeLabel": one} for one in (BLOCK, RACK, "kubernetes.io/hostname")]
    topology = {"metadata": {"name": "gke"}, "spec": {"levels": levels}}
    server.answer_with(f"{KUEUE}/v1beta1/topologies", listed(topology))
    server.answer_with(f"{KUEUE}/v1beta1/localqueues", named(*queues))
    asked = question(seen(), "topology")
    assert (asked is not None) is bool(queues)
    if asked:
        assert asked.candidates == (BLOCK, RACK, "none")
        assert (asked.optional, asked.default) == (True, "none")


@pytest.mark.parametrize(("answer", "required"), [(BLOCK, BLOCK), ("none", None), ("", None)])
def test_a_topology_is_in_the_site_file(tmp_path: Path, answer: str, required: str | None) -> None:
    text = TestASiteFile.SEEN.site_text({"queue": "a4", "topology": answer})
    site = TestASiteFile().read(tmp_path, text).kubernetes
    assert (site.topology.required if site.topology else None) == required


@pytest.mark.parametrize(
    ("own", "others", "shown"),
    [
        (404, named("kube-system", "default", "team"), ["default, kube-system, team"]),
        (404, 403, [""]),
        (403, 403, []),
        ({"metadata": {"name": "lab"}}, 403, []),
    ],
    ids=["missing", "missing, and others may not be seen", "may not be seen", "exists"],
)
def test_a_missing_namespace_gives_a_note_with_what_to_do(
    server: ApiServer, own: Any, others: Any, shown: list[str]
) -> None:
    server.answer_with("/api/v1/namespaces/lab", own)
    server.answer_with("/api/v1/namespaces", others)
    notes = [note for note in seen().notes if "kubectl create namespace lab" in note]
    for note, part in zip(notes, shown, strict=True):
        assert part in note


class TestTheNetworksOfASiteFile:
    """On a GKE cluster, as detected by `accept init`."""

    MACHINE = "a4-highgpu-8g"
    NETWORKING = "/apis/networking.gke.io/v1"

    @pytest.fixture(autouse=True)
    def nodes(self, server: ApiServer) -> None:
        there = node("n1")
        there["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-b200"}
        server.answer_with("/api/v1/nodes", listed(there))

    def test_are_those_that_pods_can_name(self, server: ApiServer) -> None:
        found = named("default", "gvnic-1", *(f"my-rdma-{n}" for n in range(8)))
        server.answer_with(f"{self.NETWORKING}/networks", found)
        assert ("eth2", "my-rdma-0") in seen().networks[self.MACHINE]

    def test_are_replaced_by_claims_if_a_driver_provides_the_nics(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        server.answer_with(f"{self.NETWORKING}/networks", named("default"))
        server.answer_with("/apis/resource.k8s.io/v1/deviceclasses", named("mrdma.google.com"))
        text = seen().site_text({"machine": self.MACHINE})
        site = TestASiteFile().read(tmp_path, text).kubernetes
        assert site.networks is None
        assert site.resource_claims == load_machine(self.MACHINE).value.kubernetes.nic_claims

    @pytest.mark.parametrize("networks", [403, {"items": []}])
    def test_are_never_parameters_of_networks(self, server: ApiServer, networks: Any) -> None:
        """A pod names a Network; the name of a GKENetworkParamSet can differ from it."""
        server.answer_with(f"{self.NETWORKING}/networks", networks)
        sets = [f"set-rdma-{n}" for n in range(8)]
        server.answer_with(f"{self.NETWORKING}/gkenetworkparamsets", named("gvnic-1", *sets))
        found = seen()
        notes = "\n".join(found.notes)
        assert found.networks == {}
        assert "gvnic-1, set-rdma-0" in notes
        assert f"{self.MACHINE} wants the networks" in notes


def test_without_permission_to_list_nodes_no_machine_and_no_number_is_claimed(
    server: ApiServer,
) -> None:
    server.answer_with("/api/v1/nodes", 403)
    found = seen()
    machine = question(found, "machine")
    assert machine is not None
    assert machine.candidates == ()
    assert not any("GPU" in note for note in found.notes)


@pytest.mark.parametrize(
    ("gpu", "machine"),
    [("nvidia-b200", "a4-highgpu-8g"), ("nvidia-gb200", "a4x-highgpu-4g"), ("", "cpu")],
)
def test_init_takes_the_image_of_the_machines_maker_and_no_account_that_nobody_chose(
    server: ApiServer, tmp_path: Path, gpu: str, machine: str
) -> None:
    there = node("n1")
    there["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": gpu}
    server.answer_with("/api/v1/nodes", listed(there))
    server.answer_with("/api/v1/namespaces/lab/serviceaccounts", named("default", "weak"))
    file = tmp_path / "site.yaml"
    done = accept("init", file, "--backend", "kubernetes", "--machine", machine)
    assert done.code == 0, done.err
    site = load_site(str(file)).value.kubernetes
    public = images_for(machine)
    assert site.image == (public[0].image if public else None)
    assert site.service_account is None
    (line,) = (line for line in done.err.splitlines() if "--service-account" in line)
    assert "weak" in line


def test_a_site_file_for_any_gpus_has_the_number_that_most_nodes_have(
    server: ApiServer, tmp_path: Path
) -> None:
    nodes = [node(f"n{index}") for index in range(3)]
    nodes[0]["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-b200"}
    for one, gpus in zip(nodes, (8, 8, 4), strict=True):
        one["status"]["capacity"] = {"nvidia.com/gpu": str(gpus)}
    server.answer_with("/api/v1/nodes", listed(*nodes))
    file = tmp_path / "site.yaml"
    done = accept("init", file, "--backend=kubernetes", "--machine=gpu", "--image=img:1")
    assert "a4-highgpu-8g: 1 node, no known machine: 2 nodes with GPUs" in done.err
    assert load_site(str(file)).value.kubernetes.gpus_per_pod == 8
    assert "gpusPerPod" not in seen().site_text({"machine": "a4-highgpu-8g"})


TWO = Question(key="queue", text="Queue", option="queue", candidates=("a", "b"))
OPEN = Question(
    key="image", text="Image", option="image", optional=True, by_machine={"a": ("one",)}
)


@pytest.mark.parametrize(
    ("asked", "given", "answer"),
    [
        (replace(TWO, candidates=("a4",)), None, "a4"),
        (TWO, "b", "b"),
        (TWO, "none", ""),
        (OPEN, None, ""),
        (OPEN.for_machine("a"), None, "one"),
        (OPEN.for_machine("a"), "none", ""),
        (OPEN.for_machine("b"), None, ""),
    ],
)
def test_a_question_has_an_answer_without_a_person(
    asked: Question, given: str | None, answer: str
) -> None:
    assert cluster._answer(asked, given, ask=False) == answer
    # A question that was answered is not asked.
    assert given is None or cluster._answer(asked, given, ask=True) == answer


def test_a_question_that_nobody_can_answer_is_an_error_with_the_candidates() -> None:
    with pytest.raises(BadInput, match="a, b") as caught:
        cluster._answer(TWO, None, ask=False)
    assert caught.value.code is Code.SITE_QUESTION
    assert "--queue" in caught.value.hint
