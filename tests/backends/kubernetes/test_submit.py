"""Install a run with helm: the state of its own and of other releases after a failure."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from tests.factories.api_server import ApiServer, api_server
from tests.factories.kubernetes import job

from accept.backends.job import Place
from accept.backends.kubernetes import submit
from accept.backends.kubernetes.client import Api, find_place
from accept.backends.kubernetes.submit import RunName
from accept.core import bounded
from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.runner.positions import PACKED_POSITIONS, read_positions

SECRETS = "/api/v1/namespaces/lab/secrets"
CONFIG_MAPS = "/api/v1/namespaces/lab/configmaps"
NOT_FOUND = "Error: release: not found"
TIMEOUT = "Error: Kubernetes cluster unreachable: dial tcp 10.0.0.1:443: i/o timeout"
IN_USE = "Error: INSTALLATION FAILED: cannot re-use a name that is still in use"


def nothing() -> None:
    """Do nothing."""


@dataclass(kw_only=True)
class HelmStandIn:
    """Keep releases as helm does, and fail as requested."""

    #: Values of each release.
    releases: dict[str, dict[str, object]] = field(default_factory=dict)
    #: Errors that a verb answers with, in order; an empty text lets the call succeed.
    errors: dict[str, list[str]] = field(default_factory=dict)
    #: Called before each `helm install`.
    before_install: Callable[[], None] = nothing
    #: Error that `helm install` ends with after it has made the release.
    broken_install: str = ""
    verbs: list[str] = field(default_factory=list)
    #: Words of the last `helm install`.
    installed: tuple[str, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, place: Place, *words: str, seconds: float = 0.0) -> bounded.Output:
        """Answer as `install.helm` does."""
        verb = words[0]
        if verb == "install":
            self.before_install()
        with self._lock:
            self.verbs.append(verb)
            error = self.errors[verb].pop(0) if self.errors.get(verb) else ""
            out = ""
            if not error:
                out, error = self._answer(verb, words)
        return bounded.Output(exit=1 if error else 0, out=out.encode(), err=error.encode())

    def _answer(self, verb: str, words: tuple[str, ...]) -> tuple[str, str]:
        release = words[2] if verb == "get" else words[1]
        if verb == "install":
            if release in self.releases:
                return "", IN_USE
            self.installed = words
            given = dict(word.split("=", 1) for word in words if "=" in word)
            secret = {"existingSecret": given["ssh.existingSecret"]}
            self.releases[release] = {"attempt": given["attempt"], "ssh": secret}
            manifest = f"---\n{yaml.safe_dump({'kind': 'Job', **job()})}"
            return json.dumps({"manifest": manifest}), self.broken_install
        if release not in self.releases:
            return "", NOT_FOUND
        if verb == "uninstall":
            del self.releases[release]
            return "", ""
        return json.dumps(self.releases[release]), ""


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        made.answer_with(SECRETS, {"metadata": {"name": "key"}})
        for attempt in ("one", "two"):
            made.answer_with(f"{SECRETS}/train-{attempt}-ssh", {"metadata": {}})
        made.answer_with(CONFIG_MAPS, {"metadata": {"name": "positions"}})
        made.answer_with(f"{CONFIG_MAPS}/train-one-positions", {"metadata": {}})
        yield made


@pytest.fixture
def api(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    return Api(find_place())


@pytest.fixture
def helm(monkeypatch: pytest.MonkeyPatch) -> HelmStandIn:
    made = HelmStandIn()
    monkeypatch.setattr(submit, "helm", made)
    return made


def start(api: Api, attempt: str = "one", **positions: str) -> None:
    """Install attempt `attempt` of release `train`."""
    name = RunName(release="train", attempt=attempt)
    submit.install_release(api, name, Path("values.yaml"), positions=positions, say=lambda _: None)


def fails(api: Api, code: Code | None = None, **positions: str) -> NotStarted:
    """Start attempt `one`, which fails; return the error."""
    with pytest.raises(NotStarted) as caught:
        start(api, **positions)
    assert code in (caught.value.code, None)
    return caught.value


def removed(server: ApiServer) -> list[str]:
    """Return the names of the deleted Secrets and ConfigMaps."""
    return [path.rpartition("/")[2] for verb, path, _ in server.seen if verb == "DELETE"]


REFUSED = "Error: values are refused"


@pytest.mark.parametrize(
    "error", [TIMEOUT, "Error: getting credentials: exec: executable login not found"]
)
def test_nothing_is_made_if_helm_cannot_report_whether_the_release_exists(
    api: Api, helm: HelmStandIn, server: ApiServer, error: str
) -> None:
    helm.releases["train"] = {"attempt": "other"}
    helm.errors = {"status": [error], "get": [error], "install": [IN_USE]}
    fails(api, Code.HELM_FAILED)
    assert "train" in helm.releases
    assert server.count(SECRETS) == len(removed(server))


@pytest.mark.parametrize(
    ("helm_verb", "verb", "resource", "group"),
    [("get", "list", "secrets", ""), ("install", "create", "jobs", "batch")],
)
def test_a_missing_permission_is_named_with_the_role(
    api: Api, helm: HelmStandIn, helm_verb: str, verb: str, resource: str, group: str
) -> None:
    place = f'"{resource}" in API group "{group}" in the namespace "lab"'
    error_text = f'Error: {resource} is forbidden: User "x" cannot {verb} resource {place}'
    helm.errors[helm_verb] = [error_text]
    error = fails(api, Code.KUBE_FORBIDDEN)
    assert f"{verb} {resource}" in error.message
    assert "accept doctor --backend kubernetes --rbac" in error.hint


class TestIfTheNameIsTaken:
    def test_the_run_is_refused_before_anything_is_made(
        self, api: Api, helm: HelmStandIn, server: ApiServer
    ) -> None:
        helm.releases["train"] = {"attempt": "other"}
        fails(api, Code.HELM_RELEASE_EXISTS)
        assert "install" not in helm.verbs
        assert server.count(SECRETS) == 0

    @pytest.mark.parametrize("attempt", ["other", "one"])
    def test_a_release_that_appears_meanwhile_is_left(
        self, api: Api, helm: HelmStandIn, server: ApiServer, attempt: str
    ) -> None:
        # Also one of the same attempt name, which somebody installed with a key of its own.
        helm.before_install = lambda: helm.releases.update(train={"attempt": attempt})
        fails(api, Code.HELM_FAILED)
        assert helm.releases == {"train": {"attempt": attempt}}
        assert removed(server) == ["train-one-ssh"]

    def test_of_two_installs_at_once_one_succeeds_and_the_other_removes_nothing(
        self, api: Api, helm: HelmStandIn, server: ApiServer
    ) -> None:
        barrier = threading.Barrier(2)

        def wait_for_the_other() -> None:
            barrier.wait()

        helm.before_install = wait_for_the_other
        attempts = ("one", "two")
        with ThreadPoolExecutor(2) as pool:
            started = [pool.submit(start, Api(api.place), attempt) for attempt in attempts]
            failed = [job.exception() for job in started]
        winner, loser = attempts if failed[0] is None else attempts[::-1]
        assert [type(error) for error in failed if error] == [NotStarted]
        assert helm.releases["train"]["attempt"] == winner
        assert removed(server) == [f"train-{loser}-ssh"]


class TestPositions:
    def test_travel_beside_the_release(
        self, api: Api, helm: HelmStandIn, server: ApiServer, tmp_path: Path
    ) -> None:
        start(api, n1="b1/r1")
        (made,) = (sent for sent in server.bodies if "ssh-privatekey" not in str(sent))
        assert made["metadata"]["name"] == "train-one-positions"
        assert made["metadata"]["labels"] == {"accept-run": "train-one"}
        packed = base64.b64decode(made["binaryData"][PACKED_POSITIONS])
        (tmp_path / PACKED_POSITIONS).write_bytes(packed)
        assert read_positions(tmp_path) == ({"n1": "b1/r1"}, "")
        assert removed(server) == []

    def test_are_removed_if_the_install_fails(
        self, api: Api, helm: HelmStandIn, server: ApiServer
    ) -> None:
        helm.errors = {"install": [REFUSED]}
        assert "values are refused" in fails(api, n1="b1/r1").message
        assert removed(server) == ["train-one-ssh", "train-one-positions"]

    def test_that_cannot_be_stored_start_nothing(
        self, api: Api, helm: HelmStandIn, server: ApiServer
    ) -> None:
        server.answer_with(CONFIG_MAPS, 409)
        fails(api, n1="b1/r1")
        assert "install" not in helm.verbs
        # A ConfigMap that has this name already belongs to another run.
        assert removed(server) == ["train-one-ssh"]


class TestIfHelmInstallFails:
    def test_the_attempts_own_release_is_removed(
        self, api: Api, helm: HelmStandIn, server: ApiServer
    ) -> None:
        helm.broken_install = "Error: INSTALLATION FAILED: context deadline exceeded"
        assert "deadline exceeded" in fails(api).message
        assert helm.releases == {}
        assert removed(server) == ["train-one-ssh"]

    def test_an_interrupted_install_is_removed(
        self, api: Api, helm: HelmStandIn, server: ApiServer
    ) -> None:
        def interrupt() -> None:
            secret = {"existingSecret": "train-one-ssh"}
            helm.releases["train"] = {"attempt": "one", "ssh": secret}
            raise KeyboardInterrupt

        helm.before_install = interrupt
        with pytest.raises(KeyboardInterrupt):
            start(api)
        assert helm.releases == {}
        assert removed(server) == ["train-one-ssh"]

    def test_a_release_whose_owner_is_unknown_is_left_and_reported(
        self, api: Api, helm: HelmStandIn, server: ApiServer
    ) -> None:
        helm.broken_install = TIMEOUT
        helm.errors = {"get": ["Error: release: not found", TIMEOUT]}
        error = fails(api)
        assert "uninstall" not in helm.verbs
        assert "train" in error.message
        assert "helm status train" in error.hint
        assert removed(server) == []

    def test_what_cannot_be_removed_is_reported(
        self, api: Api, helm: HelmStandIn, server: ApiServer
    ) -> None:
        server.answer_with(f"{SECRETS}/train-one-ssh", 500)
        helm.broken_install = TIMEOUT
        helm.errors = {"uninstall": [TIMEOUT]}
        error = fails(api)
        assert "train" in helm.releases
        assert "helm uninstall train" in error.hint
        assert "Secret train-one-ssh is left" in error.message
