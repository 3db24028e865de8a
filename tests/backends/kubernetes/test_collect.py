"""Evidence of pods, from an archive and from a saved log, and evidence that is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.factories import sample_evidence
from tests.factories.api_server import api_server
from tests.factories.command_line import accept
from tests.factories.kubernetes import listed, running, state_of, stored_job

from accept.backends.kubernetes import collect as kubernetes_collect
from accept.backends.kubernetes.watch import FOLLOWED
from accept.commands.judged import judge_path
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.runner.launch import LOST
from accept.core.serde import dump
from accept.evidence import bucket as evidence_bucket
from accept.evidence import rundir

pytestmark = pytest.mark.usefixtures("nowhere")


def stored(**place: str) -> Path:
    """Write the folder of a submitted run, with its plan and job."""
    folder = rundir.create("run")
    (folder / rundir.RENDERED).mkdir()
    evidence.write(folder / rundir.JOB, json.dumps(dump(stored_job(**place))))
    evidence.write(folder / rundir.RENDERED / "plan.json", json.dumps(dump(sample_evidence.PLAN)))
    return folder


def console(**more: str) -> str:
    return sample_evidence.console(sample_evidence.record(), attempt="run", **more)


class TestEvidenceRebuiltFromALog:
    def collected(
        self,
        log: str | None,
        *,
        code: int | None = None,
        results: str = "",
        other: str = "",
        followed: str = "",
    ) -> tuple[Path, list[str]]:
        """Collect evidence from the logs of index 0 and of another pod, which ended.

        `followed` is the log of index 0 as far as it was read during the run.
        """
        folder = stored()
        logs = folder / kubernetes_collect.CLUSTER_FOLDER / "logs"
        logs.mkdir(parents=True)
        first, second = running(0), running(1)
        for pod, ended in ((first, code), (second, 22)):
            if ended is not None:
                done = {"terminated": {"exitCode": ended}}
                pod["status"]["containerStatuses"][0]["state"] = done
        for pod, text in ((first, log), (second, other)):
            if text is not None:
                (logs / f"{pod['metadata']['name']}.accept.log").write_text(text, encoding="utf-8")
        if followed:
            (folder / FOLLOWED).write_text(followed, encoding="utf-8")
        state = state_of(pods=[first, second])
        job = stored_job(results=results)
        target = folder / rundir.EVIDENCE
        return folder, kubernetes_collect._from_log(job, state, folder, target)

    @pytest.mark.parametrize(
        ("logs", "interruption"),
        [
            ({"log": console()}, ""),
            # The pod is gone, and its log was followed.
            ({"log": None, "followed": console(interruption="deleted")}, "deleted"),
            # Index 0 was killed in its second step; another pod has the records of the first.
            ({"log": "it began\n", "code": 137, "other": console(interruption=LOST)}, LOST),
        ],
        ids=["log", "followed log", "another pod"],
    )
    def test_is_judged_like_the_original_evidence(
        self, logs: dict[str, Any], interruption: str
    ) -> None:
        folder, missing = self.collected(**logs)
        verdict = judge_path(str(folder)).verdict
        expected = sample_evidence.verdict_of(
            sample_evidence.record(), interruption=interruption, attempt="run"
        )
        assert replace(verdict, version="", verified=None) == replace(expected, version="")
        assert "raw logs" in missing[0]
        assert accept("report", "run").code == 0
        assert (folder / rundir.EVIDENCE / evidence.REPORT).is_file()

    @pytest.mark.parametrize("log", [None, "it began\n", "-----BEGIN ACCEPT EVIDENCE----- x\ncut"])
    def test_is_an_interrupted_run_if_the_log_is_incomplete(self, log: str | None) -> None:
        folder, missing = self.collected(log)
        verdict = judge_path(str(folder)).verdict
        assert verdict.interruption
        assert verdict.exit == 5
        assert any("records" in line for line in missing)

    @pytest.mark.parametrize("code", [0, 3, 6, 7])
    @pytest.mark.parametrize(
        ("results", "where"),
        [
            ("/accept/results", "/accept/results/runs/run in the pods"),
            ("gs://bucket/x/", "accept judge gs://bucket/x/runs/run"),
            ("", "index 0 kept its records for a while"),
        ],
    )
    def test_of_a_run_that_ended_is_never_an_interrupted_run(
        self, monkeypatch: pytest.MonkeyPatch, code: int, results: str, where: str
    ) -> None:
        # As with thousands of records: then the log contains only the verdict.
        monkeypatch.setattr(evidence, "PACKED_LIMIT", 100)
        with pytest.raises(BadEvidence) as caught:
            self.collected(console(), code=code, results=results)
        assert caught.value.code is Code.KUBE_EVIDENCE_ELSEWHERE
        assert where in str(caught.value)
        assert "run-w-0-0-abcde.accept.log" in caught.value.hint


class TestEvidenceThatIsOnlyALog:
    """Index 0 is gone, and its results cannot be read at the moment."""

    PODS = "/api/v1/namespaces/lab/pods"

    @pytest.fixture
    def bucket(self, tmp_path: Path) -> Path:
        """Return a bucket with the measurements from before index 0 was lost."""
        return sample_evidence.write(
            tmp_path / "bucket" / "runs" / "run", whole=False, attempt="run"
        )

    @pytest.fixture
    def folder(self, tmp_path: Path, bucket: Path) -> Iterator[Path]:
        results = f"file://{bucket.parents[1]}"
        with api_server() as server:
            folder = stored(kubeconfig=str(server.kubeconfig(tmp_path)), results=results)
            site = {"results": {"location": results}}
            evidence.write(folder / rundir.RUN, json.dumps({"run": {"site": site}}))
            server.answer_with(self.PODS, listed())
            server.answer_with("/apis/batch/v1/namespaces/lab/jobs", listed())
            yield folder

    @pytest.fixture
    def unreadable(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
        def fails(*_: Any, **__: Any) -> bool:
            raise BadEvidence("no answer", code=Code.EVIDENCE_UNREADABLE)

        with monkeypatch.context() as patch:
            patch.setattr(evidence_bucket, "fetch", fails)
            yield patch

    def test_is_never_sent_over_what_was_measured(
        self, folder: Path, bucket: Path, unreadable: pytest.MonkeyPatch
    ) -> None:
        before = {path: path.read_bytes() for path in bucket.rglob("*") if path.is_file()}
        done = accept("collect", "run")
        assert done.code == 0, done.err
        assert "not sent" in done.err
        assert {path: path.read_bytes() for path in bucket.rglob("*") if path.is_file()} == before
        assert judge_path(str(folder)).verdict.interruption

    def test_is_replaced_by_the_measurements_when_they_can_be_read(
        self, folder: Path, unreadable: pytest.MonkeyPatch
    ) -> None:
        assert accept("collect", "run").code == 0
        kept = folder / kubernetes_collect.CLUSTER_FOLDER / "pods.json"
        kept.write_text("[1]")
        unreadable.undo()
        assert accept("collect", "run").code == 0
        assert (folder / rundir.EVIDENCE / evidence.RECORDS).stat().st_size > 0
        assert not (folder / rundir.FROM_LOG).exists()
        assert kept.read_text() == "[1]"

    def test_stays_if_nothing_else_can_be_read(
        self, folder: Path, unreadable: pytest.MonkeyPatch
    ) -> None:
        for _ in range(2):
            assert accept("collect", "run").code == 0
            assert (folder / rundir.FROM_LOG).exists()
        assert judge_path(str(folder)).verdict.exit == 5
