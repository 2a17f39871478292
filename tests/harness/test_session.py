"""Session files: what is taken, what is refused and how it is named, and what a client makes of a reply."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prr_testing.demo.replay import as_client, common_prefix, max_cached_tokens, new_messages, script
from prr_testing.demo.session import DEFAULT_SESSION, SessionError, load, parse
from prr_testing.tokens import Vocabulary

MINIMAL = {"turns": [{"user": "hi", "completion": "</think>hello"}]}


def with_turn(**fields: Any) -> dict[str, Any]:
    return {"turns": [*MINIMAL["turns"], {"user": "again", "completion": "x", **fields}]}


def test_defaults() -> None:
    session = parse(MINIMAL)
    (turn,) = session.turns
    assert (session.model, session.opening, session.tools, session.warnings) == ("qwen3.6", (), (), ())
    assert turn.messages == ({"role": "user", "content": "hi"},)
    assert (turn.stop, turn.max_tokens, turn.stream, turn.drop_reasoning) == ("", None, False, True)


def test_the_shipped_session_has_all_that_the_demo_promises(qwen: Vocabulary) -> None:
    session = load(DEFAULT_SESSION)
    assert session.warnings == ()
    assert len(session.turns) >= 8
    assert {turn.stream for turn in session.turns} == {True, False}
    assert sum(turn.stop is None for turn in session.turns) == 2
    text = "".join("".join(turn.completion) for turn in session.turns)
    for needed in ("1.0", "1e3", "123456789012345678901234567890", r"\u00bb", '{"team":"web"', '"LANG" : "de_DE'):
        assert needed in text
    for number, turn in enumerate(session.turns, start=1):
        ids = script(turn, number, qwen, None)
        assert qwen.text_of(ids).startswith("".join(turn.completion))
        assert qwen.text_of(script(turn, number, qwen, 5)) == qwen.text_of(ids)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"the file: an object is needed, not a list"),
        ({}, r"turns: missing or empty"),
        ({"turns": {}}, r"turns: a list of objects is needed, not an object"),
        ({"turns": ["x"]}, r"turns\[0\]: an object is needed, not a string"),
        ({"turns": [{"user": "x"}]}, r"turns\[0\]\.completion: missing; a string or a list of strings is needed"),
        ({"turns": [{"completion": "x"}]}, r"turns\[0\]\.user: a turn needs something new"),
        ({"turns": [{"tool_results": ["x"], "completion": "x"}]}, r"turns\[0\]\.tool_results: the first turn has no"),
        (with_turn(completion=["a", 1]), r"turns\[1\]\.completion\[1\]: a string is needed, not a number"),
        (with_turn(stream="yes"), r"turns\[1\]\.stream: true or false is needed, not a string"),
        (with_turn(max_tokens=0), r"turns\[1\]\.max_tokens: a whole number above 0 is needed, not 0"),
        (with_turn(max_tokens=True), r"turns\[1\]\.max_tokens: a whole number above 0 is needed, not true or false"),
        (with_turn(max_tokens=3, cut=True), r"turns\[1\]\.max_tokens: not together with cut"),
        (with_turn(completion="", cut=True), r"turns\[1\]\.completion: empty"),
        (with_turn(messages=[{"role": "tool"}]), r"turns\[1\]\.messages\[0\]\.role: .* not 'tool'"),
        (with_turn(messages=[{"role": "user"}]), r"turns\[1\]\.messages\[0\]\.content: .* not null"),
        ({**MINIMAL, "client": {"stream": 1}}, r"client\.stream: true or false is needed, not a number"),
        ({**MINIMAL, "tools": [{"function": {}}]}, r"tools\[0\]\.function\.name: a string is needed"),
        ({**MINIMAL, "template_kwargs": []}, r"template_kwargs: an object is needed, not a list"),
    ],
)
def test_errors_name_the_field(data: Any, message: str) -> None:
    with pytest.raises(SessionError, match=message):
        parse(data)


def test_unknown_fields_are_left_out_with_a_warning() -> None:
    data = {**MINIMAL, "comment": "fine", "_x": 1, "temprature": 1, "client": {"retries": 1}}
    data["turns"] = [{**MINIMAL["turns"][0], "colour": "red"}]
    assert set(parse(data).warnings) == {
        "temprature: unknown field, left out",
        "client.retries: unknown field, left out",
        "turns[0].colour: unknown field, left out",
    }


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    with pytest.raises(SessionError, match=r"mine\.json: cannot be read: No such file"):
        load(file)
    file.write_text("{")
    with pytest.raises(SessionError, match=r"mine\.json: not JSON"):
        load(file)
    file.write_text(json.dumps({"turns": []}))
    with pytest.raises(SessionError, match=r"mine\.json: turns: missing or empty"):
        load(file)
    file.write_text(json.dumps({**MINIMAL, "tools": [{"name": "f", "parameters": {}}]}))
    assert load(file).name == "mine"
    assert load(file).tools == ({"type": "function", "function": {"name": "f", "parameters": {}}},)


def test_scripts(qwen: Vocabulary) -> None:
    turn = parse(MINIMAL).turns[0]
    end = qwen.added["<|im_end|>"]
    assert script(turn, 1, qwen, None)[-1] == end
    assert script(replace(turn, completion=("hello<|im_end|>",)), 1, qwen, None).count(end) == 1
    assert end not in script(replace(turn, stop=None), 1, qwen, None)
    assert script(replace(turn, stop="<|endoftext|>"), 1, qwen, None)[-1] == qwen.added["<|endoftext|>"]
    assert script(replace(turn, completion=("h", "i")), 1, qwen, None)[:-1] == [*qwen.encode("h"), *qwen.encode("i")]
    with pytest.raises(
        SessionError, match=r"turns\[0\]\.completion: holds the stop token '<\|im_end\|>' before its end"
    ):
        script(replace(turn, completion=("a<|im_end|>b",)), 1, qwen, None)
    with pytest.raises(SessionError, match=r"turns\[0\]\.stop: 'x' is no stop token .* <\|im_end\|>, <\|endoftext\|>"):
        script(replace(turn, stop="x"), 1, qwen, None)


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_what_the_client_keeps() -> None:
    turn = parse(MINIMAL).turns[0]
    message = {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "tool_calls": [call('{"a":1.0}'), call('{"a":')],
    }
    assert as_client(message, "tool_calls", turn) == {k: v for k, v in message.items() if k != "reasoning"}
    assert as_client(message, "length", turn)["tool_calls"] == [call('{"a":1.0}')]
    returned = as_client(message, "length", replace(turn, drop_reasoning=False, reserialize_arguments=True))
    assert returned["reasoning"] == "hm"
    assert returned["tool_calls"] == [call('{"a": 1.0}')]
    assert as_client({"role": "assistant", "content": None}, "length", turn)["content"] == ""


def test_every_call_is_answered_once() -> None:
    turn = parse(with_turn(tool_results=["1", "2"])).turns[1]
    calls = [call("{}"), {**call("{}"), "id": "c2"}, {**call("{}"), "id": "c3"}]
    assert [m["content"] for m in new_messages(turn, calls)] == ["1", "2", "", "again"]
    assert [m["content"] for m in new_messages(turn, calls[:1])] == ["1", "again"]
    assert [m["content"] for m in new_messages(replace(turn, messages=()), [])] == ["Go on."]


def test_what_a_cache_can_hold() -> None:
    assert max_cached_tokens(0, 100, 32) == 0
    assert max_cached_tokens(32, 100, 32) == 0
    assert max_cached_tokens(33, 100, 32) == 32
    assert max_cached_tokens(200, 65, 32) == 64
    assert common_prefix([1, 2, 3], [1, 2]) == 2
    assert common_prefix([1, 2, 3], [1, 4, 3]) == 1
