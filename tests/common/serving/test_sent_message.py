"""The message that a client holds after a stream, and the other forms in which it may come back."""

from __future__ import annotations

from prr_plugins.common.parsing import parse
from prr_plugins.common.serving.sent_message import SentCall, SentMessage, edit_event, raw_fields

CALL = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"


def call(**fields: str) -> dict[str, object]:
    return {"id": "c1", "type": "function", "function": fields}


def test_what_a_client_accumulates() -> None:
    sent = SentMessage(["Hel", "lo"], ["Hm"], {0: SentCall("c1", None, "f", ['{"a"', ": 1}"])})
    assert sent.message("reasoning_content") == {
        "role": "assistant",
        "content": "Hello",
        "reasoning_content": "Hm",
        "tool_calls": [call(name="f", arguments='{"a": 1}')],
    }
    assert SentMessage().message("reasoning") == {"role": "assistant", "content": None}


def test_a_whole_call_comes_back_in_one_form_only() -> None:
    sent = SentMessage([], [], {0: SentCall("c1", None, "f", ['{"a": "1"}'], raw_arguments="x")})
    assert sent.also_seen_as(parse("prr_qwen3", CALL)) == []
    assert sent.also_seen_as(None) == []


def test_a_client_may_drop_the_call_that_was_cut() -> None:
    parsed = parse("prr_qwen3", CALL + "\n<tool_call>\n<function=g>\n<parameter=b>\n2", finish_reason="length")
    sent = SentMessage(
        [], [], {0: SentCall("c1", None, "f", ["{}"], raw_arguments="x"), 1: SentCall("c2", None, "g", ['{"b"'])}
    )
    (other,) = sent.also_seen_as(parsed)
    assert other["tool_calls"] == [call(name="f", arguments=parsed.parsed_tool_calls[0].arguments)]
    assert raw_fields(None, [], parsed)["incomplete_calls"][0]["name"] == "g"


def test_ids_are_shown_only_to_who_may_see_them() -> None:
    parsed = parse("prr_qwen3", "Hi")
    assert raw_fields(None, ["Hi"], parsed) == {}
    assert raw_fields([1], ["H", "i"], parsed) == {"raw_completion_ids": [1], "raw_text": "Hi"}


def test_an_event_is_edited_in_place() -> None:
    assert edit_event('data: {"a":"ü"}\n\n', lambda data: data.update(b=1)) == 'data: {"a":"ü","b":1}\n\n'
