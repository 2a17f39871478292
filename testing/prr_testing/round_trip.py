"""What no parser corpus asks: does a fixture's turn stand unchanged in the next prompt?

For a completion C after a prompt P, `check` makes the next prompt twice: by rendering the parsed message with the
model's template (what engines do), and by `TemplateBridge`. `P + C` must be a strict prefix of it, the spelling of
the stop token aside: that one was sampled, never fed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from prr_plugins.common.bridge.continuation import Refusal
from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.messages import Message, Tools
from prr_plugins.common.parsing.completion import ParsedCompletion
from prr_plugins.common.parsing.formats import get_format
from prr_plugins.common.parsing.stream_parser import parse

from .adapters import completion_ids, tokenizer
from .corpus import Completion
from .vocabularies import folder

# The stop token a model samples, by whether its turn ends in calls: the first that the model has.
_STOPS = {
    True: ("<|call|>", "<|observation|>", "<|tool_response>", "<|im_end|>", "<|eot_id|>", "<|eot|>"),
    False: ("<|return|>", "<|user|>", "<turn|>", "<|im_end|>", "<|eot_id|>", "<|eot|>"),
}
_USER: Message = {"role": "user", "content": "And tomorrow?"}


@dataclass(frozen=True)
class Outcome:
    """One next prompt. `follows`: what was appended to the turn. `bridge_reason`: why it refused."""

    follows: Literal["tool", "tool+user", "user"]
    rerender: Literal["kept", "broken", "unsupported"]
    bridge: Literal["kept", "broken", "refused"]
    bridge_reason: str = ""


class Model:
    """Template, tokenizer and bridge of one corpus model."""

    def __init__(self, name: str, format: str, stop_tokens: Sequence[str]) -> None:
        self.tokenizer = tokenizer(name)
        self.template = (folder(name) / "chat_template.jinja").read_text()
        self.added = self.tokenizer.get_added_vocab()
        self.stops = [token for token in stop_tokens if token in self.added]
        self.bridge = TemplateBridge(
            self.render,
            self.encode,
            lambda ids: str(self.tokenizer.decode(list(ids), skip_special_tokens=False)),
            [self.added[token] for token in self.stops],
            self.added,
            reasoning_end=get_format(format).reasoning_end,
        )

    def encode(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)]

    def render(
        self, messages: list[Message], tools: Tools, add_generation_prompt: bool, template_kwargs: Mapping[str, Any]
    ) -> str:
        shown = [_as_templates_want(message) for message in messages]
        made = self.tokenizer.apply_chat_template(
            shown,
            tools=tools,
            chat_template=self.template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **template_kwargs,
        )
        return str(made)

    def prompt(self, tools: Tools, tail: str) -> tuple[str, dict[str, Any]]:
        """A prompt that ends in `tail`, and the template arguments that make it (none where only `tail` does)."""
        messages: list[Message] = [{"role": "user", "content": "Hello."}]
        for kwargs in ({}, *({"enable_thinking": on, "thinking": on} for on in (True, False))):
            text = self.render(messages, tools, True, kwargs)
            if text.endswith(tail):
                return text, kwargs
        return self.render(messages, tools, False, {}) + tail, {}


@cache
def _model(name: str, format: str, stop_tokens: tuple[str, ...]) -> Model:
    return Model(name, format, stop_tokens)


def check(completion: Completion) -> list[Outcome]:
    """The outcomes of one fixture; none where its template is not at hand or does not take its tools."""
    name = completion.fixture.reference_model
    reference = completion.family.reference_for(name)
    assert reference is not None
    if not (folder(name) / "chat_template.jinja").is_file():
        return []
    model = _model(name, completion.format, tuple(reference.stop_tokens))
    tools = completion.tools or None
    try:
        prompt, kwargs = model.prompt(tools, completion.tail)
    except Exception:  # a template may raise anything: it does not support these tools
        return []
    parsed = parse(
        completion.format,
        completion.text,
        tools=completion.tools,
        prompt_tail=completion.tail,
        finish_reason=completion.finish_reason,
    )
    prompt_ids = model.encode(prompt)
    sampled = list(completion_ids(name, completion.text, completion.fixture.output_token_ids))
    if completion.finish_reason == "stop":
        wanted = _STOPS[bool(parsed.parsed_tool_calls)]
        stop = next((token for token in wanted if token in model.stops), model.stops[0])
        sampled.append(model.added[stop])
    message = _message(parsed)
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": "23"}
        for call in message.get("tool_calls", ())
    ]
    nexts: dict[Literal["tool", "tool+user", "user"], list[Message]] = (
        {"tool": results, "tool+user": [*results, _USER]} if results else {"user": [_USER]}
    )
    return [
        _outcome(model, follows, prompt_ids, sampled, message, new, tools, kwargs) for follows, new in nexts.items()
    ]


def _outcome(
    model: Model,
    follows: Literal["tool", "tool+user", "user"],
    prompt_ids: list[int],
    sampled: list[int],
    message: Message,
    new: list[Message],
    tools: Tools,
    kwargs: dict[str, Any],
) -> Outcome:
    turn = [*prompt_ids, *sampled]
    stops = {model.added[token] for token in model.stops}

    def kept(ids: Sequence[int]) -> bool:
        fed = turn[:-1] if turn[-1] in stops else turn
        return len(ids) > len(turn) and list(ids[: len(fed)]) == fed

    rerender: Literal["kept", "broken", "unsupported"]
    try:
        text = model.render([{"role": "user", "content": "Hello."}, message, *new], tools, True, kwargs)
        rerender = "kept" if kept(model.encode(text)) else "broken"
    except Exception:
        rerender = "unsupported"
    answer = model.bridge.extend(prompt_ids, sampled, new, assistant=message, tools=tools, template_kwargs=kwargs)
    if isinstance(answer, Refusal):
        return Outcome(follows, rerender, "refused", answer.reason)
    return Outcome(follows, rerender, "kept" if kept(answer.ids) else "broken")


def _message(parsed: ParsedCompletion) -> Message:
    """The parsed completion as a client sends it back."""
    message: Message = {"role": "assistant", "content": parsed.content or ""}
    if parsed.reasoning:
        message |= {"reasoning": parsed.reasoning, "reasoning_content": parsed.reasoning}
    if parsed.parsed_tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id or f"call{i:05d}",  # nine characters: Mistral's templates want as many
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for i, call in enumerate(parsed.parsed_tool_calls)
        ]
    return message


def _as_templates_want(message: Message) -> Message:
    """Arguments as objects, which is how engines hand them to templates."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return message | {
        "tool_calls": [
            call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
            for call in calls
        ]
    }
