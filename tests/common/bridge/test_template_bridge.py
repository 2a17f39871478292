"""The bridge on real models: equal ids where the template would reproduce the turn, the sampled ids always."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prr_plugins.common.bridge.continuation import Extension, Refusal
from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.messages import Message
from prr_testing.effort import examples

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
]
FIVE = ["qwen3.6", "qwen3-coder", "glm-5.1", "glm-4.7", "kimi-k2.6"]
KEEP = {"preserve_thinking": True, "clear_thinking": False}
NO_THINKING = {"enable_thinking": False, "thinking": False}

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "List the files."}
NEXT = {"role": "user", "content": "Go on, please."}


def call(index: int, **arguments: Any) -> Message:
    return {
        "id": f"functions.bash:{index}",
        "type": "function",
        "function": {"name": "bash", "arguments": json.dumps(arguments)},
    }


def result(index: int, text: str) -> Message:
    return {"role": "tool", "tool_call_id": f"functions.bash:{index}", "content": text}


ONE_CALL = {"role": "assistant", "content": "", "reasoning": "I need ls.", "tool_calls": [call(0, cmd="ls -l", n=2)]}
TEXT_AND_CALL = {**ONE_CALL, "content": "Let me look."}
TWO_CALLS = {**ONE_CALL, "tool_calls": [call(0, cmd="ls"), call(1, cmd="pwd")]}
ANSWER = {"role": "assistant", "content": "Two files.", "reasoning": "Done."}
PLAIN = {"role": "assistant", "content": "Two files."}

TURNS = {
    "one result": (ONE_CALL, [result(0, "a\nb")], {}),
    "result after text and call": (TEXT_AND_CALL, [result(0, "a\n")], {}),
    "two results": (TWO_CALLS, [result(0, "a"), result(1, "/srv")], {}),
    "results out of order": (TWO_CALLS, [result(1, "/srv"), result(0, "a")], {}),
    "result as parts": (ONE_CALL, [{**result(0, ""), "content": [{"type": "text", "text": "a"}]}], {}),
    "result, then user": (ONE_CALL, [result(0, "a"), NEXT], KEEP),
    "user instead of a result": (ONE_CALL, [NEXT], KEEP),
    "new user": (ANSWER, [NEXT], KEEP),
    "two users in a row": (ANSWER, [NEXT, NEXT], KEEP),
    "without thinking": (PLAIN, [NEXT], {**NO_THINKING, **KEEP}),
}


def canonical(model: Any, before: list[Message], assistant: Message, new: list[Message], kwargs: dict[str, Any]) -> Any:
    """Prompt, completion and next prompt of a turn as the template spells them, in ids."""
    prompt = model.render(before, TOOLS, True, kwargs)
    full = model.render([*before, assistant, *new], TOOLS, True, kwargs)
    if not full.startswith(prompt):
        return None
    closed = model.render([*before, assistant], TOOLS, False, kwargs)
    if not full.startswith(closed):
        return None
    sampled = closed[len(prompt) :].rstrip("\n")
    if not sampled.endswith(model.stops):
        rest = full[len(closed) :]
        sampled += next(stop for stop in model.stops if rest.startswith(stop))
    return model.encode(prompt), model.encode(sampled), model.encode(full)


@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("head", [[], [SYSTEM]], ids=["", "system"])
def test_equals_the_full_render_on_canonical_turns(real: Any, name: str, turn: str, head: list[Message]) -> None:
    model = real(name)
    assistant, new, kwargs = TURNS[turn]
    before = [*head, USER]
    prompt, completion, following = canonical(model, before, assistant, new, kwargs)
    answer = model.bridge().extend(
        prompt, completion, new, assistant=assistant, before=before, tools=TOOLS, template_kwargs=kwargs
    )
    if isinstance(answer, Refusal):
        # GLM names the next role by the stop it samples, and here another role follows.
        assert (turn, answer.reason) == ("user instead of a result", "stop_opens_other_role")
        return
    assert model.decode(answer.ids) == model.decode(following)
    assert answer.ids == following
    assert answer.ids[: answer.kept] == prompt + completion
    check_spans(model, answer, len(prompt), new)


def check_spans(model: Any, answer: Extension, prompt: int, new: list[Message]) -> None:
    spans = answer.spans()
    assert [spans[0].start, spans[-1].end] == [0, len(answer.ids)]
    assert all(one.end == other.start for one, other in pairwise(spans))
    assert [span.end for span in spans if span.source == "prompt"] == [prompt]
    assert [span.message for span in spans if span.source == "message"] == list(range(len(new)))
    for span in spans:
        if span.message is not None:
            content = new[span.message]["content"]
            text = content if isinstance(content, str) else content[0]["text"]
            assert text.strip() in model.decode(answer.ids[span.start : span.end])


@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("assistant", [ONE_CALL, ANSWER], ids=["call", "answer"])
def test_a_missing_stop_is_written(real: Any, name: str, assistant: Message) -> None:
    model = real(name)
    new = [result(0, "a")] if "tool_calls" in assistant else [NEXT]
    prompt, completion, following = canonical(model, [USER], assistant, new, KEEP)
    answer = model.bridge().extend(
        prompt, completion[:-1], new, assistant=assistant, before=[USER], tools=TOOLS, template_kwargs=KEEP
    )
    assert isinstance(answer, Extension)
    assert answer.ids == following
    sources = {span.source for span in answer.spans()}
    assert ("close" in sources) == (name not in ("glm-5.1", "glm-4.7"))


@pytest.mark.parametrize("name", ["qwen3.6", "glm-5.1", "kimi-k2.6"])
def test_open_reasoning_is_closed(real: Any, name: str) -> None:
    model = real(name)
    prompt = model.encode(model.render([USER], TOOLS, True, {}))
    completion = model.encode("I wonder about")
    for known in (None, True):
        answer = model.bridge().extend(prompt, completion, [NEXT], before=[USER], tools=TOOLS, reasoning_open=known)
        assert isinstance(answer, Extension)
        text = model.decode(answer.ids)
        cut = {"role": "assistant", "content": "", "reasoning": "I wonder about"}
        assert text == model.render([USER, cut, NEXT], TOOLS, True, KEEP)
        assert answer.ids[: answer.kept] == prompt + completion
    closed = model.bridge().extend(
        prompt, [*completion, *model.encode("</think>Well")], [NEXT], before=[USER], tools=TOOLS
    )
    assert isinstance(closed, Extension)
    assert model.decode(closed.ids).count("</think>") == 1


def test_a_stop_inside_reasoning_stands(real: Any) -> None:
    model = real("qwen3.6")
    prompt = model.encode(model.render([USER], None, True, {}))
    completion = model.encode("I wonder<|im_end|>")
    answer = model.bridge().extend(prompt, completion, [NEXT], before=[USER])
    assert isinstance(answer, Extension)
    assert model.decode(answer.ids[answer.kept :]).startswith("\n<|im_start|>user")


def test_a_close_that_was_sampled_past_is_not_written_twice(real: Any) -> None:
    model = real("qwen3.6")
    prompt = model.encode(model.render([USER], None, True, {}))
    written = model.encode("x</think>Well<|im_end|>\n")
    answer = model.bridge().extend(prompt, written, [NEXT], before=[USER])
    assert isinstance(answer, Extension)
    assert model.decode(answer.ids[answer.kept :]).startswith("<|im_start|>user")
    # the close is known by the template, not by the list of stops
    bridge = type(model.bridge())(model.render, model.encode, model.decode, [], model.tokenizer.get_added_vocab())
    answer = bridge.extend(prompt, written[:-1], [NEXT], before=[USER])
    assert isinstance(answer, Extension)
    assert model.decode(answer.ids[answer.kept :]).startswith("\n<|im_start|>user")


def test_an_opener_is_not_written_twice_nor_taken_for_another(real: Any) -> None:
    model = real("glm-5.1")
    prompt = model.encode(model.render([USER], TOOLS, True, {}))
    for stop, new, refused in (
        ("<|observation|>", [result(0, "a")], None),
        ("<|observation|>", [NEXT], "stop_opens_other_role"),
        ("<|user|>", [result(0, "a")], "stop_opens_other_role"),
    ):
        completion = model.encode("</think>x" + stop)
        answer = model.bridge().extend(prompt, completion, new, assistant=ONE_CALL, before=[USER], tools=TOOLS)
        if refused:
            assert isinstance(answer, Refusal)
            assert answer.reason == refused
        else:
            assert isinstance(answer, Extension)
            assert model.decode(answer.ids[answer.kept - 1 :]).startswith("<|observation|><tool_response>a")


@pytest.mark.parametrize(("name", "sampled", "written"), [
    ("gpt-oss", "<|return|>", "<|end|>"), ("qwen3.6", "<|endoftext|>", "<|im_end|>"), ("glm-5.1", "<|endoftext|>", "")
])  # fmt: skip
def test_a_stop_that_history_spells_differently(real: Any, name: str, sampled: str, written: str) -> None:
    model = real(name)
    prompt = model.encode(model.render([USER], None, True, KEEP))
    completion = model.encode("x</think>y" + sampled)
    asked = {"before": [USER], "template_kwargs": KEEP}
    respelled = model.bridge().extend(prompt, completion, [NEXT], **asked)
    kept = model.bridge(stop="sampled").extend(prompt, completion, [NEXT], **asked)
    assert isinstance(respelled, Extension)
    assert isinstance(kept, Extension)
    assert respelled.respelled_stop
    assert not kept.respelled_stop
    assert respelled.ids[: respelled.kept] == (prompt + completion)[:-1]
    assert kept.ids[: kept.kept] == prompt + completion
    rest = model.decode(kept.ids[kept.kept :])
    assert model.decode(respelled.ids[respelled.kept :]) == written + rest
    assert "Go on, please." in rest


@pytest.mark.parametrize("kwargs", [{}, NO_THINKING])
def test_the_generation_prompt_follows_the_kwargs(real: Any, kwargs: dict[str, Any]) -> None:
    model = real("qwen3.6")
    prompt, completion, _ = canonical(model, [USER], PLAIN, [NEXT], {**NO_THINKING, **KEEP})
    answer = model.bridge().extend(prompt, completion, [NEXT], before=[USER], template_kwargs=kwargs)
    assert isinstance(answer, Extension)
    text = model.decode(answer.ids)
    assert text.endswith("<think>\n\n</think>\n\n" if kwargs else "<|im_start|>assistant\n<think>\n")


def test_refusals(real: Any) -> None:
    model = real("qwen3.6")
    bridge = model.bridge()
    turn = [1, 2], [3]
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    assert bridge.extend(*turn, [image]) == Refusal("multimodal")
    assert bridge.extend(*turn, [result(7, "a")], assistant=ONE_CALL) == Refusal("unknown_call_id")
    assert bridge.extend(*turn, [SYSTEM]) == Refusal("unsupported_by_template")


MALFORMED: list[tuple[Any, list[Any]]] = [
    ({"role": "assistant", "tool_calls": ["x"]}, [NEXT]),
    ({"role": "assistant", "tool_calls": "x"}, [NEXT]),
    ({"role": "assistant", "tool_calls": {"id": "a"}}, [NEXT]),
    ({"role": "assistant", "tool_calls": [{"id": "a", "function": "f"}]}, [NEXT]),
    ({"role": "assistant", "tool_calls": [{"id": ["a"], "function": {"name": "f"}}]}, [NEXT]),
    ("x", [NEXT]),
    (PLAIN, ["x"]),
    (PLAIN, [{**result(0, "a"), "tool_call_id": ["x"]}]),
    (PLAIN, [{"role": "assistant", "tool_calls": ["x"]}, NEXT]),
]


@pytest.mark.parametrize(("assistant", "new"), MALFORMED)
@pytest.mark.parametrize("special_tokens", ["as_engine", "as_text"])
def test_what_is_no_message_is_refused(real: Any, special_tokens: str, assistant: Any, new: list[Any]) -> None:
    bridge = real("qwen3.6").bridge(special_tokens=special_tokens)
    for answer in (
        bridge.extend([1], [2], new, assistant=assistant, before=[USER]),
        bridge.extend([1], [2], [NEXT], before=[assistant, *new]) if "x" in (assistant, *new) else None,
    ):
        assert answer is None or (isinstance(answer, Refusal) and answer.reason == "malformed")


def test_no_spans_of_what_is_no_message(real: Any) -> None:
    """With a render that takes anything."""
    model = real("qwen3.6")

    def render(messages: list[Message], *_: Any) -> str:
        return "".join(
            f"<|im_start|>{m.get('role')}\n{m.get('content')}{m.get('tool_calls') or ''}<|im_end|>\n" for m in messages
        )

    bridge = TemplateBridge(render, model.encode, model.decode, model.stop_ids, model.tokenizer.get_added_vocab())
    for calls in (["x"], [{"function": "f"}], "x"):
        assert (
            bridge.render_with_spans([USER, {"role": "assistant", "content": "a", "tool_calls": calls}, NEXT]) is None
        )
    unnamed = {"role": "assistant", "content": "a", "tool_calls": [{"id": "c"}]}
    assert bridge.render_with_spans([USER, unnamed, NEXT]) is not None
    prompt = model.encode(render([USER]) + "<|im_start|>assistant\n")
    answer = bridge.extend(prompt, model.encode("a<|im_end|>"), [NEXT, unnamed, NEXT], assistant=PLAIN, before=[USER])
    assert isinstance(answer, Extension)
    assert answer.spans()


def test_arguments_nested_too_deep_are_refused(real: Any) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    called = {**ONE_CALL, "tool_calls": [{**call(0), "function": {"name": "bash", "arguments": deep}}]}
    model = real("qwen3.6")
    prompt = model.encode(model.render([USER], TOOLS, True, {}))
    for special_tokens, refused in (("as_engine", False), ("as_text", True)):
        bridge = model.bridge(special_tokens=special_tokens)
        answer = bridge.extend(prompt, [model.stop_ids[0]], [result(0, "a")], assistant=called, tools=TOOLS)
        assert (answer == Refusal("malformed", "nesting")) == refused
        assert isinstance(answer, Extension) != refused  # of the calls, names and ids alone are read


LATER = {
    "assistant, user": [PLAIN, NEXT],
    "assistant that reasons, user": [ANSWER, NEXT],
    "user, assistant, user": [NEXT, PLAIN, NEXT],
    "two assistants": [PLAIN, NEXT, ANSWER, NEXT],
}


@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("assistant", ["one call", "reasons", "plain"])
@pytest.mark.parametrize("later", LATER)
def test_an_assistant_among_the_new_messages(real: Any, name: str, assistant: str, later: str) -> None:
    """The full render, or a refusal where the template goes by reasoning that a probe cannot know."""
    model = real(name)
    turn = {"one call": {**PLAIN, "tool_calls": [call(0, cmd="ls")]}, "reasons": ONE_CALL, "plain": PLAIN}[assistant]
    new = [*([result(0, "a")] if "tool_calls" in turn else [NEXT]), *LATER[later]]
    compared = 0
    for kwargs in ({}, KEEP, {**NO_THINKING, **KEEP}, NO_THINKING):
        made = canonical(model, [USER], turn, new, kwargs)
        if made is None:
            continue
        prompt, completion, following = made
        asked = {"assistant": turn, "before": [USER], "tools": TOOLS, "template_kwargs": kwargs}
        answer = model.bridge().extend(prompt, completion, new, **asked)
        if isinstance(answer, Refusal):
            assert (answer, name) == (Refusal("depends_on_history", "assistant"), "glm-5.1")
            # who compares gets an answer all the same
            checked = model.bridge().continue_turn(prompt + completion, len(completion), new, **asked, compared=True)
            assert not isinstance(checked, Refusal)
        else:
            # in text: Qwen's empty reasoning is spelled across the seam of the prompt
            assert model.decode(answer.ids) == model.decode(following)
            assert answer.ids[answer.kept :] == following[answer.kept - len(answer.ids) :]
        compared += 1
    assert compared


@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("special_tokens", ["as_engine", "as_text"])
def test_spans_with_an_assistant_among_the_new_messages(real: Any, name: str, special_tokens: str) -> None:
    """Of each message its own text, also where the template writes an assistant otherwise once a user follows it."""
    model = real(name)
    bridge = model.bridge(special_tokens=special_tokens)
    called = {**PLAIN, "tool_calls": [call(0, cmd="ls")]}
    again = {"role": "assistant", "content": "Ninth.", "tool_calls": [call(1, cmd="pwd")]}
    third = {"role": "assistant", "content": "Third."}
    for turn, new in (
        (PLAIN, [NEXT, third, {"role": "user", "content": "Fourth <tool_call>."}]),
        (PLAIN, [NEXT, third, {"role": "user", "content": "Fourth."}, {"role": "user", "content": "Fifth."}]),
        (called, [result(0, "Sixth"), third, {"role": "user", "content": "Fourth."}]),
        (called, [result(0, "Sixth"), again, result(1, "Seventh"), {"role": "user", "content": "Eighth."}]),
    ):
        for kwargs in ({}, KEEP, {**NO_THINKING, **KEEP}, NO_THINKING):
            made = canonical(model, [USER], turn, new, kwargs)
            if made is None:
                continue
            prompt, completion, _ = made
            answer = bridge.continue_turn(
                prompt + completion, len(completion), new, assistant=turn, before=[USER], tools=TOOLS,
                template_kwargs=kwargs, compared=True,
            )  # fmt: skip
            assert not isinstance(answer, Refusal), answer
            ids = [*prompt, *completion, *answer.ids]
            spans = bridge.spans(answer, ids, len(completion))
            assert all(one.end == other.start for one, other in pairwise(spans))
            assert [span.message for span in spans if span.source == "message"] == list(range(len(new)))
            for span in spans:
                text = model.decode(ids[span.start : span.end])
                if span.start >= len(prompt):
                    held = [at for at, message in enumerate(new) if message["content"] in text]
                    assert held == ([] if span.message is None else [span.message]), (kwargs, spans)


def test_glm_tells_by_one_turn_whether_another_reasoned(real: Any) -> None:
    model = real("glm-5.1")
    turn = {**PLAIN, "tool_calls": [call(0, cmd="ls")]}
    prompt, completion, _ = canonical(model, [USER], turn, [result(0, "a"), PLAIN, NEXT], {**NO_THINKING, **KEEP})
    for new, refused in (([result(0, "a"), PLAIN, NEXT], True), ([result(0, "a"), NEXT], False)):
        answer = model.bridge().extend(
            prompt, completion, new, assistant=turn, before=[USER], tools=TOOLS, template_kwargs={**NO_THINKING, **KEEP}
        )
        assert isinstance(answer, Refusal) == refused, answer


def test_a_merge_over_the_seam_is_refused(real: Any) -> None:
    """A template without special tokens: the seam lies in plain text, and is taken only where no merge crosses it."""
    model = real("qwen3.6")

    def render(messages: list[Message], tools: Any, add_generation_prompt: bool, kwargs: Any) -> str:
        text = "".join(
            f"{m['role']}: {m['content']}" + ("\n\n" if m["role"] == "assistant" else "\n") for m in messages
        )
        return text + ("assistant:" if add_generation_prompt else "")

    bridge = type(model.bridge())(render, model.encode, model.decode, [], {})
    prompt = model.encode(render([USER], None, True, {}))
    assert bridge.extend(prompt, model.encode(" yes\n"), [NEXT]) == Refusal("seam")  # "\n" + "\n\n" is one token
    answer = bridge.extend(prompt, model.encode(" yes"), [NEXT])
    assert isinstance(answer, Extension)
    assert answer.ids == model.encode(render([USER, {"role": "assistant", "content": "yes"}, NEXT], None, True, {}))


@examples(150)
@given(data=st.data())
def test_the_sampled_ids_always_stand(real: Callable[[str], Any], data: st.DataObject) -> None:
    """L5, for any ids: what was sampled is a prefix of the next prompt, or there is a typed refusal."""
    model = real(data.draw(st.sampled_from(FIVE)))
    size = len(model.tokenizer)
    special = st.sampled_from(sorted(model.tokenizer.get_added_vocab().values()))
    completion = data.draw(st.lists(st.integers(0, size - 1) | special, max_size=12))
    assistant, new, kwargs = TURNS[data.draw(st.sampled_from(sorted(TURNS)))]
    prompt = model.encode(model.render([USER], TOOLS, True, kwargs))
    answer = model.bridge(stop="sampled").extend(
        prompt, completion, new, assistant=assistant, before=[USER], tools=TOOLS, template_kwargs=kwargs
    )
    if isinstance(answer, Refusal):
        assert answer.reason in {"stop_opens_other_role", "seam"}
        return
    assert answer.ids[: len(prompt) + len(completion)] == prompt + completion
    assert answer.kept == len(prompt) + len(completion)
    tail = model.decode(answer.ids[answer.kept :])
    full = model.render([USER, assistant, *new], TOOLS, True, kwargs)
    inserted = ("</think>", "\n</think>")
    assert full.endswith(tail) or tail.startswith(inserted)


def test_cost_does_not_depend_on_the_history(real: Any) -> None:
    model = real("qwen3.6")
    bridge = model.bridge()
    costs = []
    for turns in (1, 400):
        before = [SYSTEM, *[{"role": "user", "content": "x" * 500}, PLAIN] * turns, USER]
        model.rendered.clear()
        bridge.extend([1] * 10, [2, 3], [result(0, "a")], assistant=ONE_CALL, before=before, tools=TOOLS)
        costs.append(sum(model.rendered))
    assert costs[1] <= costs[0]


@pytest.mark.parametrize(
    ("writes", "first"),
    [
        (lambda messages: f"[Round {sum(m['role'] == 'user' for m in messages)}]", True),
        (lambda messages: f"Re: {next(m['content'] for m in messages if m['role'] == 'user')}", False),
    ],
    ids=["counts", "quotes"],
)
def test_what_depends_on_the_history_is_refused(
    real: Callable[[str], Any], writes: Callable[[list[Message]], str], first: bool
) -> None:
    """A template that counts rounds, or repeats what was asked first: a probe has another history."""
    model = real("qwen3.6")

    def render(messages: list[Message], tools: Any, generate: bool, kwargs: Any, /) -> str:
        shown = [
            {**m, "content": f"{writes(messages[: n + 1])} {m['content']}"} if m["role"] == "user" else m
            for n, m in enumerate(messages)
        ]
        return str(model.render(shown, tools, generate, kwargs))

    bridge = TemplateBridge(render, model.encode, model.decode, model.stop_ids, model.tokenizer.get_added_vocab())
    sampled = model.encode("</think>\n\nTwo files.<|im_end|>")
    for before, bridged in (([USER], first), ([USER, PLAIN, NEXT], False)):
        prompt = model.encode(render(before, None, True, KEEP))
        answer = bridge.extend(prompt, sampled, [NEXT], assistant=PLAIN, before=before, template_kwargs=KEEP)
        if bridged:
            assert isinstance(answer, Extension)
            assert "[Round 2] Go on, please.<|im_end|>\n" in model.decode(answer.ids)
        else:
            assert isinstance(answer, Refusal)
            assert answer.reason == "depends_on_history"
