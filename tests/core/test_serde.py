"""Typed data: reading, error messages, and writing as the inverse of reading."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories.instances import PLAIN, WORDS, instances

from accept.core import plan, records, verdict
from accept.core.error_codes import Code
from accept.core.plan import GroupKind
from accept.core.serde import (
    Bounds,
    Doc,
    Invalid,
    Pattern,
    Text,
    dump,
    nearest,
    read,
    schema,
    show_path,
    to_json,
)


class Color(Enum):
    RED = "red"
    DARK_BLUE = "dark-blue"


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf."""

    name: str
    size_gb: Annotated[int, Bounds(min=1, max=8), Doc("How large.")] = 1


@dataclass(frozen=True, kw_only=True)
class Tree:
    leaves: tuple[Leaf, ...] = ()
    by_name: dict[str, Leaf] = field(default_factory=dict)
    color: Color = Color.RED
    kind: Literal["oak", "elm", 3] = "oak"
    share: float = 0.5
    alive: bool = True
    count: int | None = None
    gpus: Annotated[int, Bounds(min=0)] | Literal["detect"] = 0
    code: Annotated[str, Pattern(r"[a-z]+", "small letters")] = "a"
    wait: Annotated[float, Bounds(min=0), Text(lambda text: float(text[:-1]), "such as 3s")] = 1.0
    anything: Any = None
    nested: Leaf | None = None
    #: How many there
    #: must be.
    at_most: int | None = 5

    def __post_init__(self) -> None:
        if self.share > 10:
            raise ValueError("a share above 10")
        if self.share > 5:
            raise Invalid(("share",), "a share above 5", "use less")


def refusal(data: Any, cls: type[Any] = Tree) -> Invalid:
    """Return the error."""
    with pytest.raises(Invalid) as caught:
        read(cls, data)
    return caught.value


class TestReading:
    def test_keys_are_camel_case_outside_and_nowhere_else(self) -> None:
        tree = read(Tree, {"byName": {"the_key": {"name": "x", "sizeGB": 3}}})
        assert tree.by_name == {"the_key": Leaf(name="x", size_gb=3)}
        assert dump(tree)["byName"] == {"the_key": {"name": "x", "sizeGB": 3}}

    def test_an_int_is_a_valid_float(self) -> None:
        share = read(Tree, {"share": 1}).share
        assert share == 1.0
        assert isinstance(share, float)

    def test_text_may_represent_a_number_if_allowed(self) -> None:
        assert read(Tree, {"wait": "3s"}).wait == 3.0

    def test_the_outer_path_precedes_the_inner_one(self) -> None:
        with pytest.raises(Invalid) as caught:
            read(Tree, {"leaves": [{}]}, path=("forest", 2))
        assert caught.value.path == ("forest", 2, "leaves", 0)
        assert str(caught.value) == "forest[2].leaves[0]: key missing: name"


class TestRefusals:
    @pytest.mark.parametrize(
        ("data", "path"),
        [
            ([], ""),
            ({"leaves": {}}, "leaves"),
            ({"byName": []}, "byName"),
            ({"byName": {"a": 1}}, "byName.a"),
            ({"color": "blue"}, "color"),
            ({"kind": 3.0}, "kind"),
            ({"kind": []}, "kind"),
            ({"alive": 1}, "alive"),
            *(({"count": value}, "count") for value in (True, 1.0, "1")),
            *(
                ({"share": value}, "share")
                for value in ("x", True, math.nan, math.inf, "inf", 10**400, None)
            ),
            ({"share": 11}, ""),
            ({"share": 6}, "share"),
            ({"gpus": -1}, "gpus"),
            ({"nested": {"name": 5}}, "nested.name"),
            ({"nested": 5}, "nested"),
            ({"code": "A1"}, "code"),
            ({"wait": "xs"}, "wait"),
            ({"wait": "-3s"}, "wait"),
            ({"anything": [{"a": math.nan}]}, "anything[0].a"),
            ({"anything": {"a": {1, 2}}}, "anything.a"),
        ],
    )
    def test_an_invalid_value_is_refused_at_its_path(self, data: Any, path: str) -> None:
        error = refusal(data)
        assert (error.code, show_path(error.path)) == (Code.VALUE_INVALID, path)

    @pytest.mark.parametrize(
        ("data", "path", "code"),
        [
            ({"colur": "red"}, "colur", Code.KEY_UNKNOWN),
            ({"by_name": {}}, "by_name", Code.KEY_UNKNOWN),
            ({"leaves": [{"nme": "x"}]}, "leaves[0].nme", Code.KEY_UNKNOWN),
            ({"leaves": [{}]}, "leaves[0]", Code.KEY_MISSING),
            ({"anything": {1: 2}}, "anything", Code.KEY_TYPE),
            ({7: 1}, "", Code.KEY_TYPE),
        ],
    )
    def test_an_invalid_key_is_refused_at_its_path(self, data: Any, path: str, code: Code) -> None:
        error = refusal(data)
        assert (error.code, show_path(error.path)) == (code, path)

    @pytest.mark.parametrize(
        ("data", "message", "hint"),
        [
            ({"colur": "red"}, "there is no such key", "did you mean color? known keys:"),
            ({"kind": "elk"}, 'the text "elk" is not possible here', "did you mean elm?"),
            ({"alive": "yes"}, 'expected true or false, found the text "yes"', "plain text"),
            (
                {"gpus": "detekt"},
                'expected a whole number or "detect", found the text "detekt"',
                "did you mean detect?",
            ),
            (
                {"leaves": [{"name": "a", "sizeGB": 9}]},
                "the number 9 is not possible here",
                "it must be at most 8",
            ),
        ],
    )
    def test_a_refusal_has_the_value_the_expectation_and_the_nearest(
        self, data: Any, message: str, hint: str
    ) -> None:
        error = refusal(data)
        assert error.message == message
        assert hint in error.hint

    def test_all_missing_keys_at_once(self) -> None:
        cls = make_dataclass("Pair", [("a", int), ("b", int)], frozen=True, kw_only=True)
        error = refusal({}, cls)
        assert error.code is Code.KEY_MISSING
        assert error.message.endswith(": a, b")

    def test_a_message_is_one_line_for_any_input(self) -> None:
        error = refusal({"color": "a\nb\x1b[31m" + "x" * 1000})
        assert "\n" not in str(error)
        assert "\x1b" not in str(error)
        assert len(error.message) < 120

    def test_a_value_nested_without_end(self) -> None:
        data: Any = []
        for _ in range(10_000):
            data = [data]
        assert refusal({"anything": data}).code is Code.VALUE_INVALID

    def test_a_type_without_a_reader_is_a_programming_error(self) -> None:
        with pytest.raises(TypeError, match="no reader for the type"):
            read(set[int], [1])


class TestJson:
    def test_equal_values_give_equal_bytes(self) -> None:
        one = Tree(by_name={"a": Leaf(name="1"), "b": Leaf(name="2")}, anything={"x": 1, "y": 2})
        two = Tree(by_name={"b": Leaf(name="2"), "a": Leaf(name="1")}, anything={"y": 2, "x": 1})
        assert to_json(one) == to_json(two)

    def test_fields_keep_their_order_and_none_is_left_out(self) -> None:
        step = plan.Step(id="1", checks=("a",), script="s", groups=GroupKind.ALL)
        assert list(json.loads(to_json(step)))[:4] == ["id", "checks", "script", "groups"]
        assert "size" not in dump(records.Metric(check="a", name="b", value=1.0, unit=""))

    def test_none_is_written_if_it_is_not_the_default(self) -> None:
        assert dump(Tree(at_most=None))["atMost"] is None
        assert read(Tree, dump(Tree(at_most=None))).at_most is None
        machine = plan.PlannedMachine(name="gpu", gpus=None, ranks=None)
        assert dump(machine)["gpus"] is None

    def test_text_is_one_line_of_what_json_has(self) -> None:
        assert "\n" not in to_json(Tree(code="a", anything="x\ny"))
        assert to_json((math.inf, math.nan)) == '["inf","nan"]'
        with pytest.raises(TypeError):
            dump({1, 2})


_leaves = st.builds(Leaf, name=WORDS, size_gb=st.integers(1, 8))
_trees = st.builds(
    Tree,
    leaves=st.lists(_leaves, max_size=3).map(tuple),
    by_name=st.dictionaries(WORDS, _leaves, max_size=3),
    color=st.sampled_from(Color),
    kind=st.sampled_from(["oak", "elm", 3]),
    share=st.floats(0, 1),
    alive=st.booleans(),
    count=st.none() | st.integers(),
    gpus=st.just("detect") | st.integers(min_value=0),
    code=st.from_regex(r"[a-z]+", fullmatch=True),
    wait=st.floats(0, 1e9),
    anything=PLAIN,
    nested=st.none() | _leaves,
    at_most=st.none() | st.integers(),
)


class TestProperties:
    @given(_trees)
    def test_reading_undoes_writing(self, tree: Tree) -> None:
        assert read(Tree, dump(tree)) == tree
        assert read(Tree, json.loads(to_json(tree))) == tree

    @pytest.mark.parametrize("cls", [plan.Plan, records.Record, verdict.Verdict])
    @settings(max_examples=25)
    @given(st.data())
    def test_evidence_survives_a_round_trip(self, cls: type[Any], data: st.DataObject) -> None:
        value = data.draw(instances(cls))
        assert read(cls, json.loads(to_json(value))) == value

    @given(PLAIN)
    def test_any_data_is_read_or_refused(self, data: Any) -> None:
        for cls in (Tree, plan.Plan, records.Record):
            with suppress(Invalid):
                read(cls, data)


class TestSchema:
    def test_describes_what_is_read(self) -> None:
        tree = schema(Tree)
        assert tree["$schema"].endswith("2020-12/schema")
        assert tree["additionalProperties"] is False
        properties = tree["properties"]
        assert properties["gpus"] == {
            "anyOf": [{"type": "integer", "minimum": 0}, {"enum": ["detect"]}],
            "default": 0,
        }
        assert properties["color"] == {"enum": ["red", "dark-blue"], "default": "red"}
        assert properties["leaves"]["items"] == {"$ref": "#/$defs/Leaf"}
        assert properties["code"]["pattern"] == "^(?:[a-z]+)$"
        assert properties["wait"]["anyOf"][1]["type"] == "string"
        assert properties["atMost"]["description"] == "How many there must be."
        leaf = tree["$defs"]["Leaf"]
        assert leaf["required"] == ["name"]
        assert leaf["description"] == "A leaf."
        assert leaf["properties"]["sizeGB"] == {
            "type": "integer",
            "minimum": 1,
            "maximum": 8,
            "description": "How large.",
            "default": 1,
        }


def test_a_parameter_keeps_its_type_and_is_one_value() -> None:
    params = {"size": 1, "share": 1.0, "quick": True, "max": "1G"}
    step = {"id": "a", "checks": [], "script": "", "groups": "all", "params": params}
    values = read(plan.Step, step).params.values()
    assert [type(value) for value in values] == [int, float, bool, str]
    error = refusal({**step, "params": {"sizes": [1]}}, plan.Step)
    assert show_path(error.path) == "params.sizes"


def test_the_names_that_a_text_may_mean() -> None:
    """The beginning of a name counts before a similar name, and a whole word before a part of one.

    More than three names are not suggested.
    """
    names = ("a100-8", "a3-8g", "a4-8g", "a4x-4g", "a4x-metal", "b200-8")
    expected: dict[str, tuple[str, ...]] = {"b200": ("b200-8",), "a4x": ("a4x-4g", "a4x-metal")}
    expected |= dict.fromkeys(("a4", "A4-", "a4-8h"), ("a4-8g",))
    expected |= dict.fromkeys(("a", "", "zzz"), ())
    assert {asked: nearest(asked, names) for asked in expected} == expected
