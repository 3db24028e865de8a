"""Errors of the API: expired lists, broken connections, expired tokens.

The stand-in of tests/factories/api_server.py produces them.
"""

from __future__ import annotations

import copy
import hashlib
import json
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.factories.api_server import ERR, OUT, STATUS, ApiServer, Frames, api_server
from tests.factories.clock import PATIENCE
from tests.factories.kubernetes import job, listed, running, stored_job, unscheduled

from accept.backends.job import Place
from accept.backends.kubernetes import client as apis
from accept.backends.kubernetes import collect, objects, watch
from accept.backends.kubernetes.client import Api, ApiError, find_place, resolve_place
from accept.backends.kubernetes.exec import CommandResult, execute
from accept.backends.kubernetes.objects import JOBSET, POD
from accept.backends.kubernetes.submit import helm_options
from accept.config import Site
from accept.config.kubernetes import Kubernetes
from accept.core.bounded import MOST_OUTPUT
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, Interrupted, NotStarted
from accept.plan.resolve import ClusterPlace

PODS = "/api/v1/namespaces/lab/pods"
JOBS = "/apis/batch/v1/namespaces/lab/jobs"
LOG = f"{PODS}/run-w-0-0-abcde/log"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as one:
        yield one


@pytest.fixture
def place(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    return find_place()


def page(*names: str, more: str = "") -> dict[str, Any]:
    meta = {"continue": more} if more else {}
    return {"metadata": meta, "items": [{"metadata": {"name": n}} for n in names]}


def names(place: Place) -> list[str]:
    return [pod.name for pod in Api(place).find_all(POD)]


class TestThePlace:
    def test_is_that_of_the_current_context(self, place: Place, tmp_path: Path) -> None:
        assert place == Place(
            kubeconfig=str(tmp_path / "kubeconfig"), context="standin", namespace="lab"
        )

    def test_is_that_of_the_options_if_they_name_one(self, place: Place) -> None:
        assert find_place(namespace="other").namespace == "other"

    @pytest.mark.parametrize(
        ("option", "site", "namespace"),
        [("", None, "lab"), ("", "gpu", "gpu"), ("", "default", "default"), ("own", "gpu", "own")],
    )
    def test_uses_the_named_namespace_or_else_that_of_the_context(
        self, place: Place, option: str, site: str | None, namespace: str
    ) -> None:
        named = Site(kubernetes=Kubernetes(namespace=site))
        assert resolve_place(ClusterPlace(namespace=option), named).namespace == namespace

    def test_needs_an_existing_context(self, place: Place) -> None:
        with pytest.raises(NotStarted) as caught:
            find_place(context="prod")
        assert caught.value.code is Code.KUBE_CONTEXT
        assert "standin" in caught.value.hint

    def test_needs_a_kubeconfig(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(NotStarted) as caught:
            find_place()
        assert caught.value.code is Code.KUBE_CONFIG_MISSING

    def test_needs_a_valid_kubeconfig_and_names_an_invalid_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "bad").write_text("]", encoding="utf-8")
        with pytest.raises(NotStarted, match="bad") as caught:
            find_place(str(tmp_path / "bad"))
        assert caught.value.code is Code.KUBE_CONFIG_INVALID

    def test_is_passed_to_helm_as_context_and_namespace(self, place: Place) -> None:
        options, environment = helm_options(place)
        assert options == ["--namespace", "lab", "--kube-context", "standin"]
        assert environment == {"KUBECONFIG": place.kubeconfig}


class TestAList:
    def test_has_the_items_of_all_pages(self, server: ApiServer, place: Place) -> None:
        server.answer_with(PODS, page("a", "b", more="x"), page("c"))
        assert names(place) == ["a", "b", "c"]
        assert server.seen[1][2]["continue"] == "x"

    def test_that_expired_is_read_again_from_the_start(
        self, server: ApiServer, place: Place
    ) -> None:
        server.answer_with(PODS, page("old", more="x"), 410, page("new"))
        assert names(place) == ["new"]

    def test_that_expires_every_time_is_an_error(self, server: ApiServer, place: Place) -> None:
        server.answer_with(PODS, 410)
        with pytest.raises(ApiError) as caught:
            Api(place).find_all(POD)
        assert caught.value.status == 410
        assert caught.value.passing


class TestAnAnswer:
    def test_that_refuses_is_an_error_with_reason_and_hint(
        self, server: ApiServer, place: Place
    ) -> None:
        server.answer_with(PODS, 403)
        with pytest.raises(ApiError) as caught:
            Api(place).find_all(POD)
        assert (caught.value.code, caught.value.message) == (Code.KUBE_FORBIDDEN, "status 403")
        assert "--rbac" in caught.value.hint
        assert not caught.value.passing

    def test_that_reports_a_missing_object_becomes_none(
        self, server: ApiServer, place: Place
    ) -> None:
        assert Api(place).find(POD, "gone") is None
        assert Api(place).find(JOBSET, "gone") is None

    def test_that_is_not_a_json_object_is_an_error(self, server: ApiServer, place: Place) -> None:
        server.answer_with(PODS, [1])
        with pytest.raises(ApiError) as caught:
            Api(place).find_all(POD)
        assert caught.value.code is Code.KUBE_UNREACHABLE

    def test_after_a_token_expired_is_requested_with_the_new_one(
        self, server: ApiServer, place: Place, tmp_path: Path
    ) -> None:
        def answer(_: dict[str, str], number: int) -> tuple[int, Any]:
            if server.tokens[-1] == "Bearer one":
                server.kubeconfig(tmp_path, token="two")
                return 401, {"message": "expired"}
            return 200, page("a")

        server.answers[PODS] = answer
        assert names(place) == ["a"]
        assert server.tokens == ["Bearer one", "Bearer two"]

    def test_that_never_arrives_is_an_error_that_names_the_server(self, tmp_path: Path) -> None:
        with api_server() as gone:
            file = gone.kubeconfig(tmp_path)
        with pytest.raises(ApiError, match=f"127.0.0.1:{gone.port}") as caught:
            Api(find_place(str(file))).version()
        assert caught.value.passing


class TestTheConsole:
    def test_continues_after_a_dropped_connection_without_repeating_a_line(
        self, server: ApiServer, place: Place, tmp_path: Path
    ) -> None:
        log = "one\ntwo\nthree\nfour\n"
        server.answer_with(LOG, b"one\ntwo\nthr", 503, log.encode(), log)
        console = watch._Console(Api(place), "run-w-0-0-abcde", tmp_path / "copy")
        console.start()
        lines = [console.lines.get(timeout=PATIENCE) for _ in range(4)]
        console.over.set()
        console.join(PATIENCE)
        assert lines == [b"one\n", b"two\n", b"three\n", b"four\n"]
        assert console.lines.empty()
        assert (tmp_path / "copy").read_text() == log


class TestWatching:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "_LOOK", 0.05)
        monkeypatch.setattr(watch, "_GRACE", 0.5)

    def watch(self, place: Place, tmp_path: Path) -> tuple[int, list[str]]:
        lines: list[str] = []
        job = stored_job(kubeconfig=place.kubeconfig)
        return watch.watch(job, folder=tmp_path, say=lines.append, log=lines.append), lines

    def test_survives_an_api_that_restarts(
        self, server: ApiServer, place: Place, tmp_path: Path
    ) -> None:
        ended = running(0)
        ended["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 3}}
        server.answer_with(JOBS, listed(job(1)), 503, 503, listed(job(1)))
        server.answer_with(PODS, *[listed(running(0))] * 3, listed(ended))
        server.answer_with(LOG, "measured\n")
        code, lines = self.watch(place, tmp_path)
        assert code == 3
        assert lines.count("measured") == 1

    def test_reads_no_log_after_its_end(
        self, server: ApiServer, place: Place, tmp_path: Path
    ) -> None:
        server.answer_with(JOBS, listed(job(1)), listed())
        server.answer_with(PODS, listed(running(0)), listed())
        server.answer_with(LOG, 503)
        with pytest.raises(Interrupted):
            self.watch(place, tmp_path)
        for thread in threading.enumerate():
            if isinstance(thread, watch._Console):
                thread.join(PATIENCE)
                assert not thread.is_alive()

    def test_gives_up_after_minutes_and_shows_how_to_watch_again(
        self, server: ApiServer, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch, "_PATIENCE", 0.3)
        server.answer_with(JOBS, 503)
        with pytest.raises(Interrupted) as caught:
            self.watch(place, tmp_path)
        assert "accept watch run" in caught.value.hint

    def test_ends_if_the_run_was_deleted(
        self, server: ApiServer, place: Place, tmp_path: Path
    ) -> None:
        server.answer_with(JOBS, listed(job(1)), listed(job(1)), listed())
        server.answer_with(PODS, listed(running(1)))
        with pytest.raises(Interrupted) as caught:
            self.watch(place, tmp_path)
        assert caught.value.code is Code.RUN_GONE

    def test_ends_with_5_if_index_0_never_reports_how_it_ended(
        self, server: ApiServer, place: Place, tmp_path: Path
    ) -> None:
        server.answer_with(JOBS, listed(job(1, ("FailureTarget", "DeadlineExceeded", "too long"))))
        server.answer_with(PODS, listed(running(0)))
        server.answer_with(LOG, "")
        code, lines = self.watch(place, tmp_path)
        assert code == 5
        assert "failed: DeadlineExceeded: too long" in lines

    @pytest.fixture
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Shorten the waits for starts and ends."""
        monkeypatch.setattr(watch, "_start_seconds", lambda _: 0.2)
        monkeypatch.setattr(watch, "_LEAVING", 0.4)
        monkeypatch.setattr(objects, "_GRACE_SECONDS", 0)

    @pytest.mark.usefixtures("soon")
    def test_reports_why_index_0_did_not_start(
        self, server: ApiServer, place: Place, tmp_path: Path
    ) -> None:
        server.answer_with(JOBS, listed(job(1)))
        server.answer_with(PODS, listed(unscheduled()))
        with pytest.raises(NotStarted, match="0/3 nodes are available") as caught:
            self.watch(place, tmp_path)
        assert caught.value.code is Code.KUBE_POD_NOT_STARTED

    @pytest.mark.usefixtures("soon")
    @pytest.mark.parametrize("before", [[running(0)], []], ids=["followed", "met too late"])
    def test_ends_as_interrupted_if_the_node_of_index_0_is_lost(
        self, server: ApiServer, place: Place, tmp_path: Path, before: list[dict[str, Any]]
    ) -> None:
        """Its object stays in Terminating, with a container whose last known state is running."""
        server.answer_with(JOBS, listed(job(1)))
        server.answer_with(PODS, *[listed(one) for one in before], listed(lost()))
        server.answer_with(LOG, "measured\n")
        with pytest.raises(Interrupted, match="taint") as caught:
            self.watch(place, tmp_path)
        assert caught.value.code is Code.KUBE_POD_LOST
        assert "accept clean run" in caught.value.hint

    @pytest.mark.usefixtures("soon")
    @pytest.mark.parametrize(
        ("after", "why"),
        [([], "it has no pod"), ([unscheduled()], "not scheduled")],
        ids=["its object is gone", "another does not come"],
    )
    def test_ends_as_interrupted_if_index_0_ran_and_does_not_come_back(
        self,
        server: ApiServer,
        place: Place,
        tmp_path: Path,
        after: list[dict[str, Any]],
        why: str,
    ) -> None:
        server.answer_with(JOBS, listed(job(1)))
        server.answer_with(PODS, listed(running(0)), listed(*after))
        server.answer_with(LOG, "measured\n")
        with pytest.raises(Interrupted, match=why) as caught:
            self.watch(place, tmp_path)
        assert caught.value.code is Code.KUBE_POD_LOST

    @pytest.mark.usefixtures("soon")
    def test_waits_for_the_exit_code_of_an_index_0_that_is_terminating(
        self, server: ApiServer, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a drain, its grace period to write results is longer than a start."""
        monkeypatch.setattr(watch, "_LEAVING", 60.0)
        ended = lost()
        ended["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 5}}
        server.answer_with(JOBS, listed(job(1)))
        leaving = [listed(lost())] * 8
        server.answer_with(PODS, listed(running(0)), *leaving, listed(ended))
        server.answer_with(LOG, "measured\n")
        code, lines = self.watch(place, tmp_path)
        assert (code, "measured" in lines) == (5, True)

    def test_starts_again_if_a_queue_evicts_the_run_and_admits_it_again(
        self, server: ApiServer, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Shorter than the suspension, and longer than the time between two looks.
        monkeypatch.setattr(watch, "_start_seconds", lambda _: 3.0)
        again = running(0)
        again["metadata"] |= {"name": "run-w-0-0-again", "creationTimestamp": "2026-01-02"}
        ended = copy.deepcopy(again)
        ended["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}
        server.answer_with(
            JOBS, listed(job(1)), *[listed(job(1, suspend=True))] * 29, listed(job(1))
        )
        without: list[Any] = [listed()] * 30
        server.answer_with(PODS, listed(running(0)), *without, listed(again), listed(ended))
        server.answer_with(LOG, "first\n")
        server.answer_with(f"{PODS}/run-w-0-0-again/log", "second\n")
        code, lines = self.watch(place, tmp_path)
        assert code == 0
        assert [line for line in lines if line in ("first", "second")] == ["first", "second"]

    def test_shows_an_unchanged_status_once(
        self, server: ApiServer, place: Place, tmp_path: Path
    ) -> None:
        ended = running(0)
        ended["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}
        server.answer_with(JOBS, listed(job(1)))
        server.answer_with(PODS, *[listed(running(0))] * 5, listed(ended))
        server.answer_with(LOG, "")
        code, lines = self.watch(place, tmp_path)
        assert (code, lines.count("pods: 1 running, of 1")) == (0, 1)


def lost() -> dict[str, Any]:
    """Return index 0 on a node that the cluster gave up, so that its end is never reported."""
    one = running(0)
    one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    reason = {"reason": "DeletionByTaintManager", "message": "taint"}
    one["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", **reason}]
    return one


class TestTheArchiveOfIndex0:
    POD = "run-w-0-0-abcde"
    EXEC = f"{PODS}/{POD}/exec"
    CONTENT = bytes(range(256)) * 400

    def copy(self, place: Place, target: Path) -> bytes:
        digest = hashlib.sha256(self.CONTENT).hexdigest()
        collect.copy_archive(Api(place), self.POD, target, len(self.CONTENT), digest, say=print)
        return target.read_bytes()

    def test_comes_byte_for_byte(self, server: ApiServer, place: Place, tmp_path: Path) -> None:
        server.commands[self.EXEC] = lambda words, _: tail(self.CONTENT, words)
        assert self.copy(place, tmp_path / "a") == self.CONTENT

    def test_continues_at_the_byte_where_the_connection_broke(
        self, server: ApiServer, place: Place, tmp_path: Path
    ) -> None:
        def command(words: list[str], number: int) -> Frames:
            for count, frame in enumerate(tail(self.CONTENT, words)):
                if number < 2 and count == 3:
                    raise ConnectionError
                yield frame

        server.commands[self.EXEC] = command
        assert self.copy(place, tmp_path / "a") == self.CONTENT
        assert server.count(self.EXEC) == 3

    @pytest.mark.parametrize(
        "sent", [CONTENT[:-1] + b"x", CONTENT + b"more"], ids=["changed", "more"]
    )
    def test_that_differs_from_the_announced_size_or_digest_is_refused(
        self, server: ApiServer, place: Place, tmp_path: Path, sent: bytes
    ) -> None:
        server.commands[self.EXEC] = lambda words, _: tail(sent, words)
        with pytest.raises(BadEvidence) as caught:
            self.copy(place, tmp_path / "a")
        assert caught.value.hint == "collect again"

    def test_is_never_held_in_memory_completely(
        self, server: ApiServer, place: Place, tmp_path: Path
    ) -> None:
        block, count = bytes(1 << 15), 512
        digest = hashlib.sha256(block * count).hexdigest()
        server.commands[self.EXEC] = lambda *_: ((OUT, block) for _ in range(count))

        def copy(name: str) -> None:
            size = len(block) * count
            collect.copy_archive(Api(place), self.POD, tmp_path / name, size, digest, say=print)

        copy("first")  # it imports the client, which needs memory, too
        tracemalloc.start()
        try:
            copy("second")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < len(block) * count // 4


class TestACommandInAContainer:
    EXEC = f"{PODS}/p/exec"

    def run(self, server: ApiServer, place: Place, *frames: tuple[int, bytes]) -> CommandResult:
        server.commands[self.EXEC] = lambda *_: iter(frames)
        return execute(Api(place), "p", ["sh", "-c", "a b"])

    def test_gets_its_words_unmodified(self, server: ApiServer, place: Place) -> None:
        server.commands[self.EXEC] = lambda words, _: iter([(OUT, "|".join(words).encode())])
        done = execute(Api(place), "p", ["sh", "-c", "a & b"])
        assert done.out == "sh|-c|a & b"

    def test_returns_its_exit_status(self, server: ApiServer, place: Place) -> None:
        failed = {"status": "Failure", "details": {"causes": [{"message": "7"}]}}
        done = self.run(
            server, place, (OUT, b"o"), (ERR, b"e"), (STATUS, json.dumps(failed).encode())
        )
        assert done == CommandResult(exit=7, out="o")
        good = (STATUS, b'{"status":"Success"}')
        assert self.run(server, place, (OUT, "\u00e4".encode()), good).exit == 0

    def test_has_no_exit_status_if_the_connection_ends_early(
        self, server: ApiServer, place: Place
    ) -> None:
        assert self.run(server, place, (OUT, b"cut")) == CommandResult(exit=None, out="cut")

    @pytest.mark.parametrize("frames", [1, 300])
    def test_may_not_print_a_message_without_end(
        self, server: ApiServer, place: Place, frames: int
    ) -> None:
        """The client would keep it whole, before it passes anything to the sink."""
        server.commands[self.EXEC] = lambda *_: iter([(OUT, bytes(3 * MOST_OUTPUT))])
        server.parts = frames
        with pytest.raises(ApiError, match="too long"):
            execute(Api(place), "p", ["true"], sink=lambda _: None)

    def test_that_is_refused_is_an_error_with_its_status(
        self, server: ApiServer, place: Place
    ) -> None:
        with pytest.raises(ApiError, match="exec in p") as caught:
            execute(Api(place), "p", ["true"])
        assert caught.value.status == 404


def tail(content: bytes, words: list[str]) -> Frames:
    """Yield the output of `tail -c +N FILE`, in frames as a kubelet sends them."""
    assert words[:2] == ["tail", "-c"]
    rest = content[int(words[2]) - 1 :]
    for start in range(0, len(rest), 4096):
        yield OUT, rest[start : start + 4096]
    yield STATUS, b'{"status":"Success"}'


def test_only_this_back_end_imports_the_client() -> None:
    folder = Path(apis.__file__).parents[2]
    assert [
        path.name
        for path in sorted(folder.rglob("*.py"))
        if "from kubernetes" in path.read_text(encoding="utf-8")
    ] == ["client.py", "exec.py"]


class TestAnAnswerWithoutEnd:
    """No answer of a server is kept beyond its limit, whatever its status."""

    @pytest.mark.parametrize("status", [200, 403])
    def test_is_refused(
        self, server: ApiServer, place: Place, monkeypatch: pytest.MonkeyPatch, status: int
    ) -> None:
        monkeypatch.setattr(apis, "_MOST_ANSWER", 1 << 20)
        server.answers[PODS] = lambda *_: (status, {"items": ["x" * (2 << 20)]})
        with pytest.raises(ApiError, match="more than 1 MiB"):
            names(place)

    def test_of_a_log_is_yielded_in_parts(self, server: ApiServer, place: Place) -> None:
        text = "x" * (8 << 20)
        server.answer_with(LOG, text)
        for limit, expected in ((None, len(text)), (1000, 1000)):
            parts = [*Api(place).log("run-w-0-0-abcde", "accept", limit=limit)]
            assert sum(map(len, parts)) == expected
            assert max(map(len, parts)) <= 2 << 16
