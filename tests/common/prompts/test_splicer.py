"""Conversations over many turns: what is found again, what is refused, what is counted. Engine-free, real template."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from prr_plugins.common.messages import Message
from prr_plugins.common.metrics import METRICS
from prr_plugins.common.prompts.plan import Conversation
from prr_plugins.common.settings import Settings
from tests.common.prompts._engine import NEXT, SYSTEM, USER, Engine, answered, call, results, without_reasoning


def test_tool_loop_then_new_user(engine: Engine) -> None:
    history = [SYSTEM, USER]
    message = engine.ask(history, calls=[call(cmd="ls"), call(cmd="pwd", n=1.0)])
    assert engine.outcome() == ("first_turn", "")
    for _ in range(3):
        turn = engine.turn
        history += [without_reasoning(message), *results(message, "a\nb", "/srv")]
        message = engine.ask(history, calls=[call(cmd="ls"), call(cmd="pwd")])
        assert engine.outcome() == ("spliced", "")
        engine.check_exact(turn)
    history += [without_reasoning(message), *results(message, "a", "b")]
    message = engine.ask(history, content="Two files.")
    assert engine.plan.retained_reasoning_tokens == 0
    turn = engine.turn
    history += [without_reasoning(message), NEXT]
    engine.ask(history, content="Yes.")
    engine.check_exact(turn)
    assert engine.plan.retained_reasoning_tokens == 5 * len(engine.model.encode("Hm.\n\n\n"))
    assert engine.metrics.get("prr_turns_total", "spliced", "") == 5
    assert engine.metrics.get("prr_turns_total", "first_turn", "") == 1
    assert engine.metrics.get("prr_store_bytes") == engine.store.size


@pytest.mark.parametrize(
    ("name", "retention", "kwargs", "outcome"),
    [
        ("qwen3.6", "auto", {}, "spliced"),
        ("qwen3.6", "all", {}, "spliced"),
        ("qwen3.6", "template", {}, "refused"),
        ("qwen3.6", "template", {"preserve_thinking": True}, "spliced"),
        ("qwen3.6", "auto", {"preserve_thinking": False}, "refused"),
        ("qwen3.6", "all", {"preserve_thinking": False}, "refused"),
        ("qwen3-coder", "auto", {}, "refused"),
        ("qwen3-coder", "all", {}, "spliced"),
    ],
)
def test_retention_after_a_new_user_message(
    make: Callable[..., Engine], name: str, retention: str, kwargs: dict[str, Any], outcome: str
) -> None:
    engine = make(name, retention=retention)
    history = answered(engine, template_kwargs=kwargs)
    engine.ask(history, template_kwargs=kwargs)
    assert engine.outcome() == (outcome, "" if outcome == "spliced" else "retention_template")
    # and the turn after the break is exact again
    turn = engine.turn
    message = engine.ask(history, calls=[call(cmd="ls")], template_kwargs=kwargs)
    turn = engine.turn
    engine.ask([*history, without_reasoning(message), *results(message, "a")], template_kwargs=kwargs)
    engine.check_exact(turn)


@pytest.mark.parametrize("retention", ["auto", "template"])
def test_without_reasoning_there_is_nothing_to_drop(make: Callable[..., Engine], retention: str) -> None:
    engine = make(retention=retention)
    kwargs = {"enable_thinking": False}
    message = engine.ask([USER], reasoning="", content="Two files.", template_kwargs=kwargs)
    turn = engine.turn
    engine.ask([USER, message, NEXT], reasoning="", template_kwargs=kwargs)
    engine.check_exact(turn)
    assert engine.plan.retained_reasoning_tokens == 0


def test_a_template_that_never_shows_reasoning_keeps_it_in_a_tool_loop(make: Callable[..., Engine]) -> None:
    engine = make("qwen3-coder")
    message = engine.ask([USER], calls=[call(cmd="ls")])
    turn = engine.turn
    engine.ask([USER, without_reasoning(message), *results(message, "a")])
    engine.check_exact(turn)
    assert engine.plan.retained_reasoning_tokens > 0


# Edits


def two_turns(engine: Engine) -> list[Message]:
    history = [SYSTEM, USER]
    for content in ("First.", "Second."):
        message = engine.ask(history, content=content, calls=[call(cmd="ls", n=1)])
        history += [without_reasoning(message), *results(message, "a")]
    return history


def edit_argument(message: Message) -> None:
    message["tool_calls"][0]["function"]["arguments"] = '{"cmd": "rm", "n": 1}'


@pytest.mark.parametrize(
    ("index", "change"),
    [
        (0, lambda m: m.update(content="Be long.")),
        (1, lambda m: m.update(content="List all.")),
        (2, edit_argument),
        (2, lambda m: m.update(content="First!")),
    ],
)
def test_an_edit_of_the_first_turn_is_rendered(engine: Engine, index: int, change: Any) -> None:
    history = two_turns(engine)
    change(history[index])
    engine.ask(history)
    assert engine.outcome() == ("refused", "unknown_turn")
    assert engine.prompt == engine.rendered(history)


@pytest.mark.parametrize(
    ("index", "change"),
    [
        (3, lambda m: m.update(content="[cleared]")),
        (4, edit_argument),
        (4, lambda m: m.update(content="Second!")),
    ],
)
def test_an_edit_further_on_keeps_what_is_before_it(engine: Engine, index: int, change: Any) -> None:
    message = engine.ask([SYSTEM, USER], content="First.", calls=[call(cmd="ls", n=1)])
    first = engine.turn
    history = [SYSTEM, USER, without_reasoning(message), *results(message, "a")]
    message = engine.ask(history, content="Second.", calls=[call(cmd="ls", n=1)])
    history += [without_reasoning(message), *results(message, "a")]
    change(history[index])
    message = engine.ask(history, calls=[call(cmd="ls")])
    assert engine.outcome() == ("spliced", f"edited:messages[{index}]")
    assert engine.prompt[: len(first)] == first
    rest = engine.model.decode(engine.prompt[len(first) :])
    assert engine.model.render(history, None, True, {}).endswith(rest)
    assert engine.metrics.get("prr_turns_total", "spliced", "edited") == 1
    turn = engine.turn
    engine.ask([*history, without_reasoning(message), *results(message, "b")])
    engine.check_exact(turn)
    assert engine.outcome() == ("spliced", "")


def test_a_turn_that_was_never_sampled_here(engine: Engine) -> None:
    engine.ask([USER, {"role": "assistant", "content": "An example."}, NEXT])
    assert engine.outcome() == ("refused", "unknown_turn")
    history = two_turns(engine)
    history += [{"role": "assistant", "content": "By hand."}, NEXT]
    engine.ask(history)
    assert engine.outcome() == ("spliced", "unknown_turn:messages[6]")
    assert engine.metrics.get("prr_turns_total", "spliced", "unknown_turn") == 1


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools_changed"),
        ({"template_kwargs": {"enable_thinking": False}}, "template_kwargs_changed"),
        ({"template_id": "other"}, "template_changed"),
        ({"lora": "other"}, "model_changed"),
        ({"tenant": "other"}, "unknown_turn"),
    ],
)
def test_what_changed_besides_the_messages_is_named(engine: Engine, request_: dict[str, Any], reason: str) -> None:
    engine.ask(answered(engine), **request_)
    assert engine.outcome() == ("refused", reason)


def test_a_late_system_message_is_written_in_place(engine: Engine) -> None:
    """Claude Code's token reminders on a system-first template."""
    message = engine.ask([SYSTEM, USER], calls=[call(cmd="ls")])
    turn = engine.turn
    late = {"role": "system", "content": "<total_tokens>9 left</total_tokens>"}
    history = [SYSTEM, USER, without_reasoning(message), *results(message, "a"), late]
    plan = engine.splicer.plan(Conversation(history, model="m"))
    assert (plan.outcome, plan.reason) == ("refused", "unsupported_by_template")
    plan = engine.splicer.plan(Conversation(history, model="m", late_system_as_user=True))
    assert (plan.outcome, plan.reason) == ("spliced", "late_system_as_user")
    assert plan.prompt_ids is not None
    assert plan.prompt_ids[: len(turn)] == turn
    text = engine.model.decode(plan.prompt_ids[len(turn) :])
    assert "<|im_end|>\n<|im_start|>user\n<total_tokens>9 left</total_tokens><|im_end|>\n<|im_start|>assistant" in text


def test_an_edit_behind_late_system_messages(engine: Engine) -> None:
    """The stem before the edit goes on, though the template refuses the history as it stands."""
    late = [{"role": "system", "content": f"{n} left"} for n in range(3)]
    request: Any = {"late_system_as_user": True}
    message = engine.ask([SYSTEM, USER], calls=[call(cmd="ls")], **request)
    history = [SYSTEM, USER, message, *results(message, "a"), late[0]]
    message = engine.ask(history, calls=[call(cmd="pwd")], **request)
    turn = engine.turn
    edited = [*history, message, *results(message, "b"), late[1], {"role": "assistant", "content": "edited"}, NEXT]
    plan = engine.splicer.plan(Conversation(edited, model="m", **request))
    assert (plan.outcome, plan.reason) == ("spliced", "unknown_turn:messages[8]")
    assert plan.prompt_ids is not None
    assert plan.prompt_ids[: len(turn)] == turn


# Calls


def test_native_call_ids_come_back(make: Callable[..., Engine]) -> None:
    """Kimi behind a renaming proxy, results in reverse order."""
    engine = make("kimi-k2.6")
    native = ("functions.bash:0", "functions.bash:1")
    message = engine.ask([USER], calls=[call(cmd="ls"), call(cmd="pwd")], native=native)
    turn = engine.turn
    renamed = without_reasoning(message)
    for index, one in enumerate(renamed["tool_calls"]):
        one["id"] = f"call_{index}"
    engine.ask([USER, renamed, *reversed(results(renamed, "a", "b"))])
    engine.check_exact(turn)
    text = engine.model.decode(engine.prompt[len(turn) :])
    assert text.index("functions.bash:1\nb") < text.index("functions.bash:0\na")
    assert "call_" not in text


def test_only_results_of_the_turn_get_its_native_ids(make: Callable[..., Engine]) -> None:
    """Ids that a model writes come again in later turns, and a result may have none: neither is renamed."""
    engine = make("kimi-k2.6")
    message = engine.ask([USER], calls=[call(cmd="ls")], native=("functions.bash:7",))
    message["tool_calls"][0]["id"] = "functions.bash:0"
    foreign = {"role": "assistant", "content": "", "tool_calls": [{"id": "functions.bash:0", **call(cmd="pwd")}]}
    engine.ask(
        [USER, message, *results(message, "a"), foreign, *results(foreign, "b"), {"role": "tool", "content": "c"}]
    )
    text = engine.model.decode(engine.prompt)
    assert text.count("Return of functions.bash:7") == text.count("Return of functions.bash:0") == 1
    assert engine.plan.outcome == "spliced"


def test_dropped_calls(engine: Engine) -> None:
    message = engine.ask([USER], calls=[call(cmd="ls")], dropped_calls=True)
    engine.ask([USER, message, *results(message, "a")])
    assert engine.outcome() == ("refused", "calls_dropped")


def test_cut_in_reasoning(engine: Engine) -> None:
    conversation = Conversation([USER], model="m")
    plan = engine.splicer.plan(conversation)
    prompt, sampled = engine.rendered([USER]), engine.model.encode("I wonder about")
    for reasoning_open in (None, True):
        engine.store.clear()
        engine.splicer.record(
            plan.context,
            prompt,
            sampled,
            {"role": "assistant", "content": None, "reasoning": "I wonder about"},
            reasoning_span=(0, 3),
            reasoning_open=reasoning_open,
        )
        again = engine.splicer.plan(Conversation([USER, {"role": "assistant", "content": ""}, NEXT], model="m"))
        assert again.prompt_ids is not None
        assert again.prompt_ids[: len(prompt + sampled)] == prompt + sampled
        assert engine.model.decode(again.prompt_ids).count("about\n</think>\n\n<|im_end|>") == 1
    placeholder = {"role": "assistant", "content": "[No response]"}
    assert engine.splicer.plan(Conversation([USER, placeholder, NEXT], model="m")).reason == "unknown_turn"


# The store


def test_forks_and_choices_share_their_stem(engine: Engine) -> None:
    long_user = {"role": "user", "content": "word " * 2000}
    plan = engine.splicer.plan(Conversation([long_user], model="m"))
    prompt = engine.rendered([long_user])
    for index in range(8):
        sampled = engine.model.encode(f"Hm.</think>{index}<|im_end|>")
        engine.splicer.record(plan.context, prompt, sampled, {"role": "assistant", "content": str(index)})
    assert len(engine.store) == 8
    assert engine.store.size < 4 * len(prompt) + 8 * 1100
    for index in range(8):
        history = [long_user, {"role": "assistant", "content": str(index)}, NEXT]
        forked = engine.splicer.plan(Conversation(history, model="m"))
        assert forked.outcome == "spliced"
        assert forked.prompt_ids is not None
        assert forked.prompt_ids[: len(prompt)] == prompt


def test_a_turn_that_was_dropped_is_unknown(make: Callable[..., Engine]) -> None:
    engine = make()
    history = answered(engine)
    engine.store.clear()
    engine.ask(history)
    assert engine.outcome() == ("refused", "unknown_turn")
    engine.store.max_bytes = 100
    engine.ask(answered(engine))
    assert engine.metrics.get("prr_records_total", "refused", "store_full") > 0


def test_interleaved_conversations_never_mix(engine: Engine) -> None:
    """32 agents whose messages differ little, their requests in any order and at once."""
    lock = threading.Lock()

    def converse(agent: int) -> None:
        chooser = random.Random(agent)
        mine = replace(engine)
        mine.splicer = engine.splicer
        history: list[Message] = [{"role": "user", "content": f"Task {agent // 2}"}]
        turn: list[int] = []
        for step in range(6):
            with lock:
                message = mine.ask(history, reasoning=f"{agent}-{step}", calls=[call(cmd="ls", n=step)])
                if turn:
                    mine.check_exact(turn)
                turn = mine.turn
            history += [without_reasoning(message), *results(message, chooser.choice(["a", "b"]))]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(converse, range(32)))


# Modes, faults, what the engine decides


def test_off_and_observe(engine: Engine) -> None:
    history = answered(engine)
    turn = engine.turn
    for mode in ("off", "observe"):
        plan = engine.splicer.plan(Conversation(history, model="m"), mode)  # type: ignore[arg-type]
        assert (plan.outcome, plan.reason, plan.prompt_ids) == ("refused", mode, None)
        assert plan.observed_tokens == (len(turn) if mode == "observe" else 0)
        engine.splicer.settle(plan)
    assert engine.metrics.get("prr_observed_kept_tokens_total") == len(turn)
    assert engine.metrics.get("prr_kept_tokens_total") == 0
    engine.splicer.mode = "observe"
    message = engine.ask(history, content="Yes.", calls=[call(cmd="ls")])
    engine.splicer.mode = "on"
    turn = engine.turn
    assert engine.prompt == engine.rendered(history)
    engine.ask([*history, without_reasoning(message), *results(message, "a")])
    engine.check_exact(turn)
    assert engine.plan.retained_reasoning_tokens == 0


def test_too_long(engine: Engine) -> None:
    history = answered(engine)
    plan = engine.splicer.refuse(engine.splicer.plan(Conversation(history, model="m")), "too_long")
    assert (plan.outcome, plan.reason, plan.prompt_ids, plan.kept_tokens) == ("refused", "too_long", None, 0)
    engine.splicer.settle(plan)
    assert engine.metrics.get("prr_turns_total", "refused", "too_long") == 1


@pytest.mark.parametrize("stage", ["splice", "store", "bridge", "capture"])
def test_faults_fall_back_and_are_counted(
    make: Callable[..., Engine], stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make(test=True, fault=stage)
    with caplog.at_level(logging.WARNING):
        message = engine.ask([USER], content="secret")
        engine.ask([USER, message, NEXT])
    assert engine.prompt == engine.rendered([USER, message, NEXT])
    assert engine.metrics.get("prr_turns_total", "fallback", f"error_{stage}") >= (stage != "bridge")
    if stage != "bridge":
        assert f"prr: {stage} failed with InjectedFault" in caplog.text
    assert "secret" not in caplog.text
    unarmed = make(test=False, fault=stage)
    unarmed.ask(answered(unarmed))
    assert unarmed.plan.outcome == "spliced"


def test_a_bridge_fault_falls_back(make: Callable[..., Engine]) -> None:
    engine = make()
    history = answered(engine)
    engine.splicer.settings = Settings(test=True, fault="bridge")
    engine.ask(history)
    assert engine.outcome() == ("fallback", "error_bridge")
    assert engine.prompt == engine.rendered(history)


@pytest.mark.parametrize("messages", [[None], ["x"], [{"role": 3}], [{"role": "user", "content": 3}], [{}]])
def test_no_input_raises(engine: Engine, messages: Any) -> None:
    for conversation in (
        Conversation(messages, model="m"),
        Conversation([*messages, {"role": "assistant", "tool_calls": [None, 3]}, *messages], model="m"),
    ):
        plan = engine.splicer.plan(conversation)
        assert plan.prompt_ids is None
        engine.splicer.settle(plan)
        engine.splicer.record(plan.context, [1], [2], {"role": "assistant", "content": "x"})


@pytest.mark.parametrize(
    ("conversation", "reason"),
    [
        (Conversation([USER, {"role": "assistant", "content": "Yes"}], continue_final_message=True),
         "continue_final_message"),
        (Conversation([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
         "multimodal"),
    ],
)  # fmt: skip
def test_requests_that_go_the_engines_way(engine: Engine, conversation: Conversation, reason: str) -> None:
    plan = engine.splicer.plan(conversation)
    assert (plan.outcome, plan.reason, plan.context) == ("refused", reason, None)


def test_a_strict_server_fails_what_it_cannot_splice(make: Callable[..., Engine]) -> None:
    engine = make(on_miss="error")
    history = answered(engine)
    assert engine.plan.error is None
    engine.ask(history)
    assert engine.plan.error is None
    history[1]["content"] = "Three files."
    engine.ask(history)
    assert engine.plan.error is not None
    assert "unknown_turn" in engine.plan.error


def test_shadow_verification(make: Callable[..., Engine]) -> None:
    engine = make(verify=1.0)
    engine.ask(answered(engine))
    assert engine.metrics.get("prr_verified_total", "agree") == 1
    assert engine.metrics.get("prr_verified_total", "disagree") == 0


def test_every_metric_is_declared(engine: Engine) -> None:
    engine.splicer.settings = Settings(verify=1.0)
    engine.ask(answered(engine))
    declared = {metric.name: metric for metric in METRICS}
    for name, labels in engine.metrics.snapshot():
        assert len(declared[name].labels) == len(labels)
