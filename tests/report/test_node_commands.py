"""Commands for the nodes that a verdict accuses, from their ids at the provider."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from tests.factories.command_line import accept
from tests.factories.sample_evidence import verdict_of

from accept.config.resources import demo
from accept.core.causes import Cause
from accept.core.verdict import Strength, Suspect, SuspectKind
from accept.evidence import archive
from accept.report.node_commands import node_commands, saved_provider_ids

GOOGLE = "gce://my-project/us-central1-a/gke-n1"
AWS = "aws:///us-west-2-lax-1a/i-0abc12"
AZURE = (
    "azure:///subscriptions/1-2/resourceGroups/mc_a/providers/Microsoft.Compute/"
    "virtualMachineScaleSets/aks-gpu-vmss/virtualMachines/3"
)


def suspect(
    cause: Cause = Cause.SLOW_OUTLIER,
    *hosts: str,
    kind: SuspectKind = SuspectKind.NODE,
    strength: Strength = Strength.STRONG,
) -> Suspect:
    return Suspect(kind=kind, hosts=hosts or ("n1",), cause=cause, strength=strength, why="slow")


def commands(*suspects: Suspect, **ids: str) -> list[list[str]]:
    """Return the words of each command, as a shell reads them."""
    verdict = replace(verdict_of(), suspects=suspects)
    return [shlex.split(line) for line in node_commands(verdict, ids)]


def test_take_the_node_out_of_service() -> None:
    assert commands(suspect(), n1="") == [
        ["kubectl", "cordon", "n1"],
        ["kubectl", "label", "node", "n1", "accept-cause=slow-outlier", "--overwrite"],
    ]


#: An id -> the command of its provider, with the provider's word for the fault and our cause.
REPORTS = {
    GOOGLE: """gcloud compute instances report-host-as-faulty gke-n1 --project=my-project
        --zone=us-central1-a --disruption-schedule=IMMEDIATE
        --fault-reasons=behavior={word},description={cause}""",
    AWS: """aws ec2 report-instance-status --region us-west-2 --instances i-0abc12
        --status impaired --reason-codes {word} --description {cause}""",
    AZURE: f"""az rest --method post --url
        https://management.azure.com{AZURE[8:]}/redeploy?api-version=2024-07-01""",
}


@pytest.mark.parametrize(
    ("provider_id", "cause", "word"),
    [
        (GOOGLE, Cause.SLOW_OUTLIER, "PERFORMANCE"),
        (GOOGLE, Cause.WRONG_DATA, "SILENT_DATA_CORRUPTION"),
        (GOOGLE, Cause.GPU_ECC, "UNRECOVERABLE_GPU_ERROR"),
        (AWS, Cause.SLOW_OUTLIER, "performance-other"),
        (AZURE, Cause.SLOW_OUTLIER, ""),
    ],
)
def test_report_a_faulty_host_to_its_provider(provider_id: str, cause: Cause, word: str) -> None:
    expected = REPORTS[provider_id].format(word=word, cause=cause)
    assert commands(suspect(cause), n1=provider_id)[-1] == expected.split()


@pytest.mark.parametrize("cause", [Cause.TOOL_MISSING, Cause.UNREACHABLE_DNS, Cause.GPU_SETTINGS])
def test_report_no_fault_that_a_provider_cannot_repair(cause: Cause) -> None:
    assert {words[0] for words in commands(suspect(cause), n1=GOOGLE)} == {"kubectl"}


@pytest.mark.parametrize(
    "innocent",
    [
        suspect(kind=SuspectKind.SWITCH),
        suspect(strength=Strength.WEAK),
        suspect(Cause.SLOW_OUTLIER, "elsewhere"),
    ],
)
def test_accuse_only_nodes_of_the_cluster_that_are_bad_themselves(innocent: Suspect) -> None:
    assert commands(innocent, n1=GOOGLE) == []


def test_are_none_after_injected_faults() -> None:
    verdict = replace(verdict_of(), suspects=(suspect(),), injected=("slow",))
    assert node_commands(verdict, {"n1": GOOGLE}) == ()


@pytest.mark.parametrize(
    "text", ["gce://p/z/$(reboot)", "gce://p/z/a b", "aws:///z;reboot/i-1", "x"]
)
def test_contain_nothing_that_a_shell_interprets(text: str) -> None:
    assert {words[0] for words in commands(suspect(), n1=text)} == {"kubectl"}
    assert commands(suspect(Cause.SLOW_OUTLIER, "n1;reboot"), **{"n1;reboot": GOOGLE}) == []


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '[{"name": "n1"}]'])
def test_need_no_saved_nodes(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster").mkdir()
    assert saved_provider_ids(tmp_path) == {}
    (tmp_path / "cluster" / "nodes.json").write_text(text)
    assert set(saved_provider_ids(tmp_path).values()) <= {""}


def test_use_the_nodes_that_were_collected(tmp_path: Path) -> None:
    _save_nodes(tmp_path)
    assert saved_provider_ids(tmp_path) == {"n1": GOOGLE}


def _save_nodes(run: Path, name: str = "n1") -> None:
    (run / "cluster").mkdir()
    nodes = [{"name": name, "providerID": GOOGLE}]
    (run / "cluster" / "nodes.json").write_text(json.dumps(nodes))


def test_use_no_nodes_beside_evidence_of_others(tmp_path: Path) -> None:
    archive.unpack_evidence(demo(), tmp_path / "evidence", source="demo")
    _save_nodes(tmp_path, "gpu17")
    assert accept("show", "nodes", str(tmp_path), "--commands").out == ""
