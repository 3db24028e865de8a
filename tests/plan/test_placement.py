"""Requirements on a cluster before rendering: image, nodes, GPUs, results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories.command_line import accept

from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.plan.bundle import render
from accept.plan.helm_values import values_of
from accept.plan.resolve import Options, Resolved, resolve

KNOWN = "a4-highgpu-8g"
Resolve = Callable[..., Resolved]
Refuse = Callable[..., BadInput]


@pytest.fixture
def site(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str = "", rest: str = "") -> str:
        path = tmp_path / "site.yaml"
        path.write_text(f"kubernetes:\n  image: registry.example/accept:1\n{text}\n{rest}\n")
        return str(path)

    return write


@pytest.fixture
def run(site: Callable[..., str]) -> Resolve:
    def make(text: str = "", rest: str = "", machine: str = KNOWN, **options: Any) -> Resolved:
        return resolve(
            Options(machine=machine, **{"nodes": 2, "site": site(text, rest), **options})
        )

    return make


@pytest.fixture
def refuse(run: Resolve) -> Refuse:
    def make(*args: Any, **options: Any) -> BadInput:
        with pytest.raises(BadInput) as error:
            run(*args, **options)
        assert "\n" not in error.value.message
        return error.value

    return make


class TestBackend:
    def test_an_image_selects_kubernetes(self, run: Resolve) -> None:
        assert run().backend == "kubernetes"
        assert run(nodes=1).backend == "kubernetes"

    def test_hosts_select_ssh(self, run: Resolve) -> None:
        assert run(nodes=None, hosts=("a", "b")).backend == "ssh"

    def test_named_nodes_are_those_of_a_configured_cluster(self, run: Resolve) -> None:
        found = run(nodes=None, hosts=("a", "b"), named=True)
        assert (found.backend, found.plan.nodes) == ("kubernetes", 2)
        assert found.site.kubernetes.include_nodes == ("a", "b")
        assert resolve(Options(machine="cpu", hosts=("a", "b"), named=True)).backend == "ssh"

    def test_hosts_of_the_site_file_are_not_nodes(self, run: Resolve) -> None:
        found = run(rest="ssh: {hosts: [a, b, c]}", backend="kubernetes")
        assert (found.hosts, found.plan.nodes) == ((), 2)

    def test_hosts_have_longer_to_start(self, run: Resolve) -> None:
        assert run().plan.start_seconds == 900
        assert run(rest="startTimeout: 2h").plan.start_seconds == 7200


class TestNodes:
    def test_a_list_of_nodes_gives_their_number(self, run: Resolve) -> None:
        found = run(nodes=None, hosts=("n1", "n2", "n3"), named=True)
        data = values_of(found, render(found))
        assert (data.nodes, data.site.include_nodes) == (3, ("n1", "n2", "n3"))

    def test_the_sites_own_list_is_their_number(self, run: Resolve) -> None:
        assert run("  includeNodes: [a, b, c]", nodes=None).plan.nodes == 3
        assert run("  includeNodes: [a, b, c]", nodes=2).plan.nodes == 2

    def test_an_image_that_cannot_exist_is_refused(self, refuse: Refuse) -> None:
        assert refuse(image="a$b").code == Code.CONTAINER_IMAGE_NAME

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("", 900),
            ("  queue: q", 900),
            ("  flexStart: true", 86_400),
            ("  flexStart: true\n  queue: q", 900),
            ("  autoscaling: true\n  queue: q", 86_400),
        ],
    )
    def test_new_nodes_get_a_day_unless_a_queue_waits_for_them(
        self, run: Resolve, text: str, seconds: int
    ) -> None:
        assert run(text).plan.start_seconds == seconds

    def test_a_list_that_is_too_short_is_refused(self, refuse: Refuse) -> None:
        assert refuse("  includeNodes: [a]").code == Code.NODES_MISMATCH

    @pytest.mark.parametrize("name", ["Node-1", "a_b", "-a", "a:1"])
    def test_an_invalid_node_name_is_refused(self, refuse: Refuse, name: str) -> None:
        for key in ("includeNodes", "excludeNodes"):
            assert refuse(f"  {key}: [{name}, b]").code == Code.NODES_NAME
        error = refuse(nodes=None, hosts=(name, "b"), named=True)
        assert error.code == Code.NODES_NAME

    def test_a_requested_and_excluded_node_is_refused(self, refuse: Refuse) -> None:
        error = refuse("  excludeNodes: [b]", nodes=None, hosts=("a", "b"), named=True)
        assert error.code == Code.NODES_EXCLUDED
        assert refuse("  includeNodes: [a, b]\n  excludeNodes: [b]").code == Code.NODES_EXCLUDED

    @pytest.mark.parametrize("key", ["includeNodes", "excludeNodes"])
    def test_a_too_long_list_of_nodes_is_refused(
        self, run: Resolve, refuse: Refuse, key: str
    ) -> None:
        names = [f"n{i}" for i in range(257)]
        run(f"  {key}: {json.dumps(names[:256])}")
        error = refuse(f"  {key}: {json.dumps(names)}")
        assert error.code == Code.NODES_TOO_MANY_NAMES

    @pytest.mark.parametrize("given", ["n1,n2,n3", "n[1-3]", "@FILE"])
    def test_names_are_given_on_the_command_line(
        self, site: Callable[..., str], tmp_path: Path, given: str
    ) -> None:
        (tmp_path / "nodes").write_text("n1\nn2\nn3\n")
        nodes = given.replace("FILE", str(tmp_path / "nodes"))
        file = tmp_path / "v.yaml"
        done = accept("render", "-m", "cpu", "--nodes", nodes, "--site", site(), "-o", file)
        assert done.code == 0, done.err
        assert f"--values {file}" in done.err
        data = yaml.safe_load(file.read_text())
        assert (data["nodes"], data["site"]["includeNodes"]) == (3, ["n1", "n2", "n3"])

    def test_a_name_that_no_node_has_is_refused_with_the_reason(
        self, site: Callable[..., str]
    ) -> None:
        done = accept("render", "-m", "cpu", "--nodes=node_a,node_b", "--site", site())
        assert done.error == Code.NODES_NAME

    @pytest.mark.parametrize("given", ["x", "many", "-1", "1,2", "64x"])
    def test_invalid_nodes_are_refused(self, given: str) -> None:
        assert accept("render", "-m", "cpu", f"--nodes={given}").error == Code.NODES_SYNTAX


class TestGpus:
    @pytest.mark.parametrize("how", ["option", "site", "pod"])
    def test_more_gpus_than_a_node_has_are_refused(self, refuse: Refuse, how: str) -> None:
        if how == "option":
            error = refuse(gpus_per_node=12)
        elif how == "site":
            error = refuse(rest="gpusPerNode: 12")
        else:
            error = refuse("  gpusPerPod: 12")
        assert error.code == Code.GPUS_PER_NODE
        assert "1, 2, 4, 8" in error.hint

    @pytest.mark.parametrize(
        ("text", "options", "asked", "tested"),
        [
            ("", {}, None, None),
            ("", {"gpus_per_node": 8}, None, None),
            ("", {"gpus_per_node": 4}, None, 4),
            ("", {"gpus_per_node": 4, "nodes": 1}, 4, 4),
            ("  gpusPerPod: 4", {}, 4, 4),
            ("  gpusPerPod: 4", {"gpus_per_node": 2}, 4, 2),
            ("  gpusPerPod: 8", {}, None, None),
        ],
    )
    def test_of_a_pod_may_differ_from_those_that_are_tested(
        self,
        run: Resolve,
        text: str,
        options: dict[str, Any],
        asked: int | None,
        tested: int | None,
    ) -> None:
        found = run(text, **options)
        assert (found.gpus_per_pod, found.plan.gpus_used) == (asked, tested)
        limits = values_of(found, render(found)).pod.resources["limits"]
        assert limits == {"nvidia.com/gpu": asked or 8}
        # Bounds of collectives are about whole nodes, those of single GPUs hold for a part too.
        kinds = {reference.metric == "busbw" for reference in found.plan.references}
        assert kinds == ({True, False} if tested is None else {False})

    def test_of_a_pod_must_be_enough_for_the_test(self, refuse: Refuse) -> None:
        error = refuse("  gpusPerPod: 2", gpus_per_node=4)
        assert error.code == Code.SITE_GPUS_PER_POD

    def test_a_generic_machine_needs_a_number_of_gpus(self, run: Resolve, refuse: Refuse) -> None:
        assert refuse(machine="gpu").code == Code.MACHINE_GPU_COUNT
        found = run("  gpusPerPod: 8", machine="gpu")
        assert (found.gpus_per_pod, found.plan.gpus_used) == (8, None)

    def test_pods_take_as_many_as_a_node_has(self, run: Resolve, refuse: Refuse) -> None:
        four = "  resources: {limits: {nvidia.com/gpu: 4}}"
        error = refuse(four, machine="a4-highgpu-8g")
        assert error.code == Code.MACHINE_GPU_COUNT
        assert "4 nvidia.com/gpu (limits), and machine a4-highgpu-8g has 8" in error.message
        run(f"{four}\n  gpusPerPod: 4", machine="a4-highgpu-8g")

    def test_gpus_of_a_machine_without_gpus_are_refused(self, refuse: Refuse) -> None:
        assert refuse("  gpusPerPod: 1", machine="cpu").code == Code.GPUS_PER_NODE


class TestResults:
    def test_render_reports_where_evidence_stays(self, site: Callable[..., str]) -> None:
        done = accept("render", "-m", "cpu", "-n", 2, "--site", site())
        assert "index 0 for 10 min" in done.err
        quiet = accept("render", "-q", "-m", "cpu", "-n", 2, "--site", site())
        assert (quiet.err, quiet.out) == ("", done.out)

    @pytest.mark.parametrize(
        "rest",
        [
            "results: {location: gs://b/p}",
            "results: {volume: {persistentVolumeClaim: {claimName: c}}}",
        ],
    )
    def test_a_results_location_needs_no_note(self, site: Callable[..., str], rest: str) -> None:
        done = accept("render", "-m", "cpu", "-n", 2, "--site", site("", rest))
        assert done.code == 0
        assert "results.location" not in done.err

    @pytest.mark.parametrize("place", ["/data", "file:///data", "/data2/x"])
    def test_a_folder_inside_the_pod_is_refused(self, refuse: Refuse, place: str) -> None:
        mounted = (
            "  extraVolumes: [{name: d, hostPath: {path: /d}}]\n"
            "  extraVolumeMounts: [{name: d, mountPath: /data2/y}]"
        )
        error = refuse(mounted, f"results: {{location: '{place}'}}")
        assert error.code == Code.SITE_RESULTS_IN_POD

    def test_a_mounted_folder_is_accepted(self, run: Resolve) -> None:
        mounted = (
            "  extraVolumes: [{name: d, hostPath: {path: /d}}]\n"
            "  extraVolumeMounts: [{name: d, mountPath: /data}]"
        )
        assert run(mounted, "results: {location: /data/runs}").notes == ()
