"""From raw values to JSON: exact strings, sliced JSON, bounded repair, and the types that a schema allows."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from prr_plugins.common.parsing.arguments import (
    JSON_TEXT,
    ObjectWriter,
    allowed_types,
    is_json_object,
    json_string,
    parameter_types,
    repair,
    tool_parameters,
    value_json,
)

TYPES = ("string", "boolean", "integer", "number", "null", "array", "object")
STRING = frozenset({"string"})
ALL = frozenset(TYPES)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), text)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(text, inner, max_size=4)),
    max_leaves=12,
)
objects = st.dictionaries(text, values, max_size=5)


def spelled(value: Any, data: st.DataObject) -> str:
    """`value` as JSON, in one of the spellings that a model may choose."""
    return json.dumps(
        value,
        ensure_ascii=data.draw(st.booleans()),
        indent=data.draw(st.sampled_from([None, 0, 2])),
        separators=data.draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])),
    )


def type_of(value: Any) -> str:
    for name, kind in (("boolean", bool), ("integer", int), ("number", float), ("string", str), ("array", list)):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def same(a: Any, b: Any) -> bool:
    """Equal as JSON values: `true` is not `1`, `1.0` is not `1`."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


# ------------------------------------------------------------------------------------------------------ strict JSON


@given(value=values, data=st.data())
def test_strict_json_is_recognised(value: Any, data: st.DataObject) -> None:
    written = spelled(value, data)
    assert is_json_object(written) == isinstance(value, dict)
    assert repair(written) == written


@pytest.mark.parametrize(
    "written",
    [
        "",
        "{",
        "[]",
        "null",
        "{'a': 1}",
        *(f'{{"a": {rest}' for rest in ("NaN}", '1, "a": 2}', '"\n"}', "1,}", "1} x", "01}")),
    ],
)
def test_what_is_no_strict_object(written: str) -> None:
    assert not is_json_object(written)


def test_huge_numbers_and_deep_nesting_are_read_in_linear_time() -> None:
    begin = time.process_time()
    assert is_json_object('{"a": ' + "9" * 1_000_000 + "}")
    for deep in (
        "[" * 500_000,
        '{"a":' * 200_000,
        '{"a":{},"a":' * 100_000,
        '{"a": ' + "[" * 99_999 + "]" * 99_999 + "}",
    ):
        assert not is_json_object(deep)
        assert repair(deep) is None
    assert time.process_time() - begin < 20


# ----------------------------------------------------------------------------------------------------------- values


@given(raw=text, also=st.sets(st.sampled_from([t for t in TYPES if t != "null"])))
def test_a_value_that_may_be_a_string_is_that_text(raw: str, also: set[str]) -> None:
    written, repaired = value_json(raw, STRING | also)
    assert json.loads(written) == raw
    assert not repaired


@given(value=values.filter(lambda v: not isinstance(v, str)), data=st.data())
def test_a_value_that_is_json_keeps_its_spelling(value: Any, data: st.DataObject) -> None:
    written = spelled(value, data)
    blanks = data.draw(st.text(" \n\t", max_size=3))
    assert value_json(blanks + written + blanks, ALL - STRING) == (written, False)
    assert value_json(written, frozenset({type_of(value)})) == (written, False)


@given(raw=text, types=st.frozensets(st.sampled_from(TYPES)))
def test_a_value_is_always_json(raw: str, types: frozenset[str]) -> None:
    written, _ = value_json(raw, types)
    json.loads(written)


@pytest.mark.parametrize(
    ("raw", "types", "written"),
    [
        ("1e3", {"number", "integer"}, "1e3"),
        ("5.0", {"integer"}, "5.0"),
        ("123456789012345678901234567890", {"integer"}, "123456789012345678901234567890"),
        ("02134", {"integer"}, '"02134"'),
        ("1_000", {"integer"}, '"1_000"'),
        ("NaN", {"number", "integer"}, '"NaN"'),
        ("perhaps", {"boolean"}, '"perhaps"'),
        ("True", {"boolean"}, "true"),
        ("None", {"object", "null"}, "null"),
        ("None", {"boolean"}, '"None"'),
        ("null", {"string", "null"}, "null"),
        ("null", {"string"}, '"null"'),
        (" null", {"string", "null"}, '" null"'),
        ("7", {"boolean"}, '"7"'),
        ("[1, 2]", {"integer"}, "[1, 2]"),
        ("{'a': True}", {"object"}, '{"a": true}'),
        ("'a'", {"object"}, "\"'a'\""),  # no object, and not made a shorter string either
        ("True", {"object"}, '"True"'),
        ('{"a": 1', {"object"}, '"{\\"a\\": 1"'),
    ],
)
def test_values(raw: str, types: set[str], written: str) -> None:
    assert value_json(raw, frozenset(types))[0] == written


def test_json_by_statement_of_the_format() -> None:
    assert value_json('"a"', JSON_TEXT) == ('"a"', False)
    assert value_json("'a'", JSON_TEXT) == ('"a"', True)
    assert value_json("a", JSON_TEXT) == ('"a"', True)


# ----------------------------------------------------------------------------------------------------------- repair


@given(value=objects)
def test_python_literals_are_repaired(value: dict[str, Any]) -> None:
    made = repair(repr(value))
    python = any(c in re.sub(r'"(?:[^"\\]|\\.)*"', "", repr(value)) for c in ("'", "True", "False", "None"))
    if made is None or not same(json.loads(made), value):
        assert not python, made  # nothing in it says that it is Python: `\x00` is then a backslash and an x
        assert "\\x" in repr(value) or "\\U" in repr(value)


@given(value=objects, data=st.data())
def test_trailing_commas_are_repaired(value: dict[str, Any], data: st.DataObject) -> None:
    def with_commas(v: Any) -> str:
        if isinstance(v, dict):
            return "{" + "".join(f"{json.dumps(k)}: {with_commas(x)}, " for k, x in v.items()) + "}"
        if isinstance(v, list):
            return "[" + "".join(f"{with_commas(x)},\n" for x in v) + "]"
        return json.dumps(v)

    made = repair(with_commas(value))
    assert made is not None
    assert same(json.loads(made), value)


@given(value=objects)
def test_raw_control_characters_are_repaired(value: dict[str, Any]) -> None:
    written = json.dumps(value, ensure_ascii=False)
    assume("\\\\" not in written)
    made = repair(written.replace("\\n", "\n").replace("\\t", "\t"))
    assert made is not None
    assert same(json.loads(made), value)


@given(value=objects, data=st.data())
def test_a_missing_closer_is_never_repaired(value: dict[str, Any], data: st.DataObject) -> None:
    written = spelled(value, data)
    cut = data.draw(st.integers(0, len(written) - 1))
    assert repair(written[:cut]) is None
    assert repair(repr(value)[: data.draw(st.integers(0, len(repr(value)) - 1))]) is None


@given(soup=st.text("{}[],:\"'\\ \nabTrue10", max_size=40))
def test_repair_gives_strict_json_or_nothing(soup: str) -> None:
    made = repair(soup)
    if made is not None:
        json.loads(made)
        assert repair(made) == made


@pytest.mark.parametrize(
    ("written", "made"),
    [
        (r'{"pattern": "\d+\.\w"}', r'{"pattern": "\\d+\\.\\w"}'),
        (r'{"a": "\u00e9 \/ \n"}', r'{"a": "\u00e9 \/ \n"}'),
        (r"{'a': 'it\'s \"x\"', 'b': '\x1b'}", r"""{"a": "it's \"x\"", "b": "\u001b"}"""),
        (r"{'a': '\\'}", r'{"a": "\\"}'),
        ('{"a": 1, "b": {"c": 1, "c": [2]}, "a": 3}', '{ "b": { "c": [2]}, "a": 3}'),
        ('{"a": 1, "\\u0061": 2,}', '{ "\\u0061": 2}'),
        ("{,}", None),
        ('{"a": 1,,}', None),
        ("{a: 1}", None),
        ('{"a": "b" "c"}', None),
        ('{"a": 1}}', None),
    ],
)
def test_repairs(written: str, made: str | None) -> None:
    assert repair(written) == made


# ---------------------------------------------------------------------------------------------------- object writer


@given(
    members=st.lists(st.tuples(text, text, st.sampled_from([*TYPES, "undeclared", "nullable"])), max_size=5),
    data=st.data(),
)
def test_object_is_the_same_in_any_chunks(members: list[tuple[str, str, str]], data: st.DataObject) -> None:
    properties: dict[str, Any] = {}
    for key, _, kind in members:
        if kind != "undeclared":
            properties.setdefault(key, {"type": ["string", "null"] if kind == "nullable" else kind})

    def write(cut: bool) -> tuple[str, bool]:
        pieces: list[str] = []
        writer = ObjectWriter(pieces.append, {"properties": properties})
        for key, raw, _ in members:
            writer.begin(key)
            while cut and raw:
                size = data.draw(st.integers(1, len(raw)))
                writer.feed(raw[:size])
                raw = raw[size:]
            if raw:
                writer.feed(raw)
            writer.end()
        writer.close()
        return "".join(pieces), writer.repaired

    whole = write(False)
    assert write(True) == whole
    assert is_json_object(whole[0])
    made = json.loads(whole[0])
    assert list(made) == list(dict.fromkeys(key for key, _, _ in members))
    assert whole[1] or len(made) == len(members)
    for key, raw, _ in reversed(members):
        if properties.get(key, {"type": "string"})["type"] == "string" and [k for k, _, _ in members].count(key) == 1:
            assert made[key] == raw


def test_keys_that_say_the_same_are_one_key() -> None:
    pieces: list[str] = []
    writer = ObjectWriter(pieces.append, None)
    for key in ("\ud83d\ude00", "\U0001f600"):  # half a pair behind the other, and the character
        writer.begin(key)
        writer.feed(key)
        writer.end()
    writer.close()
    assert is_json_object("".join(pieces))
    assert writer.repaired


@given(raw=text | st.text(st.characters(codec=None)))
def test_a_string_is_escaped_as_json_has_it_and_can_be_sent(raw: str) -> None:
    written = json_string(raw)
    written.encode()
    assert json.loads(written).encode("utf-16", "surrogatepass") == raw.encode("utf-16", "surrogatepass")
    if not any("\ud800" <= c <= "\udfff" for c in raw):
        assert written == json.dumps(raw, ensure_ascii=False)


@given(raw=text, data=st.data())
def test_escapes_do_not_depend_on_where_a_string_is_cut(raw: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(raw)))
    assert json_string(raw[:cut])[:-1] + json_string(raw[cut:])[1:] == json_string(raw)


# ----------------------------------------------------------------------------------------------------------- schema

leaves = st.one_of(
    st.builds(lambda t: {"type": t}, st.sampled_from(TYPES)),
    st.builds(lambda t: {"type": sorted(t)}, st.sets(st.sampled_from(TYPES), min_size=1)),
    st.builds(lambda v: {"enum": v}, st.lists(scalars, min_size=1, max_size=3)),
    st.builds(lambda v: {"const": v}, scalars),
    st.just({"description": "anything"}),
    st.just({"$ref": "#/$defs/A"}),
    st.just(True),
)


def unions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.lists(inner, min_size=1, max_size=3)
    both = st.builds(lambda a, b: {**a, **b} if isinstance(a, dict) and isinstance(b, dict) else a, inner, inner)
    return st.one_of(parts.map(lambda p: {"anyOf": p}), parts.map(lambda p: {"allOf": p}), both)


schemas = st.recursive(leaves, unions, max_leaves=6)


@given(schema=schemas, definition=leaves.filter(lambda s: s != {"$ref": "#/$defs/A"}), value=values)
def test_what_validates_has_an_allowed_type(schema: Any, definition: Any, value: Any) -> None:
    root = {"$defs": {"A": definition}, "properties": {"p": schema}}
    if jsonschema.Draft202012Validator(root).is_valid({"p": value}):
        kind = type_of(value)
        if kind == "number" and value == int(value):
            kind = "integer"  # to JSON Schema, 1.0 is one
        assert kind in parameter_types(root, "p")


def test_recursive_schemas() -> None:
    tree = {"$defs": {"T": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/T"}]}}, "$ref": "#/$defs/T"}
    assert allowed_types(tree) == {"integer"}
    assert allowed_types({"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}) == frozenset()


def test_wide_recursive_schemas_cost_linear_time() -> None:
    begin = time.process_time()
    wide = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{(n + k) % 30}"} for k in range(30)]} for n in range(30)}
    wide["D29"] = {"type": "string"}
    assert allowed_types({"$ref": "#/$defs/D0", "$defs": wide}) == {"string"}
    assert parameter_types({"$ref": "#/$defs/D0", "$defs": wide}, "x") == {"string"}
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, ALL),
        (None, ALL),
        ({"type": "number"}, {"number", "integer"}),
        ({"type": "str"}, ALL),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"enum": ["a", None]}, {"string", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, {"integer", "null"}),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, {"integer"}),
        ({"properties": {"a": {}}}, {"object"}),
        ({"items": {"type": "string"}}, {"array"}),
        ({"$ref": "#/nowhere"}, ALL),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "boolean"}}}, {"boolean"}),
    ],
)
def test_allowed_types(schema: Any, types: set[str]) -> None:
    assert allowed_types(schema) == types


def test_parameters() -> None:
    integer = {"properties": {"n": {"type": "integer"}}}
    assert parameter_types(None, "n") == STRING
    assert parameter_types(integer, "n") == {"integer"}
    assert parameter_types(integer, "other") == STRING
    assert parameter_types({"additionalProperties": {"type": "number"}}, "n") == {"number", "integer"}
    assert parameter_types({"additionalProperties": True}, "n") == STRING
    assert parameter_types({"$ref": "#/$defs/P", "$defs": {"P": integer}}, "n") == {"integer"}
    assert parameter_types({"oneOf": [integer, {"properties": {"n": {"type": "null"}}}]}, "n") == {"integer", "null"}
    assert parameter_types({"properties": None}, "n") == STRING


def test_tools_in_either_shape() -> None:
    flat = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    nested = {"type": "function", "function": {"name": "g"}}
    assert tool_parameters([flat, nested, {"type": "web_search"}]) == {"f": {"type": "object"}, "g": {}}
    assert tool_parameters(None) == {}
    assert tool_parameters(["f", None, {"function": None}]) == {}  # type: ignore[list-item]
