"""`prr_minimax_m2`: the layout of the model's own template, and what models get wrong in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prr_plugins.common.parsing.completion import ParsedCompletion
from prr_plugins.common.parsing.stream_parser import StreamParser
from tests.common.parsing.formats._helpers import assert_linear, check, tool

FORMAT = "prr_minimax_m2"
THINKING = "]~b]ai\n<think>\n"
EDIT = tool("edit", path="string", text="string", line="integer", tags="array")
NOW = tool("now")


def minimax(text: str, **expected: Any) -> ParsedCompletion:
    return check(FORMAT, text, **{"tools": [EDIT, NOW], "prompt_tail": THINKING + "</think>\n\n", **expected})


def section(*invokes: str) -> str:
    return "\n<minimax:tool_call>\n" + "".join(invokes) + "</minimax:tool_call>"


def invoke(name: str, **parameters: str) -> str:
    body = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in parameters.items())
    return f'<invoke name="{name}">\n{body}</invoke>\n'


def test_turn_as_the_template_writes_it() -> None:
    text = "Plan.\n</think>\n\nOn it." + section(invoke("edit", path="a b", line="3"), invoke("now"))
    result = minimax(
        text, prompt_tail=THINKING, reasoning="Plan.", content="On it.",
        calls=[("edit", '{"path": "a b", "line": 3}'), ("now", "{}")], statuses=["ok", "ok"],
    )  # fmt: skip
    assert "".join(text[s.start : s.end] for s in result.segments) == text


def test_values_are_exact() -> None:
    value = '\n  if a < b && c:\n\treturn "x"\n\n'
    written = section(invoke("edit", text=value, tags='["a", 1.0]'))
    minimax(written, calls=[("edit", f'{{"text": {json.dumps(value)}, "tags": ["a", 1.0]}}')], content=None)


def test_markers_in_a_value() -> None:
    value = f"Write </parameter> and </invoke> so: {section(invoke('now'))} done."
    minimax(section(invoke("edit", text=value)), calls=[("edit", {"text": value})], content=None)


@pytest.mark.parametrize("quote", ['"', "'", ""])
def test_quotes_of_names(quote: str) -> None:
    call = f"<invoke name={quote}edit{quote}><parameter name={quote}path{quote}>x</parameter></invoke>"
    minimax(f"<minimax:tool_call>{call}</minimax:tool_call>", calls=[("edit", {"path": "x"})], content=None)


def test_call_without_section() -> None:
    minimax("Ok.\n" + invoke("edit", path="x").rstrip(), calls=[("edit", {"path": "x"})], content="Ok.")
    minimax(invoke("other", path="x"), calls=[], content=invoke("other", path="x"))


def test_missing_closers() -> None:
    minimax(
        section('<invoke name="edit">\n<parameter name="path">x\n<parameter name="line">3</parameter>\n</invoke>\n'),
        calls=[("edit", {"path": "x", "line": 3})], content=None,
    )  # fmt: skip
    minimax('<minimax:tool_call>\n<invoke name="now">\n</invoke>\n', calls=[("now", {})], content=None)


@pytest.mark.parametrize(
    ("cut", "done", "name"),
    [
        ("<minimax:tool_call>\n<invo", 0, None),
        ('<minimax:tool_call>\n<invoke name="edit">\n<param', 0, "edit"),
        ('<minimax:tool_call>\n<invoke name="edit">\n<parameter name="path">x', 0, "edit"),
        ('<minimax:tool_call>\n<invoke name="now">\n</invoke>\n<invoke name="ed', 1, None),
    ],
)
def test_cut_calls(cut: str, done: int, name: str | None) -> None:
    minimax(cut, finish_reason="length", calls=[("now", {})] * done, incomplete=[name], content=None)


def test_calls_in_open_reasoning() -> None:
    meant = minimax(
        "Go." + section(invoke("now")), prompt_tail=THINKING, reasoning="Go.", calls=[("now", {})], content=None
    )
    assert meant.parsed_tool_calls[0].flags == ("from_reasoning",)
    draft = "Maybe" + section(invoke("now")) + "\nor not."
    minimax(draft + "\n</think>\n\nNo.", prompt_tail=THINKING, reasoning=draft, content="No.", calls=[])


def test_mentions_are_text() -> None:
    for text in ("Calls stand in <minimax:tool_call> tags.", 'An <invoke name="x"> opens one.'):
        minimax(text, content=text, calls=[])


def test_stop_token_in_the_text() -> None:
    minimax("Bye[e~[", content="Bye", calls=[])
    minimax(section(invoke("now")) + "[e~[", content=None, calls=[("now", {})])


def test_linear() -> None:
    head = '<minimax:tool_call>\n<invoke name="edit">\n<parameter name="text">'

    def parse(n: int) -> None:
        for text in (head * n, head + "</parameter> " * n, head + "x" * n, "<think>" * n, '<invoke name="edit">' * n):
            parser = StreamParser(FORMAT, tools=[EDIT], prompt_tail=THINKING)
            for i in range(0, len(text), 7):
                parser.feed(text[i : i + 7])
            parser.finish()

    assert_linear(parse, 300)


def test_arguments_as_one_object_without_parameters() -> None:
    made = '{"path": "</invoke>", "line": 1e0}'
    text = section(f'<invoke name="edit">\n{made}\n</invoke>\n')
    result = minimax(text, calls=[("edit", made)], statuses=["ok"])
    assert result.parsed_tool_calls[0].raw_arguments == made
