"""The closed list of causes, and the page that explains them."""

from __future__ import annotations

import ast
import re

import pytest
from tests.factories.command_line import accept, refused
from tests.factories.paths import ROOT

from accept.core import causes
from accept.core.causes import CAUSES
from accept.core.judge.summary import state_of
from accept.core.model import State

PAGE = (ROOT / "docs" / "causes.md").read_text(encoding="utf-8")


def sections() -> dict[str, str]:
    parts = re.split(r"^### (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_list_and_page_have_the_same_causes() -> None:
    assert sorted(sections()) == sorted(CAUSES)


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_says_what_it_means_and_what_to_do(cause: str) -> None:
    meaning, action = CAUSES[cause]
    assert meaning
    assert action
    assert "\n" not in meaning + action
    assert not meaning.endswith(".")
    section = sections()[cause]
    assert "- Confirm: " in section
    assert "- Provider: " in section


def test_a_cause_that_is_not_on_the_list_is_explained_as_such() -> None:
    assert "not on the list" in causes.meaning("gremlins")
    assert causes.action("gremlins")


def test_only_what_did_not_run_is_not_a_failure() -> None:
    softer = {cause for cause in CAUSES if state_of(cause) is not State.FAIL}
    assert softer == {"tool-missing", "over-budget", "evidence-missing", "no-reference"}


def test_no_program_reports_a_cause_that_is_not_on_the_list() -> None:
    """All causes that are literals in Python or sh are known."""
    said: set[str] = set()
    for path in [*(ROOT / "cli").rglob("*.py"), *(ROOT / "launchers").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                said |= _causes_of(node)
    for path in (ROOT / "launchers").rglob("*.sh*"):
        text = path.read_text(encoding="utf-8")
        said |= set(re.findall(r"\bstop ([a-z]+-[a-z-]+) ", text))
        said |= set(re.findall(r'"problem":"([a-z-]+)"', text))
    assert len(said) > 15
    assert said - set(CAUSES) - {"exit-hang"} == set()


def _causes_of(call: ast.Call) -> set[str]:
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    values = [key.value for key in call.keywords if key.arg == "cause" and name == "Problem"]
    if name == "problem" and call.args:
        values.append(call.args[0])
    return {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_command_line_shows_what_the_page_says_of_a_cause(cause: str) -> None:
    said = accept("show", "cause", cause).out
    assert said.startswith(f"{cause}\n")
    for part in ("Confirm:", "Provider:"):
        assert part in said
    assert "###" not in said


def test_a_cause_that_does_not_exist_is_refused_with_the_nearest() -> None:
    assert "did you mean rank-hung?" in refused("show", "cause", "rank-hang")
