"""The bridge on renderers that are no Jinja template: DeepSeek V4's own Python encoder, as vLLM and SGLang ship it."""

from __future__ import annotations

import importlib.util
import json
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenizers import Tokenizer

from prr_plugins.common.bridge.continuation import Extension, Refusal
from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.messages import Message, Tools
from prr_testing.models import model_dir

USER = {"role": "user", "content": "List the files."}
NEXT = {"role": "user", "content": "Go on, please."}
TOOLS: Tools = [{"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {}}}]


def encoder() -> ModuleType:
    """The engine's file alone: it needs nothing of the engine."""
    packages = Path(sysconfig.get_path("purelib"))
    candidates = [
        *packages.glob("vllm/tokenizers/deepseek_v4_encoding.py"),
        *packages.glob("sglang/srt/**/encoding_dsv4.py"),
    ]
    spec = importlib.util.find_spec("vllm") or importlib.util.find_spec("sglang")
    for place in (spec.submodule_search_locations or []) if spec else []:
        candidates += Path(place).glob("tokenizers/deepseek_v4_encoding.py")
        candidates += Path(place).glob("srt/**/encoding_dsv4.py")
    if not candidates:
        pytest.skip("no engine with the encoder of DeepSeek V4")
    found = importlib.util.spec_from_file_location("deepseek_v4_encoding", candidates[0])
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class DeepSeek:
    """Renders as vLLM 0.32 does: tools go to the first system message, reasoning stays where there are any."""

    stop = "<｜end▁of▁sentence｜>"

    def __init__(self) -> None:
        self._messages = encoder().encode_messages
        self.tokenizer = Tokenizer.from_file(str(model_dir("deepseek-v4") / "tokenizer.json"))
        self.added = {token.content: index for index, token in self.tokenizer.get_added_tokens_decoder().items()}

    def render(self, messages: Sequence[Message], tools: Tools, generate: bool, kwargs: Mapping[str, Any]) -> str:
        messages = [dict(message) for message in messages]
        if tools:
            if not any(message["role"] == "system" for message in messages):
                messages.insert(0, {"role": "system"})
            next(message for message in messages if message["role"] == "system")["tools"] = tools
        mode = "thinking" if kwargs.get("thinking", True) else "chat"
        text: str = self._messages(messages, thinking_mode=mode, drop_thinking=kwargs.get("drop_thinking", True))
        return text

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def bridge(self) -> TemplateBridge:
        return TemplateBridge(self.render, self.encode, self.decode, [self.added[self.stop]], self.added)


@pytest.fixture(scope="module")
def model() -> DeepSeek:
    return DeepSeek()


def call(number: int) -> Message:
    return {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": "bash", "arguments": json.dumps({"n": number})},
    }


def result(number: int) -> Message:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": f"result {number}"}


CALLS = {"role": "assistant", "content": "", "reasoning": "Hm.", "tool_calls": [call(0), call(1)]}
ANSWER = {"role": "assistant", "content": "Two files.", "reasoning": "Hm."}


@pytest.mark.parametrize(
    ("turn", "new", "tools", "kwargs"),
    [
        (CALLS, [result(0), result(1)], TOOLS, {}),
        (CALLS, [result(1), result(0)], TOOLS, {}),
        (CALLS, [result(1), result(0), NEXT], TOOLS, {}),
        (ANSWER, [NEXT], TOOLS, {}),
        (ANSWER, [NEXT, NEXT], TOOLS, {}),
        (ANSWER, [{"role": "system", "content": "Be brief."}], TOOLS, {}),
        (ANSWER, [NEXT], None, {"drop_thinking": False}),
        ({**ANSWER, "reasoning": None}, [NEXT], None, {"thinking": False}),
    ],
)
def test_equals_the_full_render(
    model: DeepSeek, turn: Message, new: list[Message], tools: Tools, kwargs: dict[str, Any]
) -> None:
    before = [{"role": "system", "content": "Be kind."}, USER]
    prompt = model.render(before, tools, True, kwargs)
    full = model.render([*before, turn, *new], tools, True, kwargs)
    assert full.startswith(prompt)
    sampled = full[len(prompt) : full.index(model.stop) + len(model.stop)]
    answer = model.bridge().extend(
        model.encode(prompt), model.encode(sampled), new, assistant=turn, before=before, tools=tools,
        template_kwargs=kwargs,
    )  # fmt: skip
    assert isinstance(answer, Extension), answer
    assert answer.ids == model.encode(full)


def test_reasoning_is_dropped_without_tools_and_the_switch_is_known(model: DeepSeek) -> None:
    bridge = model.bridge()
    prompt = model.encode(model.render([USER], None, True, {}))
    answer = bridge.extend(prompt, model.encode("Hm.</think>Two." + model.stop), [NEXT], assistant=ANSWER)
    assert isinstance(answer, Extension)
    assert not answer.shows_reasoning
    assert bridge.retention_switch(None, {}) == "drop_thinking"
    assert bridge.retention_switch(TOOLS, {}) is None


def test_cut_in_reasoning(model: DeepSeek) -> None:
    prompt = model.encode(model.render([USER], TOOLS, True, {}))
    answer = model.bridge().extend(prompt, model.encode("I wonder"), [NEXT], before=[USER], tools=TOOLS)
    assert not isinstance(answer, Refusal)
    assert model.decode(answer.ids[len(prompt) :]) == (
        "I wonder</think><｜end▁of▁sentence｜><｜User｜>Go on, please.<｜Assistant｜><think>"
    )
