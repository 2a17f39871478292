"""The message a client holds after all that was sent to it, and what else a response tells beside it.

Promise: `message` is what a client that appends every delta has; `also_seen_as` are the other forms in which it may
come back. Both engines send by these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prr_plugins.common.messages import Message
from prr_plugins.common.parsing import ParsedCompletion


@dataclass
class SentCall:
    """One call as sent so far. `native_id` is the model's own, None where we made it up."""

    id: str
    native_id: str | None
    name: str
    arguments: list[str] = field(default_factory=list)
    raw_arguments: str | None = None  # once it has ended

    @property
    def ended(self) -> bool:
        return self.raw_arguments is not None

    def to_dict(self) -> dict[str, Any]:
        """In OpenAI shape."""
        return _call(self.id, self.name, "".join(self.arguments))


@dataclass
class SentMessage:
    """What a client accumulates of one completion. calls: by index."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, SentCall] = field(default_factory=dict)

    def message(self, reasoning_field: str) -> Message:
        """In OpenAI shape. reasoning_field: what the engine calls it."""
        made: Message = {"role": "assistant", "content": "".join(self.content) or None}
        if self.reasoning:
            made[reasoning_field] = "".join(self.reasoning)
        if self.calls:
            made["tool_calls"] = [call.to_dict() for call in self.calls.values()]
        return made

    def has_open_calls(self, parsed: ParsedCompletion | None) -> bool:
        """Whether a call was begun and not finished. parsed: None after a fault; then what was sent is all we know."""
        if parsed is not None:
            return bool(parsed.incomplete_calls)
        return not all(call.ended for call in self.calls.values())

    def also_seen_as(self, parsed: ParsedCompletion | None) -> list[Message]:
        """Further forms of a streamed message: a client may drop a cut call, or repair one as the whole view does."""
        if parsed is None or not (
            parsed.incomplete_calls or any(call.status == "repaired" for call in parsed.parsed_tool_calls)
        ):
            return []
        whole: Message = {"role": "assistant", "content": parsed.content}
        if parsed.parsed_tool_calls:
            ended = [call.id for call in self.calls.values() if call.ended]
            whole["tool_calls"] = [
                _call(call_id, call.name, call.arguments)
                for call_id, call in zip(ended, parsed.parsed_tool_calls, strict=False)
            ]
        return [whole]


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def raw_fields(ids: Sequence[int] | None, text: Iterable[str], parsed: ParsedCompletion | None) -> dict[str, Any]:
    """What a choice carries beside the engine's fields. ids: None where the client is not to see them."""
    fields: dict[str, Any] = {}
    if ids is not None:
        fields["raw_completion_ids"] = ids
        fields["raw_text"] = "".join(text)
    if parsed is not None and parsed.incomplete_calls:
        fields["incomplete_calls"] = [
            {"name": c.name, "raw_arguments": c.raw_arguments, "status": c.status} for c in parsed.incomplete_calls
        ]
    return fields


def edit_event(event: str, change: Callable[[dict[str, Any]], None]) -> str:
    """A server-sent event with its JSON changed."""
    data = json.loads(event.removeprefix("data: "))
    change(data)
    return event_of(data)


def event_of(data: Mapping[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"
