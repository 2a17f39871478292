"""What goes when a conversation does not fit: whole messages and cycles, the oldest first, the same ones each time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prr_plugins.common.prompts.budget import TokenBudget
from prr_plugins.common.prompts.dropping import cuts, drop_steps, without

Message = dict[str, Any]
SYSTEM = {"role": "system", "content": "s"}


def user(text: str = "u") -> Message:
    return {"role": "user", "content": text}


def cycle(first: int, calls: int = 1) -> list[Message]:
    ids = [f"call_{first + n}" for n in range(calls)]
    made = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return [
        {"role": "assistant", "content": "", "tool_calls": made},
        *({"role": "tool", "tool_call_id": i, "content": "r"} for i in ids),
    ]


ANSWER = {"role": "assistant", "content": "a"}


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Exchanges of any shape, as agents and their proxies send them."""
    messages = [SYSTEM] * draw(st.integers(0, 2))
    for exchange in range(draw(st.integers(1, 5))):
        messages += [user()] * draw(st.integers(1 if exchange == 0 else 0, 2))
        for number in range(draw(st.integers(0, 4))):
            messages += cycle(100 * exchange + 10 * number, draw(st.integers(1, 3)))
        messages += draw(st.sampled_from([[], [ANSWER], [ANSWER, SYSTEM], [ANSWER, ANSWER]]))
    return messages + draw(st.sampled_from([[], [user("last")], cycle(9000)]))


def orphans(messages: list[Message]) -> list[Message]:
    """Results whose call is not in front of them."""
    known: set[str] = set()
    found = []
    for message in messages:
        known.update(call["id"] for call in message.get("tool_calls", ()))
        if message["role"] == "tool" and message["tool_call_id"] not in known:
            found.append(message)
    return found


@given(conversations(), st.integers(1, 400), st.floats(0, 1))
def test_every_cut_leaves_a_conversation(messages: list[Message], room: int, target: float) -> None:
    sizes = [7 + at % 5 for at in range(len(messages))]
    before: frozenset[int] = frozenset()
    for dropped in cuts(messages, sizes, room, target):
        assert dropped > before, "each cut drops what the one before it dropped, and more"
        before = dropped
        rest = without(messages, dropped)
        assert not orphans(rest)
        # a call keeps all of its results
        answered = {message["tool_call_id"] for message in rest if message["role"] == "tool"}
        whole = {message["tool_call_id"] for message in messages if message["role"] == "tool"}
        made = {call["id"] for message in rest for call in message.get("tool_calls", ())}
        assert made & whole == answered
        # what opens it, the last question and the end are there
        head = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
        assert rest[:head] == messages[:head]
        last = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=None)
        assert last not in dropped
        assert len(messages) - 1 not in dropped
        # an answer keeps its question
        if len(rest) > head and messages[head]["role"] == "user":
            assert rest[head]["role"] == "user"


@given(conversations())
def test_the_oldest_go_first(messages: list[Message]) -> None:
    """In the order of the steps, whole exchanges go before younger ones, and cycles of an exchange by their age."""
    steps = drop_steps(messages)
    assert sorted(at for step in steps for at in step) == sorted({at for step in steps for at in step})
    assert [max(step) for step in steps] == sorted(max(step) for step in steps)


@given(conversations())
def test_what_goes_first_stays_the_same_while_a_conversation_grows(messages: list[Message]) -> None:
    """At each point where a client may ask: so a cut is found again by whoever needs to drop as much."""
    before: list[list[int]] = []
    for end in range(1, len(messages) + 1):
        following = messages[end] if end < len(messages) else SYSTEM
        if following["role"] == "tool" or (messages[end - 1]["role"] == following["role"] == "user"):
            continue  # not yet all of a cycle, or of a question
        steps = drop_steps(messages[:end])
        assert steps[: len(before)] == before
        before = steps


def test_an_agent_keeps_its_question() -> None:
    messages = [SYSTEM, user("do it"), *cycle(0), *cycle(1), *cycle(2), ANSWER, user("and now?")]
    assert drop_steps(messages) == [[2, 3], [4, 5], [6, 7], [1, 8]]
    running = [SYSTEM, user("do it"), *cycle(0), *cycle(1), *cycle(2)]
    assert drop_steps(running) == [[2, 3], [4, 5]]


def test_strides() -> None:
    messages = [user(), *([ANSWER, user()] * 20)]
    sizes = [10] * len(messages)
    lengths = []
    for room in (400, 390, 380, 370, 300, 290):
        lengths.append(len(next(cuts(messages, sizes, room, 0.75))))
    assert lengths == [10, 10, 10, 10, 16, 16]


def test_a_result_behind_other_messages_goes_with_its_call() -> None:
    assistant, result = cycle(0)
    messages = [user(), assistant, SYSTEM, result, user("next"), ANSWER, user()]
    assert drop_steps(messages) == [[1, 3], [0, 2], [4, 5]]


def test_budget_says_what_it_is_not_given() -> None:
    assert TokenBudget(100, 20).room == 80
    for wrong in ({"window": 10, "output_reserve": 10}, {"window": 0}, {"window": 10, "target": 2}):
        with pytest.raises(ValueError, match="no room"):
            TokenBudget(**wrong)
    for part in ("window", "output_reserve", "system", "tools", "last_user"):
        for size in (-1, 10.5, 3.0, "3", float("nan")):
            with pytest.raises(ValueError, match=f"{part} is a count of tokens, not {size!r}"):
                TokenBudget(**{"window": 10, part: size})
    assert TokenBudget(10, system=0, tools=0, last_user=0).room == 10
