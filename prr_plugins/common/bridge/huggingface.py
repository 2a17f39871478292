"""A bridge out of a `transformers` tokenizer alone, where no engine renders: rollouts, tools, tests.

Promise: `render` is `apply_chat_template` with call arguments as objects, as engines give them, and `encode` gives the
ids of `tokenizer.encode(text, add_special_tokens=False)`. Imports nothing of transformers.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.messages import Message, Tools


def bridge_of(
    tokenizer: Any,
    stop_ids: Collection[int],
    *,
    stop: Literal["template", "sampled"] = "template",
    reasoning_end: str | None = None,
) -> TemplateBridge:
    """The bridge for the tokenizer and its own chat template.

    stop_ids: what ends generation, as `eos_token_id` of the model's `generation_config.json` lists it.
    stop, reasoning_end: as for `TemplateBridge`.
    """
    return TemplateBridge(
        renderer(tokenizer),
        encoder(tokenizer),
        lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)),
        stop_ids,
        tokenizer.get_added_vocab(),
        stop=stop,
        reasoning_end=reasoning_end,
    )


def renderer(
    tokenizer: Any, chat_template: str | None = None
) -> Callable[[Sequence[Message], Tools, bool, Mapping[str, Any]], str]:
    """Messages in OpenAI shape to the text of the prompt.

    chat_template: the text of a template to use instead of the tokenizer's own.
    """
    own = {} if chat_template is None else {"chat_template": chat_template}

    def render(
        messages: Sequence[Message], tools: Tools, add_generation_prompt: bool, template_kwargs: Mapping[str, Any]
    ) -> str:
        text: str = tokenizer.apply_chat_template(
            [_with_objects(message) for message in messages],
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **template_kwargs,
            **own,
        )
        return text

    return render


def encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """Text to ids, nothing added in front.

    Where the tokenizer is a Rust one, by a copy of it that keeps no offsets (a fifth less work) and whose truncation
    and padding no other call sets.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if not hasattr(backend, "encode_batch_fast"):
        return lambda text: list(tokenizer.encode(text, add_special_tokens=False))
    own = copy.deepcopy(backend)
    own.no_truncation()
    own.no_padding()

    def encode(text: str) -> list[int]:
        ids: list[int] = own.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    return encode


def _with_objects(message: Message) -> Message:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_with_object(call) for call in calls]} if calls else message


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {**call, "function": {**call["function"], "arguments": parsed}}
