"""A chat with a real server of either engine that samples what a test scripts, as a stock OpenAI client sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .chat import REASONING, request_fields
from .server import Server
from .tokens import load_tokenizer

Message = dict[str, Any]
Script = str | list[int]


def edit_tool(required: Sequence[str] = (), **properties: str) -> dict[str, Any]:
    """A tool that edits a file, in OpenAI's shape; properties: the JSON type of each of its parameters."""
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"type": type_} for name, type_ in properties.items()},
    }
    if required:
        parameters["required"] = list(required)
    return {
        "type": "function",
        "function": {"name": "edit", "description": "Edit a file.", "parameters": parameters},
    }


EDIT_TOOL = edit_tool(path="string", count="number")
"""The one tool that most scripts call: a text and a number, in OpenAI's shape."""


@dataclass
class Answer:
    """One choice of an answer, whole or accumulated from a stream. Ids are what the server returned."""

    message: Message
    finish_reason: str | None = None
    prompt_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    raw_ids: list[int] | None = None
    raw_text: str | None = None
    incomplete_calls: list[dict[str, Any]] | None = None
    prr: dict[str, Any] | None = None
    cached: int = 0
    prompt_tokens: int = 0

    @property
    def turn(self) -> list[int]:
        """All ids of the turn."""
        return self.prompt_ids + self.token_ids

    @property
    def content(self) -> str:
        return self.message.get("content") or ""

    @property
    def reasoning(self) -> str:
        return next((self.message[name] for name in REASONING if self.message.get(name)), "")

    @property
    def calls(self) -> list[tuple[str, str, str | None]]:
        """(name, arguments, raw_arguments) of each call."""
        functions = [call["function"] for call in self.message.get("tool_calls") or []]
        return [(f["name"], f["arguments"], f.get("raw_arguments")) for f in functions]

    def returned(self, *, reasoning: bool = False) -> Message:
        """The message as a client sends it back: OpenAI's own fields, with the reasoning only if it keeps it."""
        kept: Message = {"role": "assistant", "content": self.message.get("content")}
        if self.message.get("tool_calls"):
            kept["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["function"]["name"], "arguments": call["function"]["arguments"]},
                }
                for call in self.message["tool_calls"]
            ]
        if reasoning:
            kept |= {name: self.message[name] for name in REASONING if self.message.get(name)}
        return kept

    def results(self, text: str = "done") -> list[Message]:
        """A tool result for each call."""
        calls = self.message.get("tool_calls") or []
        return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]


class Talk:
    """Asks a server with scripted completions. `stop` is the text of the stop token that ends a script."""

    def __init__(self, server: Server, path: Path, stop: str = "<|im_end|>") -> None:
        self.server = server
        self.client = server.client()
        self.tokenizer: Any = load_tokenizer(path)
        self.stop = self.tokenizer.convert_tokens_to_ids(stop)

    def ids(self, text: str, *, stop: bool = True) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), *([self.stop] if stop else [])]

    def odd_ids(self, text: str) -> list[int]:
        """The same text in tokens as small as they come."""
        return [i for character in text for i in self.tokenizer.encode(character, add_special_tokens=False)]

    def ask(self, messages: Sequence[Message], completion: Script = "fine", **options: Any) -> Answer:
        """One answer; `options` as for `ask_n`."""
        return self.ask_n(messages, [completion], **options)[0]

    def ask_n(
        self,
        messages: Sequence[Message],
        completions: Sequence[Script],
        *,
        stream: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        extra: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        client: Any = None,
        **options: Any,
    ) -> list[Answer]:
        """One answer for each completion (`n`). extra: body fields that the stock client lacks; options: its own."""
        scripts = [script if isinstance(script, list) else self.ids(script) for script in completions]
        joined = [i for number, script in enumerate(scripts) for i in ([-1] if number else []) + script]
        arguments: dict[str, Any] = {
            "model": self.server.model,
            "messages": messages,
            "extra_body": {**request_fields(self.server.engine, joined), "prr": True, **(extra or {})},
            "extra_headers": headers,
            "max_tokens": 512,
            "n": len(scripts),
            "seed": 0,
            **({"tools": tools} if tools else {}),
            **options,
        }
        create = (client or self.client).chat.completions.create
        if not stream:
            return whole(create(**arguments).model_dump(exclude_none=True))
        arguments |= {"stream": True, "stream_options": {"include_usage": True}}
        events = create(**arguments)
        return accumulate((event.model_dump(exclude_none=True) for event in events), len(scripts))

    def counter(self, name: str, **labels: str) -> float:
        return self.server.metrics().total(name, **labels)

    def most_cached(self, before: Answer, after: Answer) -> int:
        """What a cache of whole blocks can hold of `before`'s turn for `after`'s prompt, in tokens."""
        block = self.server.block_size
        return block * min((len(before.turn) - 1) // block, (len(after.prompt_ids) - 1) // block)


def _told(answers: list[Answer], data: dict[str, Any]) -> None:
    """What a response, or a chunk, says about all of its choices."""
    engine_fields = data.get("sglext") or {}
    for number, answer in enumerate(answers):
        answer.prompt_ids = data.get("prompt_token_ids") or engine_fields.get("input_ids") or answer.prompt_ids
        if engine_fields.get("output_ids"):
            answer.token_ids = engine_fields["output_ids"][number]
        answer.prr = data.get("prr") or answer.prr
        if usage := data.get("usage"):
            answer.prompt_tokens = usage["prompt_tokens"]
            answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _ended(answer: Answer, choice: dict[str, Any]) -> None:
    answer.finish_reason = choice["finish_reason"]
    answer.raw_ids, answer.raw_text = choice.get("raw_completion_ids"), choice.get("raw_text")
    answer.incomplete_calls = choice.get("incomplete_calls")


def whole(data: dict[str, Any]) -> list[Answer]:
    """The choices of a response."""
    answers = [Answer(choice["message"]) for choice in data["choices"]]
    for answer, choice in zip(answers, data["choices"], strict=True):
        answer.token_ids = choice.get("token_ids") or []
        _ended(answer, choice)
    _told(answers, data)
    return answers


def accumulate(events: Iterable[dict[str, Any]], n: int) -> list[Answer]:
    """What a client makes of a stream."""
    answers = [Answer({"role": "assistant"}) for _ in range(n)]
    for data in events:
        assert answers[0].prr is None, "the report stands in the last chunk only"
        for choice in data["choices"]:
            answer = answers[choice["index"]]
            _append(answer.message, choice["delta"])
            answer.token_ids += choice.get("token_ids") or []
            if choice.get("finish_reason") is not None:
                _ended(answer, choice)
        _told(answers, data)
    return answers


def _append(message: Message, delta: dict[str, Any]) -> None:
    for name in ("content", *REASONING):
        if delta.get(name):
            message[name] = message.get(name, "") + delta[name]
    for part in delta.get("tool_calls") or []:
        calls = message.setdefault("tool_calls", [])
        if part["index"] == len(calls):
            calls.append({"id": part["id"], "type": part["type"], "function": {"name": "", "arguments": ""}})
        function = calls[part["index"]]["function"]
        for name, value in part.get("function", {}).items():
            function[name] = function.get(name, "") + (value or "")
