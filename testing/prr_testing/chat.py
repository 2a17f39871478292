"""One chat turn through the stock `openai` client, streaming or not, with everything the server tells about it.

The assistant message comes out as an ordinary client would put it into its history: from the parsed response, or from
the deltas of a stream added up. Nothing here knows how the message was parsed or what the next prompt will be.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI

from .server import Engine
from .sglang_sampler import REQUEST_FIELDS


@dataclass
class Reply:
    """A turn as the client saw it. Ids are what the server returned (`return_token_ids`).

    message: the assistant message (`role`, `content`, and `reasoning`, `tool_calls` where there are any).
    prr: what the server says it did with the prompt, if asked (`"prr": true`) and if it is ours.
    extra: other fields of the response beside the standard ones (`raw_text`, ...), merged over the chunks of a stream.
    first_token_s: seconds from sending the request to the first chunk with a token (streaming), else to the response.
    """

    message: dict[str, Any]
    finish_reason: str | None
    prompt_ids: list[int]
    completion_ids: list[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    prr: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    first_token_s: float = 0.0


def chat(
    client: OpenAI,
    model: str,
    messages: Sequence[dict[str, Any]],
    *,
    script_ids: Sequence[int] | None = None,
    tools: Sequence[dict[str, Any]] | None = None,
    stream: bool = False,
    body: dict[str, Any] | None = None,
    engine: Engine = "vllm",
    **options: Any,
) -> Reply:
    """Ask for one turn. `script_ids` is what the engine will sample; `body` are fields that the stock client lacks."""
    extra_body = {**request_fields(engine, script_ids), **(body or {})}
    request: dict[str, Any] = {"model": model, "messages": messages, "extra_body": extra_body, **options}
    if tools:
        request["tools"] = tools
    if stream:
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    sent = time.perf_counter()
    response = client.chat.completions.create(**request)
    return _from_stream(response, sent) if stream else _from_response(response, time.perf_counter() - sent)


def request_fields(engine: Engine, script_ids: Sequence[int] | None = None) -> dict[str, Any]:
    """How a request asks an engine for the ids of its tokens, and for a script."""
    if engine == "vllm":
        script: dict[str, Any] = {} if script_ids is None else {"vllm_xargs": {"script_ids": list(script_ids)}}
        return {"return_token_ids": True, **script}
    script = {} if script_ids is None else {**REQUEST_FIELDS, "custom_params": {"script_ids": list(script_ids)}}
    # a script leaves one token: the greedy path picks it without sorting the vocabulary
    return {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True, "temperature": 0, **script}


def _ids(reply: Reply, data: dict[str, Any]) -> None:
    """SGLang tells the ids of the whole request in one place, in a stream as in a response."""
    told = data.get("sglext") or {}
    reply.prompt_ids = told.get("input_ids") or reply.prompt_ids
    reply.completion_ids = (told.get("output_ids") or [reply.completion_ids])[0]


def _usage(reply: Reply, usage: dict[str, Any]) -> None:
    reply.prompt_tokens = usage["prompt_tokens"]
    reply.completion_tokens = usage["completion_tokens"]
    reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _empty() -> Reply:
    return Reply({"role": "assistant", "content": None}, None, [], [], 0, 0, 0)


_CHOICE_FIELDS = frozenset(
    ("index", "message", "delta", "finish_reason", "logprobs", "token_ids", "stop_reason", "matched_stop")
)
REASONING = ("reasoning", "reasoning_content")  # vLLM's name, SGLang's
_SAMPLED = ("content", *REASONING, "tool_calls")


def _from_response(response: Any, seconds: float) -> Reply:
    data = response.model_dump(exclude_unset=True)
    choice = data["choices"][0]
    reply = _empty()
    reply.message = _as_history(choice["message"])
    reply.finish_reason = choice["finish_reason"]
    reply.prompt_ids = data.get("prompt_token_ids") or []
    reply.completion_ids = choice.get("token_ids") or []
    _ids(reply, data)
    reply.prr = data.get("prr")
    reply.extra = {k: v for k, v in choice.items() if k not in _CHOICE_FIELDS}
    reply.first_token_s = seconds
    _usage(reply, data["usage"])
    return reply


def _as_history(message: dict[str, Any]) -> dict[str, Any]:
    """What a client keeps of a message: the fields of the protocol that are set, and of calls the standard ones."""
    kept: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
    kept |= {name: message[name] for name in REASONING if message.get(name) is not None}
    if message.get("tool_calls"):
        kept["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {k: call["function"][k] for k in ("name", "arguments")}}
            for call in message["tool_calls"]
        ]
    return kept


def _from_stream(chunks: Any, sent: float) -> Reply:
    reply = _empty()
    calls: dict[int, dict[str, Any]] = {}
    text: dict[str, list[str]] = {name: [] for name in ("content", *REASONING)}
    for chunk in chunks:
        data = chunk.model_dump(exclude_unset=True)
        if data.get("prompt_token_ids"):
            reply.prompt_ids = data["prompt_token_ids"]
        _ids(reply, data)
        if data.get("prr"):
            reply.prr = data["prr"]
        if data.get("usage"):
            _usage(reply, data["usage"])
        for choice in data["choices"]:
            delta = choice["delta"]
            if not reply.first_token_s and (choice.get("token_ids") or any(delta.get(name) for name in _SAMPLED)):
                reply.first_token_s = time.perf_counter() - sent
            reply.completion_ids += choice.get("token_ids") or []
            reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
            reply.extra |= {k: v for k, v in choice.items() if k not in _CHOICE_FIELDS}
            for name, parts in text.items():
                if delta.get(name) is not None:
                    parts.append(delta[name])
            for piece in delta.get("tool_calls") or []:
                _add_call_delta(calls, piece)
    message = {name: "".join(parts) if parts else None for name, parts in text.items()}
    if calls and not message["content"]:
        message["content"] = None  # the role chunk's "" is no content
    reply.message = _as_history({**message, "tool_calls": [calls[index] for index in sorted(calls)]})
    return reply


def _add_call_delta(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    call = calls.setdefault(piece["index"], {"id": "", "function": {"name": "", "arguments": ""}})
    call["id"] = piece.get("id") or call["id"]
    for name in ("name", "arguments"):
        call["function"][name] += (piece.get("function") or {}).get(name) or ""
