"""Installed but not chosen (L6): a server with stock parsers answers as one without the plugin, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import TOOLS, Chat, call_text

from prr_testing.server import Server, serve

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def installed(qwen_dir: Path) -> Iterator[Server]:
    """The stock parsers with the plugin loaded, its settings set and its routes asked for."""
    env = {"PRR_SPLICE": "on", "PRR_ADMIN": "1"}
    with serve(qwen_dir, tool_parser="qwen3_xml", reasoning_parser="qwen3", env=env) as server:
        yield server


def requests(chat: Chat) -> list[dict[str, Any]]:
    """Of every kind: with and without tools, hidden reasoning, n = 2, cut; the second turn of a tool loop."""
    user = [{"role": "user", "content": "edit"}]
    call = {"id": "call_1", "type": "function", "function": {"name": "edit", "arguments": '{"path": "a"}'}}
    loop = [*user, {"role": "assistant", "content": "", "tool_calls": [call]}]
    loop += [{"role": "tool", "tool_call_id": "call_1", "content": "done"}]
    text = f"Hm \n</think>\n\n I will. {call_text('a')}\n{call_text('b')}"

    def body(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        return {
            "model": chat.server.model,
            "messages": messages,
            "max_tokens": 200,
            "seed": 0,
            "return_token_ids": True,
            "vllm_xargs": {"script_ids": chat.ids(text)},
            "cache_salt": "inert",  # the stock server has answered other tests: its cached tokens must not show
            "stream_interval": 1000,  # else it depends on timing how many tokens an event carries
            **fields,
        }

    return [
        body(user),
        body(user, tools=TOOLS),
        body(user, tools=TOOLS, max_tokens=40),
        body(user, tools=TOOLS, include_reasoning=False),
        body(user, tools=TOOLS, n=2),
        body(loop, tools=TOOLS, prr=True),
        body(user, tools=TOOLS, tool_choice="none", logprobs=True),
    ]


def answer(server: Server, body: dict[str, Any], stream: bool) -> str:
    """The raw answer without what is new in every answer."""
    body = {**body, "stream": stream} | ({"stream_options": {"include_usage": True}} if stream else {})
    response = httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    text = re.sub(r'"(?:chatcmpl|chatcmpl-tool|call)-[0-9a-z-]+"', '"ID"', response.text)
    text = re.sub(r'"created":\d+', '"created":0', text)
    if stream:
        # n choices come in any order
        return "\n".join(sorted(text.split("\n\n"))) if body.get("n", 1) > 1 else text
    return text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_stock_parsers_answer_alike(stock_server: Server, installed: Server, qwen_dir: Path, stream: bool) -> None:
    for body in requests(Chat(stock_server, qwen_dir)):
        assert answer(installed, body, stream) == answer(stock_server, body, stream)


def test_nothing_is_exported_or_said(stock_server: Server, installed: Server) -> None:
    metrics = httpx.get(f"{installed.base_url}/metrics").text
    assert "prr_" not in metrics
    assert httpx.get(f"{installed.base_url}/v1/prr").status_code == 404
    assert re.search(r"prr-plugins[ :]", installed.log_text()) is None
