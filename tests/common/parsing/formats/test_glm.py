"""`prr_glm`: public reports, one test each, then the kinds that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prr_plugins.common.parsing.stream_parser import StreamParser, parse
from tests.common.parsing.formats._helpers import assert_linear, check, tool

FORMAT = "prr_glm"
THINKING = "<|assistant|><think>"

SAY = tool("say", text="string")
SAVE = tool("save", path="string", text="string")
NOW = tool("now")


def call(name: str, *values: tuple[str, str]) -> str:
    """A call in the layout of GLM-4.7 and 5.x."""
    pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values)
    return f"<tool_call>{name}{pairs}</tool_call>"


def lines(name: str, *values: tuple[str, str]) -> str:
    """A call in the layout of GLM-4.5 and 4.6."""
    pairs = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values)
    return f"<tool_call>{name}\n{pairs}</tool_call>"


layouts = pytest.mark.parametrize("write", [call, lines])


# --------------------------------------------------------------------------------------------------- public reports


def test_name_comes_once_and_whole() -> None:
    """vllm#39757: a client dispatches on the first name it sees."""
    text = call("open_in_editor", ("file", "a"))
    chunks = ["<tool_call>open_in", "_editor", text.removeprefix("<tool_call>open_in_editor")]
    tools = [tool("open_in_editor", file="string"), tool("open_in", file="string")]
    check(FORMAT, text, tools=tools, chunks=chunks, calls=[("open_in_editor", {"file": "a"})])


def test_schema_gives_the_types() -> None:
    """ds4#569: the markup has none."""
    text = call("look", ("words", "coffee"), ("most", "25"), ("not", "[]"))
    tools = [tool("look", words="string", most="number", **{"not": {"type": "array", "items": {"type": "string"}}})]
    check(FORMAT, text, tools=tools, calls=[("look", '{"words": "coffee", "most": 25, "not": []}')])


def test_quotes_and_backslashes_of_a_string_are_data() -> None:
    """sglang#28370."""
    text = call("grep", ("pattern", r'"\w+\.\d"'))
    check(FORMAT, text, tools=[tool("grep", pattern="string")], calls=[("grep", {"pattern": r'"\w+\.\d"'})])


def test_call_without_arguments_behind_reasoning() -> None:
    """vllm#44326: it is streamed as any other."""
    text = "</think><tool_call>now</tool_call>"
    check(FORMAT, text, tools=[NOW], prompt_tail=THINKING, calls=[("now", "{}")], reasoning=None, content=None)


def test_optional_string_and_array() -> None:
    """vllm#40197: a union with null is a string; an array keeps its spacing."""
    text = call("find", ("name", "Jones"), ("in", '["A","B" ]'))
    tools = [tool("find", name={"anyOf": [{"type": "string"}, {"type": "null"}]}, **{"in": "array"})]
    check(FORMAT, text, tools=tools, calls=[("find", '{"name": "Jones", "in": ["A","B" ]}')])
    check(FORMAT, call("find", ("name", "null")), tools=tools, calls=[("find", '{"name": null}')])
    check(FORMAT, call("find", ("name", "nullify")), tools=tools, calls=[("find", '{"name": "nullify"}')])


@pytest.mark.parametrize("tools", [None, [SAY]])
def test_empty_pair_is_text(tools: list[dict[str, Any]] | None) -> None:
    """vllm#46091: nothing behind it is lost (judgement: it stays visible)."""
    text = "Between <tool_call></tool_call> stands nothing. So it goes on."
    check(FORMAT, text, tools=tools, calls=[], content=text)


def test_call_without_arguments() -> None:
    """vllm#32213."""
    for text in ("<tool_call>now</tool_call>", "<tool_call>now\n</tool_call>"):
        check(FORMAT, text, tools=[NOW], calls=[("now", "{}")], content=None)


def test_any_stream_interval() -> None:
    """vllm#39253: several markers in one delta; time is linear (below)."""
    text = lines("save", ("path", "y.py"), ("text", 'b = "2"\nc = 3')) + "\n" + lines("say", ("text", "saved"))
    check(
        FORMAT, text, tools=[SAVE, SAY], content=None,
        calls=[("save", {"path": "y.py", "text": 'b = "2"\nc = 3'}), ("say", {"text": "saved"})],
    )  # fmt: skip


@pytest.mark.parametrize("value", [".<", "<", "a<<", "</arg_value", "</", "</arg_value></arg_value"])
def test_value_that_ends_like_a_marker(value: str) -> None:
    """sglang#24147."""
    text = call("grep", ("pattern", value))
    tools = [tool("grep", pattern="string")]
    check(FORMAT, text, tools=tools, chunks=list(text), calls=[("grep", {"pattern": value})])


def test_reasoning_after_a_tool_result() -> None:
    """vllm#27703: only what stands behind the last turn opener counts, and it says nothing."""
    text = "<think>I know the product.</think>It is 42."
    check(FORMAT, text, prompt_tail="<|assistant|>", reasoning="I know the product.", content="It is 42.")


@pytest.mark.parametrize("end", ["", "</think>", "</think>\n"])
def test_call_at_the_end_of_reasoning_is_meant(end: str) -> None:
    """vllm#46040."""
    text = "Let me see." + call("ls", ("path", "/srv")) + end
    result = check(
        FORMAT, text, tools=[tool("ls", path="string")], prompt_tail=THINKING, reasoning="Let me see.",
        calls=[("ls", {"path": "/srv"})],
    )  # fmt: skip
    assert result.parsed_tool_calls[0].flags == ("from_reasoning",)


@pytest.mark.parametrize("draft", [call("ls", ("path", "/srv")), "<tool_call>ls<arg_key>path</arg_key><arg_value>/s"])
def test_draft_in_reasoning_is_reasoning(draft: str) -> None:
    """vllm#46040, the other half: GLM too goes on thinking, and a draft is not executed."""
    text = f"Perhaps {draft} but no.</think>No call."
    check(FORMAT, text, prompt_tail=THINKING, calls=[], reasoning=f"Perhaps {draft} but no.", content="No call.")


@pytest.mark.parametrize("stop", ["<|observation|>", "<|user|>"])
def test_stop_token_in_the_text_is_markup(stop: str) -> None:
    """slime#1490, the parsing side: it belongs to the next turn; an engine leaves it out of the text."""
    check(FORMAT, call("say", ("text", ".")) + stop, tools=[SAY], calls=[("say", {"text": "."})], content=None)
    check(FORMAT, "Fine." + stop, calls=[], content="Fine.")


def test_nothing_at_all() -> None:
    """opencode#31348 and mlx-lm#704 have no completion: an empty one is empty."""
    check(FORMAT, "", calls=[], content=None, reasoning=None)


# -------------------------------------------------------------------------------------------------------- layouts


def test_frame_of_the_line_layout() -> None:
    """The newline behind `</think>` is a frame in GLM-4.5's layout, and text in 4.7's."""
    text = "\n<think>A.</think>\nB.\n" + lines("say", ("text", "c"))
    check(FORMAT, text, prompt_tail="<|assistant|>", reasoning="A.", content="B.", calls=[("say", {"text": "c"})])
    check(FORMAT, "\nB.", prompt_tail="<|assistant|>\n<think></think>", reasoning=None, content="B.")
    check(FORMAT, "A.</think>\nB.", prompt_tail=THINKING, reasoning="A.", content="\nB.")
    check(FORMAT, "\nB.", prompt_tail="<|assistant|></think>", reasoning=None, content="\nB.")


@layouts
def test_value_keeps_all_its_whitespace(write: Callable[..., str]) -> None:
    value = " \n a\t\n\n"
    check(FORMAT, write("say", ("text", value)), tools=[SAY], calls=[("say", {"text": value})])


@pytest.mark.parametrize("gap", ["", " ", "\n", "\n\n", "  \n  "])
def test_blanks_before_a_call_are_its_frame(gap: str) -> None:
    text = "Here." + gap + call("now") + gap + call("now") + " After."
    check(FORMAT, text, tools=[NOW], calls=[("now", {}), ("now", {})], content="Here. After.")


def test_json_in_the_tags_is_read_as_json() -> None:
    text = '<tool_call>{"name": "say", "arguments": {"text": "</arg_value></tool_call>"}}</tool_call>'
    check(FORMAT, text, tools=[SAY], calls=[("say", {"text": "</arg_value></tool_call>"})])


# ------------------------------------------------------------------------------------- what opens a call, what not


@pytest.mark.parametrize(
    "text",
    [
        "Between <tool_call> and </tool_call> stands a name.",
        "`<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key>` is how it begins.",
        "A <tool_call> tag opens it.",
        "<tool_call>\n\n</tool_call>",
    ],
)
def test_what_opens_no_call_is_content(text: str) -> None:
    check(FORMAT, text, tools=[SAY], calls=[], content=text)


def test_unknown_tool_is_shown() -> None:
    check(FORMAT, call("sing", ("a", "1")), tools=[SAY], calls=[("sing", {"a": "1"})], statuses=["unknown_tool"])
    check(FORMAT, call("sing"), tools=[SAY], calls=[("sing", {})], statuses=["unknown_tool"])


# ------------------------------------------------------------------------------------ documents about the format


@layouts
@pytest.mark.parametrize(
    "value",
    [
        "Example:\n" + call("ls", ("path", "/srv")) + "\nand so on.",
        lines("ls", ("path", "/srv"), ("deep", "no")) + "\n" + call("ls", ("path", "a")),
        call("save", ("text", call("ls", ("path", "a")))),
        "Keys stand in <arg_key> and </arg_key>, values in <arg_value> and </arg_value>, all in <tool_call>.",
        "It begins with <tool_call>ls<arg_key>path</arg_key> and goes on.",
    ],
)
def test_value_that_quotes_the_format(value: str, write: Callable[..., str]) -> None:
    text = write("save", ("path", "f.md"), ("text", value)) + "\n" + write("say", ("text", "done"))
    check(
        FORMAT, text, tools=[SAVE, SAY], content=None,
        calls=[("save", {"path": "f.md", "text": value}), ("say", {"text": "done"})],
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ broken closers

ONE = "<tool_call>say<arg_key>text</arg_key><arg_value>high tide"


@pytest.mark.parametrize("closers", ["</arg_value></tool_call>", "</tool_call>", "</arg_value>"])
def test_closers_that_are_missing(closers: str) -> None:
    following = call("say", ("text", "low tide"))
    expected = [("say", {"text": "high tide"}), ("say", {"text": "low tide"})]
    check(FORMAT, ONE + closers + following, tools=[SAY], calls=expected)
    if closers != "</arg_value>":
        check(FORMAT, ONE + closers, tools=[SAY], calls=expected[:1])


def test_closers_that_are_wrong_or_doubled() -> None:
    text = "<tool_call>say<arg_key>text</arg_value><arg_value>a</arg_value></tool_call></tool_call>Waiting."
    check(FORMAT, text, tools=[SAY], calls=[("say", {"text": "a"})], content="Waiting.")


def test_missing_closer_between_values() -> None:
    text = call("save", ("path", "a.txt"), ("text", "x")).replace("</arg_value>", "", 1)
    check(FORMAT, text, tools=[SAVE], calls=[("save", {"path": "a.txt", "text": "x"})])


@layouts
def test_cut_call_is_never_a_call(write: Callable[..., str]) -> None:
    text = write("say", ("text", "high tide"))
    for cut in range(len("<tool_call>"), len(text) - 1):
        result = parse(FORMAT, text[:cut], tools=[SAY], finish_reason="length")
        assert result.parsed_tool_calls == ()
        assert [c.status for c in result.incomplete_calls] == ["incomplete"]
        assert result.content is None


def test_cut_quotation_is_never_a_call() -> None:
    text = call("save", ("path", "f.md"), ("text", "Like " + call("ls", ("path", "a")) + " here"))
    for cut in range(len(ONE), len(text) - 1):
        result = parse(FORMAT, text[:cut], tools=[SAVE], finish_reason="length")
        assert [c.name for c in result.incomplete_calls] == ["save"], text[:cut]
        assert result.parsed_tool_calls == ()


# -------------------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("unit", ["<tool_call>", "<tool_call>ls<arg_key>", "</arg_value>", "</tool_call>", " ", "x"])
def test_unclosed_and_repeated_markers_cost_linear_time(unit: str) -> None:
    def run(n: int) -> None:
        parser = StreamParser(FORMAT, tools=[SAY])
        for piece in [ONE, *[unit] * n]:
            parser.feed(piece)
        parser.finish()

    assert_linear(run, 500)
