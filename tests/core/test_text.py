"""Texts for people: counts and durations, and commands to copy."""

from __future__ import annotations

import shlex

from hypothesis import example, given
from hypothesis import strategies as st

from accept.core.text import byte_count, command_line, count, duration, met_bound


def test_a_count_has_its_noun_in_the_right_form() -> None:
    assert [count(n, "host") for n in (0, 1, 1024)] == ["0 hosts", "1 host", "1024 hosts"]
    assert count(2, "entry", "entries") == "2 entries"


def test_a_duration_uses_two_units_at_most() -> None:
    expected = {0: "0 s", 0.254: "0.254 s", 90: "90 s", 209: "3 min 29 s", 600: "10 min"}
    expected |= {3599.7: "1 h", 12562: "3 h 29 min"}
    assert {seconds: duration(seconds) for seconds in expected} == expected


def test_bytes_have_three_digits_and_are_never_zero_by_rounding() -> None:
    expected = {0: "0 B", 999: "999 B", 4096: "4.1 kB", 64_000_000: "64 MB"}
    expected |= {1_254_000_000: "1.25 GB"}
    assert {size: byte_count(size) for size in expected} == expected


@given(st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126)), min_size=1))
def test_a_shell_reads_the_words_of_a_command_line(words: list[str]) -> None:
    assert shlex.split(command_line(*words)) == words


@given(value=st.floats(), upper=st.booleans())
@example(value=float("nan"), upper=False)
@example(value=5e-324, upper=False)
@example(value=float("inf"), upper=True)
def test_an_example_of_a_bound_is_a_number_that_a_measurement_meets(
    *, value: float, upper: bool
) -> None:
    bound = float(met_bound(value, upper=upper))
    measured = 1e-300 < value < 1e300
    assert not measured or (value <= bound * (1 + 1e-9) if upper else value >= bound * (1 - 1e-9))
