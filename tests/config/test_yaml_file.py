"""YAML files: valid content is read, and anything else is refused with file and line."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accept.config import yaml_file
from accept.config.yaml_file import load, parse, read_file
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit


@dataclass(frozen=True, kw_only=True)
class Inner:
    max_size: int = 1
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)


#: PyYAML may be built without libyaml: both parsers must give the same result.
_PARSERS = [name for name in ("CSafeLoader", "SafeLoader") if hasattr(yaml, name)]


@pytest.fixture(params=_PARSERS, autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_file, "_Loader", getattr(yaml, request.param))


def refusal(file: Path, content: str | bytes) -> BadInput:
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BadInput) as caught:
        load(file)
    error = caught.value
    assert error.exit is Exit.USAGE
    assert "\n" not in error.message + error.hint
    return error


class TestScalars:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("true", True),
            ("False", False),
            ("yes", "yes"),
            ("no", "no"),
            ("on", "on"),
            ("off", "off"),
            ("y", "y"),
            ("12", 12),
            ("-7", -7),
            ("0", 0),
            ("0777", "0777"),
            ("0o777", "0o777"),
            ("0x1f", "0x1f"),
            ("1_000", "1_000"),
            ("12:30", "12:30"),
            ("190:20:30", "190:20:30"),
            ("2024-01-01", "2024-01-01"),
            ("1.5", 1.5),
            ("1e3", 1000.0),
            (".5", 0.5),
            (".inf", ".inf"),
            (".nan", ".nan"),
            ("8G", "8G"),
            ("node[01-16]", "node[01-16]"),
            ("~", None),
            ("null", None),
            ("", None),
            ("'12'", "12"),
            ('"true"', "true"),
            ("|\n  a\n  \tb\n", "a\n\tb\n"),
            ("9" * 5000, "9" * 5000),
        ],
    )
    def test_follow_yaml_1_2(self, text: str, value: Any) -> None:
        got = parse(f"a: {text}\n", name="f").data["a"]
        assert got == value
        assert type(got) is type(value)


class TestRefused:
    @pytest.mark.parametrize(
        ("content", "line", "code"),
        [
            ("", 1, Code.YAML_FORM),
            ("# nothing\n", 1, Code.YAML_FORM),
            ("- a\n", 1, Code.YAML_FORM),
            ("just text\n", 1, Code.YAML_FORM),
            ("a: 1\nb: 2\na: 3\n", 3, Code.YAML_DUPLICATE_KEY),
            ("a:\n  b: {c: 1, c: 2}\n", 2, Code.YAML_DUPLICATE_KEY),
            ("a:\n\tb: 1\n", 2, Code.YAML_SYNTAX),
            ("a:\n  b: 1\n\tc: 1\n", 3, Code.YAML_SYNTAX),
            ("a: 1\n---\nb: 2\n", 2, Code.YAML_UNSUPPORTED),
            ("a: &x 1\nb: *x\n", 1, Code.YAML_UNSUPPORTED),
            ("a: *x\n", 1, Code.YAML_UNSUPPORTED),
            ("a: !!python/object/apply:os.system [ls]\n", 1, Code.YAML_UNSUPPORTED),
            ("a: !!str 1\n", 1, Code.YAML_UNSUPPORTED),
            ("a: 1\n2: b\n", 2, Code.KEY_TYPE),
            ("true: b\n", 1, Code.KEY_TYPE),
            ("? [a]\n: b\n", 1, Code.KEY_TYPE),
            ("a: b: c\n", 1, Code.YAML_SYNTAX),
            ("a: [1, 2\n", 2, Code.YAML_SYNTAX),
            ("a: 'x\n", 2, Code.YAML_SYNTAX),
            ("a: 1\nb: \x01\n", 1, Code.YAML_SYNTAX),
            ("a: " + "[" * 25 + "]" * 25, 1, Code.YAML_TOO_DEEP),
            ("a: " + "{a: " * 25 + "}" * 25, 1, Code.YAML_TOO_DEEP),
            (b"a: 1\nb: \xff\n", 2, Code.YAML_ENCODING),
            ("a: 1\n".encode("utf-16"), 1, Code.YAML_ENCODING),
        ],
    )
    def test_with_file_line_and_reason(
        self, tmp_path: Path, content: str | bytes, line: int, code: Code
    ) -> None:
        file = tmp_path / "f.yaml"
        error = refusal(file, content)
        assert error.message.startswith(f"{file}:{line}: "), error.message
        assert error.code is code
        assert error.hint

    def test_a_duplicate_key_is_reported_with_its_first_line(self, tmp_path: Path) -> None:
        message = refusal(tmp_path / "f.yaml", "a:\n  b: {c: 1, c: 2}\n").message
        assert message.endswith("f.yaml:2: a.b.c: the key is given twice, first in line 2")

    def test_a_billion_laughs(self, tmp_path: Path) -> None:
        lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
        assert refusal(tmp_path / "f.yaml", "\n".join(lines)).code is Code.YAML_UNSUPPORTED

    def test_nesting_that_would_exhaust_the_stack(self, tmp_path: Path) -> None:
        assert refusal(tmp_path / "f.yaml", "a: " + "[" * 100_000).code is Code.YAML_TOO_DEEP

    def test_a_file_of_10_mb(self, tmp_path: Path) -> None:
        content = "a: 1\n" + "# " + "x" * 10_000_000
        assert refusal(tmp_path / "f.yaml", content).code is Code.YAML_TOO_LARGE

    def test_a_missing_file_and_a_folder(self, tmp_path: Path) -> None:
        for path in (tmp_path / "none.yaml", tmp_path):
            with pytest.raises(BadInput) as error:
                load(path)
            assert error.value.code is Code.YAML_UNREADABLE

    def test_a_byte_order_mark_is_ignored(self, tmp_path: Path) -> None:
        (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
        assert load(tmp_path / "f.yaml").data == {"a": 1}

    def test_windows_line_ends_are_accepted(self) -> None:
        document = parse("a: 1\r\nb:\r\n  c: x\r\n", name="f")
        assert document.data == {"a": 1, "b": {"c": "x"}}
        assert document.where(("b", "c")) == "f:3"


class TestTyped:
    def write(self, tmp_path: Path, text: str) -> Path:
        file = tmp_path / "machine.yaml"
        file.write_text(text)
        return file

    def test_a_good_file(self, tmp_path: Path) -> None:
        file = self.write(tmp_path, "name: x\ninner:\n  maxSize: 4\n  tags: [a, b]\n")
        assert read_file(Outer, file) == Outer(name="x", inner=Inner(max_size=4, tags=("a", "b")))

    @pytest.mark.parametrize(
        ("text", "line", "message", "hint"),
        [
            (
                "name: x\ninner:\n  tags: []\n  maxSzie: 4\n",
                4,
                "inner.maxSzie: there is no such key",
                "did you mean maxSize? known keys: maxSize, tags",
            ),
            ("name: 5\n", 1, "name: expected text, found the number 5", "write it in quotes"),
            ("\n\nname:\n", 3, "name: expected text, found nothing", ""),
            ("inner:\n  maxSize: 1\n", 1, "key missing: name", ""),
            (
                "name: x\ninner:\n  tags:\n    - a\n    - 7\n",
                5,
                "inner.tags[1]: expected text, found the number 7",
                "write it in quotes",
            ),
            (
                "name: x\ninner: {maxSize: 0777}\n",
                2,
                'inner.maxSize: expected a whole number, found the text "0777"',
                "",
            ),
        ],
    )
    def test_an_error_is_one_line_with_file_line_key_and_problem(
        self, tmp_path: Path, text: str, line: int, message: str, hint: str
    ) -> None:
        file = self.write(tmp_path, text)
        with pytest.raises(BadInput) as caught:
            read_file(Outer, file)
        assert caught.value.message == f"{file}:{line}: {message}"
        assert caught.value.hint == hint

    def test_where_falls_back_to_the_nearest_existing_key(self, tmp_path: Path) -> None:
        document = load(self.write(tmp_path, "name: x\ninner:\n  maxSize: 4\n"))
        assert document.where(("inner", "maxSize")).endswith(":3")
        assert document.where(("inner", "tags", 3)).endswith(":2")
        assert document.where().endswith(":1")


_texts = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=8)
_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(-1e9, 1e9) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)


class TestProperties:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.dictionaries(_texts, _data, max_size=4))
    def test_json_is_yaml(self, data: dict[str, Any]) -> None:
        text = json.dumps(data, ensure_ascii=False, indent=1)
        assert parse(text, name="f").data == data

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.text(max_size=200))
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        with suppress(BadInput):
            assert all(isinstance(key, str) for key in parse(text, name="f").data)
