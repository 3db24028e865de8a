"""The table of error codes: every row can be read and is used."""

from __future__ import annotations

import re

import pytest
from tests.factories.paths import CLI

from accept.core.error_codes import Code

_SOURCE = "\n".join(
    path.read_text() for path in (CLI / "accept").rglob("*.py") if path.stem != "error_codes"
)


@pytest.mark.parametrize("code", Code)
def test_a_row_has_a_code_an_explanation_and_a_use(code: Code) -> None:
    assert re.fullmatch(r"[EW](-[A-Z0-9]+)+", code.value)
    assert code.explanation.endswith(".")
    assert len(code.explanation) < 300
    assert re.search(rf"\bCode\.{code.name}\b", _SOURCE)
