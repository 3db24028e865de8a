"""Install a run with helm: the state of its own and of other releases after a failure."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tests.factories.places import CONFIG_MAPS, SECRETS, Kubernetes

from accept.core.error_codes import Code
from accept.core.errors import Exit
from accept.core.runner.positions import PACKED_POSITIONS, read_positions

TIMEOUT = "Error: Kubernetes cluster unreachable: dial tcp 10.0.0.1:443: i/o timeout"
OTHER = '{"attempt": "other"}'


def fails(here: Kubernetes, code: Code = Code.HELM_FAILED, **files: str) -> str:
    """Start a run that fails; `files` are those of the stand-in helm. Return stderr."""
    for name, text in files.items():
        (here.control / name.replace("_", "-")).write_text(text)
    done = here.start("submit")
    assert (done.code, done.error) == (Exit.NOT_STARTED, code), done.err
    return done.err


def release(here: Kubernetes) -> str:
    """Return the values of the release; empty if there is none."""
    file = here.control / "release"
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize(
    "error", [TIMEOUT, "Error: getting credentials: exec: executable login not found"]
)
def test_nothing_is_made_if_helm_cannot_report_whether_the_release_exists(
    here: Kubernetes, error: str
) -> None:
    fails(here, helm_get=error, release=OTHER)
    assert (release(here), here.kept()) == (OTHER, [])


@pytest.mark.parametrize(
    ("helm_verb", "verb", "resource", "group"),
    [("get", "list", "secrets", ""), ("install", "create", "jobs", "batch")],
)
def test_a_missing_permission_is_named_with_the_role(
    here: Kubernetes, helm_verb: str, verb: str, resource: str, group: str
) -> None:
    where = f'"{resource}" in API group "{group}" in the namespace "lab"'
    error = f'Error: {resource} is forbidden: User "x" cannot {verb} resource {where}'
    shown = fails(here, Code.KUBE_FORBIDDEN, **{f"helm_{helm_verb}": error})
    assert f"{verb} {resource}" in shown
    assert "accept doctor --backend kubernetes --rbac" in shown


def test_a_name_that_is_taken_is_refused_before_anything_is_made(here: Kubernetes) -> None:
    fails(here, Code.HELM_RELEASE_EXISTS, release=OTHER)
    assert not (here.control / "calls-install").exists()
    assert (release(here), here.server.count(SECRETS)) == (OTHER, 0)


# Also one of the same attempt name, which somebody installed with a key of its own.
@pytest.mark.parametrize("attempt", ["other", "1"])
def test_a_release_that_appears_meanwhile_is_left(here: Kubernetes, attempt: str) -> None:
    values = f'{{"attempt": "{attempt}"}}'
    fails(here, meanwhile=values)
    assert (release(here), here.kept()) == (values, [])


class TestPositions:
    def test_travel_beside_the_release(self, here: Kubernetes, tmp_path: Path) -> None:
        assert here.start("submit").code == 0
        made = here.stored_objects[f"{CONFIG_MAPS}/{here.run}-positions"]
        assert made["metadata"]["labels"] == {"accept-run": here.run}
        packed = base64.b64decode(made["binaryData"][PACKED_POSITIONS])
        (tmp_path / PACKED_POSITIONS).write_bytes(packed)
        assert read_positions(tmp_path) == ({"n1": "n1"}, "")

    def test_that_cannot_be_stored_start_nothing(self, here: Kubernetes) -> None:
        # A ConfigMap that has this name already belongs to another run.
        here.server.answer_with(CONFIG_MAPS, 409)
        fails(here, Code.KUBE_CONFLICT)
        assert not (here.control / "calls-install").exists()
        assert here.kept() == []


class TestAnInstallationThatFails:
    """Helm ends with an error after it has made the release."""

    def test_is_removed(self, here: Kubernetes) -> None:
        assert "deadline exceeded" in fails(here, broken="Error: context deadline exceeded")
        assert (release(here), here.kept()) == ("", [])

    def test_is_left_and_reported_if_its_owner_is_unknown(self, here: Kubernetes) -> None:
        shown = fails(here, broken=TIMEOUT, helm_get_2=TIMEOUT)
        assert not (here.control / "calls-uninstall").exists()
        assert f"helm status {here.attempt}" in shown
        assert f"{SECRETS}/{here.run}-ssh" in here.stored_objects

    def test_is_reported_if_it_cannot_be_removed(self, here: Kubernetes) -> None:
        here.server.answer_with(f"{SECRETS}/{here.run}-ssh", 500)
        shown = fails(here, broken=TIMEOUT, helm_uninstall=TIMEOUT)
        assert release(here) != ""
        assert f"helm uninstall {here.attempt}" in shown
        assert f"Secret {here.run}-ssh is left" in shown
