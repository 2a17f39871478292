"""The benchmark's own parts: traces in, canonical and varied completions out, figures added up."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prr_testing.bench import report, run, trace
from prr_testing.bench.writing import Hand, write
from prr_testing.tokens import Vocabulary

SHIPPED = Path(__file__).resolve().parents[2] / "benchmarks" / "traces" / "swe_agent.jsonl"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def as_openai(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{"type": "function", "function": call} for call in message["calls"]]
    return {
        "role": "assistant",
        "reasoning_content": message["reasoning"],
        "content": message["content"],
        "tool_calls": calls,
    }


def test_without_variation_the_text_is_the_templates_own(qwen: Vocabulary) -> None:
    render = qwen.tokenizer.apply_chat_template
    messages = [{"role": "user", "content": "hi"}]
    steps = [step.assistant for conversation in trace.load(SHIPPED) for step in conversation.steps]
    steps.append(
        {
            "reasoning": "both",
            "content": "text",
            "calls": [
                {"name": "f", "arguments": {"a": {"b": [1, 2.5, None, True]}, "c": "é/\n x"}},
                {"name": "g", "arguments": {}},
            ],
        }
    )
    steps.append({"reasoning": "", "content": "only text", "calls": []})
    for message in steps:
        prompt = render(messages, tokenize=False, add_generation_prompt=True)
        whole = render([*messages, as_openai(message)], tokenize=False)
        assert prompt + write("qwen3.6", message, random.Random(0), 0.0) + "<|im_end|>\n" == whole


def test_variation_is_seeded_and_grows_with_the_rate() -> None:
    message = {"reasoning": "r", "content": "c", "calls": [{"name": "f", "arguments": {"a": 1.5, "b": [1, 2]}}]}

    def texts(rate: float) -> list[str]:
        return [write("qwen3.6", message, random.Random(seed), rate) for seed in range(200)]

    canonical = texts(0.0)[0]
    assert texts(0.5) == texts(0.5)
    changed = [sum(text != canonical for text in texts(rate)) for rate in (0.0, 0.1, 0.5, 1.0)]
    assert changed[0] == 0
    assert changed == sorted(changed)
    assert changed[-1] == 200


@given(value=JSON, seed=st.integers(0, 1000), rate=st.floats(0, 1))
def test_every_spelling_means_the_same(value: Any, seed: int, rate: float) -> None:
    assert json.loads(Hand(random.Random(seed), rate).json(value)) == value


def test_the_shipped_trace() -> None:
    conversations = trace.load(SHIPPED)
    assert [(c.name, len(c.steps), sum(s.after_user for s in c.steps)) for c in conversations] == [
        ("marshmallow-1867", 11, 1),
        ("two-tasks", 16, 2),
    ]
    assert all(conversation.source.startswith("SWE-agent") for conversation in conversations)
    assert all(step.assistant["reasoning"] for conversation in conversations for step in conversation.steps)


def test_other_shapes_of_traces(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    call = {"type": "function", "function": {"name": "f", "arguments": '{"n": 1, "s": "x"}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}], "reasoning_content": "r"},
        {"role": "assistant", "content": "b", "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
        {"role": "assistant", "content": "c"},
    ]
    for data in (messages, {"messages": messages}, [{"messages": messages}]):
        file.write_text(json.dumps(data))
        (conversation,) = trace.load(file)
        first, second = conversation.steps
        calls = [{"name": "f", "arguments": {"n": 1, "s": "x"}}]
        assert first.assistant == {"reasoning": "r", "content": "a\nb", "calls": calls}
        assert (first.after_user, second.after_user) == (True, False)
        properties = {"n": {"type": "integer"}, "s": {"type": "string"}}
        assert conversation.tools[0]["function"]["parameters"]["properties"] == properties


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", r"no conversation with an assistant turn"),
        ('{"messages": 1}', r"conversation 1: an object with a list of messages is needed"),
        ('{"messages": []}\n{', r"t\.json:2: not JSON"),
        ('[{"role": "assistant", "content": "x"}]', r"t-1: messages\[0\]: an assistant message before any other"),
        ('[{"role": "user"}, {"x": 1}]', r"t-1: messages\[1\]: an object with a role is needed"),
        (
            '[{"role": "user"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]',
            r"t-1: messages\[1\]\.tool_calls\[0\]\.function\.arguments: not JSON",
        ),
    ],
)
def test_bad_traces_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(trace.TraceError, match=message):
        trace.load(file)
    with pytest.raises(trace.TraceError, match="cannot be read"):
        trace.load(tmp_path / "missing")


def turn(number: int, prompt: int, cached: int, possible: int, *, after_user: bool = False) -> run.TurnResult:
    return run.TurnResult("c", number, after_user, prompt, cached, possible, 10, cached == possible, 0.01, 0, "spliced")


def test_figures_add_up(tmp_path: Path) -> None:
    turns = (turn(1, 100, 0, 0, after_user=True), turn(2, 200, 64, 96), turn(3, 300, 160, 160, after_user=True))
    results = [run.Result(mode, rate, 0, turns, ()) for mode in run.MODES for rate in (0.0, 0.5)]
    result = report.pooled(results, run.MODES[0], 0.5)
    assert (result.hit_rate, result.best_hit_rate, result.uncached) == (224 / 600, 256 / 600, 376)
    assert result.hit_rate_beyond_system == (54 + 150) / 570
    lines = report.findings(results)
    assert lines[0] == (
        "stock, variation 0: recomputes 32 tokens that could have been cached"
        " (inside a tool loop 0 of 1 turns kept whole; after a new user message 1 of 1 turns kept whole)"
    )
    report.write_json(tmp_path / "b.json", results, 0.5, [0], {"engine": "x"})
    saved = json.loads((tmp_path / "b.json").read_text())
    assert saved["modes"]["stock"]["uncached_prefill_tokens"] == 376
    assert saved["curve"]["stock"] == [[0.0, 224 / 600], [0.5, 224 / 600]]
    report.plot(tmp_path / "b.png", results, 0.5)
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
