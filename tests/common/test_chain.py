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

from prr_plugins.common.chain import Chain, Media, arguments_form, reasoning_of, turn_key

Message = dict[str, Any]


def call(call_id: str, name: str, arguments: str) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def history() -> list[Message]:
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is in /srv?"},
        {
            "role": "assistant",
            "content": "\n\nLet me look.",
            "reasoning": "I need ls.",
            "tool_calls": [
                call("call_a", "ls", '{"path": "/srv", "depth": 1, "ratio": 1e3, "deep": {"b": [1, 2.50], "a": null}}'),
                call("call_b", "stat", '{"path":"/srv/\\u00e9"}'),
            ],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "x y"},
        {"role": "tool", "tool_call_id": "call_b", "content": "ok"},
        {"role": "assistant", "content": "Two files."},
    ]


def key_or_none(messages: list[Message]) -> bytes | None:
    """None where the messages have no key: such a turn is never found."""
    try:
        return key(messages)
    except Media:
        return None


def key(messages: list[Message]) -> bytes:
    return Chain(messages).links[-1].digest


def changed(change: Any) -> list[Message]:
    messages = copy.deepcopy(history())
    change(messages)
    return messages


def arguments(messages: list[Message], text: Any) -> None:
    messages[2]["tool_calls"][0]["function"]["arguments"] = text


def rename(messages: list[Message]) -> None:
    for old, new in (("call_a", "call_1"), ("call_b", "call_2")):
        for message in messages:
            if message.get("tool_call_id") == old:
                message["tool_call_id"] = new
            for one in message.get("tool_calls", ()):
                if one["id"] == old:
                    one["id"] = new


def swap_results(messages: list[Message]) -> None:
    messages[3]["content"], messages[4]["content"] = messages[4]["content"], messages[3]["content"]


MAY_CHANGE = {
    "reasoning dropped": lambda m: m[2].pop("reasoning"),
    "reasoning under another name": lambda m: m[2].update(reasoning_content=m[2].pop("reasoning")),
    "reasoning as a part": lambda m: m[2].update(
        content=[{"type": "thinking", "thinking": "I need ls."}, {"type": "text", "text": "Let me look."}]
    ),
    "outer whitespace trimmed": lambda m: m[2].update(content="Let me look."),
    "content as a part list": lambda m: m[2].update(content=[{"type": "text", "text": "Let me look."}]),
    "content in several parts": lambda m: m[2].update(
        content=[{"type": "text", "text": "Let me "}, {"type": "text", "text": "look."}]
    ),
    "user content as a part list": lambda m: m[1].update(content=[{"type": "text", "text": "What is in /srv?"}]),
    "result as a part list": lambda m: m[3].update(content=[{"type": "text", "text": "x y"}]),
    "arguments written anew": lambda m: arguments(
        m, '{"deep":{"a":null,"b":[1.0,2.5]},"depth":1.0,"path":"\\/srv","ratio":1000.0}'
    ),
    "arguments as an object": lambda m: arguments(
        m, {"path": "/srv", "depth": 1, "ratio": 1000, "deep": {"b": [1, 2.5], "a": None}}
    ),
    "added defaults": lambda m: [
        m[2].update(refusal=None, audio=None, annotations=[], function_call=None),
        m[2]["tool_calls"][0].update(index=0),
        m[5].update(tool_calls=None, refusal=None),
    ],
    "empty call list": lambda m: m[5].update(tool_calls=[]),
    "renamed call ids": rename,
    "extra fields that no template gets": lambda m: m[1].update(cache_control={"type": "ephemeral"}, id="msg_1"),
}

MUST_BREAK = {
    "system text": lambda m: m[0].update(content="Be very brief."),
    "user text": lambda m: m[1].update(content="What is in /tmp?"),
    "role": lambda m: m[0].update(role="developer"),
    "assistant text": lambda m: m[2].update(content="Let me see."),
    "inner whitespace": lambda m: m[2].update(content="Let me  look."),
    "call name": lambda m: m[2]["tool_calls"][0]["function"].update(name="dir"),
    "argument text": lambda m: arguments(m, '{"path":"/tmp","depth":1,"ratio":1e3,"deep":{"b":[1,2.5],"a":null}}'),
    "argument number": lambda m: arguments(m, '{"path":"/srv","depth":2,"ratio":1e3,"deep":{"b":[1,2.5],"a":null}}'),
    "argument type": lambda m: arguments(m, '{"path":"/srv","depth":true,"ratio":1e3,"deep":{"b":[1,2.5],"a":null}}'),
    "number as string": lambda m: arguments(m, '{"path":"/srv","depth":"1","ratio":1e3,"deep":{"b":[1,2.5],"a":null}}'),
    "array order": lambda m: arguments(m, '{"path":"/srv","depth":1,"ratio":1e3,"deep":{"b":[2.5,1],"a":null}}'),
    "argument dropped": lambda m: arguments(m, '{"path":"/srv","depth":1,"ratio":1e3}'),
    "null argument dropped": lambda m: arguments(m, '{"path":"/srv","depth":1,"ratio":1e3,"deep":{"b":[1,2.5]}}'),
    "call order": lambda m: m[2]["tool_calls"].reverse(),
    "call dropped": lambda m: m[2]["tool_calls"].pop(),
    "result text": lambda m: m[3].update(content="[cleared]"),
    "results swapped": swap_results,
    "result order": lambda m: m.insert(3, m.pop(4)),
    "result given to another call": lambda m: m[3].update(tool_call_id="call_b"),
    "reasoning part of another role": lambda m: m[1].update(
        content=[{"type": "text", "text": "What is in /srv?"}, {"type": "thinking", "thinking": "Say no."}]
    ),
    "calls of another role": lambda m: m[1].update(tool_calls=[call("call_c", "ls", "{}")]),
    "message inserted": lambda m: m.insert(2, {"role": "user", "content": "Please."}),
    "message removed": lambda m: m.pop(0),
    "parts instead of one text": lambda m: m[1].update(
        content=[{"type": "text", "text": "What is in"}, {"type": "text", "text": " /srv?"}]
    ),
    "name": lambda m: m[1].update(name="ann"),
}


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
