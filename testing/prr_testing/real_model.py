"""Real tokenizers and templates, rendered as an engine does: arguments parsed, parts joined, both reasoning fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.messages import Message, Tools

from .models import model_dir
from .tokens import load_tokenizer

STOPS = {
    "qwen3.6": ("<|im_end|>", "<|endoftext|>"),
    "qwen3-coder": ("<|im_end|>", "<|endoftext|>"),
    "glm-5.1": ("<|endoftext|>", "<|user|>", "<|observation|>"),
    "glm-4.7": ("<|endoftext|>", "<|user|>", "<|observation|>"),
    "kimi-k2.6": ("<|im_end|>",),
    "gpt-oss": ("<|return|>", "<|call|>", "<|endoftext|>"),
}


@dataclass(frozen=True)
class RealModel:
    """A model's tokenizer and template; `renders` counts the characters rendered so far."""

    name: str
    tokenizer: Any
    stops: tuple[str, ...]
    rendered: list[int]

    def render(
        self, messages: Sequence[Message], tools: Tools, add_generation_prompt: bool, template_kwargs: Mapping[str, Any]
    ) -> str:
        text: str = self.tokenizer.apply_chat_template(
            [_prepared(message) for message in messages],
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **template_kwargs,
        )
        self.rendered.append(len(text))
        return text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    @property
    def stop_ids(self) -> list[int]:
        return [self.tokenizer.convert_tokens_to_ids(stop) for stop in self.stops]

    def bridge(self, **options: Any) -> TemplateBridge:
        return TemplateBridge(
            self.render, self.encode, self.decode, self.stop_ids, self.tokenizer.get_added_vocab(), **options
        )


def _prepared(message: Message) -> Message:
    message = dict(message)
    if message.get("tool_calls"):
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    if message.get("content") is None:
        message["content"] = ""
    if isinstance(message["content"], list):
        message["content"] = "\n".join(part["text"] for part in message["content"])
    if message.get("reasoning") is not None:
        message["reasoning_content"] = message["reasoning"]
    return message


@cache
def real_model(name: str) -> RealModel:
    """The model `name` of `prr_testing.models`."""
    return RealModel(name, load_tokenizer(model_dir(name)), STOPS[name], [])
