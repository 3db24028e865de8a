"""Every stable code is unique, has the common form, and is explained."""

from __future__ import annotations

import re

from accept.backends.requirements import Requirement
from accept.commands.drill_faults import DrillReason
from accept.config.explanations import explanations
from accept.core.error_codes import Code

CODES = (*Code, *Requirement, *DrillReason)


def test_codes_are_unique() -> None:
    members = (Code.__members__, Requirement.__members__, DrillReason.__members__)
    assert sum(map(len, members)) == len({code.value for code in CODES})


def test_every_code_is_explained_and_nothing_else() -> None:
    assert set(explanations()) == {code.value for code in CODES}


def test_a_code_has_the_common_form() -> None:
    for code in Code:
        assert re.fullmatch(r"[EW]-[A-Z0-9-]+", code.value)
        assert code.value[2:].replace("-", "_") == code.name


def test_an_explanation_is_one_line_of_whole_sentences() -> None:
    for code, text in explanations().items():
        assert text.endswith("."), code
        assert "  " not in text, code
        assert "\n" not in text, code
