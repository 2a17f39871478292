"""Prompts with a budget, by real templates and tokenizers: equal ids either way, never too many, all accounted for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from prr_plugins.common.messages import Message
from prr_plugins.common.prompts.anthropic import from_anthropic, tools_from_anthropic
from prr_plugins.common.prompts.assembler import (
    Assembled,
    AssemblyError,
    Cleaning,
    OverBudget,
    PromptAssembler,
    TokenBudget,
)
from prr_plugins.common.prompts.cleaning import clean
from prr_plugins.common.prompts.dropping import drop_steps, without
from prr_testing.effort import examples
from tests.common.bridge.test_template_bridge import KEEP, TOOLS, TURNS, USER, canonical
from tests.common.prompts.test_budget import conversations, orphans

FIVE = ["qwen3.6", "qwen3-coder", "glm-5.1", "glm-4.7", "kimi-k2.6"]
SYSTEM = {"role": "system", "content": "Be brief."}


def assembler(model: Any, **options: Any) -> PromptAssembler:
    return PromptAssembler(model.bridge(**options), model.name)


def check_segments(model: Any, prompt: Assembled) -> None:
    segments = prompt.segments()
    assert [i for segment in segments for i in segment.ids] == prompt.ids
    assert all(segment.text == model.decode(segment.ids) for segment in segments)


# Full and incremental


@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("turn", TURNS)
def test_incremental_is_full_where_the_template_is_stable(real: Callable[[str], Any], name: str, turn: str) -> None:
    model = real(name)
    assistant, new, kwargs = TURNS[turn]
    before = [SYSTEM, USER]
    prompt_ids, completion, following = canonical(model, before, assistant, new, kwargs)
    ours = assembler(model)
    first = ours.assemble(before, tools=TOOLS, template_kwargs=kwargs)
    assert (first.ids, first.hit, first.dropped) == (prompt_ids, False, ())
    ours.record(first, completion, assistant)
    history = [*before, assistant, *new]
    second = ours.assemble(history, tools=TOOLS, template_kwargs=kwargs)
    full = assembler(model).assemble(history, tools=TOOLS, template_kwargs=kwargs)
    assert not full.hit
    assert second.ids == full.ids == following
    assert second.key == full.key
    check_segments(model, full)
    assert second.hit, second.reason
    assert second.kept == len(prompt_ids) + len(completion)
    check_segments(model, second)
    assert [s.sequence for s in second.segments() if s.source == "sampled"] == [2]


@pytest.mark.parametrize("name", FIVE)
def test_segments_name_the_messages(real: Callable[[str], Any], name: str) -> None:
    """Of a whole render, each message's tokens with its frame."""
    model = real(name)
    call = {"id": "functions.bash:0", "type": "function", "function": {"name": "bash", "arguments": '{"cmd": "ls"}'}}
    other = {"id": "functions.bash:1", "type": "function", "function": {"name": "bash", "arguments": '{"cmd": "pwd"}'}}
    messages: list[Message] = [
        SYSTEM,
        {"role": "user", "content": "First question."},
        {"role": "assistant", "content": "Looking.", "reasoning": "Hm.", "tool_calls": [call, other]},
        {"role": "tool", "tool_call_id": call["id"], "content": "a result"},
        {"role": "tool", "tool_call_id": other["id"], "content": "another"},
        {"role": "assistant", "content": "Found.", "reasoning": "So."},
        {"role": "user", "content": "  Second question.\n"},
    ]
    for options in ({}, {"special_tokens": "as_text"}):
        prompt = assembler(model, **options).assemble(messages, tools=TOOLS)
        check_segments(model, prompt)
        segments = prompt.segments()
        assert [(s.sequence, s.role) for s in segments] == [
            *((at, message["role"]) for at, message in enumerate(messages)),
            (None, "assistant"),
        ]
        assert [s.source for s in segments] == ["rendered"] * 7 + ["generation"]
        for segment in segments[:-1]:
            assert segment.sequence is not None
            assert messages[segment.sequence]["content"].strip() in segment.text
            others = [m["content"].strip() for at, m in enumerate(messages) if at != segment.sequence]
            assert not any(text in segment.text for text in others)


def test_segments_over_many_turns(real: Callable[[str], Any]) -> None:
    model = real("qwen3.6")
    ours = assembler(model)
    history: list[Message] = [SYSTEM, USER]
    for step in range(5):
        prompt = ours.assemble(history, template_kwargs=KEEP)
        assert prompt.hit == (step > 0)
        check_segments(model, prompt)
        sampled = [segment for segment in prompt.segments() if segment.source == "sampled"]
        assert [segment.sequence for segment in sampled] == [2 + 2 * n for n in range(step)]
        assert all(f"answer {n}" in segment.text for n, segment in enumerate(sampled))
        answer = {"role": "assistant", "content": f"answer {step}"}
        ours.record(prompt, model.encode(f"Hm.</think>answer {step}<|im_end|>"), answer)
        history += [answer, {"role": "user", "content": f"question {step}"}]


# Keys


def test_a_key_holds_nothing_volatile(real: Callable[[str], Any]) -> None:
    model = real("qwen3.6")
    ours = assembler(model)

    def history(call_id: str, arguments: str = '{"cmd": "ls"}') -> list[Message]:
        call = {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}
        return [USER, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call_id, "content": "a"}]  # fmt: skip

    key = ours.key(history("call_1"), tools=TOOLS)
    assert key == ours.key(history("call_2", '{ "cmd":"ls"}'), tools=TOOLS)
    assert key.hex()[:8] == ours.assemble(history("call_3"), tools=TOOLS).key
    different = [
        ours.key(history("call_1")),
        ours.key(history("call_1"), tools=TOOLS, boundary="end"),
        ours.key(history("call_1"), tools=TOOLS, template_kwargs={"enable_thinking": False}),
        ours.key(history("call_1", '{"cmd": "rm"}'), tools=TOOLS),
        PromptAssembler(model.bridge(), "another template").key(history("call_1"), tools=TOOLS),
    ]
    assert len({key, *different}) == 6


def test_the_end_boundary_asks_for_nothing(real: Callable[[str], Any]) -> None:
    model = real("qwen3.6")
    prompt = assembler(model).assemble([USER], boundary="end")
    assert prompt.ids == model.encode(model.render([USER], None, False, {}))
    assert [segment.source for segment in prompt.segments()] == ["rendered"]


# Budgets


@pytest.mark.parametrize("name", FIVE)
def test_a_prompt_is_never_over_its_budget(real: Callable[[str], Any], name: str) -> None:
    model = real(name)

    @examples(20, suppress_health_check=[HealthCheck.too_slow])
    @given(conversations(), st.integers(1, 260), st.sampled_from([0.5, 0.8, 1.0]))
    def holds(messages: list[Message], room: int, target: float) -> None:
        ours = assembler(model)
        try:
            whole = ours.assemble(messages)
        except AssemblyError:
            return  # two system messages in a row, and other things that this template refuses
        budget = TokenBudget(room + 50, 50, target=target)
        least = without(messages, frozenset(at for step in drop_steps(messages) for at in step))
        needed = len(model.encode(model.render(least, None, True, {})))
        if needed > room:
            with pytest.raises(OverBudget) as raised:
                ours.assemble(messages, budget=budget)
            assert raised.value.over == needed - room
            assert set(raised.value.parts) <= {"system", "last_user", "last_cycle"}
            return
        prompt = ours.assemble(messages, budget=budget)
        assert prompt.tokens == len(prompt.ids) <= room
        assert (prompt.ids == whole.ids) == (not prompt.dropped)
        kept = [message for at, message in enumerate(messages) if at not in prompt.dropped]
        assert prompt.messages == kept
        assert prompt.ids == model.encode(model.render(kept, None, True, {}))
        assert not orphans(kept)
        assert [m for m in kept if m["role"] == "user"][-1:] == [m for m in messages if m["role"] == "user"][-1:]
        for at in range(len(messages)):
            if messages[at]["role"] != "system":
                break
            assert at not in prompt.dropped
        check_segments(model, prompt)

    holds()


def test_a_long_conversation_goes_on_behind_the_cut(real: Callable[[str], Any]) -> None:
    """What was cut stays cut and named; between two cuts every prompt begins with the turn before."""
    model = real("qwen3.6")
    ours = assembler(model)
    budget = TokenBudget(700, 100, target=0.7)
    history: list[Message] = [SYSTEM]
    turn: list[int] = []
    dropped: tuple[int, ...] = ()
    hits = 0
    for step in range(40):
        history.append({"role": "user", "content": f"question {step} " * 6})
        prompt = ours.assemble(history, budget=budget, template_kwargs=KEEP)
        assert prompt.tokens <= 600
        assert set(dropped) <= set(prompt.dropped)
        assert (prompt.dropped == dropped) >= prompt.hit
        assert len(prompt.messages) == len(history) - len(prompt.dropped)
        if prompt.hit:
            hits += 1
            assert prompt.ids[: len(turn)] == turn
        check_segments(model, prompt)
        sequences = [segment.sequence for segment in prompt.segments() if segment.sequence is not None]
        assert not set(sequences) & set(prompt.dropped)
        assert sequences == sorted(sequences)
        dropped = prompt.dropped
        completion = model.encode(f"Hm.</think>answer {step}<|im_end|>")
        answer = {"role": "assistant", "content": f"answer {step}"}
        ours.record(prompt, completion, answer)
        turn = prompt.ids + completion
        history.append(answer)
    assert dropped
    assert hits > 25
    # and who has no budget does not get what was cut for one
    assert not ours.assemble([*history, USER], template_kwargs=KEEP).dropped


def test_parts_have_limits_of_their_own(real: Callable[[str], Any]) -> None:
    ours = assembler(real("qwen3.6"))
    messages = [{"role": "system", "content": "rule " * 50}, USER]
    for part in ("system", "tools", "last_user"):
        with pytest.raises(OverBudget) as raised:
            ours.assemble(messages, tools=TOOLS, budget=TokenBudget(4000, **{part: 3}))
        (size,) = raised.value.parts.values()
        assert raised.value.over == size - 3
        assert part in str(raised.value)
        assert ours.assemble(messages, tools=TOOLS, budget=TokenBudget(4000, **{part: size})).ids


def test_what_has_no_prompt(real: Callable[[str], Any]) -> None:
    ours = assembler(real("qwen3.6"))
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    for messages in ([image], [USER, SYSTEM]):
        with pytest.raises(AssemblyError):
            ours.assemble(messages)
    for nothing in ("x", None, {}, {"role": 1}):
        with pytest.raises(AssemblyError, match="message 1 is no message"):
            ours.assemble([USER, nothing])


def test_what_has_no_json_text_has_no_prompt(real: Callable[[str], Any]) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = {"a": deep}
    ours = assembler(real("qwen3.6"))
    for arguments in (deep, {"a": {1, 2}}, {(1, 2): 3}):
        function = {"name": "bash", "arguments": arguments}
        called = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]}
        for budget in (None, TokenBudget(200)):
            with pytest.raises(AssemblyError, match="no JSON text"):
                ours.assemble([USER, called, USER], tools=TOOLS, budget=budget)
    with pytest.raises(AssemblyError, match="no JSON text"):
        ours.assemble([USER], template_kwargs={"x": deep})


def test_special_tokens_of_a_cut_are_counted_as_text(real: Callable[[str], Any]) -> None:
    """Kept text, a special token is several tokens: the budget counts these."""
    model = real("qwen3.6")
    messages = [{"role": "user", "content": "<|im_end|>" * 40}, {"role": "assistant", "content": "a"}, USER]
    plain = len(model.encode(model.render(messages, None, True, {})))
    prompt = assembler(model, special_tokens="as_text").assemble(messages, budget=TokenBudget(plain + 20))
    assert prompt.dropped == (0, 1)
    assert prompt.tokens <= plain + 20


# Roles


def test_cleaning(real: Callable[[str], Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    open_call = {**call, "id": "c2"}
    messages: list[Message] = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "tool", "tool_call_id": "c0", "content": "orphan"},
        {"role": "assistant", "content": "", "tool_calls": [call, open_call]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": "", "tool_calls": [{**call, "id": "c3"}]},
        {"role": "user", "content": "c"},
    ]
    ours = assembler(real("qwen3.6"))
    assert ours.assemble(messages).messages == messages
    cleaning = Cleaning(merge_users=True, orphan_results="drop", open_calls="drop")
    prompt = ours.assemble(messages, cleaning=cleaning)
    assert prompt.messages == [
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        messages[4],
        messages[6],
    ]
    assert [segment.sequence for segment in prompt.segments()] == [0, 3, 4, 6, None]
    assert prompt.dropped == ()


def test_calls_of_the_last_message_stay_open() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    last = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert [message for _, message in clean(last, Cleaning(open_calls="drop"))] == last


def test_anthropic_messages(real: Callable[[str], Any]) -> None:
    messages: list[Message] = [
        {"role": "user", "content": [{"type": "text", "text": "List "}, {"type": "text", "text": "files."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I will."},
                {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"cmd": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a"}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    made = from_anthropic(messages, [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
    function = {"name": "bash", "arguments": json.dumps({"cmd": "ls"})}
    assert made == [
        SYSTEM,
        {"role": "user", "content": "List files."},
        {
            "role": "assistant",
            "content": "I will.",
            "reasoning": "Hm.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "a"},
        {"role": "user", "content": "And now?"},
    ]
    parameters = TOOLS[0]["function"]["parameters"]
    tools = tools_from_anthropic([{"name": "bash", "description": "Run a command.", "input_schema": parameters}])
    assert tools == TOOLS
    assert assembler(real("qwen3.6")).assemble(made, tools=tools).ids
