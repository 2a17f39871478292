"""The laws of parsing as properties, for every registered format: L1 tiling, L2 slices, L3 any split, L4 total, linear.

`make fuzz` runs the same assertions under a coverage-guided fuzzer; `docs/parsing.md` states the laws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from prr_plugins.common.parsing.arguments import MAX_NESTING
from prr_plugins.common.parsing.formats import FORMATS, get_format
from prr_plugins.common.parsing.stream_parser import StreamParser, parse
from prr_testing.corpus import Completion, completions_of
from prr_testing.effort import examples, part, share
from prr_testing.laws import (
    assert_all,
    assert_deltas,
    assert_slices,
    assert_tiles,
    assert_token_tiles,
    growth,
    literals,
    run,
)
from prr_testing.models import model_dir
from prr_testing.tokens import load_tokenizer
from tests.common.strategies import TOOLS, mutated, pieces, soup

FINISH = st.sampled_from(["stop", "length"])
EFFORT = examples(60, suppress_health_check=list(HealthCheck))
every_format = pytest.mark.parametrize("format", sorted(FORMATS))


def tails(format: str) -> list[str]:
    """Prompt tails that the format meets: none, every one in the corpus, and one that left reasoning open."""
    opened = get_format(format).reasoning_start
    return sorted({"", *(c.tail for c in completions_of(format)), *([opened, opened + "\n"] if opened else [])})


@every_format
@EFFORT
@given(data=st.data())
def test_marker_soup_keeps_the_laws(format: str, data: st.DataObject) -> None:
    """Literals of the format in any order, nested, cut and unclosed."""
    text = data.draw(soup(format))
    options = {
        "tools": data.draw(st.sampled_from([None, TOOLS])),
        "prompt_tail": data.draw(st.sampled_from(tails(format))),
        "finish_reason": data.draw(FINISH),
        "reasoning": data.draw(st.sampled_from([True, True, False])),
        "tool_calls": data.draw(st.sampled_from([True, True, False])),
    }
    assert_all(format, text, [list(text), data.draw(pieces(text))], **options)


@every_format
@EFFORT
@given(data=st.data())
def test_mutated_completions_keep_the_laws(format: str, data: st.DataObject) -> None:
    if not completions_of(format):
        pytest.skip("the corpus has no completion of this format")
    completion, text = data.draw(mutated(format))
    assert_all(
        format, text, [data.draw(pieces(text))], data.draw(FINISH), tools=completion.tools, prompt_tail=completion.tail
    )


@every_format
@EFFORT
@given(text=st.text(max_size=200), data=st.data())
def test_any_text_keeps_the_laws(format: str, text: str, data: st.DataObject) -> None:
    assert_all(format, text, [list(text), data.draw(pieces(text))], tools=TOOLS)


@every_format
def test_every_split_in_two_of_every_real_completion(format: str) -> None:
    """One delta, single characters, and a cut at each place (at 200 places of a long one)."""
    for completion in completions_of(format):
        text = completion.text
        step = max(1, len(text) // 200)
        splits = [[text], list(text), *([text[:i], text[i:]] for i in range(1, len(text), step))]
        options = {"tools": completion.tools, "prompt_tail": completion.tail}
        assert_all(format, text, splits, completion.finish_reason, **options)


@every_format
def test_a_completion_cut_anywhere_shows_no_other_calls(format: str) -> None:
    """L8: cut for length at each place (at 300 of a long one), only calls that the whole completion has too."""
    for completion in completions_of(format):
        text, options = completion.text, {"tools": completion.tools, "prompt_tail": completion.tail}
        whole = {(c.name, c.arguments) for c in parse(format, text, **options).parsed_tool_calls}
        for end in range(0, len(text), max(1, len(text) // 300)):
            cut = parse(format, text[:end], finish_reason="length", **options)
            assert {(c.name, c.arguments) for c in cut.parsed_tool_calls} <= whole, text[:end][-200:]


# ---------------------------------------------------------------------------------------------- ids

# one model for each byte-level vocabulary that the tests have
MODEL_OF = {
    "prr_qwen3": "qwen3.6", "prr_hermes": "qwen3-coder", "prr_glm": "glm-5.1", "prr_kimi_k2": "kimi-k2.6",
    "prr_deepseek_v4": "deepseek-v4", "prr_gpt_oss": "gpt-oss",
}  # fmt: skip
with_tokenizer = pytest.mark.parametrize("format", sorted(MODEL_OF.keys() & FORMATS.keys()))


def tokenizer_of(format: str) -> Any:
    return load_tokenizer(model_dir(MODEL_OF[format]))


def stream(
    format: str, tokenizer: Any, ids: list[int], sizes: list[int], completion: Completion | None
) -> StreamParser:
    """Feed ids in groups, with the text as an engine makes it: a cut character waits for its last byte."""
    parser = StreamParser(
        format,
        tokenizer=tokenizer,
        tools=completion.tools if completion else TOOLS,
        prompt_tail=completion.tail if completion else "",
    )
    shown = ""
    at = 0
    for size in sizes:
        group = ids[at : at + size]
        at += len(group)
        text = tokenizer.decode(ids[:at], skip_special_tokens=False)
        if text.endswith("\ufffd") and at < len(ids):
            text = shown
        parser.feed(text[len(shown) :], group)
        shown = text
    parser.finish()
    return parser


def group_sizes(n: int) -> st.SearchStrategy[list[int]]:
    """Sizes of groups that cover `n` tokens."""
    return st.lists(st.integers(1, 9), min_size=n, max_size=n)


@with_tokenizer
@examples(40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_ids_tile_real_completions(format: str, data: st.DataObject) -> None:
    """The ids of a real completion, the stop token behind them, in any groups: the spans tile them, always the same."""
    tokenizer = tokenizer_of(format)
    completion, text = data.draw(mutated(format))
    text = text[:1500]
    ids = tokenizer.encode(text, add_special_tokens=False)
    stop = tokenizer.eos_token_id
    whole = parse(
        format, text, token_ids=[*ids, stop], tokenizer=tokenizer, tools=completion.tools, prompt_tail=completion.tail
    )
    assert_tiles(whole, text)
    assert_token_tiles(whole, [*ids, stop], tokenizer)
    if text and tokenizer.decode(ids, skip_special_tokens=False) == text:
        assert whole.tokens is not None
        assert whole.tokens.spans[-1].segment is None, "a stop token has no text of its own"
        streamed = stream(format, tokenizer, ids, data.draw(group_sizes(len(ids))), completion).result
        again = parse(
            format, text, token_ids=ids, tokenizer=tokenizer, tools=completion.tools, prompt_tail=completion.tail
        )
        assert streamed == again
        assert streamed.tokens == again.tokens


@with_tokenizer
@examples(40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_ids_are_parsed_and_tiled(format: str, data: st.DataObject) -> None:
    """Random ids, half of them special or of a cut multi-byte character."""
    tokenizer = tokenizer_of(format)
    special = sorted(tokenizer.get_added_vocab().values())
    cut = tokenizer.encode("🙂é中🧑‍🚀", add_special_tokens=False)
    some = st.one_of(st.integers(0, len(tokenizer) - 1), st.sampled_from(special), st.sampled_from(cut))
    ids = data.draw(st.lists(some, max_size=60))
    text = tokenizer.decode(ids, skip_special_tokens=False)
    result = parse(format, text, token_ids=ids, tokenizer=tokenizer, tools=TOOLS)
    assert_tiles(result, text)
    assert_slices(result)
    if ids:
        assert_token_tiles(result, ids, tokenizer)
        assert stream(
            format, tokenizer, ids, data.draw(group_sizes(len(ids))), None
        ).result.raw_completion_ids == tuple(ids)


def test_a_token_may_straddle_segments() -> None:
    """`>/` is one token of Qwen3.6: it ends a parameter's opener and begins its value."""
    if "prr_qwen3" not in FORMATS:
        pytest.skip("prr_qwen3 is not registered")
    tokenizer = tokenizer_of("prr_qwen3")
    text = "<tool_call>\n<function=read>\n<parameter=path>/srv</parameter>\n</function>\n</tool_call>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    tokens = parse("prr_qwen3", text, token_ids=ids, tokenizer=tokenizer).tokens
    assert tokens is not None
    assert ">/" in [tokenizer.decode([ids[i]]) for i in tokens.straddling]


# ---------------------------------------------------------------------------------------------- linear

LINEAR_BOUND = 3.0  # times what linear growth would be; a square shows as 8 times


def assert_linear(work: Callable[[int], object], small: int) -> None:
    measured = growth(work, small)
    if measured > 8 * LINEAR_BOUND:  # once more: another process may have been in the way
        measured = min(measured, growth(work, small))
    assert measured <= 8 * LINEAR_BOUND, f"{measured:.0f} times the work for 8 times the text"


@every_format
def test_every_way_to_be_cut_is_read_as_length_is(format: str) -> None:
    """L8: engines name more than `length`; whatever they call it, the model did not end the completion."""
    completion = max(completions_of(format), key=lambda c: len(c.text) if len(c.text) < 600 else 0)
    for end in range(len(completion.text) + 1):
        text = completion.text[:end]
        cut = parse(format, text, prompt_tail=completion.tail, finish_reason="length")
        for reason in ("abort", "error", "repetition", "content_filter"):
            other = parse(format, text, prompt_tail=completion.tail, finish_reason=reason)
            assert replace(other, finish_reason="length") == cut
        ended = parse(format, text, prompt_tail=completion.tail, finish_reason="stop")
        called = parse(format, text, prompt_tail=completion.tail, finish_reason="tool_calls")
        assert replace(called, finish_reason="stop") == ended


@pytest.mark.scaled
@every_format
def test_repeated_literals_cost_linear_time(format: str) -> None:
    """Each literal, and each with what could make a reader look again, repeated: whole and streamed."""
    own = literals(format)
    units = {
        *own,
        *(a + f for a in own for f in ("\n", '{"', '"', "\\", "{", "x=")),
        *(a + b for a in own[:2] for b in own),
    }
    for unit in part(sorted(units)):
        assert_linear(lambda n, unit=unit: run(format, [unit * n], tools=TOOLS, prompt_tail=""), 250)
    for unit in own:
        assert_linear(lambda n, unit=unit: run(format, [unit] * n, "eager", tools=TOOLS, prompt_tail=""), 250)


@pytest.mark.scaled
@every_format
@pytest.mark.parametrize("filler", ["\n", " ", '"', "\\", "{", "[", "<", "a"])
def test_long_runs_behind_an_opener_cost_linear_time(format: str, filler: str) -> None:
    """One opener, then a run that never ends, streamed in small pieces."""
    for opener in part(literals(format)):
        assert_linear(lambda n, o=opener: run(format, [o, *([filler * 4] * n)], "eager", tools=TOOLS), 500)


@pytest.mark.scaled
@every_format
def test_200_000_unclosed_openers(format: str) -> None:
    for opener in get_format(format).markers:
        text = opener * share(200_000)
        result, deltas = run(format, [text], "eager", tools=TOOLS)
        assert_tiles(result, text)
        assert_deltas(result, deltas, "eager")


def a_call(format: str) -> tuple[Completion, int, int]:
    """A real completion with one closed call that has arguments, and where its markup begins and ends."""
    for completion in completions_of(format):
        options = {"tools": completion.tools, "prompt_tail": completion.tail}
        result, _ = run(format, [completion.text], finish_reason=completion.finish_reason, **options)
        if (
            len(result.parsed_tool_calls) == 1
            and not result.incomplete_calls
            and {"name", "arguments"} <= {s.kind for s in result.segments}
        ):
            (name,) = (i for i, s in enumerate(result.segments) if s.kind == "name")
            if name:
                return completion, result.segments[name - 1].start, len(completion.text)
    pytest.skip("the corpus has no completion with one call in this format")


@every_format
@pytest.mark.parametrize("filler", ["<b", '\\"', "{["])
def test_a_long_run_inside_a_call_costs_linear_time(format: str, filler: str) -> None:
    """An argument that goes on and on, in one piece; also where the call may be a draft in reasoning."""
    completion, start, _ = a_call(format)
    options = {"tools": completion.tools, "prompt_tail": completion.tail}
    whole, _ = run(format, [completion.text], **options)
    ends = next(s.end for s in whole.segments if s.kind == "arguments")
    call = completion.text[start:ends].rstrip("\"'}]>)|<, \n\t")[:-1]  # up to within the last value
    for tail in sorted({completion.tail, get_format(format).reasoning_start or ""}):
        assert_linear(lambda n, tail=tail: parse(format, call + filler * n, prompt_tail=tail), 20_000)


@pytest.mark.scaled
@every_format
def test_10_000_calls(format: str) -> None:
    """A call written again and again is read as often as one would think from ten of it, in linear time."""
    completion, start, end = a_call(format)
    call = completion.text[start:end]
    options = {"tools": completion.tools, "prompt_tail": completion.tail}

    def work(n: int) -> int:
        text = completion.text[:start] + call * n
        result, deltas = run(format, [text], "eager", **options)
        assert_tiles(result, text)
        assert_deltas(result, deltas, "eager")
        return len(result.parsed_tool_calls)

    if work(10) == 10:
        assert work(share(10_000)) == share(10_000)
    assert_linear(work, 250)

    def streamed(n: int) -> None:
        text = completion.text[:start] + call * n
        run(format, [text[i : i + 4] for i in range(0, len(text), 4)], "eager", **options)

    assert_linear(streamed, 1000)


@pytest.mark.scaled
@every_format
def test_an_argument_of_a_megabyte(format: str) -> None:
    """A string value of a million characters comes back exactly, streamed in deltas of 4 characters, in linear time."""
    for completion in completions_of(format):
        options = {"tools": completion.tools, "prompt_tail": completion.tail}
        before, _ = run(format, [completion.text], **options)
        if len(before.parsed_tool_calls) != 1 or before.incomplete_calls:
            continue
        expected = completion.fixture.expected
        values = [v for v in expected.tool_calls[0].arguments.values() if isinstance(v, str)] if expected else []
        value = next((v for v in values if v.isalnum() and completion.text.count(v) == 1), None)
        if value is None:
            continue
        head, rest = completion.text.split(value)

        def work(n: int, head: str = head, rest: str = rest, options: dict[str, Any] = options) -> str:
            text = head + "abc " * n + rest
            result, deltas = run(format, [text[i : i + 4] for i in range(0, len(text), 4)], "eager", **options)
            assert_tiles(result, text)
            assert_deltas(result, deltas, "eager")
            return result.parsed_tool_calls[0].arguments

        size = share(250_000)
        assert "abc " * size in work(size)
        assert_linear(work, 4_000)
        return
    pytest.skip("the corpus has no call with a plain string value in this format")


K3_CALL = (
    '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>json<|sep|>{}<|close|>json<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>"
)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("prr_kimi_k3", K3_CALL.replace("{}", "")),
        ("prr_hermes", '<tool_call>{"name": "f", "arguments": \'\'}</tool_call>'),
        ("prr_llama", '{"name": "f", "parameters": \'\'}'),
        ("prr_mistral", '[TOOL_CALLS][{"name": "f", "arguments": \'\'}]'),
    ],
)
def test_no_text_is_no_object(format: str, text: str) -> None:
    result = assert_all(format, text, [list(text)])
    assert [cut.status for cut in result.incomplete_calls] == ["malformed"]


@pytest.mark.parametrize("value", ["1 {}", "12", "null {}", 'true "x"', '"a" {}', "[1] {}", "{} {}"])
def test_what_is_read_in_one_go_is_read_alike_bit_by_bit(value: str) -> None:
    text = K3_CALL.replace("{}", value) + "x" * 300
    assert_all("prr_kimi_k3", text, [list(text)])


@pytest.mark.parametrize("depth", [*range(MAX_NESTING - 3, MAX_NESTING + 3), *range(970, 1000, 3), 5_000])
@pytest.mark.parametrize(
    ("format", "before", "after"),
    [
        ("prr_mistral", "[TOOL_CALLS]f[ARGS]", ""),
        ("prr_gpt_oss", "<|channel|>commentary to=functions.f<|message|>", "<|call|>"),
        ("prr_hermes", '<tool_call>{"name": "f", "arguments": ', "}</tool_call>"),
    ],
)
def test_how_deep_arguments_may_nest_hangs_on_no_split(format: str, before: str, after: str, depth: int) -> None:
    text = before + '{"a": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}" + after
    result = assert_all(format, text, [list(text)])
    assert [call.status for call in (*result.parsed_tool_calls, *result.incomplete_calls)] == [
        "ok" if depth <= MAX_NESTING else "malformed"
    ]


@pytest.mark.parametrize("depth", [*range(MAX_NESTING - 3, MAX_NESTING + 3), 5_000])
@pytest.mark.parametrize(
    ("format", "before", "after"),
    [
        ("prr_qwen3", "<tool_call>\n<function=f>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>"),
        ("prr_glm", "<tool_call>f<arg_key>a</arg_key><arg_value>", "</arg_value></tool_call>"),
        ("prr_gemma4", "<|tool_call>call:f{a:", "}<tool_call|>"),
    ],
)
def test_values_nested_too_deep_are_no_json(format: str, before: str, after: str, depth: int) -> None:
    """What is no JSON is kept as a string, where the format allows one."""
    value = "[" * (depth - 1) + "]" * (depth - 1)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "array"}}}}}]
    text = before + value + after
    result = assert_all(format, text, [list(text)], tools=tools)
    if depth <= MAX_NESTING:
        assert [call.arguments for call in result.parsed_tool_calls] == ['{"a": ' + value + "}"]
    elif format == "prr_gemma4":
        assert [call.status for call in result.incomplete_calls] == ["malformed"]
    else:
        assert [call.arguments for call in result.parsed_tool_calls] == ['{"a": "' + value + '"}']


@every_format
@EFFORT
@given(data=st.data())
def test_a_text_may_end_in_any_literal(format: str, data: st.DataObject) -> None:
    """A completion that was cut behind one, wherever it stands: it ends there."""
    known = [(c.text, c.tail) for c in completions_of(format)] or [("".join(literals(format)), "")]
    whole, tail = data.draw(st.sampled_from(known))
    text = whole[: data.draw(st.integers(0, len(whole)))] + data.draw(st.sampled_from(literals(format)))
    options = {"finish_reason": data.draw(FINISH), "tools": data.draw(st.sampled_from([None, TOOLS]))}
    assert_all(format, text, [list(text)], prompt_tail=tail, **options)


@every_format
def test_a_completion_may_be_cut_anywhere(format: str) -> None:
    texts = {(c.text[:2_000], c.tail) for c in completions_of(format)}
    if format == "prr_kimi_k3":
        texts.add((K3_CALL.replace("{}", '{"a": 1}'), ""))
    for text, tail in texts:
        for end in range(len(text)):
            for reason in ("stop", "length"):
                result = parse(format, text[:end], prompt_tail=tail, finish_reason=reason)
                assert_tiles(result, text[:end])
                assert_slices(result)


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'lazy'; accepted are 'eager' and 'complete'"):
        StreamParser("prr_hermes", stream_arguments="lazy")  # type: ignore[arg-type]
