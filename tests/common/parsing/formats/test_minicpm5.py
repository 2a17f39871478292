"""`prr_minicpm5`: the layout of the model's own template, and what models get wrong in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prr_plugins.common.parsing.completion import ParsedCompletion
from prr_plugins.common.parsing.stream_parser import StreamParser
from tests.common.parsing.formats._helpers import assert_linear, check, tool

FORMAT = "prr_minicpm5"
OPEN = "<|im_start|>assistant\n"
THINKING = OPEN + "<think>\n"
EDIT = tool("edit", path="string", text="string", line="integer", tags="array", options="object", force="boolean")
NOW = tool("now")


def minicpm(text: str, **expected: Any) -> ParsedCompletion:
    return check(FORMAT, text, **{"tools": [EDIT, NOW], "prompt_tail": THINKING + "\n</think>\n\n", **expected})


def call(name: str, **values: str) -> str:
    return f'<function name="{name}">' + "".join(param(k, v) for k, v in values.items()) + "</function>"


def param(key: str, value: str) -> str:
    return f'<param name="{key}">{value}</param>'


def cdata(value: str) -> str:
    return f"<![CDATA[{value}]]>"


def test_turn_as_the_template_writes_it() -> None:
    text = "Plan.\n</think>\n\nOn it.\n" + call("edit", path=" a b ", line="3") + "\n" + call("now") + "<|im_end|>"
    result = minicpm(
        text, prompt_tail=THINKING, reasoning="Plan.", content="On it.",
        calls=[("edit", '{"path": " a b ", "line": 3}'), ("now", "{}")], statuses=["ok", "ok"],
    )  # fmt: skip
    assert "".join(text[s.start : s.end] for s in result.segments) == text


def test_the_model_opens_its_reasoning_itself() -> None:
    text = "<think>\nPlan.\n</think>\n\n" + call("now")
    minicpm(text, prompt_tail=OPEN, reasoning="Plan.", content=None, calls=[("now", {})])
    minicpm("Just so.", prompt_tail=OPEN, reasoning=None, content="Just so.", calls=[])


@pytest.mark.parametrize("value", ["", " a b\t", "0123", "True", "\"q\" 'p'", "&amp;", "]]>", "é🙂"])
def test_strings_are_exact(value: str) -> None:
    for written in (value, cdata(value)):
        minicpm(call("edit", text=written), calls=[("edit", {"text": value})], content=None, statuses=["ok"])


@pytest.mark.parametrize(
    "value",
    [
        "\n  if a < b && c:\n\treturn 1\n\n",
        "<![CDATA[inner]]>",
        "a ]]> b ]]></param> c </function> d",
        f"Write {param('x', 'y')} so.\n",
        f"A whole call:\n{call('edit', text=cdata('x < y'), line='1')}\nand text.",
        f"Twice: {call('now')} and {call('edit', path='p')}",
        "</think>",
    ],
)
def test_whatever_stands_in_cdata(value: str) -> None:
    minicpm(call("edit", text=cdata(value), line="1"), calls=[("edit", {"text": value, "line": 1})], content=None)


def test_markers_in_a_bare_value() -> None:
    value = f"Write </param> and </function> so: {call('now')} done."
    minicpm(call("edit", text=value), calls=[("edit", {"text": value})], content=None)


def test_what_is_no_string_stands_as_python_writes_it() -> None:
    minicpm(
        call("edit", tags="['a', 1.0, None]", options="{'k': True}", force="True", line="7"),
        calls=[("edit", '{"tags": ["a", 1.0, null], "options": {"k": true}, "force": true, "line": 7}')],
        statuses=["repaired"], content=None,
    )  # fmt: skip
    minicpm(
        call("edit", tags='["a", 1.0]', force="false"),
        calls=[("edit", '{"tags": ["a", 1.0], "force": false}')], statuses=["ok"],
    )  # fmt: skip


@pytest.mark.parametrize("blank", ["\n", "  ", "\n    "])
def test_an_indented_call(blank: str) -> None:
    text = f'<function name="edit">{blank}<param name="text">{blank}<![CDATA[a\nb]]>{blank}</param>{blank}</function>'
    minicpm(text, calls=[("edit", {"text": "a\nb"})], content=None, statuses=["ok"])


@pytest.mark.parametrize("quote", ['"', "'", ""])
def test_quotes_of_names(quote: str) -> None:
    text = f"<function name={quote}edit{quote}><param name={quote}path{quote}>x</param></function>"
    minicpm(text, calls=[("edit", {"path": "x"})], content=None)


def test_only_what_was_offered_is_called() -> None:
    """There is no section: the same tag may be the XML that was asked for."""
    other = call("other", path="x")
    minicpm(f"So:\n{other}", content=f"So:\n{other}", calls=[])
    minicpm(other, tools=None, calls=[("other", {"path": "x"})], content=None)


def test_missing_closers() -> None:
    for text in (
        '<function name="edit"><param name="path">x<param name="line">3</param></function>',
        '<function name="edit"><param name="path">x\n<param name="line">3</function>',
        '<function name="edit"><param name="path"><![CDATA[x]]><param name="line">3</param></function>',
        f'<function name="edit">{param("path", "x")}{param("line", "3")}{call("now")}',
    ):
        calls: list[tuple[str, dict[str, Any] | str]] = [("edit", {"path": "x", "line": 3})]
        result = minicpm(text, calls=calls + [("now", {})] * text.count("now"), content=None)
        assert result.parsed_tool_calls[0].flags == ("missing_closer",)


@pytest.mark.parametrize(
    ("cut", "done", "name"),
    [
        ("<function name=", 0, None),
        ('<function name="ed', 0, None),
        ('<function name="edit"><par', 0, None),
        ('<function name="edit"><param name="pa', 0, "edit"),
        ('<function name="edit"><param name="path">x', 0, "edit"),
        ('<function name="edit"><param name="path">x</param>', 0, "edit"),
        ('<function name="edit"><param name="text"><![CDA', 0, "edit"),
        ('<function name="edit"><param name="text"><![CDATA[x</param></function>', 0, "edit"),
        ('<function name="edit"><param name="text"><![CDATA[x]]></par', 0, "edit"),
        ('<function name="now"></function>\n<function name="ed', 1, None),
    ],
)
def test_cut_calls(cut: str, done: int, name: str | None) -> None:
    minicpm(cut, finish_reason="length", calls=[("now", {})] * done, incomplete=[name], content=None)


def test_a_tag_at_the_end_of_a_whole_text_is_text() -> None:
    for text in ("It begins with <function name=", 'Then comes <function name="edit">'):
        minicpm(text, content=text, calls=[])


def test_calls_in_open_reasoning() -> None:
    meant = minicpm("Go.\n" + call("now"), prompt_tail=THINKING, reasoning="Go.", calls=[("now", {})], content=None)
    assert meant.parsed_tool_calls[0].flags == ("from_reasoning",)
    draft = f"Maybe {call('edit', text=cdata('a'))} or not."
    minicpm(draft + "\n</think>\n\nNo.", prompt_tail=THINKING, reasoning=draft, content="No.", calls=[])
    broken = 'Maybe <function name="edit"><param name="text"><![CDATA[a'
    minicpm(broken + "\n</think>\n\nNo.", prompt_tail=THINKING, reasoning=broken, content="No.", calls=[])


def test_mentions_are_text() -> None:
    for text in (
        "Calls are written <function name=...>.",
        'An <function name="edit"> opens one.',
        "<function>now</function>",
        param("path", "x"),
    ):
        minicpm(text, content=text, calls=[])


def test_a_key_twice() -> None:
    minicpm(
        f'<function name="edit">{param("path", "a")}{param("path", "b")}</function>',
        calls=[("edit", {"path": "a"})], statuses=["repaired"],
    )  # fmt: skip


def test_junk_between_the_parameters() -> None:
    text = f'<function name="edit">{param("path", "a")}<param name=> so {param("line", "1")}</function>'
    result = minicpm(text, calls=[("edit", {"path": "a", "line": 1})], statuses=["repaired"], content=None)
    assert result.parsed_tool_calls[0].flags == ("junk_in_call",)


def test_arguments_as_one_object_without_parameters() -> None:
    made = '{"path": "</function>", "line": 1e0}'
    result = minicpm(f'<function name="edit">\n{made}\n</function>', calls=[("edit", made)], statuses=["ok"])
    assert result.parsed_tool_calls[0].raw_arguments == made


def test_stop_token_in_the_text() -> None:
    minicpm("Bye<|im_end|>", content="Bye", calls=[])
    minicpm("Bye<|im_end|>.", content="Bye<|im_end|>.", calls=[])


def test_values_of_a_megabyte_stay() -> None:
    value = "a ]] > <b> &\n" * 1000
    minicpm(call("edit", text=cdata(value)), calls=[("edit", json.dumps({"text": value}, ensure_ascii=False))])


def test_linear() -> None:
    head = '<function name="edit"><param name="text">'

    def parse(n: int) -> None:
        for text in (
            head * n,
            (head + "<![CDATA[") * n,
            head + "</param> " * n,
            head + "<![CDATA[" + "]]> " * n,
            head + "<![CDATA[" + (head + "<![CDATA[x") * n,
            head + "x" * n,
            "<think>" * n,
            '<function name="edit">' * n,
        ):
            parser = StreamParser(FORMAT, tools=[EDIT], prompt_tail=THINKING)
            for i in range(0, len(text), 7):
                parser.feed(text[i : i + 7])
            parser.finish()

    assert_linear(parse, 200)
