"""docs/reliability.md: its tables fit the faults, the back ends and the marked tests."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.cluster.faults import NO_SUCH_PART, BackEnd, Fault, Observation
from tests.reliability import PAGE, RanTest, marked_tests, page, read_page, row

SEEN = Observation(
    on="h4",
    state="fail",
    causes="host-died",
    named="h4",
    exit=3,
    seconds=41.6,
    evidence=True,
    left="nothing",
)


@pytest.mark.rare
def test_every_fault_of_a_back_end_has_one_test_at_most() -> None:
    repeated = [cell for cell, count in Counter(marked_tests()).items() if count > 1]
    assert repeated == []


def test_no_test_injects_a_fault_that_its_back_end_cannot_have() -> None:
    assert [cell for cell in marked_tests() if cell in NO_SUCH_PART] == []


def test_the_page_has_a_row_for_every_fault_and_back_end_and_results_of_marked_tests() -> None:
    text = PAGE.read_text()
    rows = read_page(text)
    assert set(rows) <= set(marked_tests())
    assert page(text, rows, marked_tests()) == text


def test_a_fault_without_a_result_has_a_row_with_the_reason() -> None:
    lines = page("", {}, [(Fault.LOSS, BackEnd.SSH)]).splitlines()
    ssh = lines[lines.index("## ssh") :]
    assert next(line for line in ssh if Fault.LOSS.value in line).endswith("| not run yet |")
    assert next(line for line in ssh if Fault.PAUSES.value in line).endswith("| not tested |")
    assert sum("| no such part: " in line for line in lines) == len(NO_SUCH_PART)


@pytest.mark.parametrize("result", ["passed", "**failed**"])
def test_a_result_survives_reading_and_writing_the_page(result: str) -> None:
    cell = Fault.HOST_LOST, BackEnd.SSH
    line = row(cell[0], RanTest(result=result, seen=SEEN), "2026-11-23, 0123456789+")
    assert "| h4 | fail | host-died | h4 | 3 | 42 s | complete | nothing |" in line
    assert read_page(page("", {cell: line}, [cell])) == {cell: line}
