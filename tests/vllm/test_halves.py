"""Each flag alone: the other half's markup stays verbatim in the content. And what only small or plain servers show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import PARSER, Chat, call_text

from prr_testing.server import serve

pytestmark = [pytest.mark.server, pytest.mark.slow]

USER = [{"role": "user", "content": "go"}]
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module")
def reasoning_only(qwen_dir: Path) -> Iterator[Chat]:
    """A window of 448 tokens, and a tool parser that vLLM ignores."""
    arguments = ("--tool-call-parser", PARSER)
    with serve(qwen_dir, *arguments, reasoning_parser=PARSER, max_model_len=448) as server:
        yield Chat(server, qwen_dir)


@BOTH
def test_reasoning_only(reasoning_only: Chat, stream: bool) -> None:
    chat = reasoning_only
    messages = [*USER, {"role": "user", "content": f"{stream=}"}]
    first = chat.ask(
        messages, f"Hm \n</think>\n\n I will.\n{call_text('a')}", stream=stream, tools=None, max_tokens=200
    )
    assert first.message["reasoning"] == "Hm "
    assert first.message["content"] == f" I will.\n{call_text('a')}"
    assert first.finish_reason == "stop"
    second = chat.ask([*messages, first.returned(), *USER], stream=stream, tools=None, max_tokens=200)
    assert second.prr["outcome"] == "spliced"
    assert second.prompt_ids[: len(first.turn)] == first.turn


def test_an_ignored_tool_parser_is_named(reasoning_only: Chat) -> None:
    lines = [line for line in reasoning_only.server.log_text().splitlines() if "prr-plugins:" in line]
    assert len(lines) == 1
    assert "--tool-call-parser prr_qwen3: vLLM ignores it without --enable-auto-tool-choice" in lines[0]
    assert "prr_qwen3 for reasoning" in reasoning_only.server.log_text()


def test_too_long_only_because_reasoning_was_kept(reasoning_only: Chat) -> None:
    chat = reasoning_only
    first = chat.ask(USER, chat.ids("one two " * 100 + "</think>\n\nfine"), tools=None, max_tokens=400)
    assert first.finish_reason == "stop"
    following = [*USER, first.returned(), {"role": "user", "content": "x " * 230}]
    second = chat.ask(following, "</think>ok", tools=None, max_tokens=20)
    assert (second.prr["outcome"], second.prr["reason"]) == ("refused", "too_long")
    assert second.message["content"] == "ok"


@pytest.fixture(scope="module")
def calls_only(qwen_dir: Path) -> Iterator[Chat]:
    """Without structural tags: vLLM forces required and named calls to be JSON. Calls are sent whole."""
    env = {"VLLM_ENFORCE_STRICT_TOOL_CALLING": "0", "PRR_STREAM_ARGUMENTS": "complete"}
    with serve(qwen_dir, tool_parser=PARSER, env=env) as server:
        yield Chat(server, qwen_dir)


@BOTH
def test_calls_only(calls_only: Chat, stream: bool) -> None:
    chat = calls_only
    messages = [*USER, {"role": "user", "content": f"{stream=}"}]
    first = chat.ask(messages, f"Hm \n</think>\n\n I will.\n{call_text('a')}", stream=stream)
    assert "reasoning" not in first.message
    assert first.message["content"].startswith("Hm \n</think>\n\n I will.")
    assert first.calls[0][:2] == ("edit", '{"path": "a", "count": 1.0}')
    second = chat.ask([*messages, first.returned(), *first.results()], stream=stream)
    assert second.prr["outcome"] == "spliced", second.prr
    assert second.prompt_ids[: len(first.turn)] == first.turn


@BOTH
def test_a_cut_call_is_not_sent_where_calls_are_sent_whole(calls_only: Chat, stream: bool) -> None:
    chat = calls_only
    script = chat.ids(f"</think>{call_text('a')}\n{call_text('b')}")
    reply = chat.ask(USER, script, stream=stream, max_tokens=len(script) - 10)
    assert [call[1] for call in reply.calls] == ['{"path": "a", "count": 1.0}']
    assert reply.finish_reason == "length"
    assert reply.incomplete_calls[0]["name"] == "edit"


def test_a_request_may_have_its_arguments_as_they_come(calls_only: Chat) -> None:
    """`prr_stream_arguments` against the server's policy."""
    chat = calls_only
    script = chat.ids(f"</think>{call_text('a')}")
    cut = chat.ask(USER, script, stream=True, max_tokens=len(script) - 6, extra={"prr_stream_arguments": "eager"})
    assert [(name, raw) for name, _, raw in cut.calls] == [("edit", None)]
    assert chat.ask(USER, script, stream=True, max_tokens=len(script) - 6).calls == []


@BOTH
def test_forced_json(calls_only: Chat, stream: bool) -> None:
    chat = calls_only
    array = '[{"name": "edit", "parameters": {"path": "a", "count": 1.5}}]'
    reply = chat.ask(USER, array, stream=stream, tool_choice="required")
    assert [call[0] for call in reply.calls] == ["edit"]
    assert reply.calls[0][1] == '{"path": "a", "count": 1.5}'
    named = {"type": "function", "function": {"name": "edit"}}
    reply = chat.ask(USER, '{"path": "b"}', stream=stream, tool_choice=named)
    assert [call[:2] for call in reply.calls] == [("edit", '{"path": "b"}')]


@BOTH
def test_one_call_at_a_time(calls_only: Chat, stream: bool) -> None:
    """Calls that vLLM drops after parsing were sampled: without them the turn would not be the model's."""
    chat = calls_only
    messages = [*USER, {"role": "user", "content": f"one call {stream=}"}]
    text = f"</think>\n\n{call_text('a')}\n{call_text('b')}"
    first = chat.ask(messages, text, stream=stream, parallel_tool_calls=False)
    assert len(first.calls) == 1
    second = chat.ask([*messages, first.returned(), *first.results()], stream=stream)
    assert (second.prr["outcome"], second.prr["reason"]) == ("refused", "calls_dropped")
