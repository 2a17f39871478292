"""What a client may change without losing its turn, and what must break it: the rows of docs/matching.md."""

from __future__ import annotations

import copy
import json
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prr_plugins.common.canonical_json import Malformed
from prr_plugins.common.matching.message_keys import Chain, Media, arguments_form, reasoning_of, turn_key
from prr_testing.matching import MAY_CHANGE, MUST_BREAK, Message, history


def key_or_none(messages: list[Message]) -> bytes | None:
    """None where the messages have no key: such a turn is never found."""
    try:
        return key(messages)
    except (Media, Malformed):
        return None


def key(messages: list[Message]) -> bytes:
    return Chain(messages).links[-1].digest


def changed(change: Any) -> list[Message]:
    messages = copy.deepcopy(history())
    change(messages)
    return messages


@pytest.mark.parametrize("change", MAY_CHANGE.values(), ids=MAY_CHANGE.keys())
def test_may_change(change: Any) -> None:
    assert key(changed(change)) == key(history())


@pytest.mark.parametrize("change", MUST_BREAK.values(), ids=MUST_BREAK.keys())
def test_must_break(change: Any) -> None:
    assert key_or_none(changed(change)) != key(history())


def test_a_result_belongs_to_a_call_of_one_turn() -> None:
    """Two turns that call alike: a result of the first one again is not one of the second."""

    def told(result_of: str) -> bytes:
        messages: list[Message] = [{"role": "user", "content": "x"}]
        for call_id in ("call_1", "call_2"):
            called = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
            messages.append({"role": "assistant", "tool_calls": [called]})
            messages.append({"role": "tool", "tool_call_id": call_id, "content": "y"})
        messages[-1]["tool_call_id"] = result_of
        return key(messages)

    assert told("call_1") != told("call_2")


def test_what_has_no_json_text_is_malformed() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = {"a": deep}
    for arguments in (deep, {1, 2}, {(1, 2): 3}, b"x"):
        with pytest.raises(Malformed):
            arguments_form(arguments)
    for fields in (
        {"function_call": deep},
        {"tool_calls": [{"x": deep}]},
        {"tool_calls": [{"function": {"arguments": deep}}]},
    ):
        assert key_or_none([{"role": "assistant", **fields}]) is None
    # as text it stands for itself
    assert arguments_form('{"a":' * 100_000 + "1" + "}" * 100_000).startswith(b"T")


def test_long_numbers_cost_linear_time() -> None:
    """A hundred thousand zeros behind a point: with a square of them this would take seconds."""
    begin = time.process_time()
    assert arguments_form("1." + "0" * 200_000) == arguments_form("1")
    assert arguments_form("0." + "0" * 200_000 + "1") != arguments_form("0")
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("empty", [None, "", [], [{"type": "text", "text": ""}]])
@pytest.mark.parametrize("role", ["assistant", "tool", "user"])
def test_all_that_is_empty_is_the_same(role: str, empty: Any) -> None:
    assert key([{"role": role, "content": empty}]) == key([{"role": role}])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1e3", "1000.0"),
        ("1.10", "1.1"),
        ("-0.0", "0"),
        ("1E500", "10e499"),
        ("1e-400", "10e-401"),
        ("100000000000000000000000000001", "100000000000000000000000000001.0"),
        ('{"a": 1, "b": 2}', '{"b":2.0,"a":1}'),
        ('"\\u00e9"', '"é"'),
        ("", "{}"),
        (" \n", "{}"),
    ],
)
def test_equal_values(one: str, other: str) -> None:
    assert arguments_form(one) == arguments_form(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "true"),
        ("0", "false"),
        ("null", "{}"),
        ("1", '"1"'),
        ("0.1", "0.1000000000000000055"),
        ("100000000000000000000000000001", "1e29"),
        ("9007199254740993", "9007199254740992"),
        ("1e500", "1e501"),
        ('{"a":1}', '{"a":1'),
        ('{"a":1', '{"a": 1'),
        ("NaN", "null"),
        ('[NaN,"1e500"]', "1e500"),
    ],
)
def test_different_values(one: str, other: str) -> None:
    assert arguments_form(one) != arguments_form(other)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def write(value: Any, spaced: bool, reverse: bool, ascii_only: bool) -> str:
    """JSON text in one of several spellings."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return "[" + (", " if spaced else ",").join(write(v, spaced, reverse, ascii_only) for v in value) + "]"
    if isinstance(value, dict):
        items = list(value.items())[:: -1 if reverse else 1]
        colon = ": " if spaced else ":"
        pairs = [
            json.dumps(k, ensure_ascii=ascii_only) + colon + write(v, spaced, reverse, ascii_only) for k, v in items
        ]
        return "{" + ("\n, " if spaced else ",").join(pairs) + "}"
    return json.dumps(value, ensure_ascii=ascii_only)


def same(one: Any, other: Any) -> bool:
    """Equality of JSON values: exact decimals, types kept apart."""
    if isinstance(one, bool) or isinstance(other, bool):
        return isinstance(one, bool) and isinstance(other, bool) and one is other
    if isinstance(one, (int, float, Decimal)) and isinstance(other, (int, float, Decimal)):
        return Decimal(str(one)) == Decimal(str(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return type(one) is type(other) and one == other


@given(json_values, st.booleans(), st.booleans(), st.booleans())
def test_any_spelling_of_a_value_is_the_same(value: Any, spaced: bool, reverse: bool, ascii_only: bool) -> None:
    assert arguments_form(write(value, spaced, reverse, ascii_only)) == arguments_form(write(value, False, False, True))


@given(json_values, json_values)
def test_forms_are_equal_exactly_when_values_are(one: Any, other: Any) -> None:
    forms_equal = arguments_form(write(one, False, False, True)) == arguments_form(write(other, True, True, False))
    assert forms_equal == same(one, other)


texts = st.text(max_size=6)
messages_strategy = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": texts | st.none()},
        optional={"name": texts, "tool_call_id": texts},
    ),
    max_size=5,
)


@given(messages_strategy, messages_strategy)
def test_the_chain_of_a_prefix_is_a_prefix_of_the_chain(one: list[Message], more: list[Message]) -> None:
    short, long = Chain(one).links, Chain([*one, *more]).links
    assert long[: len(short)] == short
    if more:
        assert Chain([*one, *more[:-1]]).follow(more[-1]) == long[-1]


@given(st.text(), st.lists(st.text(), max_size=3))
def test_content_cannot_imitate_structure(text: str, parts: list[str]) -> None:
    whole = key([{"role": "user", "content": text}, {"role": "user", "content": "b"}])
    parted = [{"type": "text", "text": part} for part in parts]
    assert (whole == key([{"role": "user", "content": parted}, {"role": "user", "content": "b"}])) == (
        parts == [text] or (text == "" and parts == [])
    )


def test_lone_surrogates_and_depth_have_a_form() -> None:
    assert key([{"role": "user", "content": "\ud800"}]) != key([{"role": "user", "content": "\ud801"}])
    assert arguments_form("[" * 100_000) != arguments_form("[" * 100_001)


def test_media_has_no_form() -> None:
    with pytest.raises(Media):
        Chain([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


def test_roots_part_keys() -> None:
    digest = key(history())
    assert turn_key(b"a" * 16, digest) != turn_key(b"b" * 16, digest)


def test_reasoning_is_read_under_each_name() -> None:
    assert reasoning_of({"reasoning": " a \n"}) == "a"
    assert reasoning_of({"reasoning_content": "a"}) == "a"
    assert reasoning_of({"content": [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}]}) == "a"
    assert reasoning_of({"content": "b", "reasoning": None}) is None
