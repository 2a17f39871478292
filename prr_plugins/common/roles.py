"""Other shapes of a conversation brought into OpenAI's, and its roles brought in order, where a caller asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Message = dict[str, Any]
Numbered = list[tuple[int, Message]]
"""Messages with the index that each has in what the caller gave."""


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What to do with roles that templates refuse or misread. By default nothing.

    merge_users: user messages in a row become one, their texts parted by an empty line.
    orphan_results: "drop" leaves out tool results whose call is not in front of them.
    open_calls: "drop" takes calls that got no result out of an assistant message, and the message where nothing is
        left of it. Calls of the last message are open by nature and stay.
    """

    merge_users: bool = False
    orphan_results: Literal["keep", "drop"] = "keep"
    open_calls: Literal["keep", "drop"] = "keep"


def clean(messages: Sequence[Message], how: Cleaning) -> Numbered:
    """The messages that are left, each with its index. What is changed is a copy."""
    numbered = list(enumerate(messages))
    if how.open_calls == "drop":
        numbered = list(_answered(numbered))
    if how.orphan_results == "drop":
        numbered = list(_called(numbered))
    if how.merge_users:
        numbered = list(_merged(numbered))
    return numbered


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


def _ids(message: Message) -> list[Any]:
    return [call.get("id") for call in message.get("tool_calls") or () if isinstance(call, dict)]


def _answered(numbered: Numbered) -> Iterator[tuple[int, Message]]:
    for place, (at, message) in enumerate(numbered):
        calls = message.get("tool_calls") if message.get("role") == "assistant" else None
        if not calls or place == len(numbered) - 1:
            yield at, message
            continue
        results = {other.get("tool_call_id") for _, other in numbered[place + 1 :] if other.get("role") == "tool"}
        kept = [call for call in calls if isinstance(call, dict) and call.get("id") in results]
        if len(kept) == len(calls):
            yield at, message
        elif kept:
            yield at, {**message, "tool_calls": kept}
        elif message.get("content"):
            yield at, {name: value for name, value in message.items() if name != "tool_calls"}


def _called(numbered: Numbered) -> Iterator[tuple[int, Message]]:
    known: set[Any] = set()
    for at, message in numbered:
        known.update(_ids(message))
        if message.get("role") != "tool" or message.get("tool_call_id") in known:
            yield at, message


def _merged(numbered: Numbered) -> Iterator[tuple[int, Message]]:
    waiting: tuple[int, Message] | None = None
    for at, message in numbered:
        both = waiting is not None and waiting[1].get("role") == message.get("role") == "user"
        if waiting is not None and both and all(isinstance(m.get("content"), str) for m in (waiting[1], message)):
            waiting = waiting[0], {**waiting[1], "content": f"{waiting[1]['content']}\n\n{message['content']}"}
            continue
        if waiting is not None:
            yield waiting
        waiting = at, message
    if waiting is not None:
        yield waiting
