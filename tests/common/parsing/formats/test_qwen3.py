"""`prr_qwen3`: public reports, one test each, then the kinds that they stand for."""

from __future__ import annotations

import pytest

from prr_plugins.common.parsing.stream_parser import StreamParser, parse
from tests.common.parsing.formats._helpers import assert_linear, check, tool

FORMAT = "prr_qwen3"
THINKING = "<|im_start|>assistant\n<think>\n"

SAY = tool("say", text="string")
SAVE = tool("save", path="string", text="string")


def call(name: str, *values: tuple[str, str]) -> str:
    """A call as the chat template writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


# ---------------------------------------------------------------------------------------- public reports: calls


def test_delimiters_of_ordinary_tokens() -> None:
    """vllm#58105: under a grammar the tags were sampled as sub-word tokens; the text alone decides."""
    text = call("say", ("text", "good day"))
    pieces = ["<", "tool", "_call", ">\n", "<", "function", "=say", ">\n<par", "ameter=text>\ngood"]
    rest = text.removeprefix("".join(pieces))
    check(FORMAT, text, tools=[SAY], chunks=[*pieces, rest], calls=[("say", {"text": "good day"})], content=None)


@pytest.mark.parametrize("prompt_tail", ["", THINKING])
def test_marker_in_prose_opens_nothing(prompt_tail: str) -> None:
    """vllm#56658: a quoted marker is text, in content and in reasoning."""
    text = "Every call begins with `<tool_call>`, as documented. Nothing else to add."
    if prompt_tail:
        check(FORMAT, text + "\n</think>\n\nDone.", prompt_tail=prompt_tail, calls=[], reasoning=text, content="Done.")
    else:
        check(FORMAT, text, calls=[], content=text, reasoning=None)


def test_broken_parameter_header_ends_the_good_part() -> None:
    """vllm#55495: what comes before a broken header stands; no tag leaks into a key or a value."""
    text = (
        "<tool_call>\n<function=run>\n<parameter=cmd>\nls -l\n</parameter>\n<parameter=export X=$X\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    result = check(
        FORMAT, text, tools=[tool("run", cmd="string")], calls=[("run", {"cmd": "ls -l"})], statuses=["repaired"]
    )
    assert result.parsed_tool_calls[0].flags == ("junk_in_call",)
    assert "export X=$X" in result.parsed_tool_calls[0].raw_arguments


def test_schema_alone_decides_the_type() -> None:
    """Megatron-LM#7320: `null` of a string parameter is that word; what is no boolean is not made one."""
    text = call("mark", ("title", "null"), ("loud", "perhaps"))
    tools = [tool("mark", title="string", loud="boolean")]
    check(FORMAT, text, tools=tools, calls=[("mark", {"title": "null", "loud": "perhaps"})])


def test_missing_newline_before_the_closer() -> None:
    """llama.cpp#26763: half a frame; the value ends all the same, and the next call is its own."""
    text = call("load", ("path", "one.txt")).replace("\n</parameter>", "</parameter>") + "\n"
    text += call("load", ("path", "two.txt"))
    check(
        FORMAT, text, tools=[tool("load", path="string")], content=None,
        calls=[("load", {"path": "one.txt"}), ("load", {"path": "two.txt"})],
    )  # fmt: skip


def test_frame_of_a_value_is_a_pair() -> None:
    """vllm-mlx#808: in the compact layout a trailing newline is the value's own (judgement: frames come in pairs)."""
    text = (
        "<tool_call>\n<function=save>\n<parameter=path>a.txt</parameter>\n<parameter=text>STEADY\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    check(FORMAT, text, tools=[SAVE], calls=[("save", {"path": "a.txt", "text": "STEADY\n"})])


def test_cut_inside_the_opener_is_content() -> None:
    """vllm#47137: held back text is flushed."""
    text = "One moment.\n<tool_c"
    check(FORMAT, text, finish_reason="length", calls=[], content=text)


def test_strings_keep_their_spelling() -> None:
    """mlxcel#1336: a zip code keeps its zero; only a declared number is one."""
    text = call("send", ("zip", "01067"), ("ref", "2e8"), ("note", "false"), ("count", "7.0"))
    tools = [tool("send", zip="string", ref="string", note="string", count="integer")]
    check(FORMAT, text, tools=tools, calls=[("send", '{"zip": "01067", "ref": "2e8", "note": "false", "count": 7.0}')])


def test_markers_inside_a_value() -> None:
    """Rapid-MLX#1515: closers that nothing follows are text."""
    value = "It ends at </tool_call> as a rule.\nA value at </parameter> likewise."
    text = call("save", ("path", "x.md"), ("text", value))
    check(FORMAT, text, tools=[SAVE], calls=[("save", {"path": "x.md", "text": value})])


def test_missing_parameter_closer() -> None:
    """vllm#57699: the value is whole, only its closer is missing."""
    text = '<tool_call>\n<function=tune>\n<parameter=body>\n{"level": 3, "mode": "soft"}\n</function>\n</tool_call>'
    result = check(
        FORMAT, text, tools=[tool("tune", body="object")], calls=[("tune", {"body": {"level": 3, "mode": "soft"}})]
    )
    assert result.parsed_tool_calls[0].flags == ("missing_closer",)


def test_numbers_are_sliced() -> None:
    """vllm#55743: nothing passes through a float."""
    text = call("row", ("id", "9007199254740993"), ("ratio", "4.0"), ("small", "2e3"))
    tools = [tool("row", id="number", ratio="number", small="number")]
    check(FORMAT, text, tools=tools, calls=[("row", '{"id": 9007199254740993, "ratio": 4.0, "small": 2e3}')])


# ------------------------------------------------------------------------------------ public reports: reasoning


def test_second_reasoning_closer_is_an_echo() -> None:
    """vllm#39697: a budget's end text repeats the closer; it is not shown."""
    text = "Sum it.\n</think>\n\nNo time left, the answer follows.</think>\n\nSix."
    check(FORMAT, text, prompt_tail=THINKING, reasoning="Sum it.", content="No time left, the answer follows.\n\nSix.")


@pytest.mark.parametrize("end", ["", "\n", "\n</think>", "\n</think>\n\n"])
def test_call_at_the_end_of_reasoning_is_meant(end: str) -> None:
    """vllm#39056: promoted where only closers and blanks follow, and flagged."""
    text = "That is it.\n" + call("answer", ("value", "17")) + end
    result = check(
        FORMAT, text, tools=[tool("answer", value="string")], prompt_tail=THINKING, calls=[("answer", {"value": "17"})],
        reasoning="That is it.",
    )  # fmt: skip
    assert result.parsed_tool_calls[0].flags == ("from_reasoning",)


def test_call_in_reasoning_that_was_cut_is_not_known_to_be_meant() -> None:
    text = "Maybe so:\n" + call("answer", ("value", "17"))
    check(FORMAT, text, prompt_tail=THINKING, finish_reason="length", calls=[], reasoning=text, content=None)


@pytest.mark.parametrize("rest", ["\nOr rather not.", "\n</think>\n\nI did not call it."])
def test_call_that_reasoning_goes_on_after_is_a_draft(rest: str) -> None:
    """vllm#39056, the other half: a draft is not executed."""
    draft = "Perhaps:\n" + call("answer", ("value", "17"))
    reasoning, _, content = (draft + rest).partition("\n</think>\n\n")
    check(FORMAT, draft + rest, prompt_tail=THINKING, calls=[], reasoning=reasoning, content=content or None)


def test_first_closer_ends_reasoning() -> None:
    """llama.cpp#27661: a quoted closer cannot be told from a real one (judgement: the first wins), nothing is lost."""
    text = "They call it `</think>`, that is all.\n</think>\n\nReady."
    result = check(FORMAT, text, prompt_tail=THINKING, reasoning="They call it `", calls=[])
    assert result.content == "`, that is all.\n\nReady."


def test_reasoning_that_was_cut_is_reasoning() -> None:
    """vllm#35230: the prompt opened it, so the text is no answer."""
    text = "They ask for a product. To begin"
    check(FORMAT, text, prompt_tail=THINKING, finish_reason="length", reasoning=text, content=None, calls=[])


# ----------------------------------------------------------------- public reports about prefixes: what parsing owes


def test_plain_reasoning_and_answer() -> None:
    """opencode#19081: the client drops the reasoning; the raw text keeps it, frames and all."""
    check(FORMAT, "Way B.\n</think>\n\nFine.", prompt_tail=THINKING, reasoning="Way B.", content="Fine.")


def test_values_that_the_template_would_respell() -> None:
    """MTPLX#121: `2.0` and `true` are what was sampled."""
    text = "Well.\n</think>\n\n" + call("put", ("n", "2.0"), ("on", "true"))
    tools = [tool("put", n="number", on="boolean")]
    check(FORMAT, text, tools=tools, prompt_tail=THINKING, calls=[("put", '{"n": 2.0, "on": true}')], content=None)


def test_stop_token_in_the_text_is_markup() -> None:
    """verl#6921: an engine leaves it out; where a text has it, it is no content."""
    check(FORMAT, "Fine.<|im_end|>", content="Fine.", calls=[])
    check(FORMAT, "`<|im_end|>` ends a turn.", content="`<|im_end|>` ends a turn.", calls=[])
    check(FORMAT, call("say", ("text", "a")) + "<|im_end|>", content=None, calls=[("say", {"text": "a"})])


def test_reasoning_then_call() -> None:
    """Qwen3.8#131: inside a tool chain."""
    text = "List them.\n</think>\n\n" + call("ls", ("path", ".."))
    check(FORMAT, text, prompt_tail=THINKING, reasoning="List them.", content=None, calls=[("ls", {"path": ".."})])


def test_value_keeps_all_whitespace_but_its_frame() -> None:
    """llama.cpp#21903."""
    text = "Well.\n</think>\n\n" + call("save", ("text", "\tb \n\n"))
    check(FORMAT, text, tools=[SAVE], prompt_tail=THINKING, calls=[("save", {"text": "\tb \n\n"})])


def test_keys_keep_their_order() -> None:
    """ai-sdk-provider#472, in the models of this format that fall back to JSON."""
    text = '<tool_call>\n{"name": "sky", "arguments": {"town": "Bern", "degree": "c"}}\n</tool_call>'
    check(FORMAT, text, calls=[("sky", '{"town": "Bern", "degree": "c"}')], content=None, statuses=["ok"])


def test_plain_text_is_content() -> None:
    """trl#5224."""
    check(FORMAT, "good day", content="good day", reasoning=None, calls=[])


# --------------------------------------------------------------------------------------- documents about the format


@pytest.mark.parametrize(
    "value",
    [
        "An example:\n\n" + call("ls", ("path", "/srv")) + "\n\nThat is how.",
        call("ls", ("path", "/srv"), ("deep", "no")) + "\n" + call("ls"),
        "<function=ls>\n<parameter=path>\n/srv\n</parameter>\n</function>",
        call("save", ("text", "inner:\n" + call("ls", ("path", ".")))),
        "First `<tool_call>`, then `<function=NAME>`, a `<parameter=KEY>` and `</parameter>` for each, `</function>`.",
        "<think>\nno\n</think>\n\n<tool_call>",
        "</parameter> </parameter>\n</parameter>",
    ],
)
def test_value_that_quotes_the_format(value: str) -> None:
    text = "Writing.\n\n" + call("save", ("path", "format.md"), ("text", value)) + "\n" + call("say", ("text", "done"))
    check(
        FORMAT, text, tools=[SAVE, SAY], content="Writing.",
        calls=[("save", {"path": "format.md", "text": value}), ("say", {"text": "done"})],
    )  # fmt: skip


def test_quoted_opener_that_never_closes_is_text() -> None:
    value = "A call begins so:\n<tool_call>\n<function=ls>\nand goes on."
    check(FORMAT, call("save", ("text", value)), tools=[SAVE], calls=[("save", {"text": value})])


# ------------------------------------------------------------------------------------------------ broken closers

ONE = "<tool_call>\n<function=say>\n<parameter=text>\nhigh tide"


@pytest.mark.parametrize(
    "closers",
    [
        "\n</parameter>\n</function>\n</tool_call>",
        "</parameter></function></tool_call>",
        "\n</function>\n</tool_call>",
        "\n</parameter>\n</tool_call>",
        "\n</parameter>\n</function>",
        "\n</function>",
        "\n</tool_call>",
        "</tool_call>",
    ],
)
@pytest.mark.parametrize("after", ["", "\n"])
def test_closers_that_are_missing(closers: str, after: str) -> None:
    expected = ("say", {"text": "high tide"})
    following = call("say", ("text", "low tide"))
    check(FORMAT, ONE + closers + after, tools=[SAY], calls=[expected])
    if "</tool_call>" in closers:
        check(FORMAT, ONE + closers + after + following, tools=[SAY], calls=[expected, ("say", {"text": "low tide"})])


def test_missing_closer_between_parameters() -> None:
    text = call("save", ("path", "a.txt"), ("text", "x")).replace("</parameter>\n", "", 1)
    check(FORMAT, text, tools=[SAVE], calls=[("save", {"path": "a.txt", "text": "x"})])
    unknown = text.replace("=text", "=other")  # no such parameter: it is part of the text
    check(FORMAT, unknown, tools=[SAVE], calls=[("save", {"path": "a.txt\n<parameter=other>\nx"})])


@pytest.mark.parametrize("cut", range(12, len(call("say", ("text", "high tide"))) - len("\n</tool_call>")))
def test_cut_call_is_never_a_call(cut: int) -> None:
    """L8, at every place from its opener to its last closer but one."""
    text = call("say", ("text", "high tide"))[:cut]
    result = parse(FORMAT, text, tools=[SAY], finish_reason="length")
    if not text.endswith("</function>"):
        assert result.parsed_tool_calls == ()
        assert len(result.incomplete_calls) == 1
        assert result.content is None


def test_bare_function_needs_an_offered_tool() -> None:
    text = "<function=say>\n<parameter=text>\nhi\n</parameter>\n</function>"
    result = check(FORMAT, text, tools=[SAY], calls=[("say", {"text": "hi"})])
    assert result.parsed_tool_calls[0].flags == ("no_section",)
    check(FORMAT, text, tools=[SAVE], calls=[], content=text)


def test_json_in_the_tags_is_read_as_json() -> None:
    text = '<tool_call>\n{"name": "say", "arguments": {"text": "</tool_call> <function=x>"}}\n</tool_call>'
    check(FORMAT, text, tools=[SAY], calls=[("say", {"text": "</tool_call> <function=x>"})], content=None)


@pytest.mark.parametrize("body", ['{"text": "</function> a", "n": 1e2}', "{}"])
def test_json_object_instead_of_parameters(body: str) -> None:
    text = f"<tool_call>\n<function=say>\n{body}\n</function>\n</tool_call>"
    check(FORMAT, text, tools=[SAY], calls=[("say", body)], content=None, statuses=["ok"])
    check(FORMAT, text[: text.index("}")], tools=[SAY], finish_reason="length", calls=[], incomplete=["say"])


def test_closer_that_is_doubled() -> None:
    text = call("say", ("text", "a")) + "\n</tool_call>\nWaiting."
    check(FORMAT, text, tools=[SAY], calls=[("say", {"text": "a"})], content="\nWaiting.")


def test_text_around_and_after_calls() -> None:
    text = "Before.\n\n" + call("say", ("text", "a")) + "\nBetween.\n" + call("say", ("text", "b")) + "\n\nAfter."
    check(FORMAT, text, tools=[SAY], content="Before.\nBetween.\n\nAfter.", calls=[("say", {"text": x}) for x in "ab"])


def test_repeated_parameter_keeps_the_first() -> None:
    text = call("say", ("text", "a"), ("text", "b"))
    check(FORMAT, text, tools=[SAY], calls=[("say", {"text": "a"})], statuses=["repaired"])


# ------------------------------------------------------------------------------------------------------- switches


def test_halves_can_be_switched_off() -> None:
    text = "Hm.\n</think>\n\nYes.\n" + call("say", ("text", "a"))
    check(FORMAT, text, prompt_tail=THINKING, with_tool_calls=False, calls=[], reasoning="Hm.", content=text[14:])
    check(
        FORMAT, text, prompt_tail=THINKING, with_reasoning=False, calls=[("say", {"text": "a"})], reasoning=None,
        content="Hm.\n</think>\n\nYes.",
    )  # fmt: skip
    check(FORMAT, text, prompt_tail=THINKING, with_reasoning=False, with_tool_calls=False, reasoning=None, content=text)


def test_old_reasoning_in_the_prompt_says_nothing() -> None:
    check(FORMAT, "<think>\nA.\n</think>\n\nB.", prompt_tail="<|im_start|>assistant\n", reasoning="A.", content="B.")
    check(FORMAT, "B.", prompt_tail="<|im_start|>assistant\n<think>\n\n</think>\n\n", reasoning=None, content="B.")


@pytest.mark.parametrize("unit", ["<tool_call>", "<tool_call>\n<function=ls>", "</parameter>", "\n</tool_call>", "\n"])
def test_unclosed_and_repeated_markers_cost_linear_time(unit: str) -> None:
    def run(n: int) -> None:
        parser = StreamParser(FORMAT, tools=[SAY])
        for piece in ["<tool_call>\n<function=say>\n<parameter=text>\n", *[unit] * n]:
            parser.feed(piece)
        parser.finish()

    assert_linear(run, 500)
