"""What the plugin promises of single requests, by SGLang's own handler in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from in_process import CALL, Chat

from prr_testing.parsers import Parsers
from prr_testing.sglang_handler import Refused

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
Make = Callable[..., Chat]

HALVES = {
    "calls": Parsers("prr_qwen3", None),
    "reasoning": Parsers(None, "prr_qwen3"),
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


# ---------------------------------------------------------------------------------------- history SGLang changes


@BOTH
def test_arguments_that_are_no_json_are_spliced(chat_of: Make, stream: bool) -> None:
    """Where the turn is known; else SGLang refuses the request as ever."""
    chat = chat_of()
    messages = [user(f"broken {stream=}")]
    cut = chat.ids(CALL, stop=False)[:-9]
    first = chat.ask(messages, cut, stream=stream, max_tokens=len(cut))
    assert first.finish_reason == "length"
    broken = first.returned()
    if stream:  # the client holds a cut call; send it back as it is
        assert not _is_json(broken["tool_calls"][0]["function"]["arguments"])
        following = [*messages, broken, *first.results("failed")]
        second = chat.ask(following, "</think>ok", stream=stream)
        assert (second.prr or {})["outcome"] == "spliced", second.prr
        assert second.prompt_ids[: len(first.turn)] == first.turn
    call = {"id": "x", "type": "function", "function": {"name": "edit", "arguments": '{"path": '}}
    unknown = {"role": "assistant", "content": "never said", "tool_calls": [call]}
    with pytest.raises(Refused, match="valid JSON"):
        chat.ask([*messages, unknown, {"role": "tool", "tool_call_id": "x", "content": "?"}], stream=stream)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@BOTH
def test_a_last_assistant_message_stays_one(chat_of: Make, stream: bool) -> None:
    chat = chat_of()
    messages = [user(f"last {stream=}")]
    first = chat.ask(messages, "</think>Hello.", stream=stream)
    second = chat.ask([*messages, first.returned()], "</think>And more.", stream=stream)
    assert (second.prr or {})["outcome"] == "spliced", second.prr
    assert second.prompt_ids == first.turn + chat.ids("\n<|im_start|>assistant\n<think>\n", stop=False)
    unknown = chat.ask([*messages, {"role": "assistant", "content": "never said"}], stream=stream)
    assert "<|im_start|>user\nnever said" in chat.tokenizer.decode(unknown.prompt_ids)


# ---------------------------------------------------------------------------------------- what is asked for


@BOTH
@pytest.mark.parametrize("half", HALVES)
def test_each_half_alone(chat_of: Make, half: str, stream: bool) -> None:
    chat = chat_of("qwen3.6", HALVES[half])
    messages = [user(f"halves {half} {stream=}")]
    first = chat.ask(messages, CALL, stream=stream)
    if half == "calls":
        assert first.content == "so\n</think>\n\nI will."
        assert first.calls[0][:2] == ("edit", '{"path": "/x", "count": 1e3}')
        assert first.reasoning == ""
    else:
        assert first.reasoning == "so"
        assert first.content == CALL.partition("</think>\n\n")[2]
        assert first.calls == []
    second = chat.ask([*messages, first.returned(), *(first.results() or [user("on")])], "</think>ok", stream=stream)
    assert second.prompt_ids[: len(first.turn)] == first.turn


@BOTH
def test_without_tools_special_tokens_are_shown(chat_of: Make, stream: bool) -> None:
    chat = chat_of()
    answer = chat.ask([user("no tools")], CALL, stream=stream, tools=None)
    assert answer.raw_text == CALL
    assert answer.content == CALL.partition("</think>\n\n")[2]


@BOTH
def test_reasoning_not_to_be_separated_stays_in_the_content(chat_of: Make, stream: bool) -> None:
    chat = chat_of()
    answer = chat.ask([user("together")], "so\n</think>\n\nok", stream=stream, separate_reasoning=False)
    assert answer.reasoning == ""
    assert answer.content == "so\n</think>\n\nok"


def test_reasoning_can_be_sent_in_one_piece(chat_of: Make) -> None:
    chat = chat_of()
    for script in ("so it is\n</think>\n\nok", "so it is"):
        answer = chat.ask([user("one piece")], script, stream=True, stream_reasoning=False)
        assert answer.reasoning == "so it is"


@pytest.mark.parametrize("incremental", [False, True])
def test_both_ways_of_streaming(chat_of: Make, incremental: bool) -> None:
    chat = chat_of("qwen3.6", incremental_streaming_output=incremental)
    messages = [user(f"streams {incremental=}")]
    text = CALL.replace("I will.", "日本 \U0001f600 I will.")
    first = chat.ask(messages, text, stream=True)
    assert first.raw_text == text
    assert first.raw_ids == chat.ids(text)
    assert first.content == "日本 \U0001f600 I will."
    second = chat.ask([*messages, first.returned(), *first.results()], "</think>ok", stream=True)
    assert second.prompt_ids[: len(first.turn)] == first.turn


@BOTH
def test_forced_calls_of_a_family_without_a_grammar(chat_of: Make, stream: bool) -> None:
    """SGLang then forces a JSON array; its own parser reads it."""
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    chat = chat_of()
    detector = FunctionCallParser.ToolCallParserEnum["prr_qwen3"]
    array = 'so\n</think>\n\n[{"name": "edit", "parameters": {"path": "/x"}}]'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detector, "supports_structural_tag", lambda self: False)
        answer = chat.ask([user(f"forced {stream=}")], array, stream=stream, tool_choice="required")
    assert [(name, json.loads(arguments)) for name, arguments, _ in answer.calls] == [("edit", {"path": "/x"})]
    assert answer.content == ""
    assert answer.reasoning == "so"
    assert answer.finish_reason == "tool_calls"


@BOTH
def test_raw_fields_come_only_when_asked_for(chat_of: Make, stream: bool) -> None:
    chat = chat_of()
    answer = chat.ask([user("quiet")], CALL, stream=stream, return_output_ids_in_sglext=False, prr=False)
    assert (answer.raw_ids, answer.raw_text, answer.prr) == (None, None, None)
    if not stream:
        asked = chat.ask([user("ids")], CALL, return_output_ids_in_sglext=False, return_token_ids=True)
        assert asked.raw_ids == chat.ids(CALL)


# ---------------------------------------------------------------------------------------- who may have what


def test_ids_of_the_caller_win(chat_of: Make) -> None:
    chat = chat_of()
    messages = [user("whose ids")]
    own = chat.ids("<|im_start|>user\nmine<|im_end|>\n<|im_start|>assistant\n<think>\n", stop=False)
    first = chat.ask(messages, "</think>mine", input_ids=own)
    assert first.prompt_ids == own
    assert (first.prr or {})["reason"] == "caller_ids"
    second = chat.ask([*messages, first.returned(), user("on")])
    assert (second.prr or {})["outcome"] == "refused"


@pytest.mark.parametrize("fields", [{"cache_salt": "{}"}, {"extra_key": "{}"}, {"headers": {"x-tenant": "{}"}}])
def test_tenants_share_nothing(chat_of: Make, fields: dict[str, Any]) -> None:
    chat = chat_of("qwen3.6", None, (("PRR_TENANT_HEADER", "X-Tenant"),))

    def options(tenant: str) -> dict[str, Any]:
        return json.loads(json.dumps(fields).replace("{}", tenant))  # type: ignore[no-any-return]

    messages = [user(f"tenants {fields}")]
    first = chat.ask(messages, "secret\n</think>\n\nhello", **options("a"))
    following = [*messages, first.returned(), user("on")]
    assert (chat.ask(following, **options("b")).prr or {})["outcome"] == "refused"
    assert (chat.ask(following, **options("a")).prr or {})["outcome"] == "spliced"


def test_legs_of_disaggregated_serving_are_left_alone(chat_of: Make) -> None:
    chat = chat_of()
    messages = [user("legs")]
    first = chat.ask(messages, "</think>one", bootstrap_room=7, bootstrap_host="h")
    assert (first.prr or {})["reason"] == "disaggregated"
    assert (chat.ask([*messages, first.returned(), user("on")]).prr or {})["outcome"] == "refused"


def test_a_prompt_that_fits_only_as_sglang_renders_it(chat_of: Make) -> None:
    """Kept reasoning, and SGLang refuses requests whose limit does not fit: then its own render is used."""
    chat = chat_of("qwen3.6", None, (("PRR_RETENTION", "all"),), window=700)
    messages = [user("long")]
    first = chat.ask(messages, "so " * 100 + "</think>ok", tools=None, max_tokens=300)
    following = [*messages, first.returned(), user("on")]
    assert (chat.ask(following, tools=None, max_tokens=100).prr or {})["outcome"] == "spliced"
    tight = chat.ask(following, tools=None, max_tokens=600)
    assert (tight.prr or {})["reason"] == "too_long"
    assert len(tight.prompt_ids) < 60


# ---------------------------------------------------------------------------------------- faults


@BOTH
@pytest.mark.parametrize("fault", ["parse", "capture", "store", "bridge", "splice"])
def test_a_fault_never_fails_a_request(chat_of: Make, fault: str, stream: bool) -> None:
    chat = chat_of("qwen3.6", None, (("PRR_TEST", "1"), ("PRR_FAULT", fault)))
    counted = chat.counter("prr_turns_total", "fallback", f"error_{fault}")
    messages = [user(f"faults {fault} {stream=}")]
    first = chat.ask(messages, CALL, stream=stream)
    assert first.raw_text == CALL
    if fault == "parse":
        assert (first.reasoning + first.content).endswith(CALL[5:])
    else:
        assert first.calls[0][:2] == ("edit", '{"path": "/x", "count": 1e3}')
    second = chat.ask([*messages, first.returned(), *(first.results() or [user("on")])], "</think>ok", stream=stream)
    assert (second.prr or {})["outcome"] in ("refused", "fallback")
    assert second.raw_text == "</think>ok"
    assert chat.counter("prr_turns_total", "fallback", f"error_{fault}") > counted


def test_an_error_may_be_wanted(chat_of: Make) -> None:
    chat = chat_of("qwen3.6", None, (("PRR_ON_MISS", "error"),))
    unknown = [user("a"), {"role": "assistant", "content": "never said"}, user("b")]
    with pytest.raises(Refused, match="unknown_turn"):
        chat.ask(unknown)
    assert chat.ask(unknown[:1]).finish_reason == "stop"


def test_requests_in_many_threads(chat_of: Make) -> None:
    """SGLang converts requests in a thread pool; every conversation goes on from its own turns."""
    chat = chat_of()

    async def converse(number: int) -> None:
        messages = [user(f"conversation {number % 4}")]
        known: list[int] = []
        for turn in range(3):
            script = chat.ids(f"r{number}</think>answer {number} {turn}")
            (answer,) = await chat.request(messages, [script], stream=bool(number % 2))
            assert answer.prompt_ids[: len(known)] == known
            known = answer.turn
            messages += [answer.returned(), user(f"on {turn}")]

    async def everybody() -> None:
        await asyncio.gather(*(converse(number) for number in range(16)))

    asyncio.run(everybody())


def test_a_client_that_goes_away_leaves_nothing(chat_of: Make) -> None:
    chat = chat_of()
    stored = chat.counter("prr_records_total", "stored", "")
    chat.stop_after = 4
    try:
        with pytest.raises(asyncio.CancelledError):
            chat.ask([user("gone")], "</think>a b c d e f g h", stream=True)
    finally:
        chat.stop_after = None
    assert chat.counter("prr_records_total", "stored", "") == stored
