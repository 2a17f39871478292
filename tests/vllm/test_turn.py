"""A turn without a server: what is not spliced has a name, and is counted once the engine has made its prompt."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from prr_plugins.common.metrics import Metrics
from prr_plugins.common.prompts.splicer import Splicer
from prr_plugins.common.settings import Settings
from prr_plugins.common.store.memory import TurnStore
from prr_plugins.vllm.responses import one_a_turn
from prr_plugins.vllm.turn import Turn

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def turn(**fields: Any) -> tuple[Turn, Metrics]:
    metrics = Metrics()
    splicer = Splicer(None, TurnStore(1 << 20), Settings(), metrics)  # type: ignore[arg-type]  # never asked here
    runtime: Any = SimpleNamespace(splicer=splicer, mode=lambda wanted: "on")
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], model="m", **fields)
    return Turn(runtime, request, None, "m", None), metrics


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]},
        {"role": "tool", "tool_call_id": "c", "content": [IMAGE]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y.png"}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]},
    ],
)
def test_media_are_counted_as_multimodal(message: Any) -> None:
    here, metrics = turn()
    assert asyncio.run(here.splice([message], {}, None)) is None
    assert not here.recordable
    assert metrics.snapshot() == {}
    here.used([{"prompt_token_ids": [1]}])
    assert metrics.snapshot()["prr_turns_total", ("refused", "multimodal")] == 1


@pytest.mark.parametrize("preview", ["ids", "count"])
def test_a_preview_counts_nothing(preview: Any) -> None:
    here, metrics = turn()
    here.preview = preview
    assert asyncio.run(here.splice([{"role": "user", "content": [IMAGE]}], {}, None)) is None
    here.used([{"prompt_token_ids": [1]}])
    assert metrics.snapshot() == {}


def test_the_items_of_a_turn_are_one_message() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "reasoning": "r"},
        {"role": "assistant", "content": "a", "tool_calls": [call]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"role": "tool", "tool_call_id": "c", "content": "y"},
        {"role": "assistant", "content": "z"},
    ]
    before = [dict(part) for part in parts]
    whole = {"role": "assistant", "reasoning": "r", "content": "ab", "tool_calls": [call]}
    assert one_a_turn(parts) == [parts[0], whole, *parts[4:]]
    assert parts == before
