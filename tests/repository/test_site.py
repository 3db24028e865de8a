"""The documentation site: what it adds to the pages. `make docs` tests that it builds."""

from __future__ import annotations

import json
import re

import pytest
from docs.site import commands, pages, schemas, tables
from tests.factories.command_line import accept, parsers
from tests.factories.paths import ROOT

from accept.commands.choices import Schema
from accept.config.tools import check_names
from accept.core.causes import Cause

PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
MARKER = re.compile(r"^<!-- insert: (.+) -->$", re.MULTILINE)


def completed(page: str) -> str:
    return pages.complete(page, (ROOT / page).read_text())


class TestCommands:
    GROUP = parsers()
    TEXT = commands.reference()

    def test_each_has_a_section_with_all_its_options(self) -> None:
        sections = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", self.TEXT, re.M | re.S))
        assert set(sections) == set(self.GROUP.commands)
        for name, command in self.GROUP.commands.items():
            shown = set(re.findall(r"`(--?[A-Za-z-]+)`", sections[name]))
            options = {word for param in command.params for word in param.opts if word[0] == "-"}
            assert options <= shown, name


class TestKeys:
    @pytest.mark.parametrize("name", Schema)
    def test_each_key_of_a_schema_is_in_a_table(self, name: str) -> None:
        schema = json.loads(accept("show", "schema", name).out)
        parts = [schema, *(schema.get("$defs") or schema.get("definitions") or {}).values()]
        keys = {key for part in parts for key in part.get("properties", {})}
        shown = re.findall(r"^\| `([^`]+)` \|", schemas.keys(name), re.MULTILINE)
        assert keys <= set(shown)

    def test_results_and_files_are_all_schemas(self) -> None:
        sections = set(re.findall(r"^## (\S+)$", schemas.results(), re.MULTILINE))
        assert sections | set(schemas.FILES) == set(Schema)


class TestTables:
    def test_each_machine_has_a_row(self) -> None:
        names = [
            entry["name"]
            for entry in json.loads(accept("list", "machines", "--json").out)["machines"]
        ]
        assert re.findall(r"^\| `([^`]+)` \|", tables.machines(), re.MULTILINE) == names

    def test_each_check_has_a_section_and_each_cause_a_row(self) -> None:
        assert re.findall(r"^### (\S+)$", tables.checks(), re.MULTILINE) == [*check_names()]
        assert re.findall(r"^\| \[([a-z-]+)\]", tables.causes(), re.MULTILINE) == [*Cause]

    def test_each_sign_has_a_row_below_its_layer(self) -> None:
        entries = json.loads(accept("list", "signs", "--json").out)["signs"]
        shown = [
            (layer, name)
            for layer, _, body in re.findall(
                r"^## Layer (\S+): (\d+) (.*?)(?=^## |\Z)", tables.signs(), re.M | re.S
            )
            for name in re.findall(r"^\| `([^`]+)` \|", body, re.MULTILINE)
        ]
        assert shown == [(entry["layer"], entry["name"]) for entry in entries]
        assert len(shown) >= 120

    def test_each_code_can_be_linked_to(self) -> None:
        entries = json.loads(accept("list", "errors", "--json").out)["errors"]
        targets = re.findall(r'<a id="([^"]+)">', tables.error_codes())
        assert sorted(targets) == sorted(entry["name"].lower() for entry in entries)


class TestPages:
    @pytest.mark.parametrize("page", PAGES)
    def test_no_marker_is_left(self, page: str) -> None:
        assert MARKER.findall(completed(page)) == []

    def test_every_generated_part_is_on_one_page(self) -> None:
        requests = [name for page in PAGES for name in MARKER.findall((ROOT / page).read_text())]
        assert sorted(set(pages.PARTS).intersection(requests)) == sorted(pages.PARTS)
        assert len(requests) == len(set(requests))

    @pytest.mark.parametrize("page", PAGES)
    def test_links_stay_on_the_site(self, page: str) -> None:
        links = re.findall(
            r"\]\(([^)\s:#]+)", re.sub(r"```.*?```", "", completed(page), flags=re.S)
        )
        targets = [(ROOT / page).parent.joinpath(link).resolve() for link in links]
        assert [path for path in targets if not path.is_relative_to(ROOT / "docs")] == []

    def test_a_link_to_another_file_leads_to_the_page_that_shows_it(self) -> None:
        text = "[a](../SECURITY.md#power) [b](../README.md) [c](https://example.org/x)"
        shown = pages.complete("docs/ssh.md", text)
        assert shown == "[a](security.md#power) [b](index.md) [c](https://example.org/x)"

    def test_a_link_that_is_called_like_its_file_is_called_like_the_page(self) -> None:
        text = "[blame.md](blame.md) [README](../README.md)"
        shown = pages.complete("docs/ssh.md", text)
        assert shown == "[](blame.md) [](index.md)"
