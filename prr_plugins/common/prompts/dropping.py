"""Which messages go when a conversation does not fit: whole ones, the oldest first.

What goes is decided message by message, never inside one, so no special token, reasoning, call or JSON text is ever
cut. A tool cycle (an assistant message with calls and all results of these calls) goes as a whole. An exchange (a
user's question and what came of it) loses its cycles from the oldest on, and its question with the last of them: no
answer is left without its question. What stays in any case: the system messages that open the conversation, the last
user message (and others right in front of it), and the last cycle or message.

The cut does not move with every turn. What has to go is rounded up to a multiple of a stride (the room that `target`
leaves free), so a conversation that grows by less than a stride loses the same messages again, whoever computes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from prr_plugins.common.messages import Message, opening


def last_question(messages: Sequence[Message]) -> range:
    """Where the last user message stands, with those right in front of it; empty where there is none."""
    end = next((at for at in range(len(messages), 0, -1) if messages[at - 1].get("role") == "user"), 0)
    start = next((at for at in range(end, 0, -1) if messages[at - 1].get("role") != "user"), 0)
    return range(start, end)


def units(messages: Sequence[Message], start: int = 0) -> list[list[int]]:
    """The indices of messages that go together, from `start` on, in the order of the first of each."""
    found: list[list[int]] = []
    of_call: dict[str, list[int]] = {}
    for at in range(start, len(messages)):
        message = messages[at]
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            cycle = of_call.get(call_id) if isinstance(call_id, str) else None
            if cycle is None and found and _calls(messages[found[-1][0]]):
                cycle = found[-1]  # a result that names no call belongs to those in front of it
            if cycle is not None:
                cycle.append(at)
                continue
        found.append([at])
        of_call.update({call["id"]: found[-1] for call in _calls(message) if isinstance(call.get("id"), str)})
    return found


def drop_steps(messages: Sequence[Message]) -> list[list[int]]:
    """What may be dropped, one step after another. What is in no step always stays."""
    all_units = units(messages, opening(messages))
    if not all_units:
        return []
    asks = [messages[unit[0]].get("role") == "user" for unit in all_units]
    begins = [at for at, is_question in enumerate(asks) if is_question and not (at and asks[at - 1])]
    steps: list[list[int]] = []
    for first, end in pairwise(sorted({0, *begins, len(all_units)})):
        asked = [all_units[at] for at in range(first, end) if asks[at]]
        rest = [all_units[at] for at in range(first, end) if not asks[at]]
        if end < len(all_units):
            steps += [*rest[:-1], sorted(at for unit in asked + rest[-1:] for at in unit)]
        else:
            steps += [unit for unit in rest if unit is not all_units[-1]]
    return steps


def cuts(messages: Sequence[Message], sizes: Sequence[int], room: int, target: float = 1.0) -> Iterator[frozenset[int]]:
    """Indices of messages to drop, each time more of them, until nothing is left to drop.

    sizes: about how many tokens each message takes. The first cut is the least that should do; whoever finds by an
    exact count that it does not, takes the next.
    """
    stride = max(1, room - int(room * target))
    missing = max(1, sum(sizes) - room)
    dropped: set[int] = set()
    gone = 0
    offered = True
    for step in drop_steps(messages):
        dropped.update(step)
        gone += sum(sizes[at] for at in step)
        offered = gone >= -(-missing // stride) * stride
        if offered:
            yield frozenset(dropped)
            missing = gone + 1
    if not offered:
        yield frozenset(dropped)


def without(messages: Sequence[Message], dropped: frozenset[int]) -> list[Message]:
    """The messages that stay."""
    return [message for at, message in enumerate(messages) if at not in dropped]


def _calls(message: Message) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") if message.get("role") == "assistant" else None
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
