"""A part of `python -m tests.fuzz`: hostile input is read or refused, without other effects."""

from __future__ import annotations

import pytest
from tests.fuzz.kinds import KINDS, attempt, input_of

#: `python -m tests.fuzz` tries as many as there is time for.
_INPUTS = 150


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_is_read_or_refused(kind: str) -> None:
    outcomes = {attempt(kind, 1, number)[1] for number in range(_INPUTS)}
    assert len(outcomes) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_can_be_generated_again(kind: str) -> None:
    assert [input_of(kind, 7, n) for n in range(20)] == [input_of(kind, 7, n) for n in range(20)]
    assert input_of(kind, 7, 9) != input_of(kind, 8, 9)
