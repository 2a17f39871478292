"""Messages and tools of Anthropic's API in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prr_plugins.common.messages import Message


def from_anthropic(messages: Sequence[Message], system: str | Sequence[Message] | None = None) -> list[Message]:
    """Messages of Anthropic's API in OpenAI's shape.

    Tool results become messages of their own, in front of what else their message says. Thinking becomes `reasoning`;
    a redacted one is left out. Blocks of other types stay parts of the content.
    """
    head = [{"role": "system", "content": _joined(system)}] if system else []
    return [*head, *(made for message in messages for made in _one(message))]


def tools_from_anthropic(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tool definitions of Anthropic's API in OpenAI's shape."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                **({"description": tool["description"]} if tool.get("description") else {}),
                "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def _one(message: Message) -> Iterator[Message]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        yield dict(message)
        return
    rest: list[Message] = []
    calls: list[Message] = []
    thoughts: list[str] = []
    for block in content:
        kind = block.get("type")
        if kind == "tool_result":
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _joined(block.get("content"))}
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            function = {"name": block.get("name"), "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind != "redacted_thinking":
            rest.append(block)
    if role == "assistant":
        made: Message = {"role": "assistant", "content": _joined(rest)}
        if thoughts:
            made["reasoning"] = "".join(thoughts)
        yield {**made, "tool_calls": calls} if calls else made
    elif rest:
        yield {"role": role, "content": _joined(rest)}


def _joined(content: Any) -> Any:
    """Text blocks as one text; what holds others, or none at all, as it is."""
    if isinstance(content, (list, tuple)) and all(block.get("type") == "text" for block in content):
        return "".join(str(block.get("text") or "") for block in content)
    return "" if content is None else content
