"""Errors of the API: expired lists, broken connections, expired tokens.

The stand-in of tests/factories/api_server.py produces them.
"""

from __future__ import annotations

import copy
import hashlib
import json
import threading
import tracemalloc
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
from accept.backends.kubernetes.exec import execute
from accept.backends.kubernetes.objects import JOBSET, LOCAL_QUEUES, POD
from accept.backends.kubernetes.submit import helm_options
from accept.config import Site
from accept.config.kubernetes import Kubernetes
from accept.core.bounded import MOST_OUTPUT, Output
from accept.core.error_codes import Code
from accept.core.errors import AcceptError, Interrupted, NotStarted
from accept.evidence.archive import Announced
from accept.plan.resolve import ClusterPlace

PODS = "/api/v1/namespaces/lab/pods"
JOBS = "/apis/batch/v1/namespaces/lab/jobs"
LOG = f"{PODS}/run-w-0-0-abcde/log"


@pytest.fixture
def place(server: ApiServer) -> Place:
    return find_place()


def page(*names: str, more: str = "") -> dict[str, Any]:
    meta = {"continue": more} if more else {}
    return {"metadata": meta, "items": [{"metadata": {"name": n}} for n in names]}


def names(place: Place) -> list[str]:
    return [pod.name for pod in Api(place).find_all(POD)]


class TestThePlace:
    @pytest.mark.parametrize(
        ("option", "site", "namespace"),
        [("", None, "lab"), ("", "gpu", "gpu"), ("", "default", "default"), ("own", "gpu", "own")],
    )
    def test_is_the_current_context_and_the_named_namespace(
        self, place: Place, tmp_path: Path, option: str, site: str | None, namespace: str
    ) -> None:
        named = Site(kubernetes=Kubernetes(namespace=site))
        found = resolve_place(ClusterPlace(namespace=option), named)
        file = str(tmp_path / "kubeconfig")
        assert found == Place(kubeconfig=file, context="standin", namespace=namespace)
        options, environment = helm_options(found)
        assert options == ["--namespace", namespace, "--kube-context", "standin"]
        assert environment == {"KUBECONFIG": file}

    @pytest.mark.parametrize(
        ("file", "context", "code", "shown"),
        [
            ("", "prod", Code.KUBE_CONTEXT, "available: standin"),
            ("bad", "", Code.KUBE_CONFIG_INVALID, "bad"),
            (None, "", Code.KUBE_CONFIG_MISSING, "--kubeconfig"),
        ],
    )
    def test_needs_a_valid_kubeconfig_with_the_context(
        self,
        place: Place,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        file: str | None,
        context: str,
        code: Code,
        shown: str,
    ) -> None:
        (tmp_path / "bad").write_text("]", encoding="utf-8")
        if file is None:
            monkeypatch.delenv("KUBECONFIG")
            monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(NotStarted) as caught:
            find_place(str(tmp_path / file) if file else "", context)
        assert caught.value.code is code
        assert shown in f"{caught.value.message} {caught.value.hint}"


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

    def test_of_several_versions_is_that_of_the_first_served(
        self, server: ApiServer, place: Place
    ) -> None:
        queues = "namespaces/lab/localqueues"
        server.answer_with(f"/apis/kueue.x-k8s.io/v1beta1/{queues}", page("a"))
        assert [one.name for one in Api(place).find_served(LOCAL_QUEUES)] == ["a"]
        server.answer_with(f"/apis/kueue.x-k8s.io/v1beta2/{queues}", page())
        assert Api(place).find_served(LOCAL_QUEUES) == ()


@pytest.mark.parametrize(
    ("answer", "code", "status", "passing"),
    [
        # A list that expires every time.
        (410, Code.KUBE_REFUSED, 410, True),
        (403, Code.KUBE_FORBIDDEN, 403, False),
        # It is not a JSON object.
        ([1], Code.KUBE_UNREACHABLE, 0, True),
    ],
)
def test_a_refusal_is_an_error_with_reason_and_hint(
    server: ApiServer, place: Place, answer: Any, code: Code, status: int, *, passing: bool
) -> None:
    server.answer_with(PODS, answer)
    with pytest.raises(ApiError) as caught:
        names(place)
    error = caught.value
    assert (error.code, error.status, error.passing) == (code, status, passing)
    if status == 403:
        assert error.message == "status 403"
        assert "--rbac" in error.hint


class TestAnAnswer:
    def test_that_reports_a_missing_object_becomes_none(
        self, server: ApiServer, place: Place
    ) -> None:
        assert Api(place).find(POD, "gone") is None
        assert Api(place).find(JOBSET, "gone") is None

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


def ends(document: dict[str, Any], code: int) -> dict[str, Any]:
    """Return a pod whose container has ended."""
    ended = copy.deepcopy(document)
    ended["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": code}}
    return ended


class Watch:
    """A run on the stand-in cluster that is followed."""

    def __init__(self, server: ApiServer, place: Place, folder: Path) -> None:
        self.server, self._place, self._folder = server, place, folder
        self.lines: list[str] = []
        self.answer(listed(job(1)), pods=[])

    def answer(self, *jobs: Any, pods: list[Any], log: Any = "measured\n") -> None:
        """Answer questions about the Job and its pods in turn."""
        self.server.answer_with(JOBS, *jobs)
        self.server.answer_with(PODS, *[listed(*one) for one in pods])
        self.server.answer_with(LOG, log)

    def follow(self) -> int:
        job = stored_job(kubeconfig=self._place.kubeconfig)
        say = self.lines.append
        return watch.watch(job, folder=self._folder, say=say, log=say)

    def fails(self, error: type[AcceptError], code: Code) -> AcceptError:
        with pytest.raises(error) as caught:
            self.follow()
        assert caught.value.code is code
        return caught.value


@pytest.fixture
def followed(
    server: ApiServer, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Watch:
    monkeypatch.setattr(watch, "_LOOK", 0.05)
    monkeypatch.setattr(watch, "_GRACE", 0.5)
    return Watch(server, place, tmp_path)


JOB = listed(job(1))


class TestWatching:
    def test_reads_no_log_after_its_end(self, followed: Watch) -> None:
        followed.answer(JOB, listed(), pods=[[running(0)], []], log=503)
        followed.fails(Interrupted, Code.RUN_GONE)
        for thread in threading.enumerate():
            if isinstance(thread, watch._Console):
                thread.join(PATIENCE)
                assert not thread.is_alive()

    def test_ends_if_the_run_was_deleted(self, followed: Watch) -> None:
        followed.answer(JOB, JOB, listed(), pods=[[running(1)]])
        followed.fails(Interrupted, Code.RUN_GONE)

    def test_ends_with_5_if_index_0_never_reports_how_it_ended(self, followed: Watch) -> None:
        late = job(1, ("FailureTarget", "DeadlineExceeded", "too long"))
        followed.answer(listed(late), pods=[[running(0)]], log="")
        assert followed.follow() == 5
        assert "failed: DeadlineExceeded: too long" in followed.lines

    def test_starts_again_if_a_queue_evicts_the_run_and_admits_it_again(
        self, followed: Watch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Shorter than the suspension, and longer than the time between two looks.
        monkeypatch.setattr(watch, "_start_seconds", lambda _: 3.0)
        again = running(0)
        again["metadata"] |= {"name": "run-w-0-0-again", "creationTimestamp": "2026-01-02"}
        without: list[Any] = [[]] * 30
        pods = [[running(0)], *without, [again], [ends(again, 0)]]
        followed.answer(JOB, *[listed(job(1, suspend=True))] * 29, JOB, pods=pods, log="first\n")
        followed.server.answer_with(f"{PODS}/run-w-0-0-again/log", "second\n")
        assert followed.follow() == 0
        logged = [line for line in followed.lines if line in ("first", "second")]
        assert logged == ["first", "second"]

    def test_shows_an_unchanged_status_once(self, followed: Watch) -> None:
        followed.answer(JOB, pods=[[running(0)]] * 5 + [[ends(running(0), 0)]], log="")
        assert followed.follow() == 0
        assert followed.lines.count("pods: 1 running, of 1") == 1


class TestAnIndex0ThatIsLost:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Shorten the waits for starts and ends."""
        monkeypatch.setattr(watch, "_start_seconds", lambda _: 0.2)
        monkeypatch.setattr(watch, "_LEAVING", 0.4)
        monkeypatch.setattr(objects, "_GRACE_SECONDS", 0)

    def test_was_never_started_if_it_never_ran(self, followed: Watch) -> None:
        followed.answer(JOB, pods=[[unscheduled()]])
        error = followed.fails(NotStarted, Code.KUBE_POD_NOT_STARTED)
        assert "0/3 nodes are available" in error.message

    # On a lost node, its object stays in Terminating, with a container whose last known state is
    # running. Its object may also be gone, or another may not come.
    @pytest.mark.parametrize(
        ("pods", "why"),
        [
            ([["running"], ["lost"]], "taint"),
            ([["lost"]], "taint"),
            ([["running"], []], "it has no pod"),
            ([["running"], ["unscheduled"]], "not scheduled"),
        ],
    )
    def test_interrupts_the_run(self, followed: Watch, pods: list[list[str]], why: str) -> None:
        known = {"running": running(0), "lost": lost(), "unscheduled": unscheduled()}
        followed.answer(JOB, pods=[[known[name] for name in names] for names in pods])
        error = followed.fails(Interrupted, Code.KUBE_POD_LOST)
        assert why in error.message
        assert "accept clean run" in error.hint

    def test_is_not_lost_while_it_is_terminating(
        self, followed: Watch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a drain, its grace period to write results is longer than a start."""
        monkeypatch.setattr(watch, "_LEAVING", 60.0)
        followed.answer(JOB, pods=[[running(0)], *[[lost()]] * 8, [ends(lost(), 5)]])
        assert followed.follow() == 5
        assert "measured" in followed.lines


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
        announced = Announced(size=len(self.CONTENT), digest=digest)
        collect.copy_archive(Api(place), self.POD, target, announced, say=print)
        return target.read_bytes()

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

    def test_is_never_held_in_memory_completely(
        self, server: ApiServer, place: Place, tmp_path: Path
    ) -> None:
        block, count = bytes(1 << 15), 512
        digest = hashlib.sha256(block * count).hexdigest()
        announced = Announced(size=len(block) * count, digest=digest)
        server.commands[self.EXEC] = lambda *_: ((OUT, block) for _ in range(count))

        def copy(name: str) -> None:
            collect.copy_archive(Api(place), self.POD, tmp_path / name, announced, say=print)

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

    def run(self, server: ApiServer, place: Place, *frames: tuple[int, bytes]) -> Output:
        server.commands[self.EXEC] = lambda *_: iter(frames)
        return execute(Api(place), "p", ["sh", "-c", "a b"])

    def test_gets_its_words_unmodified(self, server: ApiServer, place: Place) -> None:
        server.commands[self.EXEC] = lambda words, _: iter([(OUT, "|".join(words).encode())])
        done = execute(Api(place), "p", ["sh", "-c", "a & b"])
        assert done.text == "sh|-c|a & b"

    def test_returns_its_exit_status(self, server: ApiServer, place: Place) -> None:
        failed = {"status": "Failure", "details": {"causes": [{"message": "7"}]}}
        done = self.run(
            server, place, (OUT, b"o"), (ERR, b"e"), (STATUS, json.dumps(failed).encode())
        )
        assert done == Output(exit=7, out=b"o")
        good = (STATUS, b'{"status":"Success"}')
        assert self.run(server, place, (OUT, "\u00e4".encode()), good).exit == 0

    def test_has_no_exit_status_if_the_connection_ends_early(
        self, server: ApiServer, place: Place
    ) -> None:
        assert self.run(server, place, (OUT, b"cut")) == Output(exit=None, out=b"cut")

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
