"""Other people's modules have the names that we use, and take the arguments that we give.

A scan of our sources lists the uses. kubernetes and obstore are compared as installed. Of torch,
the oldest supported release is compared as recorded, and an installed one as imported.
NVML has tests of its own, above a stand-in for its library. No test replaces a module.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.factories.api_server import ApiServer, api_server
from tests.factories.foreign_uses import Use, found, names_of_torch, uses
from tests.factories.paths import ROOT, TESTS
from tests.factories.torch_releases import OLDEST, RECORD, RELEASES, need_torch

from accept.backends.kubernetes import objects
from accept.backends.kubernetes.client import Api, find_place
from accept.backends.kubernetes.objects import SECRET, Kind

OF_TORCH = [use for use in uses() if use.name.startswith("torch.")]
OTHERS = [use for use in uses() if not use.name.startswith("torch")]
KINDS = sorted(
    {
        kind
        for value in vars(objects).values()
        for kind in (value if isinstance(value, tuple) else (value,))
        if isinstance(kind, Kind)
    },
    key=lambda kind: (kind.name, kind.version),
)


def test_the_scan_finds_our_uses() -> None:
    listed = {use.name for use in uses()}
    assert {"torch.cuda.mem_get_info", "torch.distributed.all_reduce"} <= listed
    assert {"kubernetes.client.ApiClient", "obstore.store.from_url", "obstore.put"} <= listed


@pytest.mark.parametrize("use", OTHERS, ids=lambda use: f"{use.name}({','.join(use.keywords)})")
def test_a_name_of_another_package_exists_and_takes_our_arguments(use: Use) -> None:
    pytest.importorskip(use.name.partition(".")[0])
    thing = found(use.name)
    if use.keywords:
        parameters = inspect.signature(thing).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        assert takes_any or parameters.keys() >= {*use.keywords}, use.place


def wrong(keywords: dict[str, list[str] | None]) -> list[str]:
    """Return the uses of torch that a release does not support."""
    return [
        f"{use.place}: {use.name}({', '.join(use.keywords)})"
        for use in OF_TORCH
        if (known := keywords[use.name]) is not None and not {*use.keywords} <= {*known}
    ]


def test_the_oldest_torch_has_our_names_and_takes_our_arguments() -> None:
    """A new name needs a new record: see tests/factories/foreign_uses.py."""
    recorded = json.loads(RECORD.read_text())
    assert [name for name in names_of_torch() if name not in recorded] == []
    assert wrong(recorded) == []


@pytest.mark.real
@pytest.mark.parametrize("python", RELEASES)
def test_an_installed_torch_has_our_names_and_takes_our_arguments(python: Path) -> None:
    need_torch(python)
    command = [str(python), "-m", "tests.factories.foreign_uses"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    keywords = json.loads(done.stdout)
    assert wrong(keywords) == []
    if python == OLDEST:
        recorded = json.loads(RECORD.read_text())
        assert keywords == {name: recorded[name] for name in names_of_torch()}


def test_no_test_replaces_a_module() -> None:
    """A test may hide a module, with None. Stand-ins are below: nvml.c, cuda.c, api_server.py."""
    replaced = re.compile(r"sys\.modules(\[[^]]+\] = |, [^,]+, )(?!None\b)")
    assert [str(path) for path in TESTS.rglob("*.py") if replaced.search(path.read_text())] == []


@pytest.mark.skipif(not find_spec("kubernetes"), reason="the extra `kubernetes` is not installed")
class TestKubernetes:
    """Every call of ours on the real client, above a stand-in for the API."""

    @pytest.fixture
    def api(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        with api_server() as server:
            monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
            yield Api(find_place()), server

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.name}-{kind.version}")
    def test_a_kind_is_listed_read_and_deleted(
        self, api: tuple[Api, ApiServer], kind: Kind[Any]
    ) -> None:
        client, server = api
        assert client.find(kind, "one") is None
        client.delete(kind, "one")
        (read, path, _), (deleted, same, query) = server.seen
        assert (read, deleted, same) == ("GET", "DELETE", path)
        assert query == {"propagationPolicy": "Background"}
        assert ("/namespaces/lab/" in path) is kind.namespaced
        everything = path.removesuffix("/one")
        server.answer_with(everything, {"items": []})
        server.answer_with(everything.replace("/namespaces/lab", ""), {"items": []})
        for everywhere in (False, True):
            listed = client.find_all(kind, everywhere=everywhere, labels="a=b", fields="c=d")
            assert listed == ()
            query = server.seen[-1][2]
            assert (query["labelSelector"], query["fieldSelector"]) == ("a=b", "c=d")

    def test_a_secret_a_review_and_a_dry_run_are_sent(self, api: tuple[Api, ApiServer]) -> None:
        client, server = api
        core = "/api/v1/namespaces/lab"
        reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        server.answer_with(f"{core}/secrets", {})
        server.answer_with(f"{core}/pods", {"kind": "Pod"})
        server.answer_with(reviews, {"status": {"allowed": True}})
        client.create(SECRET, "key", {"run": "one"}, {"stringData": {"ssh-privatekey": "text"}})
        assert client.may("get", "pods/log", group="", namespace="lab")
        assert client.try_pod({"kind": "Pod"}) == {"kind": "Pod"}
        secret, review, _ = server.bodies
        assert secret["stringData"] == {"ssh-privatekey": "text"}
        assert review["spec"]["resourceAttributes"]["subresource"] == "log"
        assert server.seen[-1][2] == {"dryRun": "All"}
