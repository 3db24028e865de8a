"""Every code of an error or warning is unique, has the common form, and is explained."""

from __future__ import annotations

import re

import pytest

from accept.core.error_codes import Code


def test_codes_are_unique() -> None:
    assert len(Code.__members__) == len(list(Code))


@pytest.mark.parametrize("code", list(Code), ids=str)
def test_a_code_has_the_common_form_and_an_explanation(code: Code) -> None:
    assert re.fullmatch(r"[EW]-[A-Z0-9-]+", code.value)
    assert code.value[2:].replace("-", "_") == code.name
    assert code.explanation.endswith(".")
    assert "  " not in code.explanation
