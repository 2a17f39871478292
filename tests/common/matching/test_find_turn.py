"""Which of several stored turns a history means, and whether its client may have it. Engine-free, real template."""

from __future__ import annotations

import copy
from collections.abc import Callable

from prr_plugins.common.prompts.plan import Conversation
from tests.common.prompts._engine import NEXT, USER, Engine, answered, call, results, without_reasoning

# Several turns that fit


def test_call_ids_tell_siblings_apart(engine: Engine) -> None:
    one = engine.ask([USER], calls=[call(cmd="ls")], reasoning="One.")
    first = engine.turn
    other = engine.ask([USER], calls=[call(cmd="ls")], reasoning="Other.")
    second = engine.turn
    for message, turn in ((one, first), (other, second)):
        engine.ask([USER, without_reasoning(message), *results(message, "a")])
        engine.check_exact(turn)


def test_reasoning_tells_siblings_apart_and_nothing_is_ambiguous(engine: Engine) -> None:
    one = engine.ask([USER], content="Yes.", reasoning="One.")
    first = engine.turn
    other = engine.ask([USER], content="Yes.", reasoning="Other.")
    second = engine.turn
    for message, turn in ((one, first), (other, second)):
        engine.ask([USER, message, NEXT])
        engine.check_exact(turn)
    engine.ask([USER, without_reasoning(one), NEXT])
    assert engine.outcome() == ("refused", "ambiguous")


def test_an_earlier_turn_tells_siblings_apart(engine: Engine) -> None:
    turns, histories = [], []
    for reasoning in ("One.", "Other."):
        message = engine.ask([USER], calls=[call(cmd="ls")], reasoning=reasoning)
        history = [USER, without_reasoning(message), *results(message, "a")]
        message = engine.ask(history, content="Done.", reasoning=reasoning)
        turns.append(engine.turn)
        histories.append([*history, without_reasoning(message), NEXT])
    for turn, history in zip(turns, histories, strict=True):
        engine.ask(history)
        engine.check_exact(turn)


def test_equal_ids_are_no_ambiguity(engine: Engine) -> None:
    for _ in range(2):
        message = engine.ask([USER], content="Yes.")
    engine.ask([USER, message, NEXT])
    assert engine.plan.outcome == "spliced"


def test_equal_choices_are_no_ambiguity(engine: Engine) -> None:
    """With n > 1 two choices may be the same to the last id; the second is stored as a branch of the first."""
    plan = engine.splicer.plan(Conversation([USER], model="m"))
    sampled = engine.model.encode("</think>\n\nYes.<|im_end|>")
    message = {"role": "assistant", "content": "Yes."}
    for _ in range(2):
        engine.splicer.record(plan.context, engine.rendered([USER]), sampled, message)
    engine.ask([USER, message, NEXT])
    engine.check_exact(engine.rendered([USER]) + sampled)


def test_either_form_of_a_message_finds_its_turn(engine: Engine) -> None:
    sent = {"role": "assistant", "content": "", "tool_calls": [{"id": "x", **call()}]}
    sent["tool_calls"][0]["function"]["arguments"] = '{"cmd": "ls",}'
    message = engine.ask([USER], calls=[call(cmd="ls")], also=[sent])
    turn = engine.turn
    for form in (message, sent):
        engine.ask([USER, form, *results(form, "a")])
        engine.check_exact(turn)


# Ownership


def test_tenants_never_share(engine: Engine) -> None:
    histories = {}
    for tenant in ("a", "b", None):
        histories[tenant] = answered(engine, tenant=tenant)
        assert engine.plan.outcome == "first_turn"
    turns = {}
    for tenant, history in histories.items():
        engine.ask(history, tenant=tenant)
        assert engine.plan.outcome == "spliced"
        turns[tenant] = engine.prompt
    engine.ask(histories["a"], tenant="c")
    assert engine.outcome() == ("refused", "unknown_turn")


def test_hidden_reasoning_only_for_a_proven_owner(engine: Engine) -> None:
    message = engine.ask([USER], content="Yes.", hidden=True)
    turn = engine.turn
    forged = [USER, message, NEXT]
    engine.ask(forged, hidden=True)
    assert engine.outcome() == ("refused", "no_possession")
    message = engine.ask([USER], content="Yes.", hidden=True, tenant="a")
    turn = engine.turn
    engine.ask([USER, message, NEXT], hidden=True, tenant="a")
    engine.check_exact(turn)
    assert engine.plan.hides_reasoning


def test_an_issued_call_id_proves_the_owner_of_all_before_it(engine: Engine) -> None:
    message = engine.ask([USER], calls=[call(cmd="ls")], hidden=True)
    history = [USER, message, *results(message, "a")]
    message = engine.ask(history, calls=[call(cmd="pwd")], hidden=True)
    assert engine.plan.outcome == "spliced"
    turn = engine.turn
    renamed = copy.deepcopy([*history, message, *results(message, "b")])
    renamed[1]["tool_calls"][0]["id"] = renamed[2]["tool_call_id"] = "renamed"
    engine.ask(renamed, hidden=True)
    engine.check_exact(turn)
    renamed[3]["tool_calls"][0]["id"] = renamed[4]["tool_call_id"] = "renamed2"
    engine.ask(renamed, hidden=True)
    assert engine.outcome() == ("refused", "no_possession")


def test_owners_to_whom_the_model_said_the_same(engine: Engine) -> None:
    """Equal ids, but each of them has a call id of its own."""
    for message in [engine.ask([USER], calls=[call(cmd="ls")], hidden=True) for _ in range(2)]:
        engine.ask([USER, message, *results(message, "a")], hidden=True)
        assert engine.outcome() == ("spliced", "")


def test_a_native_call_id_can_be_guessed_and_proves_nothing(make: Callable[..., Engine]) -> None:
    engine = make("kimi-k2.6")
    message = engine.ask([USER], calls=[call(cmd="ls")], native=("functions.bash:0",), hidden=True)
    engine.ask([USER, message, *results(message, "a")], hidden=True)
    assert engine.outcome() == ("refused", "no_possession")
