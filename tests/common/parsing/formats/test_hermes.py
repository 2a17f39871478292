"""`prr_hermes`: public reports, one test each, then the kinds that they stand for."""

from __future__ import annotations

import pytest

from prr_plugins.common.parsing.stream_parser import StreamParser, parse
from tests.common.parsing.formats._helpers import assert_linear, check, tool

FORMAT = "prr_hermes"
THINKING = "<|im_start|>assistant\n<think>\n"

FETCH = tool("fetch", id="integer")
SAY = tool("say", text="string")


def call(name: str, arguments: str) -> str:
    """A call as the chat template writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# --------------------------------------------------------------------------------------------------- public reports


def test_two_calls_in_one_delta() -> None:
    """sglang#37634: indexes count calls of the response."""
    text = call("fetch", '{"id": 4}') + "\n" + call("fetch", '{"id": 5}')
    check(FORMAT, text, tools=[FETCH], chunks=[text], calls=[("fetch", {"id": 4}), ("fetch", {"id": 5})], content=None)


def test_arguments_are_the_slice_that_was_sampled() -> None:
    """vllm#9365: no re-serialisation, in either direction."""
    for arguments in ('{"city": "東京"}', '{"city":"\\u6771\\u4eac"}', '{ "n" : 1.0e+2,"b":[ ] }'):
        result = check(FORMAT, call("weather", arguments), calls=[("weather", arguments)], statuses=["ok"])
        assert result.parsed_tool_calls[0].raw_arguments == arguments


def test_unknown_tool_is_shown() -> None:
    """ollama#17274: an undeclared name is a call of that name, never an empty message."""
    text = call("Add tags", '{"ids": [3]}')
    check(
        FORMAT, text, tools=[tool("add_tags", ids="array")], calls=[("Add tags", {"ids": [3]})],
        statuses=["unknown_tool"],
    )  # fmt: skip


def test_stray_opener_before_a_call() -> None:
    """vllm#53638: what opens no call is text; the call's JSON is cut by its structure."""
    text = "<tool_call>\nLet me look at it first.\n" + call("fetch", '{"id": 8}')
    check(FORMAT, text, tools=[FETCH], calls=[("fetch", {"id": 8})], content="<tool_call>\nLet me look at it first.")


def test_plain_call() -> None:
    """drama_llama#85, the parsing side: the raw text is kept as it was sampled."""
    check(FORMAT, call("plant", '{"n": 2}'), calls=[("plant", '{"n": 2}')], content=None)


def test_keys_keep_their_order() -> None:
    """ai-sdk-provider#472."""
    arguments = '{"town": "Bern", "degree": "c", "at": null}'
    check(FORMAT, call("sky", arguments), calls=[("sky", arguments)], content=None)


# -------------------------------------------------------------------------------------------- markers are only text


@pytest.mark.parametrize(
    "value",
    [
        "</tool_call>",
        r"<tool_call>\n{\"name\": \"x\", \"arguments\": {}}\n</tool_call>",
        "</think>",
        "}}",
        "\\\\",
    ],
)
def test_no_marker_counts_in_a_string(value: str) -> None:
    arguments = f'{{"text": "a {value} b"}}'
    text = "Ok.\n" + call("say", arguments) + "\n" + call("say", '{"text": "c"}')
    check(FORMAT, text, tools=[SAY], content="Ok.", calls=[("say", arguments), ("say", '{"text": "c"}')])


@pytest.mark.parametrize(
    "text",
    [
        "Wrap it in `<tool_call>` and `</tool_call>`.",
        "The pair <tool_call></tool_call> is empty.",
        "<tool_call>no json</tool_call>",
        "<tool_call>\n[1, 2]\n</tool_call>",
        "<tool_call>{}</tool_call>",
        "A set {1, 2} <tool_call> {a, b}",
    ],
)
def test_what_opens_no_call_is_content(text: str) -> None:
    check(FORMAT, text, calls=[], content=text)


# ------------------------------------------------------------------------------------------------- shapes of a call


@pytest.mark.parametrize(
    ("body", "arguments", "status"),
    [
        ('{"arguments": {"text": "a"}, "name": "say"}', '{"text": "a"}', "ok"),
        ('{"name": "say", "parameters": {"text": "a"}}', '{"text": "a"}', "ok"),
        ('{"id": 7, "name": "say", "x": [{"name": "no"}], "arguments": {"text": "a"}}', '{"text": "a"}', "ok"),
        ('{"name": "say"}', "{}", "repaired"),
        ('{"name": "say", "arguments": null}', "{}", "repaired"),
        ('{"name": "say", "arguments": {}}', "{}", "ok"),
        ('{"name": "say", "arguments": "{\\"text\\": \\"a\\"}"}', '{"text": "a"}', "repaired"),
        ('{"name": "say", "arguments": {"text": "a",}}', '{"text": "a"}', "repaired"),
        ("{'name': 'say', 'arguments': {'text': 'a', 'b': True}}", '{"text": "a", "b": true}', "repaired"),
        ('{"name": "say", "arguments": {"text": "a\nb"}}', '{"text": "a\\nb"}', "repaired"),
        ('{"name": "s\\u0061y", "arguments": {}}', "{}", "ok"),
        ('{"name": "say", "arguments": {"text": "a", "text": "b"}}', '{ "text": "b"}', "repaired"),
        ('{"type": "function", "function": {"name": "say", "arguments": {"text": "a"}}}', '{"text": "a"}', "ok"),
        ('{"function": "say", "arguments": {"text": "a"}}', '{"text": "a"}', "ok"),
        ('```json\n{"name": "say", "arguments": {"text": "a"}}\n```', '{"text": "a"}', "ok"),
    ],
)
@pytest.mark.parametrize("gap", ["\n", ""])
def test_shapes_of_the_object(body: str, arguments: str, status: str, gap: str) -> None:
    text = f"<tool_call>{gap}{body}{gap}</tool_call>"
    check(FORMAT, text, tools=[SAY], calls=[("say", arguments)], statuses=[status], content=None)


def test_several_calls_in_one_pair_of_tags() -> None:
    one, two = '{"name": "say", "arguments": {"text": "a"}}', '{"name": "say", "arguments": {"text": "b"}}'
    expected = [("say", {"text": "a"}), ("say", {"text": "b"})]
    for body in (f"{one}\n{two}", f"[{one}, {two}]"):
        check(FORMAT, f"<tool_call>\n{body}\n</tool_call>", tools=[SAY], calls=expected, content=None)


@pytest.mark.parametrize(
    ("end", "flag"),
    [
        ("}\n</tool_call>", ()),
        ("\n</tool_call>", ("missing_closer",)),
        ("}", ("missing_closer",)),
        ("}}\n</tool_call>", ("junk_in_call",)),
    ],
)
def test_closers_that_are_missing_or_too_many(end: str, flag: tuple[str, ...]) -> None:
    text = '<tool_call>\n{"name": "say", "arguments": {"text": "a"}' + end
    result = check(FORMAT, text, tools=[SAY], calls=[("say", {"text": "a"})], content=None)
    assert result.parsed_tool_calls[0].flags == flag


def test_tags_that_are_doubled() -> None:
    text = f"<tool_call>\n{call('say', '{}')}\n</tool_call>\nWaiting."
    check(FORMAT, text, tools=[SAY], calls=[("say", {})], content="<tool_call>\nWaiting.")


def test_text_that_follows_an_unclosed_pair_is_content() -> None:
    text = call("say", '{"text": "a"}').removesuffix("</tool_call>") + "Now I wait."
    check(FORMAT, text, tools=[SAY], calls=[("say", {"text": "a"})], content="\nNow I wait.")


# ------------------------------------------------------------------------------------------ cut and unreadable calls


@pytest.mark.parametrize("cut", range(len('<tool_call>\n{"'), len(call("say", '{"text": "a}"}')) - len("</tool_call>")))
def test_cut_call_is_never_a_call(cut: int) -> None:
    text = call("say", '{"text": "a}"}')[:cut]
    result = parse(FORMAT, text, tools=[SAY], finish_reason="length")
    assert result.parsed_tool_calls == ()
    assert [c.status for c in result.incomplete_calls] == ["incomplete"]
    assert result.content is None


@pytest.mark.parametrize(
    "broken",
    [
        '{"name": "say", "arguments": {"text": "he said "no" to it"}}',  # quotes not escaped, an even number
        '{"name": "say", "arguments": {"text": "5" tall"}}',  # an odd number: the string swallows the rest
        '{"name": "say", "arguments": {"text": "open}}',
        '{"name": "say", "arguments": {"text": {"a": 1}',
        '{"name": "say", "arguments": [1]}',
        '{"name": "say", "arguments": {text: a}}',
        '{"name": 5, "arguments": {}}',
        '{"label": "say"}',
    ],
)
def test_unreadable_call_does_not_hide_what_follows(broken: str) -> None:
    text = f"<tool_call>\n{broken}\n</tool_call>\n" + call("fetch", '{"id": 1}') + "\nDone."
    result = check(
        FORMAT, text, tools=[SAY, FETCH], calls=[("fetch", {"id": 1})], content="\nDone.",
        incomplete=["say" if '"say", ' in broken else None],
    )  # fmt: skip
    assert result.incomplete_calls[0].status == "malformed"
    assert broken in result.incomplete_calls[0].raw_text


def test_second_call_that_was_cut() -> None:
    text = call("say", '{"text": "a"}') + '\n<tool_call>\n{"name": "say", "arguments": {"text": "</tool_call> b'
    check(FORMAT, text, tools=[SAY], finish_reason="length", calls=[("say", {"text": "a"})], incomplete=["say"])


# -------------------------------------------------------------------------------------------------------- reasoning


@pytest.mark.parametrize("end", ["", "\n", "\n</think>", "\n</think>\n\n"])
def test_call_at_the_end_of_reasoning_is_meant(end: str) -> None:
    text = "So be it.\n" + call("say", '{"text": "a"}') + end
    result = check(FORMAT, text, prompt_tail=THINKING, calls=[("say", {"text": "a"})], reasoning="So be it.")
    assert result.parsed_tool_calls[0].flags == ("from_reasoning",)


@pytest.mark.parametrize("draft", [call("say", '{"text": "a"}'), '<tool_call>\n{"name": "say", "arguments": {"te'])
def test_draft_in_reasoning_is_reasoning(draft: str) -> None:
    text = f"Like {draft}\nbut no.\n</think>\n\nNo call."
    check(FORMAT, text, prompt_tail=THINKING, calls=[], reasoning=f"Like {draft}\nbut no.", content="No call.")


def test_frames_are_taken_only_when_written_so() -> None:
    check(FORMAT, "<think>\nA.\n</think>\n\nB.", reasoning="A.", content="B.")
    check(FORMAT, "<think>A. </think>\nB.", reasoning="A. ", content="\nB.")
    check(FORMAT, "<think>\n\n</think>\n\nB.", reasoning=None, content="B.")
    check(FORMAT, "A.</think>B.", prompt_tail="<think>", reasoning="A.", content="B.")


def test_halves_can_be_switched_off() -> None:
    tail = call("say", '{"text": "a"}')
    text = "<think>\nHm.\n</think>\n\nYes.\n" + tail
    check(FORMAT, text, with_tool_calls=False, calls=[], reasoning="Hm.", content="Yes.\n" + tail)
    check(FORMAT, text, with_reasoning=False, reasoning=None, content=text.removesuffix("\n" + tail))
    check(FORMAT, text, with_reasoning=False, with_tool_calls=False, calls=[], content=text)


# -------------------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize(
    "unit", ['<tool_call>\n{"name": "say", "arguments": {"a": "', "<tool_call>", '"\\', call("say", "{}"), " ", "\n\n"]
)
def test_unclosed_and_repeated_markers_cost_linear_time(unit: str) -> None:
    def run(n: int) -> None:
        parser = StreamParser(FORMAT, tools=[SAY])
        for piece in ["Ok ", *[unit] * n]:
            parser.feed(piece)
        parser.finish()

    assert_linear(run, 500)
