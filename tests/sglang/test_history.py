"""History that SGLang refuses or rewrites, on a real server: spliced where its turn is known, else as SGLang has it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import openai
import pytest
from in_process import CALL, TOOLS

from prr_testing.server import Server
from prr_testing.talk import Message, Talk

pytestmark = pytest.mark.server

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
THINK = "<|im_start|>assistant\n<think>\n"
_RUN = uuid.uuid4().hex[:8]  # what another run asked the same server is in its cache


@pytest.fixture(scope="module")
def talk(server: Server, qwen_dir: Path) -> Talk:
    return Talk(server, qwen_dir)


def user(text: str) -> Message:
    return {"role": "user", "content": f"{text} [{_RUN}]"}


def called(arguments: str) -> list[Message]:
    """An assistant message that this server never gave, with its result."""
    call = {"id": "x", "type": "function", "function": {"name": "edit", "arguments": arguments}}
    return [
        {"role": "assistant", "content": "never said", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "?"},
    ]


@BOTH
def test_arguments_that_are_no_json(talk: Talk, stream: bool) -> None:
    messages = [user(f"broken {stream=}")]
    cut = talk.ids(CALL, stop=False)[:-9]
    first = talk.ask(messages, cut, stream=True, tools=TOOLS, max_tokens=len(cut))
    assert first.finish_reason == "length"
    held = first.returned()
    with pytest.raises(ValueError, match=r"delimiter|Expecting"):
        json.loads(held["tool_calls"][0]["function"]["arguments"])
    second = talk.ask([*messages, held, *first.results("failed")], "</think>ok", stream=stream, tools=TOOLS)
    assert (second.prr or {})["outcome"] == "spliced", second.prr
    assert second.prompt_ids[: len(first.turn)] == first.turn
    assert second.cached == talk.most_cached(first, second)
    with pytest.raises(openai.BadRequestError):
        talk.ask([*messages, *called('{"path": ')], stream=stream, tools=TOOLS)


@BOTH
def test_a_number_keeps_its_spelling(talk: Talk, stream: bool) -> None:
    messages = [user(f"number {stream=}")]
    first = talk.ask(messages, CALL, stream=stream, tools=TOOLS)
    assert first.calls[0][:2] == ("edit", '{"path": "/x", "count": 1e3}')
    second = talk.ask([*messages, first.returned(), *first.results()], "</think>ok", stream=stream, tools=TOOLS)
    assert (second.prr or {})["outcome"] == "spliced", second.prr
    following = f"\n<|im_start|>user\n<tool_response>\ndone\n</tool_response><|im_end|>\n{THINK}"
    assert second.prompt_ids == first.turn + talk.ids(following, stop=False)
    unknown = talk.ask([*messages, *called('{"count": 1e3}')], stream=stream, tools=TOOLS)
    assert "\n1000.0\n" in talk.tokenizer.decode(unknown.prompt_ids)


@BOTH
def test_a_last_assistant_message(talk: Talk, stream: bool) -> None:
    messages = [user(f"last {stream=}")]
    first = talk.ask(messages, "</think>Hello.", stream=stream)
    second = talk.ask([*messages, first.returned()], "</think>And more.", stream=stream)
    assert (second.prr or {})["outcome"] == "spliced", second.prr
    assert second.prompt_ids == first.turn + talk.ids(f"\n{THINK}", stop=False)
    unknown = talk.ask([*messages, {"role": "assistant", "content": "never said"}], stream=stream)
    assert "<|im_start|>user\nnever said" in talk.tokenizer.decode(unknown.prompt_ids)


def test_ids_by_sglang_s_own_field(talk: Talk) -> None:
    asked: dict[str, Any] = {"return_token_ids": True, "return_output_ids_in_sglext": False}
    answer = talk.ask([user("ids")], CALL, tools=TOOLS, extra=asked)
    assert answer.raw_ids == talk.ids(CALL)
    assert answer.raw_text == CALL
    assert answer.calls[0][2] is not None
    quiet = talk.ask([user("none")], CALL, tools=TOOLS, extra={"return_output_ids_in_sglext": False, "prr": False})
    assert (quiet.raw_ids, quiet.raw_text, quiet.prr) == (None, None, None)
