"""A chat with a real vLLM server that samples what a test scripts, seen as a stock OpenAI client sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prr_testing.server import Server
from prr_testing.talk import edit_tool
from prr_testing.tokens import load_tokenizer

PARSER = "prr_qwen3"
STOP = "<|im_end|>"

TOOLS = [edit_tool(path="string", text="string", count="number")]


def call_text(path: str, count: str = "1.0", text: str | None = None) -> str:
    """A call as the model writes it."""
    parameters = [("path", path), ("count", count)] + ([("text", text)] if text is not None else [])
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters)
    return f"<tool_call>\n<function=edit>\n{body}</function>\n</tool_call>"


@dataclass
class Reply:
    """One choice of an answer, whole or accumulated from a stream."""

    message: dict[str, Any]
    finish_reason: str | None = None
    prompt_ids: list[int] | None = None
    token_ids: list[int] = field(default_factory=list)
    raw_ids: list[int] | None = None
    raw_text: str | None = None
    incomplete_calls: list[dict[str, Any]] | None = None
    prr: dict[str, Any] | None = None
    cached: int | None = None
    prompt_tokens: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def turn(self) -> list[int]:
        """All ids of the turn."""
        assert self.prompt_ids is not None
        return self.prompt_ids + self.token_ids

    @property
    def calls(self) -> list[tuple[str, str, str | None]]:
        """(name, arguments, raw_arguments) of each call."""
        functions = [call["function"] for call in self.message.get("tool_calls", [])]
        return [(f["name"], f["arguments"], f.get("raw_arguments")) for f in functions]

    def returned(self, *, reasoning: bool = False) -> dict[str, Any]:
        """The message as a client sends it back: OpenAI's own fields, with the reasoning only if it keeps it."""
        kept = {"role": "assistant", "content": self.message.get("content")}
        if self.message.get("tool_calls"):
            kept["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["function"]["name"], "arguments": call["function"]["arguments"]},
                }
                for call in self.message["tool_calls"]
            ]
        if reasoning and self.message.get("reasoning"):
            kept["reasoning"] = self.message["reasoning"]
        return kept

    def results(self, text: str = "done") -> list[dict[str, Any]]:
        """A tool result for each call."""
        return [{"role": "tool", "tool_call_id": c["id"], "content": text} for c in self.message.get("tool_calls", [])]


class Chat:
    """Asks a server with scripted completions."""

    def __init__(self, server: Server, path: Path) -> None:
        self.server = server
        self.client = server.client()
        self.tokenizer = load_tokenizer(path)
        self.stop = self.tokenizer.convert_tokens_to_ids(STOP)

    def ids(self, text: str, *, stop: bool = True) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), *([self.stop] if stop else [])]

    def odd_ids(self, text: str) -> list[int]:
        """The same text in tokens as small as they come."""
        pieces = [text[i : i + 1] for i in range(len(text))]
        return [i for piece in pieces for i in self.tokenizer.encode(piece, add_special_tokens=False)]

    def ask(
        self,
        messages: list[dict[str, Any]],
        completion: str | list[int] = "fine",
        *,
        stream: bool = False,
        tools: list[dict[str, Any]] | None = TOOLS,
        extra: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> Reply:
        options |= {"stream": stream, "tools": tools, "extra": extra, "headers": headers}
        return self.ask_n(messages, [completion], **options)[0]

    def ask_n(
        self,
        messages: list[dict[str, Any]],
        completions: list[str | list[int]],
        *,
        stream: bool = False,
        tools: list[dict[str, Any]] | None = TOOLS,
        extra: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> list[Reply]:
        scripts = [c if isinstance(c, list) else self.ids(c) for c in completions]
        joined = [i for n, script in enumerate(scripts) for i in ([-1] if n else []) + script]
        body = {"vllm_xargs": {"script_ids": joined}, "return_token_ids": True, "prr": True, **(extra or {})}
        arguments: dict[str, Any] = {
            "model": self.server.model,
            "messages": messages,
            "extra_body": body,
            "extra_headers": headers,
            "max_tokens": 512,
            "n": len(scripts),
            "seed": 0,
            **({"tools": tools} if tools else {}),
            **options,
        }
        if stream:
            arguments |= {"stream": True, "stream_options": {"include_usage": True}}
            return _accumulate(self.client.chat.completions.create(**arguments), len(scripts))
        return _whole(self.client.chat.completions.create(**arguments))

    def turns(self, outcome: str, reason: str | None = None) -> float:
        labels = {"outcome": outcome} | ({"reason": reason} if reason is not None else {})
        return self.server.metrics().total("prr_turns_total", **labels)

    def counter(self, name: str, **labels: str) -> float:
        return self.server.metrics().total(name, **labels)


def _usage(reply: Reply, usage: Any) -> None:
    reply.prompt_tokens = usage.prompt_tokens
    reply.cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None


def _whole(response: Any) -> list[Reply]:
    replies = []
    for choice in response.choices:
        extra = choice.model_extra or {}
        reply = Reply(
            choice.message.model_dump(exclude_none=True),
            choice.finish_reason,
            response.model_extra.get("prompt_token_ids"),
            extra.get("token_ids") or [],
            extra.get("raw_completion_ids"),
            extra.get("raw_text"),
            extra.get("incomplete_calls"),
            response.model_extra.get("prr"),
            extra=extra,
        )
        _usage(reply, response.usage)
        replies.append(reply)
    return replies


def _accumulate(events: Any, n: int) -> list[Reply]:
    """What a client makes of a stream."""
    replies = [Reply({"role": "assistant"}) for _ in range(n)]
    last: Any = None
    for event in events:
        assert last is None or (last.model_extra or {}).get("prr") is None, "the report stands in the last chunk only"
        last = event
        if (prompt_ids := (event.model_extra or {}).get("prompt_token_ids")) is not None:
            for reply in replies:
                reply.prompt_ids = prompt_ids
        for choice in event.choices:
            reply = replies[choice.index]
            _append(reply.message, choice.delta.model_dump(exclude_none=True))
            extra = choice.model_extra or {}
            reply.token_ids += extra.get("token_ids") or []
            if choice.finish_reason is not None:
                reply.finish_reason = choice.finish_reason
                reply.raw_ids, reply.raw_text = extra.get("raw_completion_ids"), extra.get("raw_text")
                reply.incomplete_calls = extra.get("incomplete_calls")
        if event.usage is not None:
            for reply in replies:
                _usage(reply, event.usage)
    for reply in replies:
        reply.prr = (last.model_extra or {}).get("prr")
    return replies


def _append(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in ("content", "reasoning"):
        if delta.get(name):
            message[name] = message.get(name, "") + delta[name]
    for part in delta.get("tool_calls", []):
        calls = message.setdefault("tool_calls", [])
        if part["index"] == len(calls):
            calls.append({"id": part["id"], "type": part["type"], "function": {"name": "", "arguments": ""}})
        function = calls[part["index"]]["function"]
        for name, value in part.get("function", {}).items():
            function[name] = function.get(name, "") + value
