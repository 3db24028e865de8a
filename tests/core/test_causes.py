"""The closed list of causes, and the page that explains them."""

from __future__ import annotations

import json
import re

from tests.factories import programs  # noqa: F401  # makes the programs importable
from tests.factories.command_line import accept, refused
from tests.factories.paths import CLI, ROOT
from tests.words import SCREENS

import rank_io
import torch_io
from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.error_codes import Code
from accept.core.judge.summary import state_of
from accept.core.records import Problem
from accept.core.serde import dump, read
from accept.core.verdict import State

PAGE = (ROOT / "docs" / "causes.md").read_text(encoding="utf-8")
ROWS = CLI / "accept" / "core" / "causes.json"


def sections() -> dict[str, str]:
    parts = re.split(r"^### (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_list_rows_and_page_have_the_same_causes() -> None:
    assert sorted(sections()) == sorted(Cause)
    rows = json.loads(ROWS.read_text(encoding="utf-8"), object_pairs_hook=list)
    assert [name for name, _ in rows] == list(Cause)


def test_each_cause_has_a_complete_row_and_section() -> None:
    for cause, section in ((cause, sections()[cause]) for cause in Cause):
        row = cause.row
        assert cause.name in ("UNKNOWN", cause.value.upper().replace("-", "_"))
        assert row.meaning, cause
        assert row.action, cause
        actions = " ".join((row.action, *row.action_of_check.values()))
        assert "\n" not in row.meaning + actions, cause
        # Only ssh reaches hosts; people have nodes.
        shown = f"{row.meaning} {actions} {section}".replace("HOST", "")
        assert row.no_login or not SCREENS["nodes"].search(shown), shown
        assert not row.meaning.endswith("."), cause
        assert re.fullmatch(r"W(-[A-Z]+)+", cause.code)
        assert "- Confirm: " in section, cause
        assert "- Provider: " in section, cause


def test_each_check_of_single_devices_has_its_own_advice_on_a_low_value() -> None:
    row = Cause.BELOW_REFERENCE.row
    own = row.action_of_check
    assert set(own) <= set(REGISTRY)
    assert {name for name, one in REGISTRY.items() if one.devices} <= set(own)
    devices = [text for name, text in own.items() if REGISTRY[name].devices]
    assert len(set(devices)) == len(devices)
    # The advice for tools of others.
    assert row.action not in own.values()


def test_no_row_contradicts_itself() -> None:
    for cause, row in ((cause, cause.row) for cause in Cause):
        assert not (row.root_cause and row.consequence), cause
        assert row.consequence or not row.no_result, cause
        assert row.slow or not row.relative, cause
        assert row.ends_launch or not row.loses_host, cause
        assert not (row.no_gpu and row.follows_no_gpu), cause
        if state_of(cause) is not State.FAIL:
            # Such a cause accuses nothing, so it can neither explain others nor cost a host.
            assert not any((row.root_cause, row.loses_host, row.slow, row.wrong_numbers)), cause


def test_only_what_did_not_run_is_not_a_failure() -> None:
    softer = {cause for cause in Cause if state_of(cause) is not State.FAIL}
    assert " ".join(sorted(softer)) == (
        "deselected driver-too-old evidence-missing gpu-list gpu-permission gpu-unreported"
        " job-failed nics-not-tested no-reference no-table over-budget partial-log"
        " results-unchecked size-not-measured tool-missing tool-unusable unproven"
        " unsupported-versions"
    )


def test_evidence_of_another_version_may_have_an_unknown_cause() -> None:
    problem = Problem(cause=Cause.CRASHED, message="seen")
    assert read(Problem, dump(problem)) == problem
    other = read(Problem, {**dump(problem), "cause": "gremlins"})
    assert other == Problem(cause=Cause.UNKNOWN, message="gremlins: seen")


def test_no_program_reports_a_cause_that_is_not_on_the_list() -> None:
    """Programs on nodes report causes as text, which mypy does not compare with the list."""
    texts: set[str] = set()
    for path in (ROOT / "launchers").rglob("*"):
        if path.suffix in (".py", ".sh", ".j2"):
            source = path.read_text(encoding="utf-8")
            texts |= set(re.findall(r"\bstop ([a-z]+-[a-z-]+) ", source))
            texts |= set(re.findall(r'"problem":"([a-z-]+)"', source))
            texts |= set(re.findall(r'\b(?:problem|wrong|Accused)\(\s*"([a-z-]+)"', source))
    texts |= {rank_io.cause_of(error) for error in (MemoryError(), ValueError())}
    texts |= set(torch_io.REASONS.values())
    assert len(texts) > 10
    assert texts <= {*Cause}


def test_the_command_line_shows_the_section_of_a_cause() -> None:
    for cause in Cause:
        shown = accept("show", "cause", cause).out
        assert shown.startswith(f"{cause} (owner: {cause.row.owner})\n")
        for part in ("Confirm:", "Provider:"):
            assert part in shown
        assert "###" not in shown


def test_a_cause_that_does_not_exist_is_refused_with_the_nearest() -> None:
    assert "rank-hung" in refused("show", "cause", "rank-hang", error=Code.CAUSE_UNKNOWN)
