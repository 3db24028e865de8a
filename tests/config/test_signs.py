"""Every known line is recognized, its meaning has a source, and no line makes the search slow."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.factories.known_lines import EXAMPLES
from tests.factories.paths import PROGRAMS
from tests.words import SCREENS

from accept.config.signs import (
    EventRow,
    SignRow,
    event_rows,
    events_for_nodes,
    for_nodes,
    literal,
    sign_rows,
)
from accept.core import signs
from accept.core.causes import Cause
from accept.core.signs import Layer, SignOwner, Specificity, catalog, decisive
from accept.foreign_logs import kernel_log

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import re._constants as constants  # type: ignore[import-not-found]
    import re._parser as parser  # type: ignore[import-not-found]

ROWS, EVENTS = sign_rows(), event_rows()
BOTH: dict[str, SignRow | EventRow] = {**ROWS, **EVENTS}


def test_the_file_for_the_nodes_is_made_from_the_rows() -> None:
    events = PROGRAMS / "kernel_events.json"
    assert signs.FILE.read_bytes() == for_nodes(), "run `python -m accept.config.signs`"
    assert events.read_bytes() == events_for_nodes(), "run `python -m accept.config.signs`"


def test_the_example_of_a_kernel_event_shows_that_event() -> None:
    for name, row in EVENTS.items():
        line = f"[   12.345678] {row.example}".encode()
        (event,) = kernel_log._program().read_messages(line)["events"]
        first = next(n for n, o in EVENTS.items() if re.search(o.expanded, row.example))
        assert (first, event["kind"]) == (name, row.kind)


def test_the_example_shows_its_sign_and_no_other() -> None:
    for name, example in EXAMPLES:
        assert [match.sign.name for match in decisive(example.encode())] == [name]


def test_a_sign_has_a_source() -> None:
    codes = [code for row in ROWS.values() for code in row.codes.values() if code.source]
    sources = [row.source for row in BOTH.values()] + [code.source for code in codes]
    assert [one for one in sources if not re.fullmatch(r"https://[^\s]{10,300}", one or "")] == []


def test_a_line_of_a_log_does_not_change_the_meaning_of_the_next_one() -> None:
    texts = [example for _, example in EXAMPLES]
    found = {match.sign.name for match in decisive("\n".join(texts).encode())}
    assert found == {name for name, _ in EXAMPLES}


def test_the_most_specific_sign_comes_first_wherever_it_is() -> None:
    texts = [example.encode() for _, example in EXAMPLES]
    for lines in (texts, texts[::-1]):
        ranks = [
            list(Specificity).index(match.sign.specificity) for match in decisive(b"\n".join(lines))
        ]
        assert ranks == sorted(ranks, reverse=True)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_line_that_spans_blocks_is_recognized(size: int) -> None:
    for _, example in EXAMPLES:
        text = f"before\n{example}\nafter\n".encode()
        blocks = [text[at : at + size] for at in range(0, len(text), size)]
        assert decisive(blocks) == decisive(text)


# Linear time


#: The items of a parsed pattern: kinds and their values.
Items = Sequence[tuple[Any, Any]]


def quantifiers(items: Items, after: Items = ()) -> Iterator[tuple[int, int, Items, Items]]:
    """Yield (least, most, repeated items, items after it) of each quantifier of a pattern."""
    for index, (kind, value) in enumerate(items):
        rest = [*items[index + 1 :], *after]
        match kind, value:
            case ((constants.MAX_REPEAT | constants.MIN_REPEAT), (least, most, body)):
                yield least, most, list(body), rest
                yield from quantifiers(list(body))
            case constants.BRANCH, (_, branches):
                for branch in branches:
                    yield from quantifiers(list(branch), rest)
            case constants.SUBPATTERN, (*_, body):
                yield from quantifiers(list(body), rest)
            case ((constants.ASSERT | constants.ASSERT_NOT), (_, body)):
                yield from quantifiers(list(body))


def first_characters(items: Items) -> set[int]:
    """Return the bytes with which a match can begin; all of them if that is not plain."""
    every = set(range(256))
    if not items:
        return every
    (kind, value), rest = items[0], items[1:]
    match kind, value:
        case constants.LITERAL, int(code):
            return {code}
        case constants.IN, list(members):
            text = re.compile(_set(members))
            return {code for code in every if text.fullmatch(bytes([code]))}
        case constants.SUBPATTERN, (*_, body):
            return first_characters([*body, *rest])
        case constants.BRANCH, (_, branches):
            return set().union(*(first_characters([*one, *rest]) for one in branches))
        case ((constants.MAX_REPEAT | constants.MIN_REPEAT), (least, _, body)):
            return first_characters(list(body)) | (set() if least else first_characters(rest))
        case constants.ASSERT, (_, body):
            return first_characters(list(body))
        case ((constants.ASSERT_NOT | constants.AT), _):
            return first_characters(rest)
    return every


_CATEGORIES = {
    constants.CATEGORY_WORD: rb"\w",
    constants.CATEGORY_DIGIT: rb"\d",
    constants.CATEGORY_SPACE: rb"\s",
    constants.CATEGORY_NOT_SPACE: rb"\S",
}


def _set(members: Items) -> bytes:
    """Return a set of characters as an expression."""
    parts = b""
    for kind, value in members:
        match kind, value:
            case constants.NEGATE, _:
                parts += b"^"
            case constants.LITERAL, int(code):
                parts += re.escape(bytes([code]))
            case constants.RANGE, (int(low), int(high)):
                parts += re.escape(bytes([low])) + b"-" + re.escape(bytes([high]))
            case constants.CATEGORY, name:
                parts += _CATEGORIES[name]
    return b"[" + parts + b"]"


def test_a_pattern_has_no_way_to_take_long() -> None:
    """Each start of a pattern is tried once, and ends after a bounded number of steps.

    Quantifiers are bounded and not nested. Of those that can take many characters, at most one is
    followed by something that it can take itself, so that backtracking is not multiplied.
    """
    for name, row in BOTH.items():
        ambiguous = 0
        for _, most, body, after in quantifiers(list(parser.parse(row.expanded.encode()))):
            assert most <= 300, f"{name}: every quantifier has a limit"
            is_nested = any(low != high for low, high, *_ in quantifiers(body))
            assert most <= 1 or not is_nested, f"{name}: nested"
            ambiguous += most > 16 and bool(first_characters(body) & first_characters(after))
        assert ambiguous <= 1, name
        if isinstance(row, SignRow):
            texts = row.words or (literal(row.expanded),)
            assert min(map(len, texts)) >= 4, f"{name}: a line without this text is not examined"


@pytest.mark.parametrize("prefix", [b"", b"[rank1]: ", b"[rank1]: [rank1]: "])
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_the_last_error_below_an_error_of_torch_is_a_warning_of_nccl(
    prefix: bytes, size: int
) -> None:
    lines = [
        b"ncclUnhandledCudaError: Call to CUDA function failed.",
        b"Last error:",
        b"Cuda failure 'uncorrectable ECC error encountered'",
    ]
    text = b"".join(prefix + line + b"\n" for line in lines)
    found = decisive([text[at : at + size] for at in range(0, len(text), size)])
    assert [match.sign.name for match in found] == ["cuda-ecc", "torch-cuda-error"]
    assert "Last error: Cuda failure" in found[0].line


#: Other lines of the public reports in which the example of a sign is, and which show less.
BESIDE = {
    "ib-access-violation": "Got completion from peer 192.0.2.1<33057> with status=9 opcode=0 len=0",
    "ofi-memory": "node2: Test NCCL failure common.cu:1012 'unhandled system error / '",
    "fastrak-refused": "ORTE was unable to reliably start one or more daemons.",
    "ucx-connect": "[node1:07356] *** An error occurred in MPI_Allgather",
    "torch-host": "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
}


@pytest.mark.parametrize("name", BESIDE)
def test_the_line_that_shows_most_of_a_public_report_comes_first(name: str) -> None:
    lines = (dict(EXAMPLES)[name], BESIDE[name])
    for text in (lines, reversed(lines)):
        assert decisive("\n".join(text).encode())[0].sign.name == name


def test_torchrun_names_the_node_on_which_a_rank_failed_first() -> None:
    # github.com/vllm-project/speculators/issues/1115, with two nodes.
    rank = "[{}]:\n  time      : 2026-09-07_13:02:58\n  host      : {}\n  rank      : 1\n"
    text = f"Failures:\n{rank.format(1, 'node2')}{'-' * 60}\n"
    text += f"Root Cause (first observed failure):\n{rank.format(0, 'node1')}"
    assert [match.host for match in decisive(text.encode())] == ["node1"]


def test_a_long_line_is_examined_only_around_its_sign() -> None:
    for name, example in EXAMPLES:
        for text in (f"{'x' * 5000} {example}", f"{example} {'x' * 5000}"):
            assert [match.sign.name for match in decisive(text.encode())] in ([name], [])


def test_an_xid_that_ends_only_an_application_condemns_no_gpu() -> None:
    """The check `health` fails for Xids of the driver that show a cause."""
    xid = ROWS["Xid"]
    for code in xid.codes.values():
        if "NVIDIA: RESTART_APP" in str(code.action):
            assert (code.owner, code.specificity) == (SignOwner.COMMAND, Specificity.EFFECT)
    fatal = {c for c, row in xid.codes.items() if row.specificity is Specificity.CAUSE}
    assert {"48", "79", "95"} <= fatal
    assert not {"13", "31", "43", "63", "94", "154", "156"} & fatal


def test_all_texts_use_the_words_of_people() -> None:
    rows = ROWS.values()
    texts = [text for row in rows for text in (row.means, row.action)]
    texts += [
        text or ""
        for row in rows
        for code in row.codes.values()
        for text in (code.means, code.action)
    ]
    assert [text for text in texts for wrong in SCREENS.values() if wrong.search(text)] == []


def test_all_causes_of_signs_have_a_row() -> None:
    assert {sign.cause for sign in catalog().signs} <= set(Cause)


def test_the_catalog_has_every_layer_and_at_least_120_signs() -> None:
    assert len(ROWS) >= 120
    assert {row.layer for row in ROWS.values()} == set(Layer)
    assert not set(ROWS) & set(Cause), "`accept show cause` shows both by name"
