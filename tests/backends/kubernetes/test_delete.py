"""Cancelling and deleting a run: every object that is reported as removed is really gone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.factories import sample_evidence
from tests.factories.api_server import STATUS, ApiServer
from tests.factories.command_line import accept
from tests.factories.kubernetes import stored_job

from accept.backends.job import Job
from accept.backends.kubernetes import collect, delete
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import Exit, Interrupted
from accept.core.serde import dump
from accept.evidence import rundir

JOBS = "/apis/batch/v1/namespaces/lab/jobs"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/lab/jobsets"
PODS = "/api/v1/namespaces/lab/pods"
SERVICES = "/api/v1/namespaces/lab/services"
CLAIM_TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/lab/resourceclaimtemplates"
POD = "run-0-abcde"


class StoredObjects:
    """The objects of a cluster; a DELETE removes an object together with those that it owns."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.objects: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, str] = {}
        #: Objects that a DELETE only marks, such as pods on a lost node.
        self.stuck: set[str] = set()

    def add(self, kind: str, name: str, *, owner: str = "", **content: Any) -> str:
        """Store an object; return its path."""
        path = f"{kind}/{name}"
        meta = {"name": name, **content.pop("metadata", {})}
        self.objects[path] = {"metadata": meta, **content}
        self.owners[path] = owner
        self.server.answers[kind] = lambda *_: (200, {"items": self._listed(kind)})
        self.server.answers[path] = lambda *_: self._answer(path)
        return path

    def _listed(self, kind: str) -> list[dict[str, Any]]:
        return [stored for path, stored in self.objects.items() if path.rpartition("/")[0] == kind]

    def _answer(self, path: str) -> tuple[int, Any]:
        verb = next(verb for verb, seen, _ in reversed(self.server.seen) if seen == path)
        if path not in self.objects:
            return 404, {"message": "not found"}
        if verb == "DELETE":
            self._delete(path)
            return 200, {}
        return 200, self.objects[path]

    def _delete(self, path: str) -> None:
        if path in self.stuck:
            self.objects[path]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        else:
            del self.objects[path]
        for owned in [other for other, owner in self.owners.items() if owner == path]:
            if owned in self.objects:
                self._delete(owned)


@pytest.fixture
def server(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    monkeypatch.setattr(delete, "_LEAVING", 0.3)
    monkeypatch.setattr(delete, "_PAUSE", 0.05)
    return server


@pytest.fixture
def store(server: ApiServer) -> StoredObjects:
    return StoredObjects(server)


@pytest.fixture(autouse=True)
def job(server: ApiServer, tmp_path: Path) -> Job:
    """Return a run that was submitted as a plain Job, and whose release is gone."""
    return submitted(server, tmp_path)


def submitted(server: ApiServer, tmp_path: Path, *, first: str = "run-0", results: str = "") -> Job:
    """Write the folder of a run."""
    place = {"kubeconfig": str(server.kubeconfig(tmp_path)), "release": "", "results": results}
    made = replace(stored_job(**place), first=first)
    folder = tmp_path / "runs" / "run"
    if not folder.exists():
        rundir.create("run")
        (folder / rundir.RENDERED).mkdir()
    evidence.write(folder / rundir.JOB, json.dumps(dump(made)))
    evidence.write(folder / rundir.RENDERED / "plan.json", json.dumps(dump(sample_evidence.PLAN)))
    return made


def add_run(store: StoredObjects, *, started: bool = True) -> tuple[str, str]:
    """Store the Job of a run and its first pod; return their paths."""
    owner = store.add(JOBS, "run", spec={"parallelism": 1}, status={})
    state = {"running": {}} if started else {"waiting": {"reason": "ImagePullBackOff"}}
    index = {"batch.kubernetes.io/job-completion-index": "0"}
    pod = store.add(
        PODS, POD,
        owner=owner,
        metadata={"labels": index},
        spec={"nodeName": "n1", "terminationGracePeriodSeconds": 0},
        status={"containerStatuses": [{"name": "accept", "state": state}]},
    )  # fmt: skip
    return owner, pod


EXEC = f"{PODS}/{POD}/exec"


def ignore_commands(server: ApiServer) -> None:
    """Let every command in the first pod fail, as if its coordinator hung."""
    failed = {"status": "Failure", "details": {"causes": [{"message": "1"}]}}
    server.commands[EXEC] = lambda *_: iter([(STATUS, json.dumps(failed).encode())])


def break_commands(server: ApiServer) -> None:
    """Let the connection of every command break before the command ends."""

    def answer(*_: object) -> Iterator[tuple[int, bytes]]:
        yield from ()
        raise ConnectionError

    server.commands[EXEC] = answer


def cancel(job: Job) -> None:
    delete.cancel(job, folder=rundir.find("run"), say=lambda _: None)


class TestDelete:
    def test_names_a_pod_that_stays(self, store: StoredObjects) -> None:
        _, pod = add_run(store)
        store.stuck.add(pod)
        done = accept("clean", "run", "--no-collect")
        assert (done.code, done.error) == (Exit.INTERRUPTED, Code.KUBE_OBJECTS_LEFT)
        assert POD in done.err

    @pytest.mark.parametrize(
        ("refused", "first", "hidden"),
        [
            ([PODS], "run-0", "Pod"),
            ([JOBSETS], "run-w-0-0", "JobSet"),
            # The run made no objects of these kinds.
            ([JOBSETS, CLAIM_TEMPLATES], "run-0", ""),
        ],
    )
    def test_removes_what_it_sees_and_reports_what_it_may_not_see(
        self,
        store: StoredObjects,
        server: ApiServer,
        tmp_path: Path,
        refused: list[str],
        first: str,
        hidden: str,
    ) -> None:
        submitted(server, tmp_path, first=first)
        add_run(store)
        for kind in refused:
            server.answer_with(kind, 403)
        done = accept("clean", "run", "--no-collect")
        assert done.code == (Exit.INTERRUPTED if hidden else Exit.PASS)
        assert done.error == (Code.KUBE_OBJECTS_HIDDEN if hidden else "")
        assert hidden in done.err
        assert store.objects == {}


class TestCancel:
    @pytest.mark.parametrize("started", [True, False])
    def test_leaves_nothing_that_runs_or_may_start(
        self, store: StoredObjects, server: ApiServer, *, started: bool
    ) -> None:
        """Its coordinator does not answer, or does not run."""
        add_run(store, started=started)
        ignore_commands(server)
        done = accept("cancel", "run")
        assert (done.code, done.out) == (Exit.PASS, "cancelled run\n"), done.err
        assert store.objects == {}

    @pytest.mark.parametrize("started", [True, False])
    def test_names_a_pod_that_stays(
        self, store: StoredObjects, server: ApiServer, job: Job, *, started: bool
    ) -> None:
        _, pod = add_run(store, started=started)
        store.stuck.add(pod)
        ignore_commands(server)
        with pytest.raises(Interrupted, match=POD):
            cancel(job)

    def test_is_not_reported_if_the_job_may_not_be_deleted(
        self, store: StoredObjects, server: ApiServer
    ) -> None:
        owner, _ = add_run(store)
        ignore_commands(server)
        read = server.answers[owner]

        def answer(query: dict[str, str], number: int) -> tuple[int, Any]:
            if ("DELETE", owner) in {(verb, path) for verb, path, _ in server.seen}:
                return 403, {"message": "may not delete jobs"}
            return read(query, number)

        server.answers[owner] = answer
        done = accept("cancel", "run")
        assert (done.code, done.error) == (Exit.INTERRUPTED, Code.KUBE_FORBIDDEN)
        assert "may not delete jobs" in done.err
        assert owner in store.objects


class TestCancelIfCommandsInThePodFail:
    @pytest.fixture(autouse=True)
    def run(
        self, store: StoredObjects, server: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        """Store a run; its objects are gone after each test."""
        monkeypatch.setattr(delete, "_SAVING", 0.0)
        add_run(store)
        server.answer_with(EXEC, 403)
        yield
        assert store.objects == {}

    # 200 is an answer that does not open a websocket; 0 is a connection that breaks.
    @pytest.mark.sampled
    @pytest.mark.parametrize("status", [403, 503, 200, 0])
    @pytest.mark.parametrize("results", ["", "/results"])
    def test_removes_the_job_and_reports_what_is_missing(
        self, server: ApiServer, tmp_path: Path, *, status: int, results: str
    ) -> None:
        if status:
            server.answer_with(EXEC, status)
        else:
            break_commands(server)
        submitted(server, tmp_path, results=results)
        done = accept("cancel", "run")
        assert (done.code, done.out) == (Exit.PASS, "cancelled run\n"), done.err
        assert "not collected: records and raw logs" in done.err
        assert (rundir.find("run") / rundir.FROM_LOG).is_file()

    def test_keeps_what_the_log_holds(self, server: ApiServer, job: Job) -> None:
        record = sample_evidence.record()
        server.answer_with(f"{PODS}/{POD}/log", sample_evidence.console(record))
        cancel(job)
        saved = rundir.find("run") / rundir.EVIDENCE / evidence.CONSOLE
        with saved.open("rb") as lines:
            plan, *_ = evidence.unpack(lines, "the log")
        assert plan == sample_evidence.PLAN

    def test_exits_with_incomplete_if_nothing_can_be_saved(self) -> None:
        # Without a plan, nothing can be judged and saved.
        (rundir.find("run") / rundir.RENDERED / evidence.PLAN).unlink()
        done = accept("cancel", "run")
        assert (done.code, done.error) == (Exit.INCOMPLETE, Code.KUBE_EVIDENCE_UNSAVED)

    def test_does_not_wait_for_an_exec_that_never_opens(
        self, server: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended = threading.Event()

        def answer(*_: object) -> tuple[int, Any]:
            ended.wait()
            return 503, {}

        server.answers[EXEC] = answer
        monkeypatch.setattr(delete, "_STOP_REQUEST", 0.0)
        try:
            assert accept("cancel", "run").code == Exit.PASS
        finally:
            ended.set()

    def test_removes_the_job_if_saving_is_interrupted(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(collect, "describe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cancel(job)

    def test_saves_while_no_other_command_works_on_the_evidence(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = rundir.held

        @contextmanager
        def after_another_collected(run: Path) -> Iterator[None]:
            with held(run):
                (run / rundir.EVIDENCE).mkdir()
                evidence.write(run / rundir.EVIDENCE / "complete", "")
                yield

        monkeypatch.setattr(rundir, "held", after_another_collected)
        cancel(job)
        kept = rundir.find("run") / rundir.EVIDENCE
        assert [path.name for path in kept.iterdir()] == ["complete"]
