"""Agent traces: OpenAI conversations to replay.

A file is JSON Lines (one conversation a line) or JSON (one conversation, a list of them, or just a list of messages). A
conversation is an object with `messages` and optionally `tools`, `name`, `source`. Reasoning of an assistant message
stands in `reasoning` or `reasoning_content`. Tools that a trace calls but does not declare get a schema from the calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class TraceError(ValueError):
    """A trace that cannot be replayed; the message names the conversation and the message."""


@dataclass(frozen=True)
class Step:
    """One assistant turn of a trace: what is new before it, and the message itself."""

    new: tuple[Message, ...]
    assistant: Message

    @property
    def after_user(self) -> bool:
        """Whether a user speaks before it; else it is inside a tool loop."""
        return any(message["role"] == "user" for message in self.new)


@dataclass(frozen=True)
class Conversation:
    """A trace to replay."""

    name: str
    source: str
    tools: tuple[Message, ...]
    steps: tuple[Step, ...]


def load(path: Path) -> list[Conversation]:
    """All conversations of a file that have an assistant turn; TraceError if there is none or one is not usable."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    conversations = []
    for number, item in enumerate(_items(path, text), start=1):
        if isinstance(item, list):
            item = {"messages": item}
        if not isinstance(item, dict) or not isinstance(item.get("messages"), list):
            raise TraceError(f"{path}: conversation {number}: an object with a list of messages is needed")
        name = str(item.get("name") or f"{path.stem}-{number}")
        steps = _steps(name, item["messages"])
        if steps:
            tools = _tools(item.get("tools") or [], steps)
            conversations.append(Conversation(name, str(item.get("source", "")), tools, steps))
    if not conversations:
        raise TraceError(f"{path}: no conversation with an assistant turn")
    return conversations


def _items(path: Path, text: str) -> list[Any]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        items = []
        for number, line in lines:
            try:
                items.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise TraceError(f"{path}:{number}: not JSON: {error}") from error
        return items
    if isinstance(data, list) and not (data and isinstance(data[0], dict) and "role" in data[0]):
        return data
    return [data]


def _steps(name: str, messages: Iterable[Any]) -> tuple[Step, ...]:
    steps: list[Step] = []
    new: list[Message] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TraceError(f"{name}: messages[{index}]: an object with a role is needed")
        if message["role"] != "assistant":
            new.append(message)
            continue
        checked = _assistant(f"{name}: messages[{index}]", message)
        if new:
            steps.append(Step(tuple(new), checked))
            new = []
        elif steps:  # two in a row are one turn that was logged in pieces
            steps[-1] = Step(steps[-1].new, _joined(steps[-1].assistant, checked))
        else:
            raise TraceError(f"{name}: messages[{index}]: an assistant message before any other")
    return tuple(steps)


def _assistant(where: str, message: Message) -> Message:
    calls = []
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise TraceError(f"{where}.tool_calls[{index}].function.name: a string is needed")
        arguments = function.get("arguments") or {}
        try:
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except json.JSONDecodeError as error:
            raise TraceError(f"{where}.tool_calls[{index}].function.arguments: not JSON: {error}") from error
        if not isinstance(arguments, dict):
            raise TraceError(f"{where}.tool_calls[{index}].function.arguments: an object is needed")
        calls.append({"name": function["name"], "arguments": arguments})
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    return {"reasoning": reasoning, "content": content, "calls": calls}


def _joined(first: Message, second: Message) -> Message:
    texts = {name: "\n".join(filter(None, (first[name], second[name]))) for name in ("reasoning", "content")}
    return {**texts, "calls": first["calls"] + second["calls"]}


def _tools(declared: Iterable[Message], steps: Iterable[Step]) -> tuple[Message, ...]:
    tools = {tool["function"]["name"]: tool for tool in declared}
    inferred: dict[str, dict[str, Any]] = {}
    for step in steps:
        for call in step.assistant["calls"]:
            if call["name"] not in tools:
                properties = inferred.setdefault(call["name"], {})
                properties |= {key: {"type": _json_type(value)} for key, value in call["arguments"].items()}
    for name, properties in inferred.items():
        parameters = {"type": "object", "properties": properties}
        tools[name] = {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}
    return tuple(tools.values())


def _json_type(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")
