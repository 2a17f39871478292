"""A conversation that outgrows the window on a server that drops the oldest: engine-free, real template and ids."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from prr_plugins.common.messages import Message
from prr_plugins.common.metrics import Metrics
from prr_plugins.common.prompts import overflow
from prr_plugins.common.prompts.budget import OverBudget
from prr_plugins.common.prompts.plan import Conversation, Plan
from prr_plugins.common.prompts.splicer import Splicer
from prr_plugins.common.settings import Settings
from prr_plugins.common.store.memory import TurnStore

ROOM = 2000
SYSTEM = {"role": "system", "content": "Be brief."}


class Server:
    """What an engine does with a plan: use its ids, or render everything, or fail where that does not fit."""

    def __init__(self, model: Any, **settings: Any) -> None:
        self.model = model
        self.metrics = Metrics()
        self.store = TurnStore(1 << 26)
        settings = {"overflow": "drop_oldest_cycles", **settings}
        self.splicer = Splicer(model.bridge(), self.store, Settings(**settings), self.metrics)
        self.plan = Plan("refused")
        self.prompt: list[int] | None = None
        self.turn: list[int] = []

    def ask(self, messages: list[Message], answer: str, *, calls: int = 0, **request: Any) -> Message:
        conversation = Conversation(messages, model="m", **request)
        self.plan = overflow.plan_prompt(self.splicer, conversation, None, ROOM)
        self.splicer.settle(self.plan)
        self.prompt = self.plan.prompt_ids or self.model.encode(
            self.model.render(messages, request.get("tools"), True, {})
        )
        message: Message = {"role": "assistant", "content": answer}
        made = [f'<tool_call>{{"n": {number}}}</tool_call>' for number in range(calls)]
        sampled = self.model.encode(f"Hm.\n\n</think>\n{answer}{''.join(made)}<|im_end|>")
        if calls:
            message["tool_calls"] = [
                {"id": f"c{self.store.size}-{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                for n in range(calls)
            ]
        assert self.prompt is not None
        if len(self.prompt) <= ROOM:
            self.splicer.record(self.plan.context, self.prompt, sampled, message, reasoning_span=(0, 2))
            self.turn = self.prompt + sampled
        return message


@pytest.fixture
def server(real: Callable[[str], Any]) -> Server:
    return Server(real("qwen3.6"))


def words(number: int, count: int = 40) -> str:
    return " ".join(f"w{number}" for _ in range(count // 2))


def most_cuts(server: Server, history: list[Message]) -> float:
    """A cut leaves at least half of what PRR_OVERFLOW_TARGET asks to be free: so far away is the next one."""
    whole = len(server.model.encode(server.model.render(history, None, True, {})))
    return 1 + (whole - ROOM) / (ROOM * 0.25 / 2)


def test_a_long_agent_session(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The client always sends everything; the prompt never exceeds the room, and grows exactly but at a cut."""
    history: list[Message] = [SYSTEM, {"role": "user", "content": "Do it all."}]
    cuts = 0
    with caplog.at_level(logging.INFO):
        for step in range(80):
            turn = server.turn
            message = server.ask(history, words(step, 10), calls=1 + step % 2)
            assert server.prompt is not None
            assert len(server.prompt) <= ROOM
            if server.plan.outcome == "trimmed":
                cuts += 1
                assert server.plan.dropped
                kept = [message for at, message in enumerate(history) if at not in server.plan.dropped]
                assert server.prompt == server.model.encode(server.model.render(kept, None, True, {}))
            elif turn:
                assert server.plan.outcome == "spliced", server.plan.reason
                assert server.prompt[: len(turn)] == turn
            history += [message]
            history += [
                {"role": "tool", "tool_call_id": c["id"], "content": words(step)} for c in message["tool_calls"]
            ]
    assert 2 <= cuts <= most_cuts(server, history)
    assert server.metrics.get("prr_turns_total", "trimmed", "") == cuts
    dropped = server.metrics.get("prr_overflow_dropped_messages_total")
    assert dropped > 0
    lines = [record.getMessage() for record in caplog.records if "dropped to fit" in record.getMessage()]
    assert len(lines) == cuts
    assert "w1" not in "".join(lines)


def test_the_cut_is_found_again_without_the_store(real: Callable[[str], Any]) -> None:
    """A server that lost its turns leaves out the same messages."""
    server = Server(real("qwen3.6"))
    history: list[Message] = [SYSTEM]
    dropped: tuple[int, ...] = ()
    moved = 0
    for step in range(150):
        history.append({"role": "user", "content": words(step)})
        message = server.ask(history, "ok")
        server.store.clear()
        if server.plan.dropped != dropped:
            assert set(dropped) < set(server.plan.dropped)
            moved += 1
            dropped = server.plan.dropped
        history.append({"role": "assistant", "content": message["content"]})
    assert 2 <= moved <= most_cuts(server, history)


def test_what_fits_is_left_alone(server: Server) -> None:
    plain = Server(server.model, overflow="error")
    history: list[Message] = [SYSTEM, {"role": "user", "content": "Go."}]
    for step in range(3):
        messages = [one.ask(history, "ok") for one in (server, plain)]
        assert server.prompt == plain.prompt
        assert server.plan.outcome == plain.plan.outcome == ("spliced" if step else "first_turn")
        history += [messages[0], {"role": "user", "content": "On."}]


def test_the_default_is_the_engines_own_error(real: Callable[[str], Any]) -> None:
    server = Server(real("qwen3.6"), overflow="error")
    server.ask([{"role": "user", "content": words(0, 5000)}], "ok")
    assert (server.plan.outcome, server.plan.prompt_ids) == ("first_turn", None)


def test_off_and_observe_change_nothing(server: Server) -> None:
    messages = [{"role": "user", "content": words(0, 5000)}, {"role": "assistant", "content": "a"}, {"role": "user"}]
    for mode in ("off", "observe"):
        plan = overflow.plan_prompt(server.splicer, Conversation(messages), mode, ROOM)
        assert plan.prompt_ids is None
        assert plan.outcome != "trimmed"


def test_what_must_stay_is_named(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": words(1, 200), "parameters": {}}}
    messages = [
        {"role": "system", "content": words(2, 300)},
        {"role": "user", "content": "old"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": words(3, 4000)},
    ]
    with caplog.at_level(logging.INFO):
        server.ask(messages, "ok", tools=[tool])
    assert server.plan.prompt_ids is None
    assert "nothing more can be dropped" in caplog.text
    conversation = Conversation(messages, tools=[tool])
    whole = server.splicer.plan(conversation)
    with pytest.raises(OverBudget) as raised:
        overflow.fit(server.splicer, conversation, whole, ROOM, 0.75)
    error = raised.value
    least = [messages[0], messages[3]]
    assert error.over == len(server.model.encode(server.model.render(least, [tool], True, {}))) - ROOM
    assert list(error.parts) == ["system", "tools", "last_user"]
    assert 300 <= error.parts["system"] < error.parts["last_user"]
    assert "tokens over" in str(error)


def test_a_strict_server_does_not_render(real: Callable[[str], Any]) -> None:
    server = Server(real("qwen3.6"), on_miss="error")
    history: list[Message] = []
    for step in range(150):
        history.append({"role": "user", "content": words(step)})
        message = server.ask(history, "ok")
        if server.plan.error is not None:
            break
        assert server.plan.outcome != "trimmed"
        history.append(message)
    assert server.plan.error is not None


def test_a_fault_leaves_the_engine_its_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(overflow, "fit", fault)
    server.ask([{"role": "user", "content": "x"}], "ok")
    assert (server.plan.outcome, server.plan.reason) == ("fallback", "error_overflow")
