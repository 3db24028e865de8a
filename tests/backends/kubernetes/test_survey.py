"""A first site file, from the objects of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.factories.api_server import ApiServer
from tests.factories.command_line import accept, refused
from tests.factories.kubernetes import node

from accept.backends.kubernetes import client
from accept.backends.kubernetes import client as kubernetes_client
from accept.backends.kubernetes.survey import Survey, match_networks, survey_cluster
from accept.backends.protocol import Note, Question, Remark
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
        if matched is None:
            assert found is None
        else:
            assert found == (("eth0", "default"), ("eth2", matched[0]), ("eth3", matched[1]))


class TestTheQueuesOfACluster:
    """As detected by `accept init`."""

    GROUP = "/apis/kueue.x-k8s.io"
    OWN = "namespaces/lab/localqueues"

    def queues(self) -> tuple[tuple[str, ...], list[Note]]:
        """Return the candidates of the question, and the notes about queues."""
        seen = survey_cluster(client.Api(kubernetes_client.find_place()))
        found = [q.candidates for q in seen.questions if q.key == "queue"]
        return (found[0] if found else ()), [n for n in seen.notes if "queues" in n.text]

    def listed(self, *names: tuple[str, str]) -> dict[str, Any]:
        return {"items": [{"metadata": {"name": n, "namespace": ns}} for ns, n in names]}

    def test_are_those_of_the_namespace_with_a_note_about_others(self, server: ApiServer) -> None:
        found = self.listed(("lab", "a4"), ("other", "b"))
        server.answer_with(f"{self.GROUP}/v1beta1/localqueues", found)
        queues, (note,) = self.queues()
        assert (queues, note.remark) == (("a4",), Remark.QUEUES_ELSEWHERE)
        assert "other" in note.text

    def test_need_only_permission_for_the_namespace(self, server: ApiServer) -> None:
        server.answer_with(f"{self.GROUP}/v1beta2/localqueues", 403)
        server.answer_with(f"{self.GROUP}/v1beta1/localqueues", 403)
        server.answer_with(f"{self.GROUP}/v1beta1/{self.OWN}", self.listed(("lab", "a4")))
        assert self.queues() == (("a4",), [])

    def test_that_the_user_may_not_list_give_a_single_note(self, server: ApiServer) -> None:
        for version in ("v1beta2", "v1beta1"):
            server.answer_with(f"{self.GROUP}/{version}/localqueues", 403)
            server.answer_with(f"{self.GROUP}/{version}/{self.OWN}", 403)
        queues, (note,) = self.queues()
        assert (queues, note.remark) == ((), Remark.NOT_LISTED)


class TestTheTopologyOfACluster:
    """Placement by Kueue, which `accept init` offers with a queue."""

    BLOCK, RACK = "cloud.google.com/gce-topology-block", "cloud.google.com/gce-topology-subblock"

    def questions(self, server: ApiServer, *, queues: bool) -> list[Question]:
        levels = [{"nodeLabel": one} for one in (self.BLOCK, self.RACK, "kubernetes.io/hostname")]
        topology = {"metadata": {"name": "gke"}, "spec": {"levels": levels}}
        kueue = "/apis/kueue.x-k8s.io/v1beta1"
        server.answer_with(f"{kueue}/topologies", {"items": [topology]})
        queue = {"metadata": {"name": "a4", "namespace": "lab"}}
        server.answer_with(f"{kueue}/localqueues", {"items": [queue] if queues else []})
        seen = survey_cluster(client.Api(kubernetes_client.find_place()))
        return [question for question in seen.questions if question.key == "topology"]

    def test_is_offered_with_a_queue(self, server: ApiServer) -> None:
        (question,) = self.questions(server, queues=True)
        assert question.candidates == (self.BLOCK, self.RACK, "none")
        assert question.optional
        assert question.default == "none"

    def test_is_not_offered_without_a_queue(self, server: ApiServer) -> None:
        assert self.questions(server, queues=False) == []

    @pytest.mark.parametrize(("answer", "required"), [(BLOCK, BLOCK), ("none", None), ("", None)])
    def test_is_in_the_site_file(self, tmp_path: Path, answer: str, required: str | None) -> None:
        text = TestASiteFile.SEEN.site_text({"queue": "a4", "topology": answer})
        site = TestASiteFile().read(tmp_path, text).kubernetes
        assert (site.topology.required if site.topology else None) == required


class TestTheNamespaceOfASiteFile:
    """As detected by `accept init`."""

    WHERE = "/api/v1/namespaces/lab"

    def notes(self) -> list[str]:
        """Return the notes about a missing namespace."""
        seen = survey_cluster(client.Api(kubernetes_client.find_place()))
        return [note.text for note in seen.notes if note.remark is Remark.NAMESPACE_MISSING]

    def test_gives_a_note_with_what_to_do_if_it_is_missing(self, server: ApiServer) -> None:
        named = [{"metadata": {"name": n}} for n in ("kube-system", "default", "team")]
        server.answer_with("/api/v1/namespaces", {"items": named})
        (text,) = self.notes()
        assert "kubectl create namespace lab" in text
        assert "default, kube-system, team" in text

    def test_gives_a_note_without_the_others_if_they_cannot_be_seen(
        self, server: ApiServer
    ) -> None:
        server.answer_with("/api/v1/namespaces", 403)
        (text,) = self.notes()
        assert "kubectl create namespace lab" in text

    @pytest.mark.parametrize("answer", [403, {"metadata": {"name": "lab"}}])
    def test_gives_no_note_if_it_exists_or_may_not_be_seen(
        self, server: ApiServer, answer: Any
    ) -> None:
        server.answer_with(self.WHERE, answer)
        assert self.notes() == []


class TestTheNetworksOfASiteFile:
    """On a GKE cluster, as detected by `accept init`."""

    NETWORKING = "/apis/networking.gke.io/v1"

    @pytest.fixture
    def server(self, server: ApiServer) -> ApiServer:
        there = node("n1")
        there["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-b200"}
        server.answer_with("/api/v1/nodes", {"items": [there]})
        return server

    def named(self, *names: str) -> dict[str, Any]:
        return {"items": [{"metadata": {"name": n}} for n in names]}

    def test_are_those_that_pods_can_name(self, server: ApiServer) -> None:
        found = self.named("default", "gvnic-1", *(f"my-rdma-{n}" for n in range(8)))
        server.answer_with(f"{self.NETWORKING}/networks", found)
        seen = survey_cluster(client.Api(kubernetes_client.find_place()))
        assert ("eth2", "my-rdma-0") in seen.networks["a4-highgpu-8g"]

    def test_are_replaced_by_claims_if_a_driver_provides_the_nics(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        machine = "a4-highgpu-8g"
        server.answer_with(f"{self.NETWORKING}/networks", self.named("default"))
        server.answer_with("/apis/resource.k8s.io/v1/deviceclasses", self.named("mrdma.google.com"))
        seen = survey_cluster(kubernetes_client.Api(kubernetes_client.find_place()))
        file = tmp_path / "site.yaml"
        file.write_text(seen.site_text({"machine": machine}), encoding="utf-8")
        site = load_site(str(file)).value.kubernetes
        assert site.networks is None
        assert site.resource_claims == load_machine(machine).value.kubernetes.nic_claims

    @pytest.mark.parametrize("networks", [403, {"items": []}])
    def test_are_never_parameters_of_networks(self, server: ApiServer, networks: Any) -> None:
        """A pod names a Network; the name of a GKENetworkParamSet can differ from it."""
        server.answer_with(f"{self.NETWORKING}/networks", networks)
        sets = [f"set-rdma-{n}" for n in range(8)]
        server.answer_with(f"{self.NETWORKING}/gkenetworkparamsets", self.named("gvnic-1", *sets))
        seen = survey_cluster(client.Api(kubernetes_client.find_place()))
        texts = {note.remark: note.text for note in seen.notes}
        assert seen.networks == {}
        assert "gvnic-1, set-rdma-0" in texts[Remark.NETWORK_PARAMETERS]
        assert Remark.NETWORKS_UNKNOWN in texts


class TestWithoutPermission:
    def test_to_list_nodes_no_machine_and_no_number_is_claimed(self, server: ApiServer) -> None:
        server.answer_with("/api/v1/nodes", 403)
        seen = survey_cluster(client.Api(kubernetes_client.find_place()))
        (machine,) = (q for q in seen.questions if q.key == "machine")
        assert machine.candidates == ()
        assert Remark.NODES not in [note.remark for note in seen.notes]


class TestTheServiceAccount:
    def test_is_named_and_not_taken_if_nobody_chose_it(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        accounts = [{"metadata": {"name": name}} for name in ("default", "weak")]
        server.answer_with("/api/v1/nodes", {"items": [node("n1")]})
        server.answer_with("/api/v1/namespaces/lab/serviceaccounts", {"items": accounts})
        file = tmp_path / "site.yaml"
        done = accept("init", file, "--backend", "kubernetes", "--machine", "cpu")
        assert done.code == 0, done.err
        assert load_site(str(file)).value.kubernetes.service_account is None
        (named,) = (line for line in done.err.splitlines() if "--service-account" in line)
        assert "weak" in named


class TestAQuestion:
    def test_with_one_candidate_is_not_asked(self) -> None:
        only = Question(key="queue", text="Queue", option="queue", candidates=("a4",))
        assert cluster._answer(only, None, ask=False) == "a4"

    def test_that_nobody_can_answer_is_an_error_with_the_candidates(self) -> None:
        two = Question(key="queue", text="Queue", option="queue", candidates=("a", "b"))
        with pytest.raises(BadInput, match="a, b") as caught:
            cluster._answer(two, None, ask=False)
        assert caught.value.code is Code.SITE_QUESTION
        assert "--queue" in caught.value.hint

    def test_that_was_answered_is_not_asked(self) -> None:
        two = Question(key="queue", text="Queue", option="queue", candidates=("a", "b"))
        assert cluster._answer(two, "b", ask=True) == "b"
        assert cluster._answer(two, "none", ask=True) == ""

    def test_stays_open_if_it_is_optional(self) -> None:
        image = Question(key="image", text="Image", option="image", optional=True)
        assert cluster._answer(image, None, ask=False) == ""

    @pytest.mark.parametrize(("machine", "answer"), [("a", "one"), ("b", "")])
    def test_has_the_default_of_the_machine(self, machine: str, answer: str) -> None:
        image = Question(
            key="image", text="Image", option="image", optional=True, by_machine={"a": ("one",)}
        )
        assert cluster._answer(image.for_machine(machine), None, ask=False) == answer
        assert cluster._answer(image.for_machine(machine), "none", ask=False) == ""


class TestTheImageOfASiteFile:
    """On a GKE cluster, as detected by `accept init`."""

    @pytest.mark.parametrize(
        ("gpu", "machine"),
        [("nvidia-b200", "a4-highgpu-8g"), ("nvidia-gb200", "a4x-highgpu-4g")],
    )
    def test_is_the_one_that_the_maker_of_the_machine_runs(
        self, server: ApiServer, tmp_path: Path, gpu: str, machine: str
    ) -> None:
        there = node("n1")
        there["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": gpu}
        server.answer_with("/api/v1/nodes", {"items": [there]})
        file = tmp_path / "site.yaml"
        done = accept("init", file, "--backend", "kubernetes", "--machine", machine)
        assert done.code == 0, done.err
        (first, *_) = images_for(machine)
        assert load_site(str(file)).value.kubernetes.image == first.image

    def test_stays_open_for_a_machine_without_a_public_image(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        server.answer_with("/api/v1/nodes", {"items": [node("n1")]})
        file = tmp_path / "site.yaml"
        done = accept("init", file, "--backend", "kubernetes", "--machine", "cpu")
        assert done.code == 0, done.err
        assert load_site(str(file)).value.kubernetes.image is None
