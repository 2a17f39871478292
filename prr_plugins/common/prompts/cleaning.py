"""The roles of a conversation brought into an order that templates accept, where a caller asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prr_plugins.common.messages import Message

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
