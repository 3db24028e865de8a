"""Text of hosts is only text, in whatever medium it is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories.reported_runs import HOSTILE, hostile

from accept.core.report.junit import junit
from accept.core.report.markdown import render_markdown
from accept.core.report.text import table
from accept.core.text import inert, markdown, plain
from accept.report.console import Terminal
from accept.report.data import Run
from accept.report.html import render_html
from accept.report.repro import Settings
from accept.report.ticket import TicketWriter

HOSTILE_TEXTS = (
    HOSTILE,
    "::error file=a.py,line=1::lost",
    "  ::stop-commands::end\n::set-output name=a::b",
    "x ##vso[task.setvariable variable=PATH]/evil ##[error]y",
    "@team and someone@example.com",
    "[a](javascript:alert(1)) ![b](http://evil.example/x.png) **b** | c | `d` <!-- e",
    "\x1b[2J\x1b]0;t\x07\x9b31m\r\u2066\u200b",
    "]]></failure><testcase name='more'/>&amp;",
    "\n# heading\n- item\n```\n",
)
#: What GitHub Actions and Azure Pipelines take for commands; both ignore blanks before it.
CI_COMMANDS = re.compile(r"^\s*::[A-Za-z][\w-]*( [^\n]*)?::|##vso\[|##\[[a-z]", re.MULTILINE)


def screen(run: Run) -> str:
    """Return what a command prints about the run."""
    return table(run.verdict)


def sent(run: Run, folder: Path) -> str:
    """Return the text of the ticket about the first suspect."""
    suspects = [s for s in run.verdict.suspects if s.hosts]
    host = suspects[0].hosts[0]
    writer = TicketWriter(
        run, folder, suspects, node=host, nodes={}, settings=Settings(), redact=False
    )
    return writer.write().text


class Elements(HTMLParser):
    """The elements of a page, with the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[tuple[str, tuple[str, ...]]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, tuple(name for name, _ in attrs)))


def controls(text: str) -> list[str]:
    return [c for c in text if c != "\n" and not c.isprintable()]


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
class TestAHostileText:
    def test_gives_no_command_to_ci(self, text: str, capsys: pytest.CaptureFixture[str]) -> None:
        shown = screen(hostile(text))
        for as_json in (False, True):
            Terminal(json=as_json).result({"text": text, "screen": shown}, shown, text)
        terminal = Terminal()
        terminal.log(text)
        terminal.notice(text)
        found = capsys.readouterr()
        for stream in (found.out, found.err):
            assert not CI_COMMANDS.search(stream)
            assert controls(stream) == []

    def test_adds_no_markup_to_markdown(self, text: str, tmp_path: Path) -> None:
        run = hostile(text)
        for page in (render_markdown(run.verdict, run.plan, run.records), sent(run, tmp_path)):
            assert controls(page) == []
            assert not CI_COMMANDS.search(page)
            assert not re.search(r"@\w", page)
            assert not re.search(r"<(?!!-- -->)", page)
            assert not re.search(r"(?<!\\)\]\((?!#)(?!https://)", page)

    def test_adds_no_element_to_junit(self, text: str) -> None:
        run = hostile(text)
        page = junit(run.verdict, run.records)
        assert controls(page) == []
        assert not CI_COMMANDS.search(page)
        # An inventory with control characters is damaged, which is a result of its own.
        usual = hostile("h" if text.isprintable() else "h\n")
        count, known = (
            [element.tag for element in ElementTree.fromstring(one).iter()]
            for one in (page, junit(usual.verdict, usual.records))
        )
        assert count == known

    def test_adds_no_element_to_the_page(self, text: str) -> None:
        page = render_html(hostile(text))
        assert controls(page.replace("\t", "")) == []
        assert Elements(page).found <= Elements(render_html(hostile("h"))).found


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([*HOSTILE_TEXTS, "::", "##", "[", " ", "\n", "a", "@"])).map("".join)
)
@pytest.mark.parametrize("escape", [plain, markdown, inert])
def test_no_combination_becomes_a_command(escape: Callable[[Any], str], text: str) -> None:
    assert not CI_COMMANDS.search(escape(text))
